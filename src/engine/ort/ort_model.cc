#include "engine/ort/ort_model.h"

#include <algorithm>

#include "engine/ort/shared_kv.h"

namespace granule::engine {
namespace {

std::string NameOf(const package::Package& package, onnx::ValueId id) {
  if (id == onnx::kNone) return "";
  return std::string(package.model.graph.values[static_cast<size_t>(id)].name);
}

// The port, where ONNX Runtime sees the same graph as the package did.
Result<const OrtPort*> Find(const OrtPort* port, const std::string& name) {
  if (port != nullptr) return port;
  return InvalidInput("ONNX Runtime sees no input or output \"{}\" in the model", name);
}

// An input of token numbers, [1, n]: its type, and the width that the graph fixes.
Status ReadNumbers(const OrtGraph& graph, const std::string& name, OrtElementType* type,
                   int64_t* fixed) {
  if (name.empty()) return {};
  auto port = Find(graph.FindInput(name), name);
  if (!port.ok()) return port.status();
  *type = (*port)->type;
  *fixed = (*port)->Fixed(1);
  if ((*port)->Fixed(0) > 1) {
    return InvalidInput("input \"{}\" is fixed to batches of {}; runs are of one sequence", name,
                        (*port)->Fixed(0));
  }
  return {};
}

// The number of slots that a past input is fixed to, -1 for none; all must agree.
Status ReadCapacity(const OrtGraph& graph, const std::string& name, int64_t* fixed) {
  auto port = Find(graph.FindInput(name), name);
  if (!port.ok()) return port.status();
  // Exporters write 0 where they mean "nothing yet".
  const int64_t slots = (*port)->Fixed(2) > 0 ? (*port)->Fixed(2) : -1;
  if ((*port)->Fixed(0) > 1) {
    return InvalidInput("KV input \"{}\" is fixed to batches of {}; runs are of one sequence", name,
                        (*port)->Fixed(0));
  }
  if (*fixed != -1 && *fixed != slots) {
    return InvalidInput("KV input \"{}\" has {} slots, but another has {}", name, slots, *fixed);
  }
  *fixed = slots;
  return {};
}

Status ReadPorts(const package::Package& package, OrtModel& model) {
  const OrtGraph& graph = *model.graph;
  const package::Roles& roles = package.roles;
  model.input_ids = NameOf(package, roles.input_ids);
  model.attention_mask = NameOf(package, roles.attention_mask);
  model.position_ids = NameOf(package, roles.position_ids);
  model.logits = NameOf(package, roles.logits);
  int64_t rows = -1;
  int64_t position_rows = -1;
  if (Status s = ReadNumbers(graph, model.input_ids, &model.input_ids_type, &rows); !s.ok()) {
    return s;
  }
  if (Status s =
          ReadNumbers(graph, model.attention_mask, &model.attention_mask_type, &model.fixed_mask);
      !s.ok()) {
    return s;
  }
  if (Status s = ReadNumbers(graph, model.position_ids, &model.position_ids_type, &position_rows);
      !s.ok()) {
    return s;
  }
  if (rows > 1) {
    return InvalidInput("input \"{}\" is fixed to {} tokens a run; any number, or 1, is expected",
                        model.input_ids, rows);
  }
  model.one_row = rows == 1;
  auto logits = Find(graph.FindOutput(model.logits), model.logits);
  if (!logits.ok()) return logits.status();
  model.last_row_logits = (*logits)->dims.size() == 2 || (*logits)->Fixed(1) == 1;

  for (const package::KvPort& kv : roles.kv) {
    OrtKvPort port;
    port.past_key = NameOf(package, kv.past_key);
    port.past_value = NameOf(package, kv.past_value);
    port.present_key = NameOf(package, kv.present_key);
    port.present_value = NameOf(package, kv.present_value);
    port.geometry = {kv.kv_heads, kv.head_dim, kv.dtype};
    for (const std::string& name : {port.past_key, port.past_value}) {
      if (Status s = ReadCapacity(graph, name, &model.fixed_capacity); !s.ok()) return s;
    }
    model.layers.push_back(std::move(port));
  }
  return {};
}

}  // namespace

int64_t OrtModel::fixed_tokens() const {
  if (fixed_capacity < 0 || fixed_mask < 0) return std::max(fixed_capacity, fixed_mask);
  return std::min(fixed_capacity, fixed_mask);
}

Result<std::unique_ptr<OrtModel>> OrtModel::Load(const OrtPlaces& places,
                                                 const package::Package& package, int threads) {
  if (package.model.files.empty() || !package.tokenizer_text.empty()) {
    return Error(Code::kUsage,
                 "{}: ONNX Runtime loads a model from a file, and this one was made in memory: "
                 "write it with `granule synth` first",
                 package.name);
  }
  auto library = OrtLibrary::Open(places);
  if (!library.ok()) return library.status();
  const std::filesystem::path& path = package.model.files.front()->path();
  auto graph = OrtGraph::Load(std::move(*library), path, threads);
  if (!graph.ok()) return graph.status();
  auto model = std::make_unique<OrtModel>();
  model->graph = std::move(*graph);
  model->vocab_size = package.vocab_size;
  if (Status s = ReadPorts(package, *model); !s.ok()) return s.In(path.native());

  model->kv_reason = WhyGraphCannotShareKv(package);
  if (!model->kv_reason.empty()) return model;
  model->kv_mode = OrtKvMode::kShared;  // as the trial wants it
  auto refused = WhyLibraryCannotShareKv(*model);
  if (!refused.ok()) return refused.status().In(path.native());
  if (refused->empty()) {
    model->kv_reason = "every KV passes through GroupQueryAttention, which touches live rows only";
  } else {
    model->kv_mode = OrtKvMode::kCopied;
    model->kv_reason = *refused;
  }
  return model;
}

}  // namespace granule::engine
