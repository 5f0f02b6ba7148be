// Evaluators that compute. Floats in float32 whatever their storage (one rounding at the end, as
// ONNX Runtime does for half types), integers in 64 bits, wrapped to their type.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "onnx/fold.h"
#include "onnx/proto.h"

namespace granule::onnx {
namespace {

int64_t Wrap(uint64_t value) { return static_cast<int64_t>(value); }

std::optional<int64_t> ComputeInt(std::string_view op, int64_t a, int64_t b) {
  const auto x = static_cast<uint64_t>(a);
  const auto y = static_cast<uint64_t>(b);
  if (op == "Add") return Wrap(x + y);
  if (op == "Sub") return Wrap(x - y);
  if (op == "Mul") return Wrap(x * y);
  if (op == "Max") return std::max(a, b);
  if (op == "Min") return std::min(a, b);
  if (op == "Div" && b != 0 && !(a == std::numeric_limits<int64_t>::min() && b == -1)) return a / b;
  return std::nullopt;
}

std::optional<float> ComputeFloat(std::string_view op, float a, float b) {
  if (op == "Add") return a + b;
  if (op == "Sub") return a - b;
  if (op == "Mul") return a * b;
  if (op == "Div") return a / b;
  if (op == "Pow") return std::pow(a, b);
  if (op == "Max") return std::isnan(a) || a > b ? a : b;
  if (op == "Min") return std::isnan(a) || a < b ? a : b;
  return std::nullopt;
}

template <class T>
bool Compare(std::string_view op, T a, T b) {
  if (op == "Equal") return a == b;
  if (op == "Less") return a < b;
  if (op == "LessOrEqual") return a <= b;
  if (op == "Greater") return a > b;
  return a >= b;  // GreaterOrEqual
}

bool IsByteSized(const Tensor& tensor) { return ElementBytes(tensor.dtype) > 0; }

// Both inputs of one type, the result of shape broadcast(a, b): calls element(i, index in a, index
// in b, to).
template <class Element>
std::optional<Tensor> Binary(FoldContext& c, DType result, const Element& element) {
  const Tensor& a = *c.Input(0);
  const Tensor& b = *c.Input(1);
  if (a.dtype != b.dtype || !IsByteSized(a)) return std::nullopt;
  auto dims = BroadcastDims(a.dims, b.dims);
  if (!dims) return std::nullopt;
  auto made = c.Make(result, *dims);
  if (!made) return std::nullopt;
  const std::vector<int64_t> strides[] = {BroadcastStrides(a.dims, dims->size()),
                                          BroadcastStrides(b.dims, dims->size())};
  const bool done = ForEachElement(*dims, strides, [&](int64_t i, const int64_t(&at)[2]) {
    return element(i, at[0], at[1], made->to);
  });
  if (!done) return std::nullopt;
  return std::move(made->tensor);
}

std::optional<Tensor> Arithmetic(FoldContext& c) {
  if (c.node().inputs.size() != 2) return std::nullopt;  // Max and Min of more
  const Tensor& a = *c.Input(0);
  const Tensor& b = *c.Input(1);
  const std::string_view op = c.node().op;
  const DType type = a.dtype;
  if (type == DType::kBool) return std::nullopt;
  return Binary(c, type, [&](int64_t i, int64_t at_a, int64_t at_b, std::span<std::byte> to) {
    if (IsFloat(type)) {
      const std::optional<float> value = ComputeFloat(op, LoadFloat(a, at_a), LoadFloat(b, at_b));
      if (value) StoreFloat(to, type, i, *value);
      return value.has_value();
    }
    const std::optional<int64_t> value = ComputeInt(op, LoadInt(a, at_a), LoadInt(b, at_b));
    if (value) StoreInt(to, type, i, *value);
    return value.has_value();
  });
}

std::optional<Tensor> Comparison(FoldContext& c) {
  const Tensor& a = *c.Input(0);
  const Tensor& b = *c.Input(1);
  return Binary(
      c, DType::kBool, [&](int64_t i, int64_t at_a, int64_t at_b, std::span<std::byte> to) {
        const bool value = IsFloat(a.dtype)
                               ? Compare(c.node().op, LoadFloat(a, at_a), LoadFloat(b, at_b))
                               : Compare(c.node().op, LoadInt(a, at_a), LoadInt(b, at_b));
        StoreInt(to, DType::kBool, i, value ? 1 : 0);
        return true;
      });
}

std::optional<Tensor> Logic(FoldContext& c) {
  const Tensor& a = *c.Input(0);
  const Tensor& b = *c.Input(1);
  const std::string_view op = c.node().op;
  if (a.dtype != DType::kBool) return std::nullopt;
  return Binary(c, DType::kBool,
                [&](int64_t i, int64_t at_a, int64_t at_b, std::span<std::byte> to) {
                  const int64_t x = LoadInt(a, at_a);
                  const int64_t y = LoadInt(b, at_b);
                  StoreInt(to, DType::kBool, i, op == "And" ? x & y : op == "Or" ? x | y : x ^ y);
                  return true;
                });
}

std::optional<Tensor> Not(FoldContext& c) {
  const Tensor& in = *c.Input(0);
  if (in.dtype != DType::kBool) return std::nullopt;
  auto made = c.Make(in.dtype, in.dims);
  if (!made) return std::nullopt;
  for (int64_t i = 0; i < in.elements(); ++i) StoreInt(made->to, in.dtype, i, 1 - LoadInt(in, i));
  return std::move(made->tensor);
}

std::optional<float> UnaryFloat(std::string_view op, float x) {
  if (op == "Neg") return -x;
  if (op == "Abs") return std::fabs(x);
  if (op == "Sqrt") return std::sqrt(x);
  if (op == "Reciprocal") return 1.0f / x;
  if (op == "Floor") return std::floor(x);
  if (op == "Ceil") return std::ceil(x);
  return std::nullopt;
}

std::optional<int64_t> UnaryInt(std::string_view op, int64_t x) {
  const int64_t negated = Wrap(uint64_t{0} - static_cast<uint64_t>(x));
  if (op == "Neg") return negated;
  if (op == "Abs") return x < 0 ? negated : x;
  return std::nullopt;
}

std::optional<Tensor> Unary(FoldContext& c) {
  const Tensor& in = *c.Input(0);
  if (in.dtype == DType::kBool || !IsByteSized(in)) return std::nullopt;
  auto made = c.Make(in.dtype, in.dims);
  if (!made) return std::nullopt;
  for (int64_t i = 0; i < in.elements(); ++i) {
    if (IsFloat(in.dtype)) {
      const auto value = UnaryFloat(c.node().op, LoadFloat(in, i));
      if (!value) return std::nullopt;
      StoreFloat(made->to, in.dtype, i, *value);
    } else {
      const auto value = UnaryInt(c.node().op, LoadInt(in, i));
      if (!value) return std::nullopt;
      StoreInt(made->to, in.dtype, i, *value);
    }
  }
  return std::move(made->tensor);
}

// Truncation towards zero; nullopt where the result would depend on the machine.
std::optional<int64_t> FloatToInt(float value, DType to) {
  const float whole = std::trunc(value);
  double low = -0x1p63;
  double high = 0x1p63;  // exclusive
  if (to == DType::kI32) low = -0x1p31, high = 0x1p31;
  if (to == DType::kI8) low = -128, high = 128;
  if (to == DType::kU8) low = 0, high = 256;
  if (!(whole >= low && whole < high)) return std::nullopt;  // NaN too
  return static_cast<int64_t>(whole);
}

std::optional<Tensor> Cast(FoldContext& c) {
  const Tensor& in = *c.Input(0);
  const std::optional<DType> to = proto::DTypeOf(c.node().Int("to", 0));
  if (!to) return std::nullopt;
  if (*to == in.dtype) return in;
  if (!IsByteSized(in)) return std::nullopt;
  auto made = c.Make(*to, in.dims);
  if (!made) return std::nullopt;
  for (int64_t i = 0; i < in.elements(); ++i) {
    if (IsFloat(in.dtype)) {
      const float value = LoadFloat(in, i);
      if (IsFloat(*to)) {
        StoreFloat(made->to, *to, i, value);
        continue;
      }
      const auto whole =
          *to == DType::kBool ? std::optional<int64_t>(value != 0.0f) : FloatToInt(value, *to);
      if (!whole) return std::nullopt;
      StoreInt(made->to, *to, i, *whole);
    } else {
      const int64_t value = LoadInt(in, i);
      if (IsFloat(*to)) {
        StoreFloat(made->to, *to, i, static_cast<float>(value));
      } else {
        StoreInt(made->to, *to, i, *to == DType::kBool ? int64_t{value != 0} : value);
      }
    }
  }
  return std::move(made->tensor);
}

std::optional<Tensor> Range(FoldContext& c) {
  const Tensor& type = *c.Input(0);
  if (type.dtype != DType::kI64 && type.dtype != DType::kI32) return std::nullopt;
  const auto start = c.Integers(0);
  const auto limit = c.Integers(1);
  const auto delta = c.Integers(2);
  if (!start || !limit || !delta || start->size() != 1 || limit->size() != 1 || delta->size() != 1)
    return std::nullopt;
  const int64_t step = delta->front();
  int64_t span = 0;
  if (step == 0 || step == std::numeric_limits<int64_t>::min()) return std::nullopt;
  if (__builtin_sub_overflow(limit->front(), start->front(), &span)) return std::nullopt;
  if (span == std::numeric_limits<int64_t>::min()) return std::nullopt;
  const int64_t magnitude = step > 0 ? step : -step;
  const int64_t distance = step > 0 ? span : -span;
  const int64_t count = distance <= 0 ? 0 : (distance - 1) / magnitude + 1;
  auto made = c.Make(type.dtype, {count});
  if (!made) return std::nullopt;
  for (int64_t i = 0; i < count; ++i) StoreInt(made->to, type.dtype, i, start->front() + i * step);
  return std::move(made->tensor);
}

struct Row {
  std::string_view op;
  Evaluator evaluate;
};
constexpr Row kEvaluators[] = {{"Abs", Unary},
                               {"Add", Arithmetic},
                               {"And", Logic},
                               {"Cast", Cast},
                               {"Ceil", Unary},
                               {"Div", Arithmetic},
                               {"Equal", Comparison},
                               {"Floor", Unary},
                               {"Greater", Comparison},
                               {"GreaterOrEqual", Comparison},
                               {"Less", Comparison},
                               {"LessOrEqual", Comparison},
                               {"Max", Arithmetic},
                               {"Min", Arithmetic},
                               {"Mul", Arithmetic},
                               {"Neg", Unary},
                               {"Not", Not},
                               {"Or", Logic},
                               {"Pow", Arithmetic},
                               {"Range", Range},
                               {"Reciprocal", Unary},
                               {"Sqrt", Unary},
                               {"Sub", Arithmetic},
                               {"Xor", Logic}};

}  // namespace

Evaluator FindMathEvaluator(std::string_view op) {
  const auto row = std::find_if(std::begin(kEvaluators), std::end(kEvaluators),
                                [&](const Row& r) { return r.op == op; });
  return row == std::end(kEvaluators) ? nullptr : row->evaluate;
}

int64_t LoadInt(const Tensor& tensor, int64_t i) {
  const auto at = static_cast<size_t>(i);
  switch (tensor.dtype) {
    case DType::kI64:
      return tensor.As<int64_t>()[at];
    case DType::kI32:
      return tensor.As<int32_t>()[at];
    case DType::kI8:
      return tensor.As<int8_t>()[at];
    default:
      return tensor.As<uint8_t>()[at];
  }
}

float LoadFloat(const Tensor& tensor, int64_t i) {
  const auto at = static_cast<size_t>(i);
  switch (tensor.dtype) {
    case DType::kF16:
      return F16ToF32(tensor.As<uint16_t>()[at]);
    case DType::kBF16:
      return BF16ToF32(tensor.As<uint16_t>()[at]);
    default:
      return tensor.As<float>()[at];
  }
}

void StoreInt(std::span<std::byte> to, DType dtype, int64_t i, int64_t value) {
  const size_t bytes = ElementBytes(dtype);
  std::memcpy(to.data() + static_cast<size_t>(i) * bytes, &value,
              bytes);  // little-endian: the low bytes
}

void StoreFloat(std::span<std::byte> to, DType dtype, int64_t i, float value) {
  const auto at = static_cast<size_t>(i);
  if (dtype == DType::kF32) {
    std::memcpy(to.data() + at * sizeof(float), &value, sizeof(float));
    return;
  }
  const uint16_t half = dtype == DType::kF16 ? F32ToF16(value) : F32ToBF16(value);
  std::memcpy(to.data() + at * sizeof(half), &half, sizeof(half));
}

}  // namespace granule::onnx
