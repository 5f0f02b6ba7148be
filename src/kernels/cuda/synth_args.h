// What the host passes to the kernels that make synthetic weights (synth.cu): plain data.
#pragma once

#include <cstdint>

namespace granule::kernels {

// One matrix [rows, columns] of a synthetic model, as numbers: value = code * scale of its block of
// 32 columns. What the numbers mean, and the definition that these kernels repeat bit for bit, is
// in package/synth_values.h. Number(key, i) is number i of stream `key` there.
struct SynthFill {
  enum class Kind : int32_t { kTable, kHead, kProjection };
  Kind kind = Kind::kProjection;
  float scale = 1.0f;
  int64_t rows = 0;
  int64_t columns = 0;  // a multiple of 32
  uint64_t key = 0;
  // Of a table and a head alone.
  uint64_t cluster_key = 0;  // cluster c has the stream Number(cluster_key, c)
  int64_t clusters = 1;
  int64_t stride = 1;  // of a table
  // Rows of a head that are zeros: [zeros_begin, zeros_end), and all from `zeros_from` on.
  int64_t zeros_begin = 0;
  int64_t zeros_end = 0;
  int64_t zeros_from = INT64_MAX;
};

namespace cuda_args {

// One block per row; a thread makes 16 columns at a time.
struct Synth {
  SynthFill fill;
  void* to;  // 16-byte aligned
};
static_assert(sizeof(SynthFill) == 80 && sizeof(Synth) == 88, "one layout for both compilers");

inline constexpr int64_t kSynthWord = 16;   // codes that one number gives
inline constexpr int64_t kSynthBlock = 32;  // columns that share a scale

}  // namespace cuda_args
}  // namespace granule::kernels
