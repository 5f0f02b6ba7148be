#include "engine/native/build_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/check.h"
#include "engine/native/place_buffers.h"
#include "engine/native/weights.h"
#include "onnx/checks.h"

namespace granule::engine {
namespace {

using onnx::Node;
using onnx::ValueId;

// What a value of the graph is to the plan.
struct RowValue {
  enum class Kind { kNotRows, kTokenIds, kPositions, kRows } kind = Kind::kNotRows;
  Operand operand;
  int64_t width = 0;
};

// Inputs of a node that the plan reads. Attention takes lengths from the engine, so its length and
// position inputs do not keep the mask and position subgraphs alive.
bool ReadsInput(const Node& node, size_t i) {
  return node.op != "GroupQueryAttention" || i < 5 || i == 7 || i == 8 || i >= 10;
}

class PlanBuilder {
 public:
  PlanBuilder(package::Package& package, const kernels::Context* kernels)
      : package_(package),
        graph_(package.model.graph),
        plan_(std::make_unique<Plan>()),
        weights_(package.model, kernels, *plan_),
        values_(graph_.values.size()),
        consumers_(graph_.values.size()),
        alive_(graph_.nodes.size(), false),
        fused_(graph_.nodes.size(), false) {}

  Result<BuiltPlan> Build();

 private:
  void FindLiveNodes();
  void Emit(const Node& node);
  bool FollowsRefusal(const Node& node) const;
  bool IsWeightView(const Node& node) const;
  void Refuse(const Node& node, const std::string& reason);

  void EmitGather(const Node& node);
  void EmitGatherQuantized(const Node& node);
  void EmitMatMul(const Node& node);
  void EmitNorm(const Node& node);
  void EmitSkipNorm(const Node& node);
  void EmitBinary(const Node& node);
  void EmitSigmoid(const Node& node);
  void EmitUnary(const Node& node, kernels::Unary op);
  void EmitTanh(const Node& node) { EmitUnary(node, kernels::Unary::kTanh); }
  void EmitNeg(const Node& node) { EmitUnary(node, kernels::Unary::kNeg); }
  void EmitConcat(const Node& node);
  void EmitAttention(const Node& node);
  void EmitAlias(const Node& node);

  const RowValue* Rows(const Node& node, size_t input);  // refuses the node when it is not rows
  std::optional<Indices> IndicesOf(ValueId value) const;
  BufferId NewBuffer(ValueId value, int64_t width);
  void Push(const Node& node, PlanStep step) {
    plan_->steps.push_back(std::move(step));
    plan_->labels.emplace_back(node.name.empty() ? node.op : node.name);
  }
  // The node that alone reads `value`, when there is exactly one and the value is no graph output.
  const Node* OnlyReader(ValueId value) const;
  void LimitPositions(int64_t rows, const char* source);
  void MergeProducts();

  package::Package& package_;
  onnx::Graph& graph_;
  std::unique_ptr<Plan> plan_;
  Weights weights_;
  std::vector<RowValue> values_;
  std::vector<std::vector<size_t>> consumers_;  // live nodes that read a value
  std::vector<bool> alive_;
  std::vector<bool> fused_;  // part of an earlier step
  std::map<std::string, size_t> refusals_;
  BuiltPlan built_;
};

void PlanBuilder::Refuse(const Node& node, const std::string& reason) {
  const std::string key = Format("{}|{}|{}", node.domain, node.op, reason);
  const auto [it, inserted] = refusals_.emplace(key, built_.unsupported.size());
  if (inserted) {
    built_.unsupported.push_back(
        {std::string(node.op), std::string(node.domain), std::string(node.name), 0, reason});
  }
  ++built_.unsupported[it->second].count;
  // Later nodes are still looked at, so that one look shows everything; their rows have an unknown
  // width.
  for (const ValueId v : node.outputs) {
    if (v != onnx::kNone) NewBuffer(v, 0);
  }
}

void PlanBuilder::FindLiveNodes() {
  std::vector<bool> wanted(graph_.values.size(), false);
  wanted[static_cast<size_t>(package_.roles.logits)] = true;
  for (size_t i = graph_.nodes.size(); i-- > 0;) {
    const Node& node = graph_.nodes[i];
    alive_[i] = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) {
      return v != onnx::kNone && wanted[static_cast<size_t>(v)];
    });
    if (!alive_[i]) continue;
    for (size_t input = 0; input < node.inputs.size(); ++input) {
      const ValueId v = node.inputs[input];
      if (v == onnx::kNone || !ReadsInput(node, input)) continue;
      wanted[static_cast<size_t>(v)] = true;
      consumers_[static_cast<size_t>(v)].push_back(i);
    }
  }
}

