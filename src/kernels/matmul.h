// Matrix products with constant weights: MatMulNBits (4 and 8 bit) and MatMul with fp32, fp16 or
// bf16 weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/kernels.h"

namespace granule::kernels {

// Source of a quantised matrix as MatMulNBits has it; see the operator's specification in
// microsoft/onnxruntime.
//   value[n,k] = (q[n,k] - zero_point[n,block of k]) * scale[n,block of k]
struct QuantizedWeights {
  int64_t n = 0, k = 0;
  int bits = 4;                  // 4 or 8
  int64_t block_size = 32;       // power of two >= 16
  const uint8_t* q = nullptr;    // [n, k_blocks, block_size * bits / 8], low half first
  const void* scales = nullptr;  // [n, k_blocks] of scales_type
  DType scales_type = DType::kF32;
  // 2^(bits-1); [n, ceil(k_blocks*bits/8)] bytes; [n, k_blocks] of zero_points_type.
  enum class ZeroPoints { kDefault, kPacked, kFloat };
  ZeroPoints zero_points_kind = ZeroPoints::kDefault;
  const void* zero_points = nullptr;
  DType zero_points_type = DType::kF32;
};

struct DenseWeights {
  int64_t n = 0, k = 0;
  const void* data = nullptr;
  DType dtype = DType::kF32;  // kF32, kF16, kBF16
  bool transposed = false;    // false: [k, n] as MatMul has it; true: [n, k]
};

// A weight matrix in the layout that all levels share (kernels/cpu/packing.h). Immutable, shareable
// between threads.
class PackedMatrix {
 public:
  // Sizes were checked by the caller against the tensors' bytes. Fails only for lack of memory.
  // Runs on the pool. The memory comes from context.weights.
  static Result<std::shared_ptr<const PackedMatrix>> Pack(const Context& context,
                                                          const QuantizedWeights& weights);
  static Result<std::shared_ptr<const PackedMatrix>> Pack(const Context& context,
                                                          const DenseWeights& weights);
  ~PackedMatrix();

  int64_t n() const;
  int64_t k() const;
  uint64_t bytes() const;  // of the packed copy

  // Row n as fp32, the very values that the products use. For GatherBlockQuantized on a tied table,
  // and tests.
  void DequantizeRow(int64_t n, float* out) const;

  struct Data;
  const Data& data() const { return *data_; }

 private:
  PackedMatrix();
  std::unique_ptr<Data> data_;
};

// One of several products with the same left side.
struct MatMulOutput {
  const PackedMatrix* weights = nullptr;
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;           // [m, n]
  int64_t ldy = 0;              // floats from row to row
};

// y_i[m,n] = a[m,k] * W_i[n,k]^T (+ bias_i). All W_i have the same k. One parallel loop over
// everything. a: [m, k], lda >= k floats from row to row. No allocation (scratch belongs to the
// threads, made once).
void MatMul(const Context& context, const float* a, int64_t lda, int64_t m,
            std::span<const MatMulOutput> outputs);

}  // namespace granule::kernels
