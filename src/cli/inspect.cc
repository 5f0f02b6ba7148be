// granule inspect MODEL: what was recognised, and what would not run.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/terminal.h"
#include "cli/verbs.h"
#include "engine/engine.h"
#include "kv/capacity.h"
#include "package/package.h"

namespace granule::cli {
namespace {

using Json = nlohmann::ordered_json;

VerbSyntax Syntax() {
  return {
      .name = "inspect",
      .purpose = "shows what a model folder holds and what would not run",
      .positionals = {"MODEL"},
      .usage = "MODEL [--plan] [--json]",
      .flags = {ModelFlag(),
                {{"--plan"},
                 "",
                 "Options",
                 "load the weights too and list the steps that a token goes through"},
                {{"--json"}, "", "Options", "one JSON object"}},
      .examples = {{"granule inspect models/smollm2",
                    "format, inputs and outputs, context, KV bytes per token, operators, weights"}},
      .exit_codes = UsualExitCodes()};
}

struct WeightSum {
  int64_t tensors = 0;
  uint64_t bytes = 0;
};

// Everything inspect says, gathered once and shown in two ways.
struct Findings {
  const package::Package* package = nullptr;
  kv::HardMax hard_max;
  uint64_t kv_bytes_per_token = 0;
  std::map<std::string, int64_t> operators;  // "domain::Op" (or "Op") -> nodes
  std::map<std::string, WeightSum> weights;  // by element type
  std::vector<engine::Unsupported> unsupported;
  std::string unsupported_error;  // why the graph could not be examined
  std::string plan;
};

std::optional<kv::Limit> AsLimit(const std::optional<package::Sourced>& sourced) {
  if (!sourced || sourced->value < 0) return std::nullopt;
  return kv::Limit{static_cast<uint64_t>(sourced->value), sourced->source};
}

Findings Examine(package::Package& package) {
  Findings found;
  found.package = &package;
  found.hard_max = kv::ResolveHardMax(std::nullopt, AsLimit(package.context_length),
                                      AsLimit(package.table_rows));
  for (const package::KvPort& port : package.roles.kv) {
    found.kv_bytes_per_token += 2 * static_cast<uint64_t>(port.kv_heads) *
                                static_cast<uint64_t>(port.head_dim) *
                                static_cast<uint64_t>(BitsOf(port.dtype)) / 8;
  }
  for (const onnx::Node& node : package.model.graph.nodes) {
    const std::string domain(node.domain);
    ++found.operators[(domain.empty() ? "" : domain + "::") + std::string(node.op)];
  }
  for (const onnx::Tensor& tensor : package.model.graph.tensors) {
    WeightSum& sum = found.weights[std::string(DTypeName(tensor.dtype))];
    ++sum.tensors;
    sum.bytes += tensor.bytes.size();
  }
  Result<std::vector<engine::Unsupported>> unsupported = engine::FindUnsupported(package);
  if (unsupported.ok()) {
    found.unsupported = std::move(*unsupported);
  } else {
    found.unsupported_error = unsupported.status().message();
  }
  return found;
}

std::string NameOf(const package::Package& package, onnx::ValueId id) {
  if (id == onnx::kNone) return {};
  return std::string(package.model.graph.values[static_cast<size_t>(id)].name);
}

// "30 x 3 KV heads of 64, float32"; runs of equal layers are put together.
std::vector<std::string> KvShapes(const package::Package& package) {
  std::vector<std::string> shapes;
  const std::vector<package::KvPort>& kv = package.roles.kv;
  for (size_t begin = 0, end = 0; begin < kv.size(); begin = end) {
    const auto same = [&](const package::KvPort& port) {
      return port.kv_heads == kv[begin].kv_heads && port.head_dim == kv[begin].head_dim &&
             port.dtype == kv[begin].dtype && port.fixed_past == kv[begin].fixed_past;
    };
    for (end = begin; end < kv.size() && same(kv[end]); ++end) continue;
    shapes.push_back(Format("{} layer{} of {} KV heads x {}, {}", end - begin,
                            end - begin == 1 ? "" : "s", kv[begin].kv_heads, kv[begin].head_dim,
                            std::string(DTypeName(kv[begin].dtype))));
    if (kv[begin].fixed_past > 0)
      shapes.back() += Format(", fixed to {} tokens", kv[begin].fixed_past);
  }
  return shapes;
}

// What the folder is, by the files in it.
std::string FormatOf(const package::Package& package) {
  std::error_code error;
  if (!package.tokenizer_text.empty()) return "made-up model";
  if (std::filesystem::exists(package.folder / "genai_config.json", error)) {
    return "ORT-GenAI folder";
  }
  return "folder with an ONNX model";
}

class Page {
 public:
  void Line(std::string name, const std::string& text) {
    name.resize(14, ' ');
    out_ += name + Printable(text) + "\n";
  }
  void More(const std::string& text) { Line("", text); }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

std::string Join(const std::vector<int32_t>& ids) {
  std::string out;
  for (const int32_t id : ids) out += (out.empty() ? "" : ", ") + std::to_string(id);
  return out.empty() ? "none" : out;
}

std::string AsText(const Findings& found) {
  const package::Package& package = *found.package;
  Page page;
  page.Line("model", package.name + " (" +
                         (package.model_type.empty() ? "type not stated" : package.model_type) +
                         ")");
  page.Line("format", FormatOf(package) + ", " + package.folder.native());
  const package::Roles& roles = package.roles;
  std::string inputs = NameOf(package, roles.input_ids);
  for (const onnx::ValueId id : {roles.attention_mask, roles.position_ids}) {
    if (id != onnx::kNone) inputs += ", " + NameOf(package, id);
  }
  page.Line("inputs", inputs);
  page.Line("output", NameOf(package, roles.logits) + Format(" [{} wide]", package.vocab_size));
  if (!roles.kv.empty()) {
    page.Line("KV names", NameOf(package, roles.kv.front().past_key) + " -> " +
                              NameOf(package, roles.kv.front().present_key) +
                              Format(", and so on for {} layers", roles.kv.size()));
  }
  const std::vector<std::string> shapes = KvShapes(package);
  for (size_t i = 0; i < shapes.size(); ++i) page.Line(i == 0 ? "KV" : "", shapes[i]);
  page.More(Format("{} per token", FormatBytes(found.kv_bytes_per_token)));
  page.Line("context", found.hard_max.tokens
                           ? Format("{} tokens ({})", *found.hard_max.tokens, found.hard_max.source)
                           : found.hard_max.source);
  if (package.context_length && package.table_rows) {
    page.More(Format("stated: {} ({}); {}: {}", package.context_length->value,
                     package.context_length->source, package.table_rows->source,
                     package.table_rows->value));
  }
  page.Line("end tokens", Join(package.eos_ids));
  const char* no_file = package.tokenizer_text.empty() ? "none" : "made up";
  page.Line("tokenizer",
            package.tokenizer_json.empty() ? no_file : package.tokenizer_json.native());
  page.Line("template", package.chat_template ? "chat template present" : "none");
  bool first = true;
  for (const auto& [type, sum] : found.weights) {
    page.Line(first ? "tensors" : "", Format("{}: {} in {} tensor{}", type, FormatBytes(sum.bytes),
                                             sum.tensors, sum.tensors == 1 ? "" : "s"));
    first = false;
  }
  page.Line("weights", FormatBytes(package.source_weight_bytes) + " in the source");
  first = true;
  for (const auto& [name, count] : found.operators) {
    page.Line(first ? "operators" : "", Format("{:>5}  {}", count, name));
    first = false;
  }
  if (!found.unsupported_error.empty()) {
    page.Line("runs", "no: " + found.unsupported_error);
  } else if (found.unsupported.empty()) {
    page.Line("runs", "natively: every operator has a native form");
  } else {
    page.Line("runs", "no:");
    for (const engine::Unsupported& u : found.unsupported) {
      page.More(Format("{}{} x {} (first: {}): {}", u.domain.empty() ? "" : u.domain + "::", u.op,
                       u.count, u.node.empty() ? "unnamed node" : u.node, u.reason));
    }
  }
  std::string out = page.Take();
  if (!found.plan.empty()) out += "\nplan\n" + Printable(found.plan) + "\n";
  return out;
}

Json SourcedJson(const std::optional<package::Sourced>& sourced) {
  if (!sourced) return nullptr;
  return {{"value", sourced->value}, {"source", sourced->source}};
}

Json AsJson(const Findings& found) {
  const package::Package& package = *found.package;
  const auto name_or_null = [&](onnx::ValueId id) -> Json {
    if (id == onnx::kNone) return nullptr;
    return NameOf(package, id);
  };
  Json json;
  json["name"] = package.name;
  json["folder"] = package.folder.native();
  json["format"] = FormatOf(package);
  json["model_type"] = package.model_type;
  json["roles"] = {{"input_ids", name_or_null(package.roles.input_ids)},
                   {"attention_mask", name_or_null(package.roles.attention_mask)},
                   {"position_ids", name_or_null(package.roles.position_ids)},
                   {"logits", name_or_null(package.roles.logits)}};
  json["vocab_size"] = package.vocab_size;
  json["hard_max"] = found.hard_max.tokens ? Json(*found.hard_max.tokens) : Json(nullptr);
  json["hard_max_source"] = found.hard_max.source;
  json["context_length"] = SourcedJson(package.context_length);
  json["table_rows"] = SourcedJson(package.table_rows);
  Json layers = Json::array();
  for (const package::KvPort& port : package.roles.kv) {
    layers.push_back({{"layer", port.layer},
                      {"past_key", name_or_null(port.past_key)},
                      {"past_value", name_or_null(port.past_value)},
                      {"present_key", name_or_null(port.present_key)},
                      {"present_value", name_or_null(port.present_value)},
                      {"kv_heads", port.kv_heads},
                      {"head_dim", port.head_dim},
                      {"fixed_past", port.fixed_past > 0 ? Json(port.fixed_past) : Json(nullptr)},
                      {"dtype", std::string(DTypeName(port.dtype))}});
  }
  json["kv"] = {{"bytes_per_token", found.kv_bytes_per_token}, {"layers", std::move(layers)}};
  json["eos_ids"] = package.eos_ids;
  json["tokenizer"] =
      package.tokenizer_json.empty() ? Json(nullptr) : Json(package.tokenizer_json.native());
  json["chat_template"] = package.chat_template.has_value();
  json["source_weight_bytes"] = package.source_weight_bytes;
  Json weights = Json::object();
  for (const auto& [type, sum] : found.weights) {
    weights[type] = {{"tensors", sum.tensors}, {"bytes", sum.bytes}};
  }
  json["weights"] = std::move(weights);
  json["operators"] = found.operators;
  Json unsupported = Json::array();
  for (const engine::Unsupported& u : found.unsupported) {
    unsupported.push_back({{"op", u.op},
                           {"domain", u.domain},
                           {"node", u.node},
                           {"count", u.count},
                           {"reason", u.reason}});
  }
  json["runs"] = found.unsupported.empty() && found.unsupported_error.empty();
  json["unsupported"] = std::move(unsupported);
  if (!found.unsupported_error.empty()) json["error"] = found.unsupported_error;
  json["warnings"] = package.warnings;
  if (!found.plan.empty()) json["plan"] = found.plan;
  return json;
}

Result<int> Inspect(const Invocation& invocation) {
  const Arguments& arguments = invocation.arguments;
  const Result<std::string> path = ModelArgument(Syntax(), arguments);
  if (!path.ok()) return path.status();
  Result<package::Package> package = package::Open(*path, package::Weights::kSizesOnly);
  if (!package.ok()) return package.status();
  for (const std::string& warning : package->warnings) Warn("inspect", warning);
  Findings found = Examine(*package);
  if (arguments.Has("--plan")) {
    // A second copy of the package, because loading consumes it.
    Result<package::Package> again = package::Open(*path);
    if (!again.ok()) return again.status();
    Result<std::unique_ptr<engine::DeviceContext>> device = engine::DeviceContext::CreateCpu({});
    if (!device.ok()) return device.status();
    Result<std::unique_ptr<engine::Model>> model = engine::Model::Load(**device, std::move(*again));
    if (!model.ok()) return model.status();
    found.plan = (*model)->DescribePlan();
  }
  const std::string out =
      arguments.Has("--json")
          ? AsJson(found).dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) +
                "\n"
          : AsText(found);
  if (Status s = WriteStdout(out); !s.ok()) return s;
  return 0;
}

}  // namespace

Verb InspectVerb() { return {Syntax(), Inspect}; }

}  // namespace granule::cli
