#include "onnx/infer.h"

#include <algorithm>

#include "onnx/checks.h"
#include "onnx/operators.h"
#include "onnx/words.h"

namespace granule::onnx {
namespace {

std::optional<Contents> ContentsOf(const Tensor& tensor) {
  if (tensor.dims.size() > 1) return std::nullopt;
  if (tensor.dtype != DType::kI64 && tensor.dtype != DType::kI32) return std::nullopt;
  const auto count = static_cast<size_t>(tensor.elements());
  if (count > kMaxContents) return std::nullopt;
  Contents contents(count);
  for (size_t i = 0; i < count; ++i) {
    contents[i].number =
        tensor.dtype == DType::kI64 ? tensor.As<int64_t>()[i] : tensor.As<int32_t>()[i];
  }
  return contents;
}

// What a rule found joins what the file declares: both may know a part, neither may contradict the
// other. A symbol that was derived from the inputs is kept over a declared one, because it says
// which dimensions are equal.
bool Contradicts(const Fact& found, const Value& value) {
  if (found.dtype && value.dtype && *value.dtype != *found.dtype) return true;
  if (!found.shape || !value.shape) return false;
  return !std::equal(
      found.shape->begin(), found.shape->end(), value.shape->begin(), value.shape->end(),
      [](const Dim& a, const Dim& b) { return !a.known() || !b.known() || a.size == b.size; });
}

void Merge(const Fact& found, Value& value) {
  if (found.dtype) value.dtype = found.dtype;
  if (found.shape && !value.shape) value.shape = found.shape;
  if (!found.shape) return;
  for (size_t i = 0; i < value.shape->size(); ++i) {
    const Dim& derived = (*found.shape)[i];
    Dim& dim = (*value.shape)[i];
    if (derived.known() || (!derived.symbol.empty() && !dim.known())) dim = derived;
  }
}

}  // namespace

const Shape* InferContext::InputShape(size_t i) const {
  const ValueId id = node_.input(i);
  if (id == kNone) return nullptr;
  const Value& value = graph_.values[static_cast<size_t>(id)];
  return value.shape ? &*value.shape : nullptr;
}

std::optional<DType> InferContext::InputType(size_t i) const {
  const ValueId id = node_.input(i);
  return id == kNone ? std::nullopt : graph_.values[static_cast<size_t>(id)].dtype;
}

const Contents* InferContext::InputContents(size_t i) const {
  const ValueId id = node_.input(i);
  if (id == kNone) return nullptr;
  const std::optional<Contents>& contents = contents_[static_cast<size_t>(id)];
  return contents ? &*contents : nullptr;
}

std::optional<std::vector<int64_t>> InferContext::InputNumbers(size_t i) const {
  const Contents* contents = InputContents(i);
  if (contents == nullptr) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const Element& element : *contents) {
    if (!element.number) return std::nullopt;
    numbers.push_back(*element.number);
  }
  return numbers;
}

InferContext::Axes InferContext::FindAxes(size_t input, std::string_view attribute) const {
  if (Has(input)) return {true, InputNumbers(input)};
  if (const Attribute* found = node_.FindAttribute(attribute)) {
    if (const auto* list = std::get_if<std::vector<int64_t>>(&found->value)) return {true, *list};
  }
  return {};
}

Result<size_t> InferContext::Normalize(int64_t axis, size_t rank) const {
  const auto signed_rank = static_cast<int64_t>(rank);
  if (axis < -signed_rank || axis >= signed_rank) {
    return InvalidInput("axis {} of a tensor with {} dimensions", axis, rank);
  }
  return static_cast<size_t>(axis < 0 ? axis + signed_rank : axis);
}

Dim DimOf(const Element& element) {
  Dim dim;
  if (element.number && *element.number >= 0) dim.size = *element.number;
  if (!element.number) dim.symbol = element.symbol;
  return dim;
}

Element ElementOf(const Dim& dim) {
  Element element;
  if (dim.known()) {
    element.number = dim.size;
  } else {
    element.symbol = dim.symbol;
  }
  return element;
}

bool Same(const Dim& a, const Dim& b) {
  if (a.known() || b.known()) return a.size == b.size;
  return !a.symbol.empty() && a.symbol == b.symbol;
}

std::optional<Shape> Broadcast(const Shape& a, const Shape& b) {
  const Shape& longer = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  Shape out = longer;
  const size_t shift = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    const Dim& x = longer[i + shift];
    const Dim& y = shorter[i];
    Dim& to = out[i + shift];
    if (x.known() && y.known()) {
      if (x.size != y.size && x.size != 1 && y.size != 1) return std::nullopt;
      to = x.size == 1 ? y : x;
    } else if (x.known() || y.known()) {
      const Dim& number = x.known() ? x : y;
      to = number.size == 1 ? (x.known() ? y : x) : number;
    } else if (!Same(x, y)) {
      to = Dim{};
    }
  }
  return out;
}

std::optional<Shape> ShapeFromVector(const InferContext& c, size_t input) {
  if (const Contents* contents = c.InputContents(input)) {
    Shape shape;
    for (const Element& element : *contents) shape.push_back(DimOf(element));
    return shape;
  }
  const Shape* vector = c.InputShape(input);
  if (vector == nullptr || vector->size() != 1 || !vector->front().known()) return std::nullopt;
  if (vector->front().size > static_cast<int64_t>(kMaxContents)) return std::nullopt;
  return Shape(static_cast<size_t>(vector->front().size));
}

Status InferShapes(Model& model) {
  Graph& graph = model.graph;
  std::vector<std::optional<Contents>> contents(graph.values.size());
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].tensor >= 0)
      contents[v] = ContentsOf(graph.tensors[static_cast<size_t>(graph.values[v].tensor)]);
  }
  for (const Node& node : graph.nodes) {
    // An operator of the same name in an unknown domain is another operator.
    if (FindOperator(node.domain, node.op) == nullptr) continue;
    InferRule rule = FindMathRule(node.op);
    if (rule == nullptr) rule = FindViewRule(node.op);
    if (rule == nullptr) rule = FindMovementRule(node.op);
    if (rule == nullptr) continue;
    InferContext context(graph, node, contents);
    if (Status s = rule(context); !s.ok()) return s.In("node " + Describe(graph, node));
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == kNone) continue;
      Fact& found = context.outputs[i];
      const auto v = static_cast<size_t>(node.outputs[i]);
      Value& value = graph.values[v];
      if (Contradicts(found, value)) {
        const Value given{.name = {}, .dtype = found.dtype, .shape = found.shape};
        return InvalidInput("node {}: its output {} is declared as {}, its inputs give {}",
                            Describe(graph, node), Quoted(value.name), Describe(value),
                            Describe(given));
      }
      Merge(found, value);
      if (found.contents && found.contents->size() <= kMaxContents)
        contents[v] = std::move(found.contents);
    }
  }
  return {};
}

}  // namespace granule::onnx
