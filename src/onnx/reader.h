// Bytes of an .onnx file -> Model. Everything outside is untrusted: sizes, offsets, counts,
// nesting, names and paths are checked before use, and a refusal names file, field, expected and
// found.
#pragma once

#include <filesystem>

#include "base/status.h"
#include "onnx/graph.h"

namespace granule::onnx {

struct ReadOptions {
  // External data must lie under this folder after symbolic links are resolved, or in the `blobs`
  // folder of the Hugging Face cache that the model file itself is a link into. Default: the model
  // file's folder.
  std::filesystem::path root;
};

// Reads, maps external data, checks (checks.h) and sorts. Refused by name, all of them at once
// where they are of a kind: element types other than
// fp32/fp16/bf16/int4/uint4/int8/uint8/int32/int64/bool, sparse tensors, model-local functions that
// are used, nodes with subgraphs.
Result<Model> ReadModel(const std::filesystem::path& path, const ReadOptions& options = {});

// The same from memory, for tests and fuzzing; external data is refused unless root is given.
Result<Model> ReadModelFromBytes(std::shared_ptr<MappedFile> file_or_null,
                                 std::span<const std::byte> bytes, const ReadOptions& options);

}  // namespace granule::onnx
