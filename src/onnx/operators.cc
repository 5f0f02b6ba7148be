#include "onnx/operators.h"

#include <algorithm>
#include <iterator>

namespace granule::onnx {
namespace {

constexpr std::string_view kMs = "com.microsoft";

// Sorted by operator, then domain. Counts are those of all opset versions together.
constexpr OperatorInfo kOperators[] = {
    {"Abs", "", 1, 1, 1, ""},
    {"Add", "", 2, 2, 1, ""},
    {"And", "", 2, 2, 1, ""},
    {"Cast", "", 1, 1, 1, "to:i saturate:i"},
    {"Ceil", "", 1, 1, 1, ""},
    {"Clip", "", 1, 3, 1, "min:f max:f"},
    {"Concat", "", 1, kAnyCount, 1, "axis:i"},
    {"Constant", "", 0, 0, 1, "value:t value_float:f value_floats:F value_int:i value_ints:I"},
    {"ConstantOfShape", "", 1, 1, 1, "value:t"},
    {"Cos", "", 1, 1, 1, ""},
    {"CumSum", "", 2, 2, 1, "exclusive:i reverse:i"},
    {"Div", "", 2, 2, 1, ""},
    {"Equal", "", 2, 2, 1, ""},
    {"Erf", "", 1, 1, 1, ""},
    {"Exp", "", 1, 1, 1, ""},
    {"Expand", "", 2, 2, 1, ""},
    {"Flatten", "", 1, 1, 1, "axis:i"},
    {"Floor", "", 1, 1, 1, ""},
    {"Gather", "", 2, 2, 1, "axis:i"},
    {"GatherBlockQuantized", kMs, 3, 4, 1, "bits:i block_size:i gather_axis:i quantize_axis:i"},
    {"Gemm", "", 2, 3, 1, "alpha:f beta:f transA:i transB:i"},
    {"Greater", "", 2, 2, 1, ""},
    {"GreaterOrEqual", "", 2, 2, 1, ""},
    {"GroupQueryAttention", kMs, 7, 16, 4,
     "num_heads:i kv_num_heads:i scale:f softcap:f local_window_size:i do_rotary:i "
     "rotary_interleaved:i "
     "smooth_softmax:i qk_output:i causal:i sliding_window_cache:i"},
    {"Identity", "", 1, 1, 1, ""},
    {"Less", "", 2, 2, 1, ""},
    {"LessOrEqual", "", 2, 2, 1, ""},
    {"Log", "", 1, 1, 1, ""},
    {"MatMul", "", 2, 2, 1, ""},
    {"MatMulNBits", kMs, 3, 6, 1,
     "K:i N:i bits:i block_size:i accuracy_level:i weight_prepacked:i"},
    {"Max", "", 1, kAnyCount, 1, ""},
    {"Min", "", 1, kAnyCount, 1, ""},
    {"Mul", "", 2, 2, 1, ""},
    {"Neg", "", 1, 1, 1, ""},
    {"Not", "", 1, 1, 1, ""},
    {"Or", "", 2, 2, 1, ""},
    {"Pow", "", 2, 2, 1, ""},
    {"RMSNormalization", "", 2, 2, 1, "axis:i epsilon:f stash_type:i"},
    {"Range", "", 3, 3, 1, ""},
    {"Reciprocal", "", 1, 1, 1, ""},
    {"ReduceMax", "", 1, 2, 1, "axes:I keepdims:i noop_with_empty_axes:i"},
    {"ReduceMean", "", 1, 2, 1, "axes:I keepdims:i noop_with_empty_axes:i"},
    {"ReduceMin", "", 1, 2, 1, "axes:I keepdims:i noop_with_empty_axes:i"},
    {"ReduceSum", "", 1, 2, 1, "axes:I keepdims:i noop_with_empty_axes:i"},
    {"Reshape", "", 2, 2, 1, "allowzero:i"},
    {"RotaryEmbedding", "", 3, 4, 1, "interleaved:i num_heads:i rotary_embedding_dim:i"},
    {"RotaryEmbedding", kMs, 4, 4, 1,
     "interleaved:i num_heads:i rotary_embedding_dim:i scale:f is_packed_batching:i"},
    {"Shape", "", 1, 1, 1, "start:i end:i"},
    {"Sigmoid", "", 1, 1, 1, ""},
    {"SimplifiedLayerNormalization", "*", 2, 2, 2, "axis:i epsilon:f stash_type:i"},
    {"Sin", "", 1, 1, 1, ""},
    {"Size", "", 1, 1, 1, ""},
    {"SkipSimplifiedLayerNormalization", kMs, 3, 4, 4, "epsilon:f"},
    {"Slice", "", 1, 5, 1, "axes:I starts:I ends:I"},
    {"Softmax", "", 1, 1, 1, "axis:i"},
    {"Split", "", 1, 2, kAnyCount, "axis:i split:I num_outputs:i"},
    {"Sqrt", "", 1, 1, 1, ""},
    {"Squeeze", "", 1, 2, 1, "axes:I"},
    {"Sub", "", 2, 2, 1, ""},
    {"Tanh", "", 1, 1, 1, ""},
    {"Tile", "", 2, 2, 1, ""},
    {"Transpose", "", 1, 1, 1, "perm:I"},
    {"Trilu", "", 1, 2, 1, "upper:i"},
    {"Unsqueeze", "", 1, 2, 1, "axes:I"},
    {"Where", "", 3, 3, 1, ""},
    {"Xor", "", 2, 2, 1, ""},
};

}  // namespace

const OperatorInfo* FindOperator(std::string_view domain, std::string_view op) {
  const auto first = std::lower_bound(
      std::begin(kOperators), std::end(kOperators), op,
      [](const OperatorInfo& row, std::string_view name) { return row.op < name; });
  for (const OperatorInfo* row = first; row != std::end(kOperators) && row->op == op; ++row) {
    const bool either = row->domain == "*" && (domain.empty() || domain == kMs);
    if (row->domain == domain || either) return row;
  }
  return nullptr;
}

}  // namespace granule::onnx
