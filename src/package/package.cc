#include "package/package.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "onnx/checks.h"
#include "onnx/reader.h"
#include "package/folder.h"
#include "package/roles.h"
#include "package/stated.h"
#include "package/synth.h"
#include "package/synth_content.h"
#include "package/synth_graph.h"
#include "package/synth_memory.h"
#include "package/synth_tokenizer.h"

namespace granule::package {
namespace {

namespace fs = std::filesystem;

Result<fs::path> ModelPath(const ModelFolder& files, const Stated& stated) {
  if (files.model) return *files.model;
  if (!stated.filename)
    return InvalidInput("{}: model.decoder.filename is missing", files.genai_config->native());
  Result<fs::path> path = ResolveInside(files.folder, *stated.filename);
  if (!path.ok()) return path.status().In(files.genai_config->native() + " model.decoder.filename");
  return path;
}

// Width of the logits: the graph's, or what is stated where the graph leaves it open.
Result<int64_t> VocabSize(const onnx::Graph& graph, const Roles& roles, const Stated& stated,
                          std::vector<std::string>* warnings) {
  const onnx::Value& logits = graph.values[static_cast<size_t>(roles.logits)];
  if (logits.dtype && !IsFloat(*logits.dtype)) {
    return InvalidInput("graph output \"{}\" is {}; floating-point logits are expected",
                        logits.name, DTypeName(*logits.dtype));
  }
  const bool has_width = logits.shape && !logits.shape->empty() && logits.shape->back().size > 0;
  if (!has_width && !stated.vocab_size) {
    return InvalidInput(
        "neither the graph nor a configuration file states the width of \"{}\" (vocab_size)",
        logits.name);
  }
  if (!has_width) return stated.vocab_size->value;
  const int64_t width = logits.shape->back().size;
  if (stated.vocab_size && stated.vocab_size->value != width) {
    warnings->push_back(
        Format("{} is {}, but the logits of the graph are {} wide; the graph counts",
               stated.vocab_size->source, stated.vocab_size->value, width));
  }
  return width;
}

// Sorted, each once, without those that the model cannot write.
std::vector<int32_t> EosIds(std::vector<int32_t> ids, int64_t vocab,
                            std::vector<std::string>* warnings) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  const auto first_outside =
      std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return id >= vocab; });
  for (auto it = first_outside; it != ids.end(); ++it) {
    warnings->push_back(
        Format("eos_token_id {} is not below the vocabulary size {} and was left out", *it, vocab));
  }
  ids.erase(first_outside, ids.end());
  return ids;
}

uint64_t TensorBytes(const onnx::Graph& graph) {
  uint64_t bytes = 0;
  for (const onnx::Tensor& tensor : graph.tensors) bytes += tensor.bytes.size();
  return bytes;
}

std::string NameOf(const fs::path& folder) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  return (error ? folder : real).filename().native();
}

// What follows from the graph and from what is stated about it.
Status Complete(Stated stated, Package* package) {
  if (Status s = onnx::InferShapes(package->model); !s.ok()) return s;
  const onnx::Graph& graph = package->model.graph;
  Result<Roles> roles = FindRoles(graph, stated, &package->warnings);
  if (!roles.ok()) return roles.status();
  package->roles = *std::move(roles);
  package->table_rows = FindTableRows(graph, package->roles);
  Result<int64_t> vocab = VocabSize(graph, package->roles, stated, &package->warnings);
  if (!vocab.ok()) return vocab.status();
  package->vocab_size = *vocab;

  package->model_type = stated.model_type.empty() ? "decoder" : stated.model_type;
  package->context_length = stated.context_length;
  package->eos_ids = EosIds(std::move(stated.eos_ids), package->vocab_size, &package->warnings);
  package->bos_id = stated.bos_id;
  package->pad_id = stated.pad_id;
  package->generation = std::move(stated.generation);
  package->tokenizer_json = std::move(stated.tokenizer_json);
  package->chat_template = std::move(stated.chat_template);
  package->source_weight_bytes = stated.source_weight_bytes.value_or(TensorBytes(graph));
  return {};
}

Result<Package> OpenFolder(const fs::path& path) {
  Result<ModelFolder> files = FindModelFolder(path);
  if (!files.ok()) return files.status();
  Package package;
  package.folder = files->folder;
  package.name = NameOf(files->folder);
  Result<Stated> stated = ReadStated(*files, &package.warnings);
  if (!stated.ok()) return stated.status();
  Result<fs::path> model_path = ModelPath(*files, *stated);
  if (!model_path.ok()) return model_path.status();

  Result<onnx::Model> model = onnx::ReadModel(*model_path);
  if (!model.ok()) return model.status();
  package.model = *std::move(model);
  if (Status s = Complete(*std::move(stated), &package); !s.ok()) return s.In(model_path->native());
  return package;
}

// Finds the tensors that were left out, by their names, in the finished model.
std::shared_ptr<const SynthContent> ContentOf(const SynthModel& synth, const onnx::Graph& graph,
                                              const std::map<std::string, SynthTensor>& left_out) {
  auto content = std::make_shared<SynthContent>(synth);
  for (const onnx::Value& value : graph.values) {
    if (value.tensor < 0) continue;
    const auto found = left_out.find(std::string(value.name));
    if (found == left_out.end()) continue;
    content->Add(graph.tensors[static_cast<size_t>(value.tensor)].bytes.data(), found->second);
  }
  return content;
}

// Made here instead of read: what a folder that WriteSynth wrote would state.
Result<Package> OpenSynth(const std::string& text, Weights weights) {
  Result<SynthModel> synth = ParseSynth(text);
  if (!synth.ok()) return synth.status();
  Result<std::unique_ptr<MemoryModelWriter>> writer = MemoryModelWriter::Create();
  if (!writer.ok()) return writer.status();
  std::map<std::string, SynthTensor> left_out;
  SynthGraphOptions options;
  options.values = weights != Weights::kSizesOnly;
  if (weights == Weights::kOnDemand) options.left_out = &left_out;
  Result<SynthGraphBytes> bytes = WriteSynthGraph(*synth, **writer, options);
  if (!bytes.ok()) return bytes.status().In(text);
  if (Status s = (*writer)->Finish(); !s.ok()) return s.In(text);

  Package package;
  package.folder = text;
  package.name = synth->name;
  package.model = (*writer)->Take();
  if (!left_out.empty()) package.on_demand = ContentOf(*synth, package.model.graph, left_out);
  package.tokenizer_text = SynthTokenizerJson(synth->vocab);
  Stated stated;
  stated.model_type = synth->model_type;
  stated.context_length = Sourced{synth->context, "synth context"};
  const TokenRoles tokens = SynthTokenRoles();
  for (const int64_t id : tokens.eos_ids) stated.eos_ids.push_back(static_cast<int32_t>(id));
  stated.pad_id = static_cast<int32_t>(*tokens.pad_id);
  stated.chat_template = SynthChatTemplate();
  stated.source_weight_bytes = bytes->read;
  stated.generation.do_sample = false;
  stated.generation.source = "synth";
  if (Status s = Complete(std::move(stated), &package); !s.ok()) return s.In(text);
  return package;
}

}  // namespace

Result<Package> Open(const fs::path& path, Weights weights) {
  try {
    if (path.native().starts_with(kSynthPrefix)) return OpenSynth(path.native(), weights);
    return OpenFolder(path);
  } catch (const std::exception& error) {  // JSON and file system libraries throw
    return Error(Code::kInternal, "{}: {}", path.native(), error.what());
  }
}

}  // namespace granule::package
