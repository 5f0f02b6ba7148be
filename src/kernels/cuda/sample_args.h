// What the host passes to the sampling kernels (sample.cu): plain data.
#pragma once

#include <cstdint>

namespace granule::kernels {

// One row's settings, in device memory; SampleParams (base/sample_params.h) says what they mean and
// in which order they apply: top-k, then top-p and min-p at temperature 1, then the draw at
// `temperature`.
struct CudaSampleRow {
  float temperature = 0.0f;  // 0 = the largest logit, the lowest index among equals
  int32_t top_k = 0;         // 0 = all
  float top_p = 1.0f;
  float min_p = 0.0f;
  float uniform = 0.0f;  // in [0, 1): the draw, made by the host from the request's seed
};

namespace cuda_args {

// sample_best: grid pieces of kSamplePiece logits, rows. sample_greedy, sample_draw: grid rows.
struct Sample {
  const float* logits;  // [rows, vocab]
  const CudaSampleRow* settings;
  uint64_t* best;  // [rows, pieces]
  int32_t* ids;
  int64_t vocab;
  int32_t pieces;
  int32_t id_bits;  // a multiple of 4; every id fits
  int32_t vectors;  // rows are 16-byte aligned
};
inline constexpr int kBestThreads = 256;
inline constexpr int kSamplePiece = 8 * kBestThreads;
inline constexpr int kGreedyThreads = 128;

// sample_draw: per thread one column of each histogram.
inline constexpr int kDrawThreads = 512;
inline constexpr int kDigits = 16;
inline constexpr int kDrawList = 2048;  // tokens that fit into shared memory
inline constexpr int kDrawSharedBytes = kDrawThreads * kDigits * (8 + 2) + kDrawList * 8;

}  // namespace cuda_args
}  // namespace granule::kernels
