// Inside of shape inference: what a rule for one operator sees and says. infer.cc walks the graph;
// the rules are in infer_math.cc (operators that compute) and infer_movement.cc (operators that
// rearrange).
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "onnx/graph.h"

namespace granule::onnx {

using Shape = std::vector<Dim>;

// One integer of a small tensor, as far as it is known before anything runs: a number, the value of
// a symbolic dimension, or neither. Shape subgraphs (Shape -> Gather -> Concat -> Reshape) are
// followed with these.
struct Element {
  std::optional<int64_t> number;
  std::string_view symbol;
};
using Contents =
    std::vector<Element>;  // of a 0-D or 1-D integer tensor with at most kMaxContents elements
inline constexpr size_t kMaxContents = 32;

struct Fact {
  std::optional<DType> dtype;
  std::optional<Shape> shape;
  std::optional<Contents> contents;
};

class InferContext {
 public:
  InferContext(const Graph& graph, const Node& node,
               const std::vector<std::optional<Contents>>& contents)
      : outputs(node.outputs.size()), graph_(graph), node_(node), contents_(contents) {}

  const Node& node() const { return node_; }
  bool Has(size_t i) const { return node_.input(i) != kNone; }
  // nullptr where it is not known (or the input is left out).
  const Shape* InputShape(size_t i) const;
  std::optional<DType> InputType(size_t i) const;
  const Contents* InputContents(size_t i) const;
  const Tensor* InputConstant(size_t i) const { return graph_.FindConstant(node_.input(i)); }
  // All elements of an input's contents as numbers; nullopt unless each is known.
  std::optional<std::vector<int64_t>> InputNumbers(size_t i) const;

  // Axes from an attribute (old opsets) or from input i. The bool says whether they are given at
  // all; the list is missing when they are given and not known.
  struct Axes {
    bool given = false;
    std::optional<std::vector<int64_t>> list;
  };
  Axes FindAxes(size_t input, std::string_view attribute = "axes") const;
  // axis in [-rank, rank) -> [0, rank).
  Result<size_t> Normalize(int64_t axis, size_t rank) const;

  // One per output of the node; a rule fills what it can say.
  std::vector<Fact> outputs;

 private:
  const Graph& graph_;
  const Node& node_;
  const std::vector<std::optional<Contents>>& contents_;
};

// nullptr: no rule for this operator.
using InferRule = Status (*)(InferContext&);
InferRule FindMathRule(std::string_view op);
InferRule FindViewRule(std::string_view op);
InferRule FindMovementRule(std::string_view op);

inline Dim NumberDim(int64_t size) { return Dim{.size = size, .symbol = {}}; }
Dim DimOf(const Element& element);  // a negative number gives an unknown dimension
Element ElementOf(const Dim& dim);
bool Same(const Dim& a, const Dim& b);  // surely equal
// The shape that input `input` spells out; unknown dimensions, as many as the vector is long, where
// its numbers are not known; nullopt where not even its length is.
std::optional<Shape> ShapeFromVector(const InferContext& c, size_t input);
// numpy's rule; nullopt where the two contradict. What cannot be told stays unknown.
std::optional<Shape> Broadcast(const Shape& a, const Shape& b);

}  // namespace granule::onnx