BufferId PlanBuilder::NewBuffer(ValueId value, int64_t width) {
  const auto id = static_cast<BufferId>(plan_->buffers.size());
  Buffer buffer;
  buffer.width = width;
  buffer.is_logits = value == package_.roles.logits;
  plan_->buffers.push_back(buffer);
  values_[static_cast<size_t>(value)] = {RowValue::Kind::kRows, {id, 0}, width};
  return id;
}

const RowValue* PlanBuilder::Rows(const Node& node, size_t input) {
  const ValueId v = node.input(input);
  const RowValue* row = v == onnx::kNone ? nullptr : &values_[static_cast<size_t>(v)];
  if (row == nullptr || row->kind != RowValue::Kind::kRows) {
    Refuse(node, Format("input {} is not one row of features per token", input));
    return nullptr;
  }
  return row;
}

std::optional<Indices> PlanBuilder::IndicesOf(ValueId value) const {
  if (value == onnx::kNone) return std::nullopt;
  if (value == package_.roles.input_ids) return Indices::kTokenIds;
  if (value == package_.roles.position_ids) return Indices::kPositions;
  return std::nullopt;
}

const Node* PlanBuilder::OnlyReader(ValueId value) const {
  const auto& readers = consumers_[static_cast<size_t>(value)];
  if (readers.size() != 1 || value == package_.roles.logits) return nullptr;
  return &graph_.nodes[readers[0]];
}

void PlanBuilder::LimitPositions(int64_t rows, const char* source) {
  if (rows >= plan_->table_rows) return;
  plan_->table_rows = rows;
  plan_->table_rows_source = source;
}

void PlanBuilder::EmitGather(const Node& node) {
  const auto indices = IndicesOf(node.input(1));
  const onnx::Tensor* table = weights_.Find(node.input(0)).tensor;
  if (!indices || table == nullptr || weights_.Find(node.input(0)).transposed) {
    return Refuse(node, "only rows of a constant table by token or position are built");
  }
  const int64_t axis = node.Int("axis", 0);
  if (axis != 0 || table->dims.size() != 2 || !IsFloat(table->dtype)) {
    return Refuse(node, Format("axis {} of a {}-dimensional {} table is not built", axis,
                               table->dims.size(), DTypeName(table->dtype)));
  }
  GatherStep step;
  step.indices = *indices;
  step.table = table->bytes.data();
  step.dtype = table->dtype;
  step.table_rows = table->dims[0];
  step.width = table->dims[1];
  step.y = NewBuffer(node.outputs[0], step.width);
  if (*indices == Indices::kPositions) LimitPositions(step.table_rows, "position table rows");
  Push(node, std::move(step));
}

void PlanBuilder::EmitGatherQuantized(const Node& node) {
  const auto indices = IndicesOf(node.input(1));
  if (!indices) return Refuse(node, "only rows by token or position are built");
  auto table = weights_.Table(node);
  if (!table.ok()) return Refuse(node, table.status().message());
  if (*indices == Indices::kPositions) LimitPositions(table->rows, "position table rows");
  GatherQuantizedStep step;
  step.indices = *indices;
  step.table = *table;
  step.y = NewBuffer(node.outputs[0], table->width);
  Push(node, std::move(step));
}

