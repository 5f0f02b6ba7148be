#include "sample/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace granule::sample {
namespace {

// Index of the largest logit, the first among equals, NaN aside; 0 when there is none.
int32_t Greedy(std::span<const float> logits) {
  size_t best = logits.size();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) continue;
    if (best == logits.size() || logits[i] > logits[best]) best = i;
  }
  return best < logits.size() ? static_cast<int32_t>(best) : 0;
}

// e^x for x <= 0, relative error below 1e-15. Additions and multiplications only, so that the last
// bit does not depend on the machine's libm: x = k ln 2 + r with |r| <= ln 2 / 2, a Taylor
// polynomial of degree 13 for e^r, and 2^k put into the exponent.
double ExpOfNegative(double x) {
  if (!(x > -708.0)) return 0.0;  // below the normal numbers
  constexpr double kLog2E = 1.44269504088896338700;
  constexpr double kLn2High = 6.93147180369123816490e-01;  // upper 33 bits: k * high is exact
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  const auto k = static_cast<int64_t>(x * kLog2E - 0.5);
  const auto n = static_cast<double>(k);
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double sum = 1.0;
  for (int i = 13; i >= 1; --i) sum = 1.0 + sum * r / i;
  return sum * std::bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52);
}

// Weyl sequence and the finaliser of SplitMix64: every bit of the seed and of the counter reaches
// every bit of the result.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

}  // namespace

Status Validate(const SampleParams& params) {
  if (!(params.temperature >= 0) || !std::isfinite(params.temperature)) {
    return Error(Code::kUsage,
                 "temperature is {}; it must be a finite number of at least 0 (0 = greedy)",
                 params.temperature);
  }
  if (params.top_k < 0) {
    return Error(Code::kUsage, "top-k is {}; it must be at least 0 (0 = off)", params.top_k);
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return Error(Code::kUsage, "top-p is {}; it must be above 0 and at most 1 (1 = off)",
                 params.top_p);
  }
  if (!(params.min_p >= 0 && params.min_p <= 1)) {
    return Error(Code::kUsage, "min-p is {}; it must be from 0 to 1 (0 = off)", params.min_p);
  }
  return {};
}

int32_t Sampler::Sample(std::span<const float> logits) {
  if (!(params_.temperature > 0)) return Greedy(logits);
  Collect(logits);
  if (candidates_.empty()) return Greedy(logits);
  if (params_.top_k > 0) KeepTopK(static_cast<size_t>(params_.top_k));
  if (params_.top_p < 1) KeepTopP(params_.top_p);
  if (params_.min_p > 0) KeepMinP(params_.min_p);
  return Draw();
}

bool Sampler::Likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Everything that can be chosen, by ascending id, weighted at temperature 1.
void Sampler::Collect(std::span<const float> logits) {
  candidates_.clear();
  candidates_.reserve(logits.size());
  largest_ = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    // +infinity would make differences NaN; the largest number serves as well.
    const float logit = std::min(logits[i], std::numeric_limits<float>::max());
    if (!(logit > -std::numeric_limits<float>::infinity())) continue;  // NaN too
    candidates_.push_back({0.0, logit, static_cast<int32_t>(i)});
    largest_ = std::max(largest_, logit);
  }
  for (Candidate& c : candidates_) c.weight = ExpOfNegative(double{c.logit} - largest_);
}

void Sampler::KeepTopK(size_t k) {
  if (k >= candidates_.size()) return;
  const auto end = candidates_.begin() + static_cast<ptrdiff_t>(k);
  std::nth_element(candidates_.begin(), end, candidates_.end(), Likelier);
  candidates_.erase(end, candidates_.end());
  // Selection leaves an order of its own; the draw needs one that is the same everywhere.
  std::sort(candidates_.begin(), candidates_.end(), Likelier);
}

// Sorts no more than it needs: the likeliest few hundred hold the mass almost always.
void Sampler::KeepTopP(double p) {
  double total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  const double wanted = p * total;
  double held = 0;
  size_t sorted = 0;
  for (size_t block = 256; sorted < candidates_.size(); block *= 4) {
    const size_t end = std::min(candidates_.size(), sorted + block);
    const auto first = candidates_.begin() + static_cast<ptrdiff_t>(sorted);
    const auto last = candidates_.begin() + static_cast<ptrdiff_t>(end);
    if (last != candidates_.end()) std::nth_element(first, last, candidates_.end(), Likelier);
    std::sort(first, last, Likelier);
    for (; sorted < end; ++sorted) {
      held += candidates_[sorted].weight;
      if (held >= wanted) {
        candidates_.resize(sorted + 1);
        return;
      }
    }
  }
}

void Sampler::KeepMinP(double p) {
  // The likeliest has weight 1, and p is at most 1: it stays.
  std::erase_if(candidates_, [p](const Candidate& c) { return c.weight < p; });
}

int32_t Sampler::Draw() {
  double total = 0;
  for (Candidate& c : candidates_) {
    c.weight = ExpOfNegative((double{c.logit} - largest_) / params_.temperature);
    total += c.weight;
  }
  double left = Uniform() * total;
  int32_t chosen = candidates_.front().id;
  for (const Candidate& c : candidates_) {
    if (c.weight <= 0) continue;
    chosen = c.id;  // also when rounding leaves a little at the end
    left -= c.weight;
    if (left < 0) break;
  }
  return chosen;
}

double Sampler::Uniform() {
  const uint64_t bits = Mix(Mix(params_.seed) ^ Mix(~draws_));
  ++draws_;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace granule::sample
