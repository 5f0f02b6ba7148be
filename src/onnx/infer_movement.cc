// Shape rules of operators that rearrange: views, cuts, joins, lookups, and tensors made from a
// shape.
#include <algorithm>
#include <limits>

#include "base/arith.h"
#include "onnx/infer.h"
#include "onnx/words.h"

namespace granule::onnx {
namespace {

Status Identity(InferContext& c) {
  c.outputs[0].dtype = c.InputType(0);
  if (const Shape* shape = c.InputShape(0)) c.outputs[0].shape = *shape;
  if (const Contents* contents = c.InputContents(0)) c.outputs[0].contents = *contents;
  return {};
}

// Simplify turns most Constant nodes into tensors; this is for graphs that were not simplified.
Status Constant(InferContext& c) {
  Fact& out = c.outputs[0];
  for (const Attribute& attribute : c.node().attributes) {
    if (const auto* tensor = std::get_if<Tensor>(&attribute.value)) {
      out.dtype = tensor->dtype;
      out.shape.emplace();
      for (int64_t dim : tensor->dims) out.shape->push_back(NumberDim(dim));
      const size_t count = static_cast<size_t>(tensor->elements());
      if (tensor->dtype == DType::kI64 && tensor->dims.size() <= 1 && count <= kMaxContents) {
        out.contents.emplace();
        for (int64_t number : tensor->As<int64_t>()) out.contents->push_back({number, {}});
      }
    } else if (const auto* number = std::get_if<int64_t>(&attribute.value)) {
      out = {DType::kI64, Shape{}, Contents{{*number, {}}}};
    } else if (const auto* numbers = std::get_if<std::vector<int64_t>>(&attribute.value)) {
      out = {DType::kI64, Shape{NumberDim(std::ssize(*numbers))}, Contents{}};
      for (int64_t n : *numbers) out.contents->push_back({n, {}});
    } else if (std::holds_alternative<float>(attribute.value)) {
      out = {DType::kF32, Shape{}, std::nullopt};
    } else if (const auto* floats = std::get_if<std::vector<float>>(&attribute.value)) {
      out = {DType::kF32, Shape{NumberDim(std::ssize(*floats))}, std::nullopt};
    }
  }
  return {};
}

Status ShapeOf(InferContext& c) {
  c.outputs[0].dtype = DType::kI64;
  const Shape* input = c.InputShape(0);
  if (input == nullptr) return {};
  const auto rank = std::ssize(*input);
  const auto clamp = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const int64_t start = clamp(c.node().Int("start", 0));
  const int64_t end = std::max(start, clamp(c.node().Int("end", rank)));
  c.outputs[0].contents.emplace();
  for (int64_t i = start; i < end; ++i) {
    c.outputs[0].contents->push_back(ElementOf((*input)[static_cast<size_t>(i)]));
  }
  c.outputs[0].shape = Shape{NumberDim(end - start)};
  return {};
}

Status SizeOf(InferContext& c) {
  c.outputs[0].dtype = DType::kI64;
  c.outputs[0].shape = Shape{};
  return {};
}

// Unknown dimensions of a tensor whose shape is computed: as many as the shape vector is long.
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

Status Concat(InferContext& c) {
  std::optional<Shape> out;
  Contents contents;
  bool contents_known = true;
  size_t axis = 0;
  for (size_t i = 0; i < c.node().inputs.size(); ++i) {
    const auto type = c.InputType(i);
    auto& dtype = c.outputs[0].dtype;
    if (type && dtype && *type != *dtype)
      return InvalidInput("its inputs are {} and {}", DTypeName(*dtype), DTypeName(*type));
    if (type) dtype = type;
    const Contents* part = c.InputContents(i);
    contents_known =
        contents_known && part != nullptr && contents.size() + part->size() <= kMaxContents;
    if (contents_known) contents.insert(contents.end(), part->begin(), part->end());
  }
  for (size_t i = 0; i < c.node().inputs.size(); ++i) {
    const Shape* shape = c.InputShape(i);
    if (shape == nullptr) return {};
    if (!out) {
      const Result<size_t> at = c.Normalize(c.node().Int("axis", 0), shape->size());
      if (!at.ok()) return at.status();
      axis = *at;
      out = *shape;
      continue;
    }
    bool fits = shape->size() == out->size();
    for (size_t d = 0; fits && d < out->size(); ++d) {
      Dim& to = (*out)[d];
      const Dim& from = (*shape)[d];
      if (d == axis) {
        const auto sum = to.known() && from.known() ? CheckedAdd(to.size, from.size) : std::nullopt;
        to = sum ? NumberDim(*sum) : Dim{};
      } else {
        fits = !to.known() || !from.known() || to.size == from.size;
        if (!to.known() && (from.known() || to.symbol.empty())) to = from;
      }
    }
    if (!fits)
      return InvalidInput("shapes {} and {} cannot be joined along axis {}", Describe(*out),
                          Describe(*shape), axis);
  }
  if (contents_known && out && out->size() == 1) c.outputs[0].contents = std::move(contents);
  c.outputs[0].shape = std::move(out);
  return {};
}

Status Split(InferContext& c) {
  for (Fact& out : c.outputs) out.dtype = c.InputType(0);
  const Shape* input = c.InputShape(0);
  if (input == nullptr) return {};
  const Result<size_t> axis = c.Normalize(c.node().Int("axis", 0), input->size());
  if (!axis.ok()) return axis.status();
  const InferContext::Axes sizes = c.FindAxes(1, "split");
  const Dim whole = (*input)[*axis];
  const auto parts = std::ssize(c.outputs);
  for (Fact& out : c.outputs) {
    out.shape = *input;
    (*out.shape)[*axis] = Dim{};
  }
  if (sizes.given) {
    if (!sizes.list) return {};
    if (std::ssize(*sizes.list) != parts)
      return InvalidInput("{} sizes for {} outputs", sizes.list->size(), parts);
    int64_t sum = 0;
    for (int64_t size : *sizes.list) {
      const auto next = size < 0 ? std::nullopt : CheckedAdd(sum, size);
      if (!next) return InvalidInput("its sizes {} are no sizes", Describe(*sizes.list));
      sum = *next;
    }
    if (whole.known() && sum != whole.size) {
      return InvalidInput("its sizes {} do not add up to {}", Describe(*sizes.list), whole.size);
    }
    for (size_t i = 0; i < c.outputs.size(); ++i)
      (*c.outputs[i].shape)[*axis] = NumberDim((*sizes.list)[i]);
    return {};
  }
  if (!whole.known()) return {};
  // Equal parts; the last one is smaller where they do not divide.
  const int64_t each = CeilDiv<int64_t>(whole.size, parts);
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t left = std::max<int64_t>(0, whole.size - i * each);
    (*c.outputs[static_cast<size_t>(i)].shape)[*axis] = NumberDim(std::min(each, left));
  }
  return {};
}

// Elements of [0, size) that start, start + step, ... up to end pick, with Slice's clamping.
int64_t SliceLength(int64_t size, int64_t& start, int64_t end, int64_t step) {
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? size : size - 1;
  const auto clamp = [&](int64_t at) {
    return std::clamp(at < 0 ? std::max(at + size, low) : at, low, high);
  };
  start = clamp(start);
  const int64_t stop = clamp(end);
  const int64_t span = step > 0 ? stop - start : start - stop;
  if (span <= 0) return 0;
  const uint64_t stride =
      step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  return static_cast<int64_t>(CeilDiv(static_cast<uint64_t>(span), stride));
}

Status Slice(InferContext& c) {
  c.outputs[0].dtype = c.InputType(0);
  const Shape* input = c.InputShape(0);
  const InferContext::Axes starts = c.FindAxes(1, "starts");
  const InferContext::Axes ends = c.FindAxes(2, "ends");
  const InferContext::Axes axes = c.FindAxes(3);
  const auto steps = c.Has(4) ? c.InputNumbers(4) : std::vector<int64_t>(kMaxContents, 1);
  if (!starts.given || !ends.given) return InvalidInput("it has no starts or no ends");
  if (input == nullptr || (axes.given && !axes.list)) return {};
  const bool known = starts.list && ends.list && steps;
  size_t count = axes.list ? axes.list->size() : starts.list ? starts.list->size() : input->size();
  if (known && (ends.list->size() != starts.list->size() || count != starts.list->size() ||
                steps->size() < count)) {
    return InvalidInput("its starts, ends, axes and steps are of different lengths");
  }
  Shape out = *input;
  for (size_t i = 0; i < count; ++i) {
    const Result<size_t> axis =
        c.Normalize(axes.list ? (*axes.list)[i] : static_cast<int64_t>(i), out.size());
    if (!axis.ok()) return axis.status();
    const Dim whole = (*input)[*axis];
    out[*axis] = Dim{};
    if (!known) continue;
    int64_t start = (*starts.list)[i];
    const int64_t end = (*ends.list)[i];
    const int64_t step = (*steps)[i];
    if (step == 0) return InvalidInput("its step is 0");
    const bool is_whole = start == 0 && step == 1 && end >= std::numeric_limits<int32_t>::max();
    if (whole.known()) out[*axis] = NumberDim(SliceLength(whole.size, start, end, step));
    if (!whole.known() && is_whole) out[*axis] = whole;
    const Contents* contents = c.InputContents(0);
    if (contents == nullptr || !out[*axis].known() || input->size() != 1) continue;
    c.outputs[0].contents.emplace();
    for (int64_t k = 0; k < out[*axis].size; ++k) {  // k * step stays inside of the contents
      c.outputs[0].contents->push_back((*contents)[static_cast<size_t>(start + k * step)]);
    }
  }
  c.outputs[0].shape = std::move(out);
  return {};
}

Status Gather(InferContext& c) {
  c.outputs[0].dtype = c.InputType(0);
  const Shape* data = c.InputShape(0);
  const Shape* indices = c.InputShape(1);
  if (data == nullptr || indices == nullptr) return {};
  const Result<size_t> axis = c.Normalize(c.node().Int("axis", 0), data->size());
  if (!axis.ok()) return axis.status();
  Shape out(data->begin(), data->begin() + static_cast<std::ptrdiff_t>(*axis));
  out.insert(out.end(), indices->begin(), indices->end());
  out.insert(out.end(), data->begin() + static_cast<std::ptrdiff_t>(*axis) + 1, data->end());
  if (out.size() > kMaxContents)
    return InvalidInput("its output would have {} dimensions", out.size());
  c.outputs[0].shape = std::move(out);
  const Contents* contents = c.InputContents(0);
  const auto numbers = c.InputNumbers(1);
  if (contents == nullptr || !numbers || data->size() != 1) return {};
  Contents picked;
  for (int64_t number : *numbers) {
    const Result<size_t> at = c.Normalize(number, contents->size());
    if (!at.ok()) return InvalidInput("index {} of {} elements", number, contents->size());
    picked.push_back((*contents)[*at]);
  }
  c.outputs[0].contents = std::move(picked);
  return {};
}

// data [V, H] in 4-bit types, or [V, H * bits / 8] packed into uint8; indices [...]; scales give
// the type.
Status GatherBlockQuantized(InferContext& c) {
  c.outputs[0].dtype = c.InputType(2);
  const Shape* data = c.InputShape(0);
  const Shape* indices = c.InputShape(1);
  if (data == nullptr || indices == nullptr) return {};
  if (data->empty()) return InvalidInput("its data is a scalar");
  const Result<size_t> axis = c.Normalize(c.node().Int("gather_axis", 0), data->size());
  if (!axis.ok()) return axis.status();
  const int64_t bits = c.node().Int("bits", 4);
  if (bits != 2 && bits != 4 && bits != 8)
    return InvalidInput("bits is {}; 2, 4 or 8 are possible", bits);
  Shape wide = *data;
  if (c.InputType(0) == DType::kU8 && wide.back().known()) {
    const auto size = CheckedMul(wide.back().size, 8 / bits);
    wide.back() = size ? NumberDim(*size) : Dim{};
  }
  Shape out(wide.begin(), wide.begin() + static_cast<std::ptrdiff_t>(*axis));
  out.insert(out.end(), indices->begin(), indices->end());
  out.insert(out.end(), wide.begin() + static_cast<std::ptrdiff_t>(*axis) + 1, wide.end());
  if (out.size() > kMaxContents)
    return InvalidInput("its output would have {} dimensions", out.size());
  c.outputs[0].shape = std::move(out);
  return {};
}

Status Expand(InferContext& c) {
  c.outputs[0].dtype = c.InputType(0);
  const Shape* input = c.InputShape(0);
  const std::optional<Shape> target = ShapeFromVector(c, 1);
  if (input == nullptr || !target) return {};
  c.outputs[0].shape = Broadcast(*input, *target);
  if (!c.outputs[0].shape)
    return InvalidInput("{} cannot be expanded to {}", Describe(*input), Describe(*target));
  return {};
}

Status Tile(InferContext& c) {
  c.outputs[0].dtype = c.InputType(0);
  const Shape* input = c.InputShape(0);
  const auto repeats = c.InputNumbers(1);
  if (input == nullptr) return {};
  Shape out(input->size());
  if (repeats && repeats->size() != input->size()) {
    return InvalidInput("{} repeats for {} dimensions", repeats->size(), input->size());
  }
  for (size_t i = 0; repeats && i < out.size(); ++i) {
    if ((*repeats)[i] == 1) out[i] = (*input)[i];
    const auto size =
        (*input)[i].known() ? CheckedMul((*input)[i].size, (*repeats)[i]) : std::nullopt;
    if (size && *size >= 0) out[i] = NumberDim(*size);
  }
  c.outputs[0].shape = std::move(out);
  return {};
}

Status Range(InferContext& c) {
  c.outputs[0].dtype = c.InputType(0);
  c.outputs[0].shape = Shape{Dim{}};
  const auto start = c.InputNumbers(0);
  const auto limit = c.InputNumbers(1);
  const auto delta = c.InputNumbers(2);
  if (delta && delta->size() == 1 && delta->front() == 0) return InvalidInput("its step is 0");
  if (!delta || delta->size() != 1 || delta->front() != 1 || !start || start->size() != 1)
    return {};
  int64_t length = 0;
  if (limit && limit->size() == 1 &&
      !__builtin_sub_overflow(limit->front(), start->front(), &length)) {
    c.outputs[0].shape = Shape{NumberDim(std::max<int64_t>(0, length))};
    return {};
  }
  // Range(0, n): n itself, where n is a dimension.
  const Contents* symbolic = c.InputContents(1);
  if (start->front() == 0 && symbolic != nullptr && symbolic->size() == 1) {
    c.outputs[0].shape = Shape{DimOf(symbolic->front())};
  }
  return {};
}

Status ConstantOfShape(InferContext& c) {
  c.outputs[0].dtype = DType::kF32;
  if (const Attribute* value = c.node().FindAttribute("value"))
    c.outputs[0].dtype = std::get<Tensor>(value->value).dtype;
  c.outputs[0].shape = ShapeFromVector(c, 0);
  return {};
}

struct Row {
  std::string_view op;
  InferRule rule;
};
constexpr Row kRules[] = {{"Concat", Concat},
                          {"Constant", Constant},
                          {"ConstantOfShape", ConstantOfShape},
                          {"Expand", Expand},
                          {"Flatten", Flatten},
                          {"Gather", Gather},
                          {"GatherBlockQuantized", GatherBlockQuantized},
                          {"Identity", Identity},
                          {"Range", Range},
                          {"Reshape", Reshape},
                          {"Shape", ShapeOf},
                          {"Size", SizeOf},
                          {"Slice", Slice},
                          {"Split", Split},
                          {"Squeeze", Squeeze},
                          {"Tile", Tile},
                          {"Transpose", Transpose},
                          {"Unsqueeze", Unsqueeze}};

}  // namespace

InferRule FindMovementRule(std::string_view op) {
  const auto row =
      std::find_if(std::begin(kRules), std::end(kRules), [&](const Row& r) { return r.op == op; });
  return row == std::end(kRules) ? nullptr : row->rule;
}

}  // namespace granule::onnx
