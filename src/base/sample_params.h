// How the next token is chosen from a row of logits.
#pragma once

#include <cstdint>

namespace granule {

// What is set applies in llama.cpp's default order: top-k, top-p, min-p, temperature. So top-p and
// min-p look at the probabilities of temperature 1 among what top-k left, and the temperature only
// shapes the draw among the tokens that remain.
//
// temperature == 0 is greedy: the largest logit, the lowest id among equals, nothing else looked
// at. sample/sampler.h has the ranges (Validate).
struct SampleParams {
  float temperature = 0.0f;
  int32_t top_k = 0;   // keep the k likeliest; 0 = off
  float top_p = 1.0f;  // keep the fewest likeliest that together have this probability; 1 = off
  float min_p = 0.0f;  // drop what has less than this share of the likeliest's probability; 0 = off
  uint64_t seed = 0;
};

}  // namespace granule
