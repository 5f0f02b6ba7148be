// GGUF (llama architecture; F32, F16, BF16, Q8_0, Q4_0, Q4_1) -> ORT-GenAI folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"

namespace granule::package {

struct ImportOptions {
  // Replace a model folder that is there already. Anything else under the name is never touched.
  bool overwrite = false;
  // Called with bytes done and total as tensors are written; may be empty.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress;
  // Asked between tensors; true stops the import with Code::kInterrupted and leaves nothing. May be
  // empty.
  std::function<bool()> interrupted;
};

struct ImportReport {
  int64_t tensors = 0;
  uint64_t source_bytes = 0;  // of the source file's tensors
  uint64_t written_bytes = 0;
  std::vector<std::string> warnings;
};

// Writes model.onnx, model.onnx.data, genai_config.json, generation_config.json, the tokenizer's
// files and granule.json (what the source was). The folder appears complete or not at all: it is
// staged beside the destination, then renamed; what an import that was killed left behind is
// removed by the next one to the same destination. Streams: memory does not depend on the size of
// the model. Weights of type F32, F16 and BF16 are written as fp32; quantised ones keep their
// codes.
Result<ImportReport> ImportGguf(const std::filesystem::path& source,
                                const std::filesystem::path& destination,
                                const ImportOptions& options);

}  // namespace granule::package
