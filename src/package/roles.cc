#include "package/roles.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>

namespace granule::package {
namespace {

using onnx::ValueId;

constexpr const char* kHint = "`granule inspect` shows what the graph has";

const onnx::Value& At(const onnx::Graph& graph, ValueId id) {
  return graph.values[static_cast<size_t>(id)];
}

std::string NamesOf(const onnx::Graph& graph, const std::vector<ValueId>& ids) {
  constexpr size_t kShown = 12;
  std::string list;
  for (size_t i = 0; i < ids.size() && i < kShown; ++i)
    list += Format("{}\"{}\"", i ? ", " : "", At(graph, ids[i]).name);
  if (ids.size() > kShown) list += Format(" and {} more", ids.size() - kShown);
  return list;
}

// Graph inputs or outputs by name.
using Ports = std::map<std::string_view, ValueId>;

Ports PortsOf(const onnx::Graph& graph, const std::vector<ValueId>& ids) {
  Ports ports;
  for (ValueId id : ids) ports.emplace(At(graph, id).name, id);
  return ports;
}

// A name with the layer's number in it: "past_key_values.%d.key".
struct Template {
  std::string prefix, suffix;

  static std::optional<Template> From(const std::string& text) {
    const size_t at = text.find("%d");
    if (at == std::string::npos) return std::nullopt;
    return Template{text.substr(0, at), text.substr(at + 2)};
  }

  // The number, where the name is of this form.
  std::optional<int> Match(std::string_view name) const {
    if (name.size() <= prefix.size() + suffix.size() || !name.starts_with(prefix) ||
        !name.ends_with(suffix)) {
      return std::nullopt;
    }
    const std::string_view digits =
        name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
    int number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc() || end != digits.data() + digits.size() || digits.front() == '-')
      return std::nullopt;
    return number;
  }

