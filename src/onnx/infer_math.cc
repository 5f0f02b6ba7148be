// Shape rules of operators that compute: element by element, reductions, matrix products, norms,
// attention.
#include <algorithm>

#include "base/arith.h"
#include "onnx/infer.h"
#include "onnx/proto.h"
#include "onnx/words.h"

namespace granule::onnx {
namespace {

void CopyShape(const InferContext& c, size_t from, Fact& to) {
  if (const Shape* shape = c.InputShape(from)) to.shape = *shape;
}

Status SameAsInput(InferContext& c) {
  c.outputs[0].dtype = c.InputType(0);
  CopyShape(c, 0, c.outputs[0]);
  return {};
}

// Output 3 is the sum that the next block adds to; 1 and 2 are never used for inference.
Status SkipNorm(InferContext& c) {
  if (Status s = SameAsInput(c); !s.ok()) return s;
  if (c.outputs.size() > 3) c.outputs[3] = c.outputs[0];
  return {};
}

// The broadcast shape of inputs [first, all), nothing when one of them is unknown.
Status BroadcastInputs(InferContext& c, size_t first) {
  std::optional<Shape> shape;
  for (size_t i = first; i < c.node().inputs.size(); ++i) {
    const Shape* next = c.InputShape(i);
    if (next == nullptr) return {};
    if (!shape) {
      shape = *next;
      continue;
    }
    std::optional<Shape> both = Broadcast(*shape, *next);
    if (!both)
      return InvalidInput("shapes {} and {} do not fit together", Describe(*shape),
                          Describe(*next));
    shape = std::move(both);
  }
  c.outputs[0].shape = std::move(shape);
  return {};
}

Status RequireSameType(const InferContext& c, size_t a, size_t b) {
  const auto x = c.InputType(a);
  const auto y = c.InputType(b);
  if (x && y && *x != *y)
    return InvalidInput("inputs {} and {} are {} and {}", a, b, DTypeName(*x), DTypeName(*y));
  return {};
}

// a OP b on what is known of shape vectors. A symbol survives +0, -0, *1 and /1.
Element Combine(std::string_view op, const Element& a, const Element& b) {
  if (a.number && b.number) {
    if (op == "Add") return {CheckedAdd(*a.number, *b.number), {}};
    if (op == "Mul") return {CheckedMul(*a.number, *b.number), {}};
    int64_t difference = 0;
    if (op == "Sub" && !__builtin_sub_overflow(*a.number, *b.number, &difference))
      return {difference, {}};
    if (op == "Div" && *b.number > 0) return {*a.number / *b.number, {}};
    return {};
  }
  const int64_t neutral = op == "Add" || op == "Sub" ? 0 : 1;
  if (b.number && *b.number == neutral) return a;
  if (a.number && *a.number == neutral && (op == "Add" || op == "Mul")) return b;
  return {};
}

Status Arithmetic(InferContext& c) {
  if (Status s = RequireSameType(c, 0, 1); !s.ok()) return s;
  c.outputs[0].dtype = c.InputType(0) ? c.InputType(0) : c.InputType(1);
  if (Status s = BroadcastInputs(c, 0); !s.ok()) return s;
  const Contents* a = c.InputContents(0);
  const Contents* b = c.InputContents(1);
  if (a == nullptr || b == nullptr || a->empty() || b->empty()) return {};
  if (a->size() != b->size() && a->size() != 1 && b->size() != 1) return {};
  Contents result(std::max(a->size(), b->size()));
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = Combine(c.node().op, (*a)[a->size() == 1 ? 0 : i], (*b)[b->size() == 1 ? 0 : i]);
  }
  c.outputs[0].contents = std::move(result);
  return {};
}

Status Power(InferContext& c) {
  c.outputs[0].dtype = c.InputType(0);
  return BroadcastInputs(c, 0);
}

Status MinMax(InferContext& c) {
  for (size_t i = 1; i < c.node().inputs.size(); ++i) {
    if (Status s = RequireSameType(c, 0, i); !s.ok()) return s;
  }
  c.outputs[0].dtype = c.InputType(0);
  return BroadcastInputs(c, 0);
}

Status Comparison(InferContext& c) {
  if (Status s = RequireSameType(c, 0, 1); !s.ok()) return s;
  c.outputs[0].dtype = DType::kBool;
  return BroadcastInputs(c, 0);
}

Status Logic(InferContext& c) {
  for (size_t i = 0; i < c.node().inputs.size(); ++i) {
    const auto type = c.InputType(i);
    if (type && *type != DType::kBool)
      return InvalidInput("input {} is {}, not bool", i, DTypeName(*type));
  }
  c.outputs[0].dtype = DType::kBool;
  return BroadcastInputs(c, 0);
}

Status Choose(InferContext& c) {
  if (Status s = RequireSameType(c, 1, 2); !s.ok()) return s;
  c.outputs[0].dtype = c.InputType(1) ? c.InputType(1) : c.InputType(2);
  return BroadcastInputs(c, 0);
}

Status CastTo(InferContext& c) {
  c.outputs[0].dtype = proto::DTypeOf(c.node().Int("to", 0));
  CopyShape(c, 0, c.outputs[0]);
  const Contents* contents = c.InputContents(0);
  const auto to = c.outputs[0].dtype;
  if (contents != nullptr && to && (*to == DType::kI64 || *to == DType::kI32))
    c.outputs[0].contents = *contents;
  return {};
}

Status Reduce(InferContext& c) {
  c.outputs[0].dtype = c.InputType(0);
  const Shape* input = c.InputShape(0);
  if (input == nullptr) return {};
  const bool keep = c.node().Int("keepdims", 1) != 0;
  const InferContext::Axes axes = c.FindAxes(1);
  if (axes.given && !axes.list) return {};
  std::vector<bool> reduced(input->size(), false);
  if (!axes.given || axes.list->empty()) {
    if (c.node().Int("noop_with_empty_axes", 0) == 0) reduced.assign(input->size(), true);
  } else {
    for (int64_t axis : *axes.list) {
      const Result<size_t> at = c.Normalize(axis, input->size());
      if (!at.ok()) return at.status();
      reduced[*at] = true;
    }
  }
  Shape out;
  for (size_t i = 0; i < input->size(); ++i) {
    if (!reduced[i]) out.push_back((*input)[i]);
    if (reduced[i] && keep) out.push_back(NumberDim(1));
  }
  c.outputs[0].shape = std::move(out);
  return {};
}

Status CheckInner(const Dim& a, const Dim& b) {
  if (a.known() && b.known() && a.size != b.size) {
    return InvalidInput("the inner sizes {} and {} differ", a.size, b.size);
  }
  return {};
}

// numpy's matmul: 1-D operands lose the dimension that they are given.
Status MatMul(InferContext& c) {
  if (Status s = RequireSameType(c, 0, 1); !s.ok()) return s;
  c.outputs[0].dtype = c.InputType(0) ? c.InputType(0) : c.InputType(1);
  const Shape* a = c.InputShape(0);
  const Shape* b = c.InputShape(1);
  if (a == nullptr || b == nullptr) return {};
  if (a->empty() || b->empty()) return InvalidInput("an operand is a scalar");
  const Dim& inner_b = b->size() == 1 ? b->back() : (*b)[b->size() - 2];
  if (Status s = CheckInner(a->back(), inner_b); !s.ok()) return s;
  const Shape batch_a(a->begin(), a->end() - std::min<std::ptrdiff_t>(2, std::ssize(*a)));
  const Shape batch_b(b->begin(), b->end() - std::min<std::ptrdiff_t>(2, std::ssize(*b)));
  std::optional<Shape> out = Broadcast(batch_a, batch_b);
  if (!out) return InvalidInput("shapes {} and {} do not fit together", Describe(*a), Describe(*b));
  if (a->size() > 1) out->push_back((*a)[a->size() - 2]);
  if (b->size() > 1) out->push_back(b->back());
  c.outputs[0].shape = std::move(out);
  return {};
}

Status MatMulNBits(InferContext& c) {
  c.outputs[0].dtype = c.InputType(0);
  const Shape* a = c.InputShape(0);
  const int64_t k = c.node().Int("K", -1);
  const int64_t n = c.node().Int("N", -1);
  if (k <= 0 || n <= 0) return InvalidInput("K is {} and N is {}; both must be positive", k, n);
  if (a == nullptr) return {};
  if (a->empty()) return InvalidInput("its input is a scalar");
  if (Status s = CheckInner(a->back(), NumberDim(k)); !s.ok()) return s;
  Shape out = *a;
  out.back() = NumberDim(n);
  c.outputs[0].shape = std::move(out);
  return {};
}

Status Gemm(InferContext& c) {
  if (Status s = RequireSameType(c, 0, 1); !s.ok()) return s;
  c.outputs[0].dtype = c.InputType(0);
  const Shape* a = c.InputShape(0);
  const Shape* b = c.InputShape(1);
  if (a == nullptr || b == nullptr) return {};
  if (a->size() != 2 || b->size() != 2) {
    return InvalidInput("its operands are {} and {}, not matrices", Describe(*a), Describe(*b));
  }
  const size_t ta = c.node().Int("transA", 0) != 0 ? 1 : 0;
  const size_t tb = c.node().Int("transB", 0) != 0 ? 1 : 0;
  if (Status s = CheckInner((*a)[1 - ta], (*b)[tb]); !s.ok()) return s;
  c.outputs[0].shape = Shape{(*a)[ta], (*b)[1 - tb]};
  return {};
}

// query [B,S,Hq*D], or packed [B,S,(Hq+2*Hk)*D] when key is left out; caches [B,Hk,T,D]. The length
// of the present cache depends on the values of the inputs: left to what the file declares.
Status GroupQueryAttention(InferContext& c) {
  const int64_t heads = c.node().Int("num_heads", 0);
  const int64_t kv_heads = c.node().Int("kv_num_heads", 0);
  if (heads <= 0 || kv_heads <= 0 || heads > (1 << 20) || kv_heads > heads ||
      heads % kv_heads != 0) {
    return InvalidInput(
        "num_heads is {} and kv_num_heads is {}; the first must be a multiple of the second", heads,
        kv_heads);
  }
  c.outputs[0].dtype = c.InputType(0);
  if (const Shape* query = c.InputShape(0)) {
    if (query->size() != 3)
      return InvalidInput("its query is {}, not [batch,sequence,hidden]", Describe(*query));
    Shape out = *query;
    if (!c.Has(1) && out[2].known()) {
      const int64_t parts = heads + 2 * kv_heads;
      if (out[2].size % parts != 0) {
        return InvalidInput("its packed query is {} wide, no multiple of {} heads", out[2].size,
                            parts);
      }
      out[2] = NumberDim(out[2].size / parts * heads);
    } else if (!c.Has(1)) {
      out[2] = Dim{};
    }
    c.outputs[0].shape = std::move(out);
  }
  for (size_t i = 1; i <= 2 && i < c.outputs.size(); ++i) {
    c.outputs[i].dtype = c.InputType(i + 2);
    const Shape* past = c.InputShape(i + 2);
    if (past == nullptr) continue;
    if (past->size() != 4)
      return InvalidInput("its past is {}, not [batch,heads,tokens,head size]", Describe(*past));
    Shape present = *past;
    present[2] = Dim{};
    c.outputs[i].shape = std::move(present);
  }
  return {};
}

struct Row {
  std::string_view op;
  InferRule rule;
};
constexpr Row kRules[] = {{"Abs", SameAsInput},
                          {"Add", Arithmetic},
                          {"And", Logic},
                          {"Cast", CastTo},
                          {"Ceil", SameAsInput},
                          {"Clip", SameAsInput},
                          {"Cos", SameAsInput},
                          {"CumSum", SameAsInput},
                          {"Div", Arithmetic},
                          {"Equal", Comparison},
                          {"Erf", SameAsInput},
                          {"Exp", SameAsInput},
                          {"Floor", SameAsInput},
                          {"Gemm", Gemm},
                          {"Greater", Comparison},
                          {"GreaterOrEqual", Comparison},
                          {"GroupQueryAttention", GroupQueryAttention},
                          {"Less", Comparison},
                          {"LessOrEqual", Comparison},
                          {"Log", SameAsInput},
                          {"MatMul", MatMul},
                          {"MatMulNBits", MatMulNBits},
                          {"Max", MinMax},
                          {"Min", MinMax},
                          {"Mul", Arithmetic},
                          {"Neg", SameAsInput},
                          {"Not", Logic},
                          {"Or", Logic},
                          {"Pow", Power},
                          {"RMSNormalization", SameAsInput},
                          {"Reciprocal", SameAsInput},
                          {"ReduceMax", Reduce},
                          {"ReduceMean", Reduce},
                          {"ReduceMin", Reduce},
                          {"ReduceSum", Reduce},
                          {"RotaryEmbedding", SameAsInput},
                          {"Sigmoid", SameAsInput},
                          {"SimplifiedLayerNormalization", SameAsInput},
                          {"Sin", SameAsInput},
                          {"SkipSimplifiedLayerNormalization", SkipNorm},
                          {"Softmax", SameAsInput},
                          {"Sqrt", SameAsInput},
                          {"Sub", Arithmetic},
                          {"Tanh", SameAsInput},
                          {"Trilu", SameAsInput},
                          {"Where", Choose},
                          {"Xor", Logic}};

}  // namespace

InferRule FindMathRule(std::string_view op) {
  const auto row =
      std::find_if(std::begin(kRules), std::end(kRules), [&](const Row& r) { return r.op == op; });
  return row == std::end(kRules) ? nullptr : row->rule;
}

}  // namespace granule::onnx
