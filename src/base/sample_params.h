// How the next token is chosen from a row of logits.
#pragma once

#include <cstdint>

namespace granule {

// Processors apply in llama.cpp's order: temperature, top-k, top-p, min-p. temperature == 0 is greedy: the
// largest logit, the lowest id among equals, nothing else looked at.
struct SampleParams {
  float temperature = 0.0f;
  int32_t top_k = 0;     // 0 = off
  float top_p = 1.0f;    // 1 = off
  float min_p = 0.0f;    // 0 = off
  uint64_t seed = 0;
};

}  // namespace granule
