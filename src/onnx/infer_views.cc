// Shape rules of operators that give the same elements another shape or order.
#include <algorithm>

#include "base/arith.h"
#include "onnx/infer.h"
#include "onnx/words.h"

namespace granule::onnx {
namespace {

// The dimension written as -1: what is left of the input's elements. Dimensions that appear on both
// sides cancel, so that [batch,seq,32] -> [batch,-1,4,8] is seq although neither is a number.
Dim LeftOver(Shape from, Shape to) {
  int64_t numerator = 1;
  int64_t denominator = 1;
  for (Dim& out : to) {
    if (out.known()) continue;
    const auto same =
        std::find_if(from.begin(), from.end(), [&](const Dim& in) { return Same(in, out); });
    if (same == from.end()) return Dim{};
    *same = NumberDim(1);
    out = NumberDim(1);
  }
  const Dim* symbol = nullptr;
  for (const Dim& in : from) {
    if (!in.known() && (in.symbol.empty() || symbol != nullptr)) return Dim{};
    if (!in.known()) symbol = &in;
    const auto product = CheckedMul(numerator, in.known() ? in.size : 1);
    if (!product) return Dim{};
    numerator = *product;
  }
  for (const Dim& out : to) {
    const auto product = CheckedMul(denominator, out.size);
    if (!product) return Dim{};
    denominator = *product;
  }
  if (denominator == 0 || numerator % denominator != 0) return Dim{};
  if (symbol == nullptr) return NumberDim(numerator / denominator);
  return numerator == denominator ? *symbol : Dim{};
}

std::optional<int64_t> Product(const Shape& shape) {
  int64_t product = 1;
  for (const Dim& dim : shape) {
    const auto next = dim.known() ? CheckedMul(product, dim.size) : std::nullopt;
    if (!next) return std::nullopt;
    product = *next;
  }
  return product;
}

Status Reshape(InferContext& c) {
  c.outputs[0].dtype = c.InputType(0);
  const Shape* input = c.InputShape(0);
  const Contents* target = c.InputContents(1);
  if (target == nullptr) {
    c.outputs[0].shape = ShapeFromVector(c, 1);
    return {};
  }
  const bool zero_copies = c.node().Int("allowzero", 0) == 0;
  Shape from = input != nullptr ? *input : Shape{};  // dimensions not yet accounted for
  Shape out;
  Shape rest;  // of the output, without copies and without -1
  std::optional<size_t> open;
  for (size_t i = 0; i < target->size(); ++i) {
    const Element& element = (*target)[i];
    if (element.number && *element.number < -1)
      return InvalidInput("its target shape has the dimension {}", *element.number);
    if (element.number && *element.number == -1) {
      if (open) return InvalidInput("its target shape has -1 twice");
      open = i;
      out.push_back(Dim{});
    } else if (element.number && *element.number == 0 && zero_copies) {
      if (input != nullptr && i >= input->size()) {
        return InvalidInput("its target shape copies dimension {} of {}", i, Describe(*input));
      }
      out.push_back(input != nullptr ? (*input)[i] : Dim{});
      if (input != nullptr) from[i] = NumberDim(1);
    } else {
      out.push_back(DimOf(element));
      rest.push_back(out.back());
    }
  }
  if (input != nullptr && open) out[*open] = LeftOver(from, rest);
  c.outputs[0].shape = out;
  const auto have = input != nullptr ? Product(*input) : std::nullopt;
  Shape stated = out;
  if (open && !stated[*open].known()) stated[*open] = NumberDim(1);
  const auto want = Product(stated);
  const bool fits =
      !have || !want || *have == *want || (open && !out[*open].known() && *want == 0 && *have == 0);
  if (!fits) return InvalidInput("{} elements do not fit into {}", *have, Describe(out));
  if (const Contents* contents = c.InputContents(0); contents != nullptr && out.size() <= 1) {
    c.outputs[0].contents = *contents;
  }
  return {};
}

Status Flatten(InferContext& c) {
  c.outputs[0].dtype = c.InputType(0);
  const Shape* input = c.InputShape(0);
  if (input == nullptr) return {};
  const int64_t axis = c.node().Int("axis", 1);
  if (axis < -std::ssize(*input) || axis > std::ssize(*input)) {
    return InvalidInput("axis {} of a tensor with {} dimensions", axis, input->size());
  }
  const auto split = input->begin() + (axis < 0 ? axis + std::ssize(*input) : axis);
  const auto dim = [](const std::optional<int64_t>& product) {
    return product ? NumberDim(*product) : Dim{};
  };
  c.outputs[0].shape =
      Shape{dim(Product(Shape(input->begin(), split))), dim(Product(Shape(split, input->end())))};
  return {};
}

Status Transpose(InferContext& c) {
  c.outputs[0].dtype = c.InputType(0);
  const Shape* input = c.InputShape(0);
  if (input == nullptr) return {};
  std::vector<int64_t> perm;
  if (const Attribute* attribute = c.node().FindAttribute("perm")) {
    perm = std::get<std::vector<int64_t>>(attribute->value);
  } else {
    for (auto i = std::ssize(*input); i > 0; --i) perm.push_back(i - 1);
  }
  std::vector<int64_t> sorted = perm;
  std::sort(sorted.begin(), sorted.end());
  bool is_permutation = perm.size() == input->size();
  for (size_t i = 0; i < sorted.size() && is_permutation; ++i)
    is_permutation = sorted[i] == static_cast<int64_t>(i);
  if (!is_permutation)
    return InvalidInput("perm {} is no order of the {} dimensions", Describe(perm), input->size());
  Shape out;
  for (int64_t from : perm) out.push_back((*input)[static_cast<size_t>(from)]);
  c.outputs[0].shape = std::move(out);
  return {};
}

Status Squeeze(InferContext& c) {
  c.outputs[0].dtype = c.InputType(0);
  if (const Contents* contents = c.InputContents(0)) c.outputs[0].contents = *contents;
  const Shape* input = c.InputShape(0);
  const InferContext::Axes axes = c.FindAxes(1);
  if (input == nullptr || (axes.given && !axes.list)) return {};
  std::vector<bool> drop(input->size(), false);
  if (!axes.given) {
    for (size_t i = 0; i < input->size(); ++i) {
      if (!(*input)[i].known()) return {};  // it may be 1
      drop[i] = (*input)[i].size == 1;
    }
  } else {
    for (int64_t axis : *axes.list) {
      const Result<size_t> at = c.Normalize(axis, input->size());
      if (!at.ok()) return at.status();
      if ((*input)[*at].known() && (*input)[*at].size != 1) {
        return InvalidInput("dimension {} of {} is not 1", *at, Describe(*input));
      }
      drop[*at] = true;
    }
  }
  Shape out;
  for (size_t i = 0; i < input->size(); ++i) {
    if (!drop[i]) out.push_back((*input)[i]);
  }
  c.outputs[0].shape = std::move(out);
  return {};
}

Status Unsqueeze(InferContext& c) {
  c.outputs[0].dtype = c.InputType(0);
  const Shape* input = c.InputShape(0);
  const InferContext::Axes axes = c.FindAxes(1);
  if (input == nullptr || !axes.list) return {};
  const size_t rank = input->size() + axes.list->size();
  if (rank > kMaxContents) return InvalidInput("its output would have {} dimensions", rank);
  std::vector<bool> added(rank, false);
  for (int64_t axis : *axes.list) {
    const Result<size_t> at = c.Normalize(axis, rank);
    if (!at.ok()) return at.status();
    if (added[*at]) return InvalidInput("axis {} is given twice", axis);
    added[*at] = true;
  }
  Shape out;
  auto next = input->begin();
  for (size_t i = 0; i < rank; ++i) out.push_back(added[i] ? NumberDim(1) : *next++);
  if (const Contents* contents = c.InputContents(0); contents != nullptr && rank <= 1)
    c.outputs[0].contents = *contents;
  c.outputs[0].shape = std::move(out);
  return {};
}

struct Row {
  std::string_view op;
  InferRule rule;
};
constexpr Row kRules[] = {{"Flatten", Flatten},
                          {"Reshape", Reshape},
                          {"Squeeze", Squeeze},
                          {"Transpose", Transpose},
                          {"Unsqueeze", Unsqueeze}};

}  // namespace

InferRule FindViewRule(std::string_view op) {
  const auto row =
      std::find_if(std::begin(kRules), std::end(kRules), [&](const Row& r) { return r.op == op; });
  return row == std::end(kRules) ? nullptr : row->rule;
}

}  // namespace granule::onnx
