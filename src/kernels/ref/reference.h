// Every operator in double precision, written as its definition: slow, right, and sharing nothing
// with cpu/.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "kernels/rowwise.h"

namespace granule::kernels::ref {

// One element of a float tensor, or of a row of packed unsigned codes (low half first).
double ElementOf(const void* data, DType type, int64_t i);
int CodeOf(const uint8_t* row, int bits, int64_t i);

// The matrix [n, k] row-major.
std::vector<double> Dequantize(const QuantizedWeights& weights);
std::vector<double> Dense(const DenseWeights& weights);

// y[m, n] = a[m, k] * w[n, k]^T + bias, and per output sum |a| |w| + |bias|, the size that rounding
// errors are relative to.
struct Product {
  std::vector<double> y, magnitude;
};
Product MatMul(const float* a, int64_t lda, int64_t m, const std::vector<double>& w, int64_t n,
               int64_t k, const float* bias);

// Rows of cos and sin as in the operator; x and the result [heads, head_dim] of one token.
std::vector<double> Rotate(const Rotary& rotary, int64_t position, int64_t heads, int64_t head_dim,
                           const float* x);

// One token's attention, [Hq * D], over slots [0, slot] of a view.
std::vector<double> Attend(const AttentionShape& shape, const KvView& view, int64_t slot,
                           const float* q);

std::vector<double> RmsNorm(const float* x, const float* gamma, double epsilon, int64_t width);
double Unary(kernels::Unary op, double x);
double Binary(kernels::Binary op, double x, double z);
std::vector<double> GatherQuantizedRow(const QuantizedTable& table, int64_t id);
int64_t ArgMax(const float* x, int64_t count);

}  // namespace granule::kernels::ref