void PlanBuilder::EmitMatMul(const Node& node) {
  const RowValue* x = Rows(node, 0);
  if (x == nullptr) return;
  MatMulStep step;
  step.x = x->operand;
  const bool quantized = node.op == "MatMulNBits";
  auto matrix = quantized ? weights_.Quantized(node) : weights_.Dense(node);
  if (!matrix.ok()) return Refuse(node, matrix.status().message());
  const int64_t n = matrix->n;
  step.k = matrix->k;
  if (x->width != step.k) {
    return Refuse(node, Format("rows of {} features meet weights with K = {}", x->width, step.k));
  }
  MatMulStep::Output output;
  output.source = matrix->source;
  output.weights = std::move(matrix->packed);
  ValueId y = node.outputs[0];
  if (quantized && node.input(5) != onnx::kNone) {
    auto bias = weights_.Floats(node.input(5), n);
    if (!bias.ok()) return Refuse(node, "bias: " + bias.status().message());
    output.bias = *bias;
  } else if (const Node* add = OnlyReader(y);
             add != nullptr && add->op == "Add" && add->domain.empty()) {
    // MatMul followed by the addition of a constant row: a bias.
    const ValueId other = add->input(0) == y ? add->input(1) : add->input(0);
    if (auto bias = weights_.Floats(other, n); bias.ok() && n > 1) {
      output.bias = *bias;
      y = add->outputs[0];
      fused_[static_cast<size_t>(add - graph_.nodes.data())] = true;
    }
  }
  output.y = NewBuffer(y, n);
  built_.macs_per_token += static_cast<uint64_t>(n) * static_cast<uint64_t>(step.k);
  step.outputs.push_back(std::move(output));
  Push(node, std::move(step));
}

void PlanBuilder::EmitNorm(const Node& node) {
  const RowValue* x = Rows(node, 0);
  if (x == nullptr) return;
  if (const int64_t axis = node.Int("axis", -1); axis != -1 && axis != 2) {
    return Refuse(node, Format("axis = {} is not built (the last one is)", axis));
  }
  RmsNormStep step;
  step.x = x->operand;
  step.width = x->width;
  step.epsilon = node.Float("epsilon", 1e-5f);
  auto gamma = weights_.Floats(node.input(1), x->width);
  if (!gamma.ok()) return Refuse(node, "scale: " + gamma.status().message());
  step.gamma = *gamma;
  if (x->operand.column != 0) return Refuse(node, "normalising part of a row is not built");
  step.y = NewBuffer(node.outputs[0], step.width);
  Push(node, std::move(step));
}

void PlanBuilder::EmitSkipNorm(const Node& node) {
  const RowValue* x = Rows(node, 0);
  const RowValue* skip = x == nullptr ? nullptr : Rows(node, 1);
  if (skip == nullptr) return;
  if (x->width != skip->width)
    return Refuse(node, Format("widths {} and {} differ", x->width, skip->width));
  SkipRmsNormStep step;
  step.x = x->operand.buffer;
  step.skip = skip->operand.buffer;
  step.width = x->width;
  step.epsilon = node.Float("epsilon", 1e-5f);
  auto gamma = weights_.Floats(node.input(2), x->width);
  if (!gamma.ok()) return Refuse(node, "gamma: " + gamma.status().message());
  step.gamma = *gamma;
  if (node.input(3) != onnx::kNone) {
    auto bias = weights_.Floats(node.input(3), step.width);
    if (!bias.ok()) return Refuse(node, "bias: " + bias.status().message());
    step.bias = *bias;
  }
  const auto wanted = [&](size_t output) {
    const ValueId v = node.output(output);
    return v != onnx::kNone &&
           (!consumers_[static_cast<size_t>(v)].empty() || v == package_.roles.logits);
  };
  if (wanted(1) || wanted(2))
    return Refuse(node, "outputs 1 and 2 (mean, inverse deviation) are not built");
  const int64_t width = step.width;
  if (wanted(0)) step.y = NewBuffer(node.output(0), width);
  if (wanted(3)) step.sum = NewBuffer(node.output(3), width);
  Push(node, std::move(step));
}

