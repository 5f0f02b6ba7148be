// Which files of a model folder are meant.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/status.h"

namespace granule::package {

struct ModelFolder {
  std::filesystem::path folder;
  std::optional<std::filesystem::path> genai_config;  // where there is one
  std::optional<std::filesystem::path>
      model;  // the graph, where the path or the layout says it; else genai_config does
};

// `path` is a folder, a genai_config.json or an .onnx file in one. A folder without
// genai_config.json is searched one and two levels down: exactly one is taken, several are listed
// in the error; then model.onnx and onnx/model.onnx are tried.
Result<ModelFolder> FindModelFolder(const std::filesystem::path& path);

// The graph that genai_config.json names. Refuses absolute names, "..", and links that lead out of
// the folder to anywhere but the blobs of the Hugging Face cache that the folder is a snapshot of.
Result<std::filesystem::path> ResolveInside(const std::filesystem::path& folder,
                                            const std::string& name);

}  // namespace granule::package
