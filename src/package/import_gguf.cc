#include "package/import_gguf.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "onnx/writer.h"
#include "package/gguf.h"
#include "package/gguf_tokenizer.h"
#include "package/llama_config.h"
#include "package/llama_graph.h"
#include "package/staged_folder.h"

namespace granule::package {
namespace {

using Json = nlohmann::ordered_json;

// One id as a number, several as a list.
Json Ids(const std::vector<int64_t>& ids) { return ids.size() == 1 ? Json(ids[0]) : Json(ids); }

// What onnxruntime-genai's builder writes for a llama model on the CPU.
Json GenaiConfig(const LlamaConfig& config, const ImportedTokenizer& tokenizer) {
  Json model = {{"context_length", config.context_length}};
  if (tokenizer.bos_id) model["bos_token_id"] = *tokenizer.bos_id;
  if (!tokenizer.eos_ids.empty()) model["eos_token_id"] = Ids(tokenizer.eos_ids);
  if (tokenizer.pad_id) {
    model["pad_token_id"] = *tokenizer.pad_id;
  } else if (!tokenizer.eos_ids.empty()) {
    model["pad_token_id"] = tokenizer.eos_ids[0];
  }
  model["type"] = "llama";
  model["vocab_size"] = config.vocab;
  model["decoder"] = {
      {"session_options", {{"log_id", "onnxruntime-genai"}, {"provider_options", Json::array()}}},
      {"filename", "model.onnx"},
      {"head_size", config.head_dim},
      {"hidden_size", config.hidden},
      {"inputs",
       {{"input_ids", "input_ids"},
        {"attention_mask", "attention_mask"},
        {"past_key_names", "past_key_values.%d.key"},
        {"past_value_names", "past_key_values.%d.value"}}},
      {"outputs",
       {{"logits", "logits"},
        {"present_key_names", "present.%d.key"},
        {"present_value_names", "present.%d.value"}}},
      {"num_attention_heads", config.heads},
      {"num_hidden_layers", config.layers},
      {"num_key_value_heads", config.kv_heads}};
  return {{"model", model},
          {"search",
           {{"do_sample", false},
            {"early_stopping", true},
            {"length_penalty", 1.0},
            {"max_length", config.context_length},
            {"min_length", 0},
            {"num_beams", 1},
            {"num_return_sequences", 1},
            {"past_present_share_buffer", true},
            {"repetition_penalty", 1.0},
            {"temperature", 1.0},
            {"top_k", 50},
            {"top_p", 1.0}}}};
}

Json GenerationConfig(const ImportedTokenizer& tokenizer) {
  Json config = Json::object();
  if (tokenizer.bos_id) config["bos_token_id"] = *tokenizer.bos_id;
  if (!tokenizer.eos_ids.empty()) config["eos_token_id"] = Ids(tokenizer.eos_ids);
  if (tokenizer.pad_id) config["pad_token_id"] = *tokenizer.pad_id;
  return config;
}

// Our own record: what the weights took in the file they came from, which speed is counted in.
Json GranuleRecord(const std::filesystem::path& source, const ImportReport& report) {
  return {{"source_format", "gguf"},
          {"source_file", source.filename().native()},
          {"source_tensors", report.tensors},
          {"source_tensor_bytes", report.source_bytes}};
}

class Import {
 public:
  Import(std::shared_ptr<MappedFile> source, const ImportOptions& options)
      : source_(std::move(source)), options_(options) {}

  Result<ImportReport> Run(const std::filesystem::path& destination) {
    Result<GgufFile> file = ParseGguf(source_->bytes());
    if (!file.ok()) return file.status();
    Result<LlamaConfig> config = ReadLlamaConfig(*file, &report_.warnings);
    if (!config.ok()) return config.status();
    Result<ImportedTokenizer> tokenizer = ImportTokenizer(*file, config->vocab, &report_.warnings);
    if (!tokenizer.ok()) return tokenizer.status();
    if (tokenizer->eos_ids.empty())
      report_.warnings.push_back("the file names no end token; generation stops at the limit only");
    for (const GgufTensor& tensor : file->tensors) report_.source_bytes += tensor.bytes.size();
    report_.tensors = static_cast<int64_t>(file->tensors.size());

    Result<StagedFolder> folder = StagedFolder::Create(destination, options_.overwrite);
    if (!folder.ok()) return folder.status();
    if (Status s = WriteModel(*file, *config, folder->path()); !s.ok()) return s;
    if (Status s = WriteTexts(*config, *tokenizer, folder->path()); !s.ok()) return s;
    if (Status s = Count(folder->path()); !s.ok()) return s;
    if (Status s = folder->Commit(); !s.ok()) return s;
    return std::move(report_);
  }

 private:
  Status WriteModel(const GgufFile& file, const LlamaConfig& config,
                    const std::filesystem::path& folder) {
    Result<std::unique_ptr<onnx::ModelWriter>> writer =
        onnx::ModelWriter::Create(folder / "model.onnx", {});
    if (!writer.ok()) return writer.status();
    uint64_t done = 0;
    const TensorWritten written = [&](const GgufTensor& tensor) -> Status {
      source_->DropPages(tensor.bytes);
      done += tensor.bytes.size();
      if (options_.progress) options_.progress(done, report_.source_bytes);
      if (options_.interrupted && options_.interrupted())
        return Status(Code::kInterrupted, "the import was interrupted");
      return {};
    };
    if (Status s = WriteLlamaGraph(file, config, **writer, written, &report_.warnings); !s.ok())
      return s;
    return (*writer)->Finish();
  }

  Status WriteTexts(const LlamaConfig& config, const ImportedTokenizer& tokenizer,
                    const std::filesystem::path& folder) {
    const std::pair<const char*, std::string> files[] = {
        {"genai_config.json", GenaiConfig(config, tokenizer).dump(4)},
        {"generation_config.json", GenerationConfig(tokenizer).dump(2)},
        {"tokenizer.json", tokenizer.tokenizer_json},
        {"tokenizer_config.json", tokenizer.tokenizer_config_json},
        {"special_tokens_map.json", tokenizer.special_tokens_map_json},
        {"granule.json", GranuleRecord(source_->path(), report_)
                             .dump(2, ' ', false, Json::error_handler_t::replace)},
    };
    for (const auto& [name, text] : files) {
      if (Status s = WriteFileAtomically(folder / name, text + "\n"); !s.ok()) return s;
    }
    if (!tokenizer.chat_template) return {};
    return WriteFileAtomically(folder / "chat_template.jinja", *tokenizer.chat_template);
  }

  Status Count(const std::filesystem::path& folder) {
    std::error_code error;
    for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
         it.increment(error)) {
      report_.written_bytes += it->file_size(error);
    }
    return error ? InvalidInput("{}: {}", folder.native(), error.message()) : Status();
  }

  std::shared_ptr<MappedFile> source_;
  const ImportOptions& options_;
  ImportReport report_;
};

}  // namespace

Result<ImportReport> ImportGguf(const std::filesystem::path& source,
                                const std::filesystem::path& destination,
                                const ImportOptions& options) {
  Result<std::shared_ptr<MappedFile>> file = MappedFile::Open(source);
  if (!file.ok()) return file.status();
  try {
    Result<ImportReport> report = Import(*file, options).Run(destination);
    // Refusals of the content do not know the name of the file.
    if (report.ok() || report.status().code() != Code::kInvalidInput) return report;
    return report.status().In(source.native());
  } catch (const std::exception& error) {  // JSON and file system libraries throw
    return Error(Code::kInternal, "{}: {}", source.native(), error.what());
  }
}

}  // namespace granule::package