void PlanBuilder::EmitBinary(const Node& node) {
  kernels::Binary op = kernels::Binary::kAdd;
  if (node.op == "Sub") op = kernels::Binary::kSub;
  if (node.op == "Mul") op = kernels::Binary::kMul;
  if (node.op == "Div") op = kernels::Binary::kDiv;
  const bool commutes = op == kernels::Binary::kAdd || op == kernels::Binary::kMul;

  const auto is_rows = [&](ValueId v) {
    return v != onnx::kNone && values_[static_cast<size_t>(v)].kind == RowValue::Kind::kRows;
  };
  ValueId x = node.input(0);
  ValueId z = node.input(1);
  const auto width_of = [&](ValueId v) {
    return is_rows(v) ? values_[static_cast<size_t>(v)].width : int64_t{0};
  };
  if (commutes && (!is_rows(x) || (is_rows(z) && width_of(x) < width_of(z)))) std::swap(x, z);
  if (!is_rows(x)) return Refuse(node, "the left side is not one row of features per token");
  const RowValue left = values_[static_cast<size_t>(x)];

  BinaryStep step;
  step.op = op;
  step.x = left.operand.buffer;
  step.width = left.width;
  if (is_rows(z)) {
    step.z = values_[static_cast<size_t>(z)].operand.buffer;
    step.z_width = width_of(z);
  } else {
    const onnx::Tensor* constant = weights_.Find(z).tensor;
    if (constant == nullptr) return Refuse(node, "an operand is neither rows nor a constant");
    step.z_width = constant->elements();
    auto floats = weights_.Floats(z, step.z_width);
    if (!floats.ok()) return Refuse(node, floats.status().message());
    step.constant = *floats;
  }
  if (step.z_width != step.width && step.z_width != 1) {
    return Refuse(node, Format("widths {} and {} do not broadcast", step.width, step.z_width));
  }
  step.y = NewBuffer(node.outputs[0], step.width);
  Push(node, std::move(step));
}

// Sigmoid(g) * g [* u]: SiLU, and the gate of a feed-forward layer.
void PlanBuilder::EmitSigmoid(const Node& node) {
  const RowValue* x = Rows(node, 0);
  if (x == nullptr) return;
  const Node* mul = OnlyReader(node.outputs[0]);
  const auto other_of = [](const Node& m, ValueId v) {
    return m.input(0) == v ? m.input(1) : m.input(0);
  };
  if (mul == nullptr || mul->op != "Mul" || other_of(*mul, node.outputs[0]) != node.input(0)) {
    return EmitUnary(node, kernels::Unary::kSigmoid);
  }
  fused_[static_cast<size_t>(mul - graph_.nodes.data())] = true;
  UnaryStep silu{kernels::Unary::kSilu, x->operand.buffer, x->width, kNoBuffer};
  const Node* gated = OnlyReader(mul->outputs[0]);
  if (gated != nullptr && gated->op == "Mul") {
    const ValueId up = other_of(*gated, mul->outputs[0]);
    const RowValue* rows = up == onnx::kNone ? nullptr : &values_[static_cast<size_t>(up)];
    if (rows != nullptr && rows->kind == RowValue::Kind::kRows && rows->width == x->width) {
      fused_[static_cast<size_t>(gated - graph_.nodes.data())] = true;
      SiluMulStep step{silu.x, rows->operand.buffer, silu.width, kNoBuffer};
      step.y = NewBuffer(gated->outputs[0], step.width);
      return Push(*gated, step);
    }
  }
  silu.y = NewBuffer(mul->outputs[0], silu.width);
  Push(*mul, silu);
}

void PlanBuilder::EmitUnary(const Node& node, kernels::Unary op) {
  const RowValue* x = Rows(node, 0);
  if (x == nullptr) return;
  UnaryStep step{op, x->operand.buffer, x->width, kNoBuffer};
  step.y = NewBuffer(node.outputs[0], step.width);
  Push(node, step);
}

