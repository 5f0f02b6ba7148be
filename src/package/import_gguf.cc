#include "package/import_gguf.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "onnx/writer.h"
#include "package/genai_config.h"
#include "package/gguf.h"
#include "package/gguf_tokenizer.h"
#include "package/llama_config.h"
#include "package/llama_graph.h"
#include "package/staged_folder.h"

namespace granule::package {
namespace {

using Json = nlohmann::ordered_json;

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
    Result<uint64_t> written = folder->Bytes();
    if (!written.ok()) return written.status();
    report_.written_bytes = *written;
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
    const TokenRoles tokens{tokenizer.bos_id, tokenizer.pad_id, tokenizer.eos_ids};
    const std::pair<const char*, std::string> files[] = {
        {"genai_config.json", GenaiConfigText("llama", ShapeOf(config), config.hidden, tokens)},
        {"generation_config.json", GenerationConfigText(tokens)},
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
