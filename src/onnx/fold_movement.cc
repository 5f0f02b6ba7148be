// Evaluators that rearrange elements without looking at them.
#include <algorithm>
#include <limits>

#include "base/arith.h"
#include "onnx/fold.h"
#include "onnx/tensor_reader.h"

namespace granule::onnx {
namespace {

std::optional<size_t> Normalize(int64_t axis, size_t rank) {
  const auto signed_rank = static_cast<int64_t>(rank);
  if (axis < -signed_rank || axis >= signed_rank) return std::nullopt;
  return static_cast<size_t>(axis < 0 ? axis + signed_rank : axis);
}

// The same bytes under other dims.
std::optional<Tensor> View(const Tensor& in, std::vector<int64_t> dims) {
  const Result<int64_t> elements = CountElements(dims);
  if (!elements.ok() || *elements != in.elements()) return std::nullopt;
  return Tensor{in.dtype, std::move(dims), in.bytes};
}

// Element i of the result is in[base + sum of index * strides].
std::optional<Tensor> CopyStrided(FoldContext& c, const Tensor& in,
                                  const std::vector<int64_t>& dims, int64_t base,
                                  std::vector<int64_t> strides) {
  auto made = c.Make(in.dtype, dims);
  if (!made) return std::nullopt;
  const size_t bytes = ElementBytes(in.dtype);
  const std::vector<int64_t> all[] = {std::move(strides)};
  ForEachElement(dims, all, [&](int64_t i, const int64_t(&at)[1]) {
    std::memcpy(made->to.data() + static_cast<size_t>(i) * bytes,
                in.bytes.data() + static_cast<size_t>(base + at[0]) * bytes, bytes);
    return true;
  });
  return std::move(made->tensor);
}

std::optional<Tensor> Identity(FoldContext& c) { return *c.Input(0); }

std::optional<Tensor> Constant(FoldContext& c) {
  if (c.node().attributes.size() != 1) return std::nullopt;
  const Attribute& attribute = c.node().attributes.front();
  if (const auto* tensor = std::get_if<Tensor>(&attribute.value)) return *tensor;
  const auto make = [&](DType dtype, std::vector<int64_t> dims,
                        const void* from) -> std::optional<Tensor> {
    auto made = c.Make(dtype, std::move(dims));
    if (!made) return std::nullopt;
    if (!made->to.empty()) std::memcpy(made->to.data(), from, made->to.size());
    return std::move(made->tensor);
  };
  if (const auto* value = std::get_if<int64_t>(&attribute.value))
    return make(DType::kI64, {}, value);
  if (const auto* value = std::get_if<float>(&attribute.value)) return make(DType::kF32, {}, value);
  if (const auto* values = std::get_if<std::vector<int64_t>>(&attribute.value)) {
    return make(DType::kI64, {std::ssize(*values)}, values->data());
  }
  if (const auto* values = std::get_if<std::vector<float>>(&attribute.value)) {
    return make(DType::kF32, {std::ssize(*values)}, values->data());
  }
  return std::nullopt;
}

std::optional<Tensor> ShapeOf(FoldContext& c) {
  const Value* value = c.InputValue(0);
  if (value == nullptr || !value->shape) return std::nullopt;
  const auto rank = std::ssize(*value->shape);
  const auto clamp = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const int64_t start = clamp(c.node().Int("start", 0));
  const int64_t end = std::max(start, clamp(c.node().Int("end", rank)));
  for (int64_t i = start; i < end; ++i) {
    if (!(*value->shape)[static_cast<size_t>(i)].known()) return std::nullopt;
  }
  auto made = c.Make(DType::kI64, {end - start});
  if (!made) return std::nullopt;
  for (int64_t i = start; i < end; ++i) {
    StoreInt(made->to, DType::kI64, i - start, (*value->shape)[static_cast<size_t>(i)].size);
  }
  return std::move(made->tensor);
}

std::optional<Tensor> SizeOf(FoldContext& c) {
  const Tensor* in = c.Input(0);
  if (in == nullptr) return std::nullopt;
  auto made = c.Make(DType::kI64, {});
  if (!made) return std::nullopt;
  StoreInt(made->to, DType::kI64, 0, in->elements());
  return std::move(made->tensor);
}

std::optional<Tensor> Reshape(FoldContext& c) {
  const Tensor& in = *c.Input(0);
  auto dims = c.Integers(1);
  if (!dims) return std::nullopt;
  const bool zero_copies = c.node().Int("allowzero", 0) == 0;
  std::optional<size_t> open;
  int64_t product = 1;
  for (size_t i = 0; i < dims->size(); ++i) {
    int64_t& dim = (*dims)[i];
    if (dim == -1 && !open) {
      open = i;
      continue;
    }
    if (dim == 0 && zero_copies) {
      if (i >= in.dims.size()) return std::nullopt;
      dim = in.dims[i];
    }
    const auto next = dim < 0 ? std::nullopt : CheckedMul(product, dim);
    if (!next) return std::nullopt;
    product = *next;
  }
  if (open) {
    if (product == 0 || in.elements() % product != 0) return std::nullopt;
    (*dims)[*open] = in.elements() / product;
  }
  return View(in, std::move(*dims));
}

std::optional<Tensor> Flatten(FoldContext& c) {
  const Tensor& in = *c.Input(0);
  int64_t axis = c.node().Int("axis", 1);
  if (axis < -std::ssize(in.dims) || axis > std::ssize(in.dims)) return std::nullopt;
  if (axis < 0) axis += std::ssize(in.dims);
  std::vector<int64_t> dims = {1, 1};
  for (int64_t i = 0; i < std::ssize(in.dims); ++i)
    dims[i < axis ? 0 : 1] *= in.dims[static_cast<size_t>(i)];
  return View(in, std::move(dims));
}

std::optional<Tensor> Squeeze(FoldContext& c) {
  const Tensor& in = *c.Input(0);
  const auto axes = c.Axes(1);
  if (!axes) return std::nullopt;
  std::vector<bool> drop(in.dims.size(), false);
  for (int64_t axis : *axes) {
    const auto at = Normalize(axis, in.dims.size());
    if (!at || in.dims[*at] != 1) return std::nullopt;
    drop[*at] = true;
  }
  std::vector<int64_t> dims;
  for (size_t i = 0; i < in.dims.size(); ++i) {
    const bool dropped = axes->empty() ? in.dims[i] == 1 : drop[i];
    if (!dropped) dims.push_back(in.dims[i]);
  }
  return View(in, std::move(dims));
}

std::optional<Tensor> Unsqueeze(FoldContext& c) {
  const Tensor& in = *c.Input(0);
  const auto axes = c.Axes(1);
  if (!axes) return std::nullopt;
  const size_t rank = in.dims.size() + axes->size();
  if (rank > kMaxRank) return std::nullopt;
  std::vector<bool> added(rank, false);
  for (int64_t axis : *axes) {
    const auto at = Normalize(axis, rank);
    if (!at || added[*at]) return std::nullopt;
    added[*at] = true;
  }
  std::vector<int64_t> dims;
  auto next = in.dims.begin();
  for (size_t i = 0; i < rank; ++i) dims.push_back(added[i] ? 1 : *next++);
  return View(in, std::move(dims));
}

std::optional<Tensor> Transpose(FoldContext& c) {
  const Tensor& in = *c.Input(0);
  const size_t rank = in.dims.size();
  std::vector<int64_t> perm;
  if (const Attribute* attribute = c.node().FindAttribute("perm")) {
    perm = std::get<std::vector<int64_t>>(attribute->value);
  } else {
    for (size_t i = rank; i > 0; --i) perm.push_back(static_cast<int64_t>(i) - 1);
  }
  std::vector<bool> seen(rank, false);
  if (perm.size() != rank) return std::nullopt;
  const std::vector<int64_t> from = BroadcastStrides(in.dims, rank);
  std::vector<int64_t> dims, strides;
  for (int64_t axis : perm) {
    if (axis < 0 || axis >= static_cast<int64_t>(rank) || seen[static_cast<size_t>(axis)])
      return std::nullopt;
    seen[static_cast<size_t>(axis)] = true;
    dims.push_back(in.dims[static_cast<size_t>(axis)]);
    strides.push_back(from[static_cast<size_t>(axis)]);
  }
  return CopyStrided(c, in, dims, 0, strides);
}

std::optional<Tensor> Concat(FoldContext& c) {
  const Tensor& first = *c.Input(0);
  const auto axis = Normalize(c.node().Int("axis", 0), first.dims.size());
  if (!axis) return std::nullopt;
  std::vector<int64_t> dims = first.dims;
  for (size_t i = 1; i < c.node().inputs.size(); ++i) {
    const Tensor& next = *c.Input(i);
    if (next.dtype != first.dtype || next.dims.size() != dims.size()) return std::nullopt;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (d != *axis && next.dims[d] != dims[d]) return std::nullopt;
    }
    const auto sum = CheckedAdd(dims[*axis], next.dims[*axis]);
    if (!sum) return std::nullopt;
    dims[*axis] = *sum;
  }
  auto made = c.Make(first.dtype, dims);
  if (!made || made->to.empty())
    return made ? std::optional(std::move(made->tensor)) : std::nullopt;
  size_t outer = 1;
  for (size_t d = 0; d < *axis; ++d) outer *= static_cast<size_t>(dims[d]);
  std::byte* to = made->to.data();
  for (size_t o = 0; o < outer; ++o) {
    for (size_t i = 0; i < c.node().inputs.size(); ++i) {
      const std::span<const std::byte> bytes = c.Input(i)->bytes;
      const size_t piece = bytes.size() / outer;
      if (piece > 0) std::memcpy(to, bytes.data() + o * piece, piece);
      to += piece;
    }
  }
  return std::move(made->tensor);
}

std::optional<Tensor> Slice(FoldContext& c) {
  const Tensor& in = *c.Input(0);
  if (c.Input(1) == nullptr || c.Input(2) == nullptr)
    return std::nullopt;  // attributes: before opset 10
  const auto starts = c.Integers(1);
  const auto ends = c.Integers(2);
  auto axes = c.Input(3) != nullptr ? c.Integers(3) : std::vector<int64_t>();
  auto steps = c.Input(4) != nullptr ? c.Integers(4) : std::vector<int64_t>();
  if (!starts || !ends || !axes || !steps || starts->size() != ends->size()) return std::nullopt;
  for (size_t i = axes->size(); c.Input(3) == nullptr && i < starts->size(); ++i)
    axes->push_back(static_cast<int64_t>(i));
  if (c.Input(4) == nullptr) steps->assign(starts->size(), 1);
  if (axes->size() != starts->size() || steps->size() != starts->size()) return std::nullopt;
  std::vector<int64_t> dims = in.dims;
  std::vector<int64_t> strides = BroadcastStrides(in.dims, in.dims.size());
  std::vector<bool> seen(dims.size(), false);
  int64_t base = 0;
  for (size_t i = 0; i < starts->size(); ++i) {
    const auto axis = Normalize((*axes)[i], dims.size());
    const int64_t step = (*steps)[i];
    // A step beyond +-2^32 picks one element at most; such numbers are left to the run.
    if (!axis || seen[*axis] || step == 0 || step > (int64_t{1} << 32) ||
        step < -(int64_t{1} << 32))
      return std::nullopt;
    seen[*axis] = true;
    const int64_t size = in.dims[*axis];
    const int64_t low = step > 0 ? 0 : -1;
    const int64_t high = step > 0 ? size : size - 1;
    const auto clamp = [&](int64_t at) {
      return std::clamp(at < 0 ? std::max(at + size, low) : at, low, high);
    };
    const int64_t start = clamp((*starts)[i]);
    const int64_t span = step > 0 ? clamp((*ends)[i]) - start : start - clamp((*ends)[i]);
    dims[*axis] = span <= 0 ? 0 : CeilDiv<int64_t>(span, step > 0 ? step : -step);
    if (dims[*axis] == 0) continue;
    base += start * strides[*axis];
    // With one element the stride is never taken, and its product with a large step could overflow.
    strides[*axis] = dims[*axis] == 1 ? 0 : strides[*axis] * step;
  }
  return CopyStrided(c, in, dims, base, strides);
}

std::optional<Tensor> Gather(FoldContext& c) {
  const Tensor& data = *c.Input(0);
  const Tensor& indices = *c.Input(1);
  const auto axis = Normalize(c.node().Int("axis", 0), data.dims.size());
  if (!axis || (indices.dtype != DType::kI64 && indices.dtype != DType::kI32)) return std::nullopt;
  std::vector<int64_t> dims(data.dims.begin(),
                            data.dims.begin() + static_cast<std::ptrdiff_t>(*axis));
  dims.insert(dims.end(), indices.dims.begin(), indices.dims.end());
  dims.insert(dims.end(), data.dims.begin() + static_cast<std::ptrdiff_t>(*axis) + 1,
              data.dims.end());
  auto made = c.Make(data.dtype, dims);
  if (!made || made->to.empty())
    return made ? std::optional(std::move(made->tensor)) : std::nullopt;
  size_t outer = 1;
  for (size_t d = 0; d < *axis; ++d) outer *= static_cast<size_t>(data.dims[d]);
  const auto rows = static_cast<size_t>(data.dims[*axis]);
  const size_t count = static_cast<size_t>(indices.elements());
  const size_t piece = made->to.size() / outer / count;  // bytes of one row
  std::byte* to = made->to.data();
  for (size_t o = 0; o < outer; ++o) {
    for (size_t i = 0; i < count; ++i, to += piece) {
      const auto row = Normalize(LoadInt(indices, static_cast<int64_t>(i)), rows);
      if (!row) return std::nullopt;
      std::memcpy(to, data.bytes.data() + (o * rows + *row) * piece, piece);
    }
  }
  return std::move(made->tensor);
}

std::optional<Tensor> Expand(FoldContext& c) {
  const Tensor& in = *c.Input(0);
  const auto target = c.Integers(1);
  if (!target || std::any_of(target->begin(), target->end(), [](int64_t d) { return d < 0; }))
    return std::nullopt;
  const auto dims = BroadcastDims(in.dims, *target);
  if (!dims) return std::nullopt;
  return CopyStrided(c, in, *dims, 0, BroadcastStrides(in.dims, dims->size()));
}

std::optional<Tensor> Where(FoldContext& c) {
  const Tensor& condition = *c.Input(0);
  const Tensor& yes = *c.Input(1);
  const Tensor& no = *c.Input(2);
  if (condition.dtype != DType::kBool || yes.dtype != no.dtype) return std::nullopt;
  auto dims = BroadcastDims(yes.dims, no.dims);
  if (dims) dims = BroadcastDims(*dims, condition.dims);
  if (!dims) return std::nullopt;
  auto made = c.Make(yes.dtype, *dims);
  if (!made) return std::nullopt;
  const size_t bytes = ElementBytes(yes.dtype);
  const std::vector<int64_t> strides[] = {BroadcastStrides(condition.dims, dims->size()),
                                          BroadcastStrides(yes.dims, dims->size()),
                                          BroadcastStrides(no.dims, dims->size())};
  ForEachElement(*dims, strides, [&](int64_t i, const int64_t(&at)[3]) {
    const bool take = LoadInt(condition, at[0]) != 0;
    const Tensor& from = take ? yes : no;
    std::memcpy(made->to.data() + static_cast<size_t>(i) * bytes,
                from.bytes.data() + static_cast<size_t>(take ? at[1] : at[2]) * bytes, bytes);
    return true;
  });
  return std::move(made->tensor);
}

std::optional<Tensor> ConstantOfShape(FoldContext& c) {
  auto dims = c.Integers(0);
  const Attribute* attribute = c.node().FindAttribute("value");
  const Tensor* value = attribute != nullptr ? std::get_if<Tensor>(&attribute->value) : nullptr;
  if (!dims || (value != nullptr && value->elements() != 1)) return std::nullopt;
  auto made = c.Make(value != nullptr ? value->dtype : DType::kF32, std::move(*dims));
  if (!made || value == nullptr)
    return made ? std::optional(std::move(made->tensor)) : std::nullopt;
  const size_t bytes = ElementBytes(value->dtype);
  for (size_t at = 0; at < made->to.size(); at += bytes)
    std::memcpy(made->to.data() + at, value->bytes.data(), bytes);
  return std::move(made->tensor);
}

struct Row {
  std::string_view op;
  Evaluator evaluate;
};
constexpr Row kEvaluators[] = {
    {"Concat", Concat},       {"Constant", Constant},   {"ConstantOfShape", ConstantOfShape},
    {"Expand", Expand},       {"Flatten", Flatten},     {"Gather", Gather},
    {"Identity", Identity},   {"Reshape", Reshape},     {"Shape", ShapeOf},
    {"Size", SizeOf},         {"Slice", Slice},         {"Squeeze", Squeeze},
    {"Transpose", Transpose}, {"Unsqueeze", Unsqueeze}, {"Where", Where}};

}  // namespace

