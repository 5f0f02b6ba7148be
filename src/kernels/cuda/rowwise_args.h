// What the host passes to the row-wise kernels (rowwise.cu): plain data, one struct per kernel.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace granule::kernels {

// One row of a step, in device memory, so that a captured step serves any tokens, sequences and
// lengths.
struct CudaRow {
  int32_t token = 0;
  int32_t sequence = 0;  // index into the views; -1: a padding row, which writes to no KV
  int64_t slot = 0;      // its token's slot == its position; it attends to slots [0, slot]
};

// What a gather takes its index from.
enum class CudaIndex { kToken, kSlot };

namespace cuda_args {

// y = RmsNorm(x + skip + bias), sum = x + skip + bias. One block per row.
struct Norm {
  const float* x;
  const float* skip;   // null: nothing added
  const float* bias;   // [width] or null
  const float* gamma;  // [width]
  float* sum;          // null: not wanted
  float* y;            // null: not wanted
  int64_t ldx, ld_skip, ld_sum, ldy;
  int32_t width;
  float epsilon;
  int32_t vectors;  // everything is 16-byte aligned and width % 4 == 0
};

// Grid: rows, pieces of kPiece columns.
struct BinaryOp {
  const float* x;
  const float* z;
  float* y;
  int64_t z_ld;
  int64_t width;
  int32_t op;      // kernels::Binary
  int32_t scalar;  // z[r * z_ld] for the whole row
  int32_t vectors;
};

// op over a flat range; kSiluMul multiplies by z.
inline constexpr int32_t kSiluMul = -1;
struct UnaryOp {
  const float* x;
  const float* z;
  float* y;
  int64_t count;
  int32_t op;  // kernels::Unary or kSiluMul
  int32_t vectors;
};

struct Gather {
  const void* table;
  const CudaRow* rows;
  float* y;
  int64_t table_rows, width, ldy;
  DType type;
  CudaIndex index;
  int32_t vectors;
};

struct GatherQuantized {
  const uint8_t* data;
  const uint8_t* zero_points;
  const void* scales;
  const CudaRow* rows;
  float* y;
  int64_t table_rows, width, ldy;
  int64_t block_size, blocks, row_bytes, zero_point_bytes;
  int32_t bits, is_signed, default_zero_point;
  DType scales_type;
  CudaIndex index;
};

// y[r] = x[which[r]], or x[r] where which is null. Grid: rows, pieces of kPiece columns.
struct Copy {
  const float* x;
  const int32_t* which;
  float* y;
  int64_t ldx, ldy, width;
  int32_t vectors;
};

struct ReadAll {
  const void* data;
  int64_t vectors;  // of 16 bytes
  float* sink;      // never written; keeps the reads
};

// Threads of the elementwise kernels, each of which takes 4 elements.
inline constexpr int kThreads = 256;
inline constexpr int kPiece = 4 * kThreads;

}  // namespace cuda_args
}  // namespace granule::kernels
