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
constexpr Row kRules[] = {
    {"Concat", Concat},     {"Constant", Constant}, {"ConstantOfShape", ConstantOfShape},
    {"Expand", Expand},     {"Gather", Gather},     {"GatherBlockQuantized", GatherBlockQuantized},
    {"Identity", Identity}, {"Range", Range},       {"Shape", ShapeOf},
    {"Size", SizeOf},       {"Slice", Slice},       {"Split", Split},
    {"Tile", Tile}};

}  // namespace

InferRule FindMovementRule(std::string_view op) {
  const auto row =
      std::find_if(std::begin(kRules), std::end(kRules), [&](const Row& r) { return r.op == op; });
  return row == std::end(kRules) ? nullptr : row->rule;
}

}  // namespace granule::onnx
