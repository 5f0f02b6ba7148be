// Inside of Simplify: evaluating one node over constants. simplify.cc walks the graph; the
// evaluators are in fold_math.cc (operators that compute) and fold_movement.cc (operators that
// rearrange).
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "onnx/graph.h"

namespace granule::onnx {

// What may still be allocated for folded constants.
struct FoldBudget {
  uint64_t each_bytes = 0;
  uint64_t total_bytes = 0;
};

class FoldContext {
 public:
  FoldContext(Model& model, const Node& node, FoldBudget& budget)
      : model_(model), node_(node), budget_(budget) {}

  const Node& node() const { return node_; }
  // nullptr: left out (or not a constant, which the caller excludes for all but Shape and Size).
  const Tensor* Input(size_t i) const { return model_.graph.FindConstant(node_.input(i)); }
  const Value* InputValue(size_t i) const {
    return node_.input(i) == kNone ? nullptr
                                   : &model_.graph.values[static_cast<size_t>(node_.input(i))];
  }
  // Elements of an int64 or int32 input of at most 32 elements.
  std::optional<std::vector<int64_t>> Integers(size_t i) const;
  // Axes from input i or from an attribute; an empty list where neither is there, nullopt where
  // they are no integers.
  std::optional<std::vector<int64_t>> Axes(size_t input) const;

  // A tensor with storage to be filled through `to`. nullopt for 4-bit types, for dims whose
  // product overflows, and over the budget.
  struct Made {
    Tensor tensor;
    std::span<std::byte> to;
  };
  std::optional<Made> Make(DType dtype, std::vector<int64_t> dims);

 private:
  Model& model_;
  const Node& node_;
  FoldBudget& budget_;
};

// The node's first output, or nullopt: it stays a node. Evaluators are only called for nodes that
// CheckAndSort let pass.
using Evaluator = std::optional<Tensor> (*)(FoldContext&);
Evaluator FindMathEvaluator(std::string_view op);
Evaluator FindMovementEvaluator(std::string_view op);

// Reads and writes single elements of any type but the 4-bit ones.
int64_t LoadInt(const Tensor& tensor, int64_t i);  // of int64, int32, int8, uint8, bool
float LoadFloat(const Tensor& tensor, int64_t i);  // of float32, float16, bfloat16
void StoreInt(std::span<std::byte> to, DType dtype, int64_t i, int64_t value);  // wraps
void StoreFloat(std::span<std::byte> to, DType dtype, int64_t i,
                float value);  // rounds to nearest even
inline size_t ElementBytes(DType dtype) {
  return static_cast<size_t>(BitsOf(dtype)) / 8;
}  // 0 for 4-bit types

std::optional<std::vector<int64_t>> BroadcastDims(const std::vector<int64_t>& a,
                                                  const std::vector<int64_t>& b);
// Row-major strides of `dims` in elements, seen from a result of `rank` dimensions that `dims` is
// broadcast to: 0 where a dimension is repeated.
std::vector<int64_t> BroadcastStrides(const std::vector<int64_t>& dims, size_t rank);

// Calls visit(i, offsets) for element i of a row-major tensor of `dims`, where offsets[k] = sum of
// index * strides[k].
template <size_t N, class Visit>
bool ForEachElement(const std::vector<int64_t>& dims, const std::vector<int64_t> (&strides)[N],
                    const Visit& visit) {
  int64_t count = 1;
  for (int64_t dim : dims) count *= dim;
  std::vector<int64_t> index(dims.size(), 0);
  int64_t offsets[N] = {};
  for (int64_t i = 0; i < count; ++i) {
    if (!visit(i, offsets)) return false;
    for (size_t d = dims.size(); d-- > 0;) {
      ++index[d];
      for (size_t k = 0; k < N; ++k) offsets[k] += strides[k][d];
      if (index[d] < dims[d]) break;
      for (size_t k = 0; k < N; ++k) offsets[k] -= strides[k][d] * dims[d];
      index[d] = 0;
    }
  }
  return true;
}

}  // namespace granule::onnx
