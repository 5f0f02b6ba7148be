#include <algorithm>
#include <numeric>

#include "base/arith.h"
#include "onnx/checks.h"
#include "onnx/fold.h"
#include "onnx/operators.h"

namespace granule::onnx {
namespace {

constexpr size_t kLargestFoldedView = 64 << 10;  // bytes

class Simplifier {
 public:
  Simplifier(Model& model, const SimplifyOptions& options)
      : model_(model),
        graph_(model.graph),
        budget_{options.max_folded_bytes, SaturatingMul(options.max_folded_bytes, 8)},
        is_wanted_(graph_.values.size(), false) {
    for (ValueId id : graph_.outputs) is_wanted_[static_cast<size_t>(id)] = true;
    is_output_ = is_wanted_;
    for (ValueId id : options.dead_outputs) is_wanted_[static_cast<size_t>(id)] = false;
  }

  void Fold();
  void RemoveDead();

 private:
  // The node's value as a constant, when it has one output and everything that it needs is known.
  std::optional<Tensor> Evaluate(const Node& node);
  void SetConstant(ValueId id, Tensor tensor);

  Model& model_;
  Graph& graph_;
  FoldBudget budget_;
  std::vector<bool> is_output_;
  std::vector<bool> is_wanted_;
};

std::optional<Tensor> Simplifier::Evaluate(const Node& node) {
  if (node.outputs.size() != 1 || node.outputs[0] == kNone) return std::nullopt;
  // An operator of the same name in an unknown domain is another operator.
  if (FindOperator(node.domain, node.op) == nullptr) return std::nullopt;
  Evaluator evaluate = FindMovementEvaluator(node.op);
  if (evaluate == nullptr) evaluate = FindMathEvaluator(node.op);
  if (evaluate == nullptr) return std::nullopt;
  const bool needs_constants = node.op != "Shape";
  const auto is_known = [&](ValueId id) { return id == kNone || graph_.IsConstant(id); };
  if (needs_constants && !std::all_of(node.inputs.begin(), node.inputs.end(), is_known))
    return std::nullopt;
  // A weight that the graph widens or turns stays as the file has it: whoever reads weights looks
  // through these nodes, and a folded copy would be larger than what it came from.
  const bool is_view = node.domain.empty() && (node.op == "Cast" || node.op == "Transpose");
  const Tensor* viewed =
      is_view && !node.inputs.empty() ? graph_.FindConstant(node.inputs[0]) : nullptr;
  if (viewed != nullptr && viewed->bytes.size() > kLargestFoldedView) return std::nullopt;
  FoldContext context(model_, node, budget_);
  return evaluate(context);
}

void Simplifier::SetConstant(ValueId id, Tensor tensor) {
  Value& value = graph_.values[static_cast<size_t>(id)];
  value.dtype = tensor.dtype;
  value.shape.emplace();
  for (int64_t dim : tensor.dims) value.shape->push_back(Dim{.size = dim, .symbol = {}});
  value.tensor = static_cast<int32_t>(graph_.tensors.size());
  graph_.tensors.push_back(std::move(tensor));
}

void Simplifier::Fold() {
  std::vector<ValueId> stands_for(graph_.values.size());
  std::iota(stands_for.begin(), stands_for.end(), 0);
  std::vector<Node> kept;
  for (Node& node : graph_.nodes) {
    for (ValueId& id : node.inputs) {
      if (id != kNone) id = stands_for[static_cast<size_t>(id)];
    }
    if (std::optional<Tensor> tensor = Evaluate(node)) {
      SetConstant(node.outputs[0], std::move(*tensor));
      continue;
    }
    const bool is_alias = node.op == "Identity" && node.domain.empty() &&
                          node.outputs[0] != kNone &&
                          !is_output_[static_cast<size_t>(node.outputs[0])];
    if (is_alias) {
      stands_for[static_cast<size_t>(node.outputs[0])] = node.inputs[0];
      continue;
    }
    kept.push_back(std::move(node));
  }
  graph_.nodes = std::move(kept);
}

void Simplifier::RemoveDead() {
  std::vector<bool> keep(graph_.nodes.size(), false);
  for (size_t n = graph_.nodes.size(); n-- > 0;) {
    const Node& node = graph_.nodes[n];
    keep[n] = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
      return id != kNone && is_wanted_[static_cast<size_t>(id)];
    });
    if (!keep[n]) continue;
    for (ValueId id : node.inputs) {
      if (id != kNone) is_wanted_[static_cast<size_t>(id)] = true;
    }
  }
  std::vector<bool> is_made(graph_.values.size(), false);
  for (ValueId id : graph_.inputs) is_made[static_cast<size_t>(id)] = true;
  std::vector<Node> kept;
  for (size_t n = 0; n < keep.size(); ++n) {
    if (!keep[n]) continue;
    for (ValueId id : graph_.nodes[n].outputs) {
      if (id != kNone) is_made[static_cast<size_t>(id)] = true;
    }
    kept.push_back(std::move(graph_.nodes[n]));
  }
  graph_.nodes = std::move(kept);
  std::erase_if(graph_.outputs, [&](ValueId id) {
    return !is_made[static_cast<size_t>(id)] && !graph_.IsConstant(id);
  });
}

}  // namespace

Status Simplify(Model& model, const SimplifyOptions& options) {
  Simplifier simplifier(model, options);
  simplifier.Fold();
  simplifier.RemoveDead();
  return {};
}

}  // namespace granule::onnx