  std::string Name(int layer) const { return Format("{}{}{}", prefix, layer, suffix); }
};

struct KvTemplates {
  Template past_key, past_value, present_key, present_value;
};

// The configuration's templates, then the spellings that exporters use.
std::vector<KvTemplates> CandidateTemplates(const Stated& stated) {
  std::vector<KvTemplates> candidates;
  const auto add = [&](const std::array<std::string, 4>& names) {
    std::array<std::optional<Template>, 4> parts;
    std::transform(names.begin(), names.end(), parts.begin(), Template::From);
    if (std::all_of(parts.begin(), parts.end(),
                    [](const auto& part) { return part.has_value(); })) {
      candidates.push_back({*parts[0], *parts[1], *parts[2], *parts[3]});
    }
  };
  const auto named = [&](const char* key) {
    const auto it = stated.names.find(key);
    return it == stated.names.end() ? std::string() : it->second;
  };
  add({named("past_key_names"), named("past_value_names"), named("present_key_names"),
       named("present_value_names")});
  add({"past_key_values.%d.key", "past_key_values.%d.value", "present.%d.key", "present.%d.value"});
  add({"past_key_values.%d.key", "past_key_values.%d.value", "present_key_values.%d.key",
       "present_key_values.%d.value"});
  add({"past_key_%d", "past_value_%d", "present_key_%d", "present_value_%d"});
  add({"past_%d_key", "past_%d_value", "present_%d_key", "present_%d_value"});
  add({"past.%d.key", "past.%d.value", "present.%d.key", "present.%d.value"});
  return candidates;
}

// A port by the configuration's name for the role, else by its usual name.
ValueId FindPort(const Ports& ports, const Stated& stated, const char* role, const char* usual,
                 std::vector<std::string>* warnings) {
  const auto proposed = stated.names.find(role);
  if (proposed != stated.names.end()) {
    if (const auto it = ports.find(proposed->second); it != ports.end()) return it->second;
    if (proposed->second != usual) {
      warnings->push_back(Format("genai_config.json calls {} \"{}\", which the graph does not have",
                                 role, proposed->second));
    }
  }
  const auto it = ports.find(usual);
  return it == ports.end() ? onnx::kNone : it->second;
}

Status RequireIds(const onnx::Graph& graph, ValueId id, size_t rank) {
  const onnx::Value& value = At(graph, id);
  const bool ids = value.dtype == DType::kI64 || value.dtype == DType::kI32;
  if (!ids || (value.shape && value.shape->size() != rank)) {
    return InvalidInput("graph input \"{}\" is {} with {} dimensions; int64 with {} is expected",
                        value.name, value.dtype ? DTypeName(*value.dtype) : "of no known type",
                        value.shape ? value.shape->size() : 0, rank);
  }
  return {};
}

// One half of a pair: its sizes from the past input, and that the present output is of the same
// kind.
struct Half {
  int64_t heads = 0, dim = 0;
  int64_t fixed_past = 0;  // 0: grows
  DType dtype = DType::kF32;
};

Result<Half> ReadHalf(const onnx::Graph& graph, ValueId past_id, ValueId present_id) {
  const onnx::Value& past = At(graph, past_id);
  const onnx::Value& present = At(graph, present_id);
  if (!past.shape || past.shape->size() != 4) {
    return InvalidInput(
        "KV input \"{}\" has {} dimensions; [batch, KV heads, past, head size] is expected",
        past.name, past.shape ? past.shape->size() : 0);
  }
  const onnx::Dim& heads = (*past.shape)[1];
  const onnx::Dim& dim = (*past.shape)[3];
  if (heads.size < 1 || dim.size < 1) {
    return InvalidInput(
        "KV input \"{}\" does not state its number of heads and its head size (dimensions 1 and 3)",
        past.name);
  }
  if (!past.dtype || !IsFloat(*past.dtype)) {
    return InvalidInput("KV input \"{}\" is {}; float32, float16 or bfloat16 is expected",
                        past.name, past.dtype ? DTypeName(*past.dtype) : "of no known type");
  }
  if (present.dtype && *present.dtype != *past.dtype) {
    return InvalidInput("KV output \"{}\" is {}, but its input \"{}\" is {}", present.name,
                        DTypeName(*present.dtype), past.name, DTypeName(*past.dtype));
  }
  // Exporters write 0 where they mean "nothing yet".
  return Half{heads.size, dim.size, std::max<int64_t>((*past.shape)[2].size, 0), *past.dtype};
}

Result<KvPort> ReadPair(const onnx::Graph& graph, const Ports& inputs, const Ports& outputs,
                        const KvTemplates& names, int layer) {
  const auto find = [&](const Ports& ports, const Template& name,
                        const char* kind) -> Result<ValueId> {
    const auto it = ports.find(name.Name(layer));
    if (it != ports.end()) return it->second;
    return InvalidInput("layer {} of the KV has no {} \"{}\" in the graph", layer, kind,
                        name.Name(layer));
  };
  KvPort port;
  port.layer = layer;
  const std::array<std::pair<Result<ValueId>, ValueId*>, 4> found = {
      {{find(inputs, names.past_key, "input"), &port.past_key},
       {find(inputs, names.past_value, "input"), &port.past_value},
       {find(outputs, names.present_key, "output"), &port.present_key},
       {find(outputs, names.present_value, "output"), &port.present_value}}};
  for (const auto& [result, id] : found) {
    if (!result.ok()) return result.status();
    *id = *result;
  }
  Result<Half> key = ReadHalf(graph, port.past_key, port.present_key);
  if (!key.ok()) return key.status();
  Result<Half> value = ReadHalf(graph, port.past_value, port.present_value);
  if (!value.ok()) return value.status();
  if (key->heads != value->heads || key->dim != value->dim || key->dtype != value->dtype) {
    return InvalidInput(
        "layer {}: keys are {} x {} of {}, values {} x {} of {}; different keys and values are not "
        "supported",
        layer, key->heads, key->dim, DTypeName(key->dtype), value->heads, value->dim,
        DTypeName(value->dtype));
  }
  if (key->fixed_past != value->fixed_past) {
    return InvalidInput(
        "layer {}: the past of its keys is fixed to {} tokens, that of its values to {} (0: not "
        "fixed); both must be the same",
        layer, key->fixed_past, value->fixed_past);
  }
  port.kv_heads = key->heads;
  port.fixed_past = key->fixed_past;
  port.head_dim = key->dim;
  port.dtype = key->dtype;
  return port;
}

// The layers whose past inputs are spelled like this.
std::set<int> LayersOf(const Ports& inputs, const KvTemplates& names) {
  std::set<int> layers;
  for (const auto& [name, id] : inputs) {
    for (const Template* half : {&names.past_key, &names.past_value}) {
      // "past.01.key" names no layer: writing its number gives another name.
      if (const std::optional<int> layer = half->Match(name); layer && half->Name(*layer) == name)
        layers.insert(*layer);
    }
  }
  return layers;
}

Status FindKv(const onnx::Graph& graph, const Ports& inputs, const Ports& outputs,
              const Stated& stated, Roles* roles) {
  Status reason;  // why the first spelling that fits in part does not fit whole
  for (const KvTemplates& names : CandidateTemplates(stated)) {
    std::vector<KvPort> ports;
    Status failure;
    const std::set<int> layers = LayersOf(inputs, names);
    for (int layer : layers) {
      Result<KvPort> port = ReadPair(graph, inputs, outputs, names, layer);
      if (!port.ok()) {
        failure = port.status();
        break;
      }
      ports.push_back(*port);
    }
    if (failure.ok() && !ports.empty()) {
      roles->kv = std::move(ports);
      return {};
    }
    if (reason.ok()) reason = failure;
  }
  if (!reason.ok()) return reason;
  return InvalidInput(
      "the graph has no KV inputs such as \"past_key_values.0.key\"; its inputs are {} ({})",
      NamesOf(graph, graph.inputs), kHint);
}

Status RequireNoOtherInputs(const onnx::Graph& graph, const Roles& roles) {
  std::set<ValueId> known = {roles.input_ids, roles.attention_mask, roles.position_ids};
  for (const KvPort& port : roles.kv) known.insert({port.past_key, port.past_value});
  std::vector<ValueId> others;
  for (ValueId id : graph.inputs) {
    if (!known.contains(id)) others.push_back(id);
  }
  if (others.empty()) return {};
  return InvalidInput("graph inputs that play no known part: {}", NamesOf(graph, others));
}

void WarnOfContradictions(const Stated& stated, const Roles& roles,
                          std::vector<std::string>* warnings) {
  const auto warn = [&](const std::optional<Sourced>& claim, int64_t truth, const char* what) {
    if (claim && claim->value != truth) {
      warnings->push_back(Format("{} is {}, but {} in the graph is {}; the graph counts",
                                 claim->source, claim->value, what, truth));
    }
  };
  const KvPort& first = roles.kv.front();
  const bool same = std::all_of(roles.kv.begin(), roles.kv.end(), [&](const KvPort& port) {
    return port.kv_heads == first.kv_heads && port.head_dim == first.head_dim;
  });
  if (same) {
    warn(stated.head_size, first.head_dim, "the head size");
    warn(stated.kv_heads, first.kv_heads, "the number of KV heads");
  }
  if (stated.kv_dtype && stated.kv_dtype->value != static_cast<int64_t>(first.dtype)) {
    warnings->push_back(Format("{} is {}, but the KV inputs of the graph are {}; the graph counts",
                               stated.kv_dtype->source,
                               DTypeName(static_cast<DType>(stated.kv_dtype->value)),
                               DTypeName(first.dtype)));
  }
  // Layers may share KV or have none, so only more of them than stated is a contradiction.
  if (stated.layers && static_cast<int64_t>(roles.kv.size()) > stated.layers->value) {
    warn(stated.layers, static_cast<int64_t>(roles.kv.size()), "the number of KV layers");
  }
}

// Rows of the constant that input `index` is, 0 where it is none.
int64_t RowsOf(const onnx::Graph& graph, const onnx::Node& node, size_t index) {
  const onnx::Tensor* table = graph.FindConstant(node.input(index));
  return table != nullptr && !table->dims.empty() ? table->dims[0] : 0;
}

}  // namespace

