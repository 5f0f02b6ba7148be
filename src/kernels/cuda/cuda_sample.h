// Picking the next token on a GPU.
#pragma once

#include <cstdint>

#include "base/sample_params.h"
#include "kernels/cuda/launcher.h"

namespace granule::kernels {

// One row's settings, in device memory. The same rules as sample/sampler.h: temperature, then top-k,
// top-p, min-p.
struct CudaSampleRow {
  float temperature = 0.0f;  // 0 = the largest logit, the lowest index among equals
  int32_t top_k = 0;         // 0 = all
  float top_p = 1.0f;
  float min_p = 0.0f;
  float uniform = 0.0f;  // in [0, 1): the draw, made by the host from the request's seed
};

// ids[r] for r < rows: the token picked from logits[r]. NaN never wins.
uint64_t SampleWorkspaceBytes(int64_t rows, int64_t vocab_size);
struct CudaSampleArgs {
  const float* logits = nullptr;  // [rows, vocab_size]
  int64_t rows = 0;
  int64_t vocab_size = 0;
  const CudaSampleRow* settings = nullptr;  // [rows]; null: all greedy
  int32_t* ids = nullptr;                   // [rows]
  std::byte* workspace = nullptr;
  uint64_t workspace_bytes = 0;
};
void Sample(Launcher& launcher, const CudaSampleArgs& args);

}  // namespace granule::kernels
