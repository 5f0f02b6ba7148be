// GGUF (llama architecture; F32, F16, BF16, Q8_0, Q4_0, Q4_1) -> ORT-GenAI folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "base/status.h"

namespace granule::package {

struct ImportOptions {
  bool overwrite = false;
  // Called with bytes done and total as tensors are written; may be empty.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress;
};

struct ImportReport {
  int64_t tensors = 0;
  uint64_t source_bytes = 0;   // of the source file's tensors
  uint64_t written_bytes = 0;
  std::vector<std::string> warnings;
};

// The folder appears complete or not at all (staged beside it, then renamed).
Result<ImportReport> ImportGguf(const std::filesystem::path& source,
                                const std::filesystem::path& destination,
                                const ImportOptions& options);

}  // namespace granule::package