Result<Roles> FindRoles(const onnx::Graph& graph, const Stated& stated,
                        std::vector<std::string>* warnings) {
  const Ports inputs = PortsOf(graph, graph.inputs), outputs = PortsOf(graph, graph.outputs);
  Roles roles;
  roles.input_ids = FindPort(inputs, stated, "input_ids", "input_ids", warnings);
  roles.attention_mask = FindPort(inputs, stated, "attention_mask", "attention_mask", warnings);
  roles.position_ids = FindPort(inputs, stated, "position_ids", "position_ids", warnings);
  roles.logits = FindPort(outputs, stated, "logits", "logits", warnings);
  if (roles.input_ids == onnx::kNone) {
    return InvalidInput("the graph has no input \"input_ids\"; its inputs are {} ({})",
                        NamesOf(graph, graph.inputs), kHint);
  }
  if (roles.logits == onnx::kNone) {
    return InvalidInput("the graph has no output \"logits\"; its outputs are {} ({})",
                        NamesOf(graph, graph.outputs), kHint);
  }
  for (ValueId id : {roles.input_ids, roles.attention_mask, roles.position_ids}) {
    if (id == onnx::kNone) continue;
    if (Status s = RequireIds(graph, id, 2); !s.ok()) return s;
  }
  if (Status s = FindKv(graph, inputs, outputs, stated, &roles); !s.ok()) return s;
  if (Status s = RequireNoOtherInputs(graph, roles); !s.ok()) return s;
  WarnOfContradictions(stated, roles, warnings);
  return roles;
}

std::optional<Sourced> FindTableRows(const onnx::Graph& graph, const Roles& roles) {
  std::optional<Sourced> fewest;
  const auto take = [&](int64_t rows, const char* source) {
    if (rows > 0 && (!fewest || rows < fewest->value)) fewest = Sourced{rows, source};
  };
  for (const onnx::Node& node : graph.nodes) {
    if (node.op == "GroupQueryAttention" && node.Int("do_rotary", 0) != 0)
      take(RowsOf(graph, node, 7), "cos_cache rows");
    if (node.op == "RotaryEmbedding")
      take(RowsOf(graph, node, node.domain.empty() ? 1 : 2), "cos_cache rows");
    if (node.op == "Gather" && node.Int("axis", 0) == 0 && roles.position_ids != onnx::kNone &&
        node.input(1) == roles.position_ids) {
      take(RowsOf(graph, node, 0), "position table rows");
    }
  }
  return fewest;
}

}  // namespace granule::package