void PlanBuilder::EmitConcat(const Node& node) {
  const int64_t axis = node.Int("axis", 0);
  if (axis != -1 && axis != 2)
    return Refuse(node, Format("axis = {} is not built (the last one is)", axis));
  ConcatStep step;
  int64_t width = 0;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const RowValue* part = Rows(node, i);
    if (part == nullptr) return;
    step.parts.push_back(part->operand);
    step.widths.push_back(part->width);
    width += part->width;
  }
  step.y = NewBuffer(node.outputs[0], width);
  Push(node, std::move(step));
}

// Casts between float types: rows are fp32 whatever the graph calls them.
void PlanBuilder::EmitAlias(const Node& node) {
  const RowValue* x = Rows(node, 0);
  if (x == nullptr) return;
  if (node.outputs[0] == package_.roles.logits) {
    return Refuse(node, "logits that are a plain copy of another value are not built");
  }
  values_[static_cast<size_t>(node.outputs[0])] = *x;
}

void PlanBuilder::EmitAttention(const Node& node) {
  AttentionStep step;
  step.shape.heads = node.Int("num_heads", 0);
  step.shape.kv_heads = node.Int("kv_num_heads", 0);
  const auto& ports = package_.roles.kv;
  const auto port = std::find_if(ports.begin(), ports.end(), [&](const package::KvPort& p) {
    return p.past_key == node.input(3) && p.past_value == node.input(4) &&
           node.input(3) != onnx::kNone;
  });
  if (port == ports.end())
    return Refuse(node, "its past key and value are no KV inputs of the graph");
  if (port->fixed_past > 0) {
    return Refuse(node, Format("its past is fixed to {} tokens by the graph, and KV follows the "
                               "tokens here; --backend ort runs such graphs",
                               port->fixed_past));
  }
  if (step.shape.heads <= 0 || step.shape.kv_heads <= 0 ||
      step.shape.heads % step.shape.kv_heads != 0) {
    return Refuse(node, Format("num_heads = {} and kv_num_heads = {} do not go together",
                               step.shape.heads, step.shape.kv_heads));
  }
  if (port->kv_heads != step.shape.kv_heads) {
    return Refuse(node, Format("kv_num_heads = {} but the past key has {} heads",
                               step.shape.kv_heads, port->kv_heads));
  }
  step.layer = static_cast<int32_t>(port - ports.begin());
  step.shape.head_dim = port->head_dim;
  const float scale = node.Float("scale", 0.0f);
  step.shape.scale = scale != 0.0f ? scale : 1.0f / std::sqrt(static_cast<float>(port->head_dim));

  const struct {
    bool differs;
    const char* what;
  } refused[] = {
      {node.Float("softcap", 0.0f) != 0.0f, "attribute softcap is not built"},
      {node.Int("local_window_size", -1) > 0, "attribute local_window_size is not built"},
      {node.Int("smooth_softmax", 0) > 0, "attribute smooth_softmax is not built"},
      {node.Int("causal", 1) == 0, "attribute causal = 0 is not built"},
      {node.Int("kv_cache_bit_width", 0) != 0, "a quantised KV cache is not built"},
      {node.input(10) != onnx::kNone, "attention_bias (input 10) is not built"},
      {node.input(11) != onnx::kNone, "head_sink (input 11) is not built"},
      {node.input(12) != onnx::kNone || node.input(13) != onnx::kNone,
       "KV scales (inputs 12, 13) are not built"},
      {node.input(14) != onnx::kNone || node.input(15) != onnx::kNone,
       "q/k norm weights (inputs 14, 15) are not built"},
  };
  for (const auto& r : refused) {
    if (r.differs) return Refuse(node, r.what);
  }

  const int64_t q_width = step.shape.heads * step.shape.head_dim;
  const int64_t kv_width = step.shape.kv_heads * step.shape.head_dim;
  const RowValue* q = Rows(node, 0);
  if (q == nullptr) return;
  int64_t expected = q_width;
  step.q = q->operand;
  if (node.input(1) == onnx::kNone && node.input(2) == onnx::kNone) {
    expected += 2 * kv_width;  // packed
    step.k = {q->operand.buffer, q->operand.column + q_width};
    step.v = {q->operand.buffer, q->operand.column + q_width + kv_width};
  } else {
    const RowValue* k = Rows(node, 1);
    const RowValue* v = k == nullptr ? nullptr : Rows(node, 2);
    if (v == nullptr) return;
    if (k->width != kv_width || v->width != kv_width) {
      return Refuse(node, Format("key and value rows have {} and {} features, expected {}",
                                 k->width, v->width, kv_width));
    }
    step.k = k->operand;
    step.v = v->operand;
  }
  if (q->width != expected) {
    return Refuse(node, Format("query rows have {} features, expected {}", q->width, expected));
  }

  if (node.Int("do_rotary", 0) != 0) {
    const onnx::Tensor* cos = weights_.Find(node.input(7)).tensor;
    const onnx::Tensor* sin = weights_.Find(node.input(8)).tensor;
    if (cos == nullptr || sin == nullptr || cos->dims.size() != 2 || cos->dims != sin->dims) {
      return Refuse(node, "do_rotary needs constant cos and sin tables of the same two dimensions");
    }
    step.rotary.rotary_dim = 2 * cos->dims[1];
    step.rotary.interleaved = node.Int("rotary_interleaved", 0) != 0;
    if (step.rotary.rotary_dim <= 0 || step.rotary.rotary_dim > step.shape.head_dim) {
      return Refuse(node, Format("rotary tables of {} columns do not fit a head size of {}",
                                 cos->dims[1], step.shape.head_dim));
    }
    auto cos_data = weights_.Floats(node.input(7), cos->elements());
    auto sin_data = weights_.Floats(node.input(8), sin->elements());
    if (!cos_data.ok() || !sin_data.ok()) return Refuse(node, "the rotary tables are no floats");
    step.rotary.table_rows = cos->dims[0];
    step.rotary.cos = *cos_data;
    step.rotary.sin = *sin_data;
    LimitPositions(cos->dims[0], "cos_cache rows");
  }
  step.y = NewBuffer(node.outputs[0], q_width);
  plan_->last_attention = static_cast<int32_t>(plan_->steps.size());
  Push(node, step);
}

