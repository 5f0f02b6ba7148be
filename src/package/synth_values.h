// The values of a synthetic model's weights: any piece of any matrix alone, from counters.
//
// Random weights alone make poor test models: greedy text falls into loops, or hangs on differences
// that rounding decides. These are random except for the embedding and the head, which make a walk
// that cannot loop and whose every step needs the KV:
//
//   Tokens form N = V / 4 clusters of 4 members: cluster t mod N, member t / N. Each cluster has a
//   random sign vector P, each member one vector D of 4. With s(t) = cluster(t) + stride * (1 +
//   member(t)) mod N:
//     embedding of t:   5 P[s(t)] + small noise
//     head row of j:    2 P[cluster(j)] + 5 D[member(j)]
//   The residual stream carries the embedding through all layers, so the P part names the next
//   cluster by a wide margin. Which of its members wins is decided by D against everything that
//   attention and feed-forward have added: a comparison of 4 numbers that depend on every key and
//   value. The member then decides how far the walk goes on, so that one wrong step changes all
//   later ones. A step passes 1 to 4 places of a ring of N clusters: 48 steps cannot meet the same
//   cluster twice as long as N > 192, so 48 ids are 48 distinct ids.
//
// Scales: branches add up to about the embedding's size at any depth; attention scores have a
// deviation of about 3, so that single tokens matter; members' logits one of about 256, so that two
// of them come within 0.1 in one step of about a thousand.
#pragma once

#include <cstdint>
#include <span>

#include "package/decoder_graph.h"
#include "package/synth.h"

namespace granule::package {

inline constexpr int64_t kSynthBlock = 32;  // columns that share a scale

// One matrix [rows, columns]; value = code * scale of its block, codes are within [-7, 7]. Scales
// have up to 6 significant bits and codes 3, so every value is exact in fp16.
struct SynthMatrix {
  enum class Kind { kTable, kHead, kProjection } kind = Kind::kProjection;
  int64_t rows = 0;
  int64_t columns = 0;
  uint64_t key = 0;
  float scale = 1.0f;
};

// What decides the codes of the table and of the head besides their matrices, for those who compute
// them elsewhere.
struct SynthRing {
  int64_t clusters = 0;  // N
  int64_t stride = 1;
  uint64_t key = 0;            // the signs of cluster c are stream c below this one
  int64_t specials_begin = 0;  // the head's rows of these tokens are zeros,
  int64_t specials_end = 0;
  int64_t tokens = 0;  // and those from this one on, which belong to no cluster
};

class SynthValues {
 public:
  explicit SynthValues(const SynthModel& model);

  SynthMatrix Table() const;
  SynthMatrix Head() const;
  SynthMatrix Of(Projection projection, int64_t layer) const;
  SynthRing Ring() const;

  // codes of row `row`, columns [begin, begin + out.size()); both multiples of 32.
  void Codes(const SynthMatrix& matrix, int64_t row, int64_t begin, std::span<int8_t> out) const;
  float Scale(const SynthMatrix& matrix, int64_t row, int64_t block) const;

  // Element i of a norm's weight (around 1) and of a projection's bias (around 0).
  float Gamma(Norm norm, int64_t layer, int64_t i) const;
  float Bias(Projection projection, int64_t layer, int64_t i) const;

 private:
  uint64_t Key(uint64_t kind, int64_t layer) const;
  int64_t Successor(int64_t token) const;  // cluster

  const SynthModel model_;
  const int64_t clusters_;
  int64_t stride_ = 1;
};

}  // namespace granule::package
