// Tensor bytes that lie outside of the .onnx file: which file an entry may name, and where in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "onnx/reader.h"

namespace granule::onnx {

// TensorProto.external_data as written; numbers are not yet parsed.
struct ExternalEntry {
  std::string_view location;
  std::optional<std::string_view> offset;
  std::optional<std::string_view> length;
};

// Opens each file once. A file must be a regular one under the root (links resolved) or in the
// blobs folder of the Hugging Face cache that the model file is a link into.
class ExternalData {
 public:
  // `model_path` is empty for a model in memory; external data is then looked for in
  // `options.root`, and refused when that is empty too.
  ExternalData(const std::filesystem::path& model_path, const ReadOptions& options);

  // The `need_bytes` bytes of an entry. Errors name the file, needed and available bytes.
  Result<std::span<const std::byte>> Bytes(const ExternalEntry& entry, uint64_t need_bytes);

  const std::vector<std::shared_ptr<MappedFile>>& files() const { return files_; }

 private:
  Result<std::shared_ptr<MappedFile>> Open(std::string_view location);

  std::filesystem::path folder_;  // where locations start; empty: external data is refused
  std::filesystem::path root_;    // resolved
  std::filesystem::path blobs_;   // resolved; empty when the model is not in such a cache
  std::map<std::string, std::shared_ptr<MappedFile>, std::less<>> by_location_;
  std::vector<std::shared_ptr<MappedFile>> files_;
};

}  // namespace granule::onnx