// True when a refused node feeds this one: what it needs is unknown, and saying more would only
// repeat the refusal.
bool PlanBuilder::FollowsRefusal(const Node& node) const {
  return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) {
    return v != onnx::kNone && values_[static_cast<size_t>(v)].kind == RowValue::Kind::kRows &&
           values_[static_cast<size_t>(v)].width == 0;
  });
}

// A Cast or Transpose of a constant: whoever reads the weight looks through it.
bool PlanBuilder::IsWeightView(const Node& node) const {
  return node.outputs.size() == 1 && node.outputs[0] != onnx::kNone &&
         weights_.Find(node.outputs[0]).tensor != nullptr;
}

void PlanBuilder::Emit(const Node& node) {
  using Handler = void (PlanBuilder::*)(const Node&);
  constexpr const char* kContrib = "com.microsoft";
  static constexpr struct {
    const char* domain;
    const char* op;
    Handler emit;
  } kOperators[] = {
      {"", "Gather", &PlanBuilder::EmitGather},
      {kContrib, "GatherBlockQuantized", &PlanBuilder::EmitGatherQuantized},
      {"", "MatMul", &PlanBuilder::EmitMatMul},
      {kContrib, "MatMulNBits", &PlanBuilder::EmitMatMul},
      {"", "SimplifiedLayerNormalization", &PlanBuilder::EmitNorm},
      {kContrib, "SimplifiedLayerNormalization", &PlanBuilder::EmitNorm},
      {"", "RMSNormalization", &PlanBuilder::EmitNorm},
      {kContrib, "SkipSimplifiedLayerNormalization", &PlanBuilder::EmitSkipNorm},
      {kContrib, "GroupQueryAttention", &PlanBuilder::EmitAttention},
      {"", "Add", &PlanBuilder::EmitBinary},
      {"", "Sub", &PlanBuilder::EmitBinary},
      {"", "Mul", &PlanBuilder::EmitBinary},
      {"", "Div", &PlanBuilder::EmitBinary},
      {"", "Sigmoid", &PlanBuilder::EmitSigmoid},
      {"", "Tanh", &PlanBuilder::EmitTanh},
      {"", "Neg", &PlanBuilder::EmitNeg},
      {"", "Concat", &PlanBuilder::EmitConcat},
      {"", "Cast", &PlanBuilder::EmitAlias},
      {"", "Identity", &PlanBuilder::EmitAlias},
  };
  for (const auto& known : kOperators) {
    if (node.domain != known.domain || node.op != known.op) continue;
    if (!FollowsRefusal(node)) return (this->*known.emit)(node);
    for (const ValueId v : node.outputs) {
      if (v != onnx::kNone) NewBuffer(v, 0);
    }
    return;
  }
  Refuse(node, "no native operator");
}

