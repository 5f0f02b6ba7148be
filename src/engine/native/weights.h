// Constants of the graph as the kernels want them.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "engine/native/plan.h"
#include "kernels/kernels.h"
#include "onnx/graph.h"

namespace granule::engine {

// A weight matrix or table after looking through Cast (to a wider float), Transpose and Identity.
struct ConstantView {
  const onnx::Tensor* tensor = nullptr;
  bool transposed = false;
};

class Weights {
 public:
  // `kernels` null: sizes are checked, nothing is packed.
  Weights(const onnx::Model& model, const kernels::Context* kernels, Plan& plan);

  // The constant behind a value, or none.
  ConstantView Find(onnx::ValueId value) const;

  // fp32 numbers of a constant of any float type; lives as long as the model and the plan.
  Result<const float*> Floats(onnx::ValueId value, int64_t expected_elements);

  // A checked source, and what was packed from it (null where nothing is packed).
  struct Matrix {
    WeightSource source;
    std::shared_ptr<const kernels::PackedMatrix> packed;
    int64_t n = 0, k = 0;
  };
  // MatMul with a constant right side [K, N].
  Result<Matrix> Dense(const onnx::Node& node);
  // MatMulNBits.
  Result<Matrix> Quantized(const onnx::Node& node);
  // GatherBlockQuantized.
  Result<kernels::QuantizedTable> Table(const onnx::Node& node);

  uint64_t packed_bytes() const { return packed_bytes_; }

 private:
  using Packed = std::shared_ptr<const kernels::PackedMatrix>;
  // Packs once per source tensor: tied weights share one copy.
  template <class Source>
  Result<Matrix> PackOnce(const onnx::Tensor& key, const Source& source);
  void Release(const onnx::Tensor& tensor) const;

  const onnx::Model& model_;
  const kernels::Context* kernels_;
  Plan& plan_;
  std::vector<int32_t> producer_;  // of each value: node index or -1
  std::unordered_map<const void*, Packed> packed_;
  std::unordered_map<const void*, const float*> floats_;
  uint64_t packed_bytes_ = 0;
};

}  // namespace granule::engine
