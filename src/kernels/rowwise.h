// Operators that treat every row (token) alone.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "kernels/kernels.h"

namespace granule::kernels {

// y = x / sqrt(mean(x^2) + epsilon) * gamma.   x, y: [R, H]; gamma: [H]. y may be x.
void RmsNorm(const Context& context, const float* x, int64_t ldx, const float* gamma, float epsilon,
             int64_t rows, int64_t width, float* y, int64_t ldy);

// sum = x + skip (+ bias);  y = RmsNorm(sum).  y or sum may be null (not wanted); sum may be x or
// skip.
struct SkipRmsNormArgs {
  const float* x = nullptr;
  const float* skip = nullptr;
  const float* bias = nullptr;  // [H] or null
  const float* gamma = nullptr;
  float epsilon = 0.0f;
  int64_t rows = 0;
  int64_t width = 0;
  float* y = nullptr;
  float* sum = nullptr;
};  // all matrices dense [R, H]
void SkipRmsNorm(const Context& context, const SkipRmsNormArgs& args);

enum class Binary { kAdd, kSub, kMul, kDiv };
// y[r,i] = x[r,i] op z[r,i], or z[i] for every row where z_ld == 0 (a constant row), or z[0] where
// z_width == 1. y may be x or z.
void Elementwise(const Context& context, Binary op, const float* x, const float* z, int64_t z_ld,
                 int64_t z_width, int64_t rows, int64_t width, float* y);

enum class Unary { kSigmoid, kSilu, kTanh, kNeg };
void Elementwise(const Context& context, Unary op, const float* x, int64_t count, float* y);

// y = silu(gate) * up, silu(x) = x / (1 + exp(-x)).  y may be gate or up.
void SiluMul(const Context& context, const float* gate, const float* up, int64_t count, float* y);

// Rounds every element to fp16 or bf16 and back: what a Cast pair of the graph does to values.
void RoundTo(const Context& context, DType type, const float* x, int64_t count, float* y);

// Row ids[r] of a table [V, H] of fp32/fp16/bf16 as fp32. Ids outside [0, V) give zeros (the caller
// refused them before).
void GatherRows(const Context& context, const void* table, DType type, int64_t table_rows,
                int64_t width, std::span<const int64_t> ids, float* y, int64_t ldy);

// GatherBlockQuantized along axis 0, blocks along axis 1. Sources as in the operator: data [V,
// H*bits/8] bytes.
struct QuantizedTable {
  int64_t rows = 0, width = 0;
  int bits = 4;
  int64_t block_size = 32;
  const uint8_t* data = nullptr;  // unsigned codes, low half first
  bool is_signed = false;  // int4/int8 element type: two's complement codes, default zero point 0
  const void* scales = nullptr;  // [rows, ceil(width/block_size)] of scales_type
  DType scales_type = DType::kF32;
  const uint8_t* zero_points = nullptr;  // [rows, ceil(blocks*bits/8)] bytes, or null
  // What null means: 0 for signed and for a uint4 element type, 2^(bits-1) for packed uint8.
  int default_zero_point = 8;
};
void GatherQuantizedRows(const Context& context, const QuantizedTable& table,
                         std::span<const int64_t> ids, float* y, int64_t ldy);

// The largest element, the lowest index among equals; NaN never wins (all NaN: 0).
int32_t ArgMax(const Context& context, const float* x, int64_t count);

// Measured ceilings of this machine with this pool: bytes per second of a read of `bytes` of
// memory, fp32 multiply-adds (counted as 2) per second. Take tenths of a second each.
double MeasureReadCeiling(const Context& context, uint64_t bytes);
double MeasureFmaCeiling(const Context& context);

}  // namespace granule::kernels
