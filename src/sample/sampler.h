// Chooses the next token from a row of logits on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/sample_params.h"
#include "base/status.h"

namespace granule::sample {

// kUsage, naming the value and its range: temperature finite and at least 0, top_k at least 0,
// top_p in (0, 1], min_p in [0, 1].
Status Validate(const SampleParams& params);

// The draws of one sequence. Draw n of a seed is the same number on every machine, and so is the
// token it picks from a given row: the arithmetic is plain IEEE double in a fixed order, with an
// exponential of its own.
class Sampler {
 public:
  // The params must be valid.
  explicit Sampler(const SampleParams& params) : params_(params) {}

  // The id of the chosen token of logits [V]. NaN and -infinity are never chosen while another
  // logit is there. A row without any: the first -infinity, and 0 when all are NaN or the row is
  // empty. Allocates only on the first call and when V grows.
  int32_t Sample(std::span<const float> logits);

  uint64_t draws() const { return draws_; }

 private:
  struct Candidate {
    double weight;
    float logit;
    int32_t id;
  };
  static bool Likelier(const Candidate& a, const Candidate& b);

  void Collect(std::span<const float> logits);
  void KeepTopK(size_t k);
  void KeepTopP(double p);
  void KeepMinP(double p);
  int32_t Draw();
  double Uniform();  // [0, 1)

  const SampleParams params_;
  uint64_t draws_ = 0;
  std::vector<Candidate> candidates_;
  float largest_ = 0;  // logit of the likeliest candidate
};

}  // namespace granule::sample