Evaluator FindMovementEvaluator(std::string_view op) {
  const auto row = std::find_if(std::begin(kEvaluators), std::end(kEvaluators),
                                [&](const Row& r) { return r.op == op; });
  return row == std::end(kEvaluators) ? nullptr : row->evaluate;
}

std::optional<std::vector<int64_t>> FoldContext::Integers(size_t i) const {
  const Tensor* tensor = Input(i);
  if (tensor == nullptr || tensor->elements() > static_cast<int64_t>(kMaxRank)) return std::nullopt;
  if (tensor->dtype != DType::kI64 && tensor->dtype != DType::kI32) return std::nullopt;
  std::vector<int64_t> numbers;
  for (int64_t k = 0; k < tensor->elements(); ++k) numbers.push_back(LoadInt(*tensor, k));
  return numbers;
}

std::optional<std::vector<int64_t>> FoldContext::Axes(size_t input) const {
  if (node_.input(input) != kNone) return Integers(input);
  const Attribute* attribute = node_.FindAttribute("axes");
  if (attribute == nullptr) return std::vector<int64_t>();
  const auto* list = std::get_if<std::vector<int64_t>>(&attribute->value);
  return list != nullptr ? std::optional(*list) : std::nullopt;
}

std::optional<FoldContext::Made> FoldContext::Make(DType dtype, std::vector<int64_t> dims) {
  if (ElementBytes(dtype) == 0) return std::nullopt;
  const Result<uint64_t> bytes = CountBytes(dtype, dims);
  if (!bytes.ok() || *bytes > budget_.each_bytes || *bytes > budget_.total_bytes)
    return std::nullopt;
  budget_.total_bytes -= *bytes;
  Made made;
  made.to = model_.Own(*bytes);
  made.tensor = Tensor{dtype, std::move(dims), made.to};
  return made;
}

std::optional<std::vector<int64_t>> BroadcastDims(const std::vector<int64_t>& a,
                                                  const std::vector<int64_t>& b) {
  const std::vector<int64_t>& longer = a.size() >= b.size() ? a : b;
  const std::vector<int64_t>& shorter = a.size() >= b.size() ? b : a;
  std::vector<int64_t> dims = longer;
  const size_t shift = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    int64_t& dim = dims[i + shift];
    if (dim != shorter[i] && dim != 1 && shorter[i] != 1) return std::nullopt;
    if (dim == 1) dim = shorter[i];
  }
  return dims;
}

std::vector<int64_t> BroadcastStrides(const std::vector<int64_t>& dims, size_t rank) {
  std::vector<int64_t> strides(rank, 0);
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[rank - dims.size() + i] = dims[i] == 1 ? 0 : stride;
    stride *= std::max<int64_t>(dims[i], 1);
  }
  return strides;
}

}  // namespace granule::onnx