// Products with the same left side become one step: one parallel loop instead of three for q, k, v.
void PlanBuilder::MergeProducts() {
  auto& steps = plan_->steps;
  std::vector<PlanStep> merged;
  std::vector<std::string> labels;
  std::vector<bool> taken(steps.size(), false);
  for (size_t i = 0; i < steps.size(); ++i) {
    if (taken[i]) continue;
    if (auto* first = std::get_if<MatMulStep>(&steps[i])) {
      for (size_t j = i + 1; j < steps.size(); ++j) {
        auto* other = std::get_if<MatMulStep>(&steps[j]);
        if (other == nullptr || taken[j] || other->x.buffer != first->x.buffer ||
            other->x.column != first->x.column)
          continue;
        first->outputs.insert(first->outputs.end(), other->outputs.begin(), other->outputs.end());
        plan_->labels[i] += " + " + plan_->labels[j];
        taken[j] = true;
      }
    }
    if (std::holds_alternative<AttentionStep>(steps[i]))
      plan_->last_attention = static_cast<int32_t>(merged.size());
    merged.push_back(std::move(steps[i]));
    labels.push_back(std::move(plan_->labels[i]));
  }
  plan_->steps = std::move(merged);
  plan_->labels = std::move(labels);
}

Result<BuiltPlan> PlanBuilder::Build() {
  FindLiveNodes();
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    if (alive_[i] && !fused_[i] && !IsWeightView(graph_.nodes[i])) Emit(graph_.nodes[i]);
  }
  if (!built_.unsupported.empty()) return std::move(built_);

  const RowValue& logits = values_[static_cast<size_t>(package_.roles.logits)];
  if (logits.kind != RowValue::Kind::kRows) {
    return InvalidInput(
        "the logits are not computed from the token ids: nothing produces them row by row");
  }
  if (plan_->last_attention < 0)
    return InvalidInput("the graph has no attention node that reads the KV inputs");
  plan_->logits = logits.operand.buffer;
  plan_->vocab_size = logits.width;
  MergeProducts();
  PlaceBuffers(*plan_);
  built_.packed_bytes = weights_.packed_bytes();
  built_.plan = std::move(plan_);
  return std::move(built_);
}

}  // namespace

Result<BuiltPlan> BuildPlan(package::Package& package, const kernels::Context* kernels) {
  onnx::SimplifyOptions options;
  for (const package::KvPort& port : package.roles.kv) {
    options.dead_outputs.push_back(port.present_key);
    options.dead_outputs.push_back(port.present_value);
  }
  if (Status s = onnx::Simplify(package.model, options); !s.ok()) return s;
  return PlanBuilder(package, kernels).Build();
}

}  // namespace granule::engine
