// Picking the next token on a GPU.
#pragma once

#include <cstdint>

#include "base/sample_params.h"
#include "kernels/cuda/launcher.h"
#include "kernels/cuda/sample_args.h"  // CudaSampleRow

namespace granule::kernels {

inline constexpr int64_t kMostSampledVocab = int64_t{1} << 20;

struct CudaSampleArgs {
  const float* logits = nullptr;            // [rows, vocab_size]
  int64_t rows = 0;                         // at most 65,535
  int64_t vocab_size = 0;                   // at most kMostSampledVocab
  const CudaSampleRow* settings = nullptr;  // [rows]; null: all greedy
  int32_t* ids = nullptr;                   // [rows]
  std::byte* workspace = nullptr;           // SampleWorkspaceBytes, 8-byte aligned
  uint64_t workspace_bytes = 0;
};

// ids[r] = the token picked from logits[r] by settings[r]. The rules are those of SampleParams as
// sample/sampler.h has them, except that the draw is given: the first token, in the order of the
// draw, at which the weights so far exceed `uniform` of their sum. Weights are fp32 exponentials
// summed in fixed point, where the host uses double: the two agree but for draws and limits that
// fall on a boundary to within rounding. NaN and -infinity never win while another logit is there;
// a row without any gives its first -infinity, and 0 when all are NaN.
void Sample(Launcher& launcher, const CudaSampleArgs& args);
uint64_t SampleWorkspaceBytes(int64_t rows, int64_t vocab_size);

}  // namespace granule::kernels
