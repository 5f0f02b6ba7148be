#include "package/folder.h"

#include <algorithm>
#include <system_error>
#include <vector>

namespace granule::package {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGenaiConfig = "genai_config.json";
constexpr size_t kMostEntries = 10000;  // of a folder that is searched: this is no file finder

bool IsThere(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Sub-folders that hold a genai_config.json, down to `levels` below.
void Search(const fs::path& folder, int levels, std::vector<fs::path>* found) {
  std::error_code error;
  size_t seen = 0;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (++seen > kMostEntries) return;
    if (it->path().filename().native().starts_with('.') || !it->is_directory(ignored)) continue;
    if (IsThere(it->path() / kGenaiConfig)) {
      found->push_back(it->path());
    } else if (levels > 1) {
      Search(it->path(), levels - 1, found);
    }
  }
}

Result<ModelFolder> FromFile(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (path.filename() == kGenaiConfig) return ModelFolder{folder, path, std::nullopt};
  if (path.extension() == ".onnx") {
    ModelFolder result{folder, std::nullopt, path};
    // transformers.js keeps the graphs in onnx/ and everything else beside it.
    if (folder.filename() == "onnx" && !IsThere(folder / "config.json") &&
        !IsThere(folder / kGenaiConfig)) {
      result.folder = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
    }
    if (IsThere(result.folder / kGenaiConfig)) result.genai_config = result.folder / kGenaiConfig;
    return result;
  }
  if (path.extension() == ".gguf") {
    return InvalidInput(
        "{} is a GGUF file: turn it into a model folder first with `granule import {} FOLDER`",
        path.native(), path.native());
  }
  return InvalidInput("{} is neither a model folder nor an .onnx file nor a genai_config.json",
                      path.native());
}

bool HasDotDot(const fs::path& path) {
  return std::any_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
}

bool IsUnder(const fs::path& path, const fs::path& folder) {
  const auto [inner, outer] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return inner == folder.end();
}

// cache/models--x/snapshots/REVISION/... may link into cache/models--x/blobs.
bool IsOwnBlob(const fs::path& real, const fs::path& real_folder) {
  if (real.parent_path().filename() != "blobs") return false;
  return IsUnder(real_folder, real.parent_path().parent_path() / "snapshots");
}

}  // namespace

Result<ModelFolder> FindModelFolder(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status))
    return InvalidInput("{}: there is no such file or folder", path.native());
  if (!fs::is_directory(status)) return FromFile(path);
  if (IsThere(path / kGenaiConfig)) return ModelFolder{path, path / kGenaiConfig, std::nullopt};

  for (const char* name : {"model.onnx", "onnx/model.onnx"}) {
    if (IsThere(path / name)) return ModelFolder{path, std::nullopt, path / name};
  }
  std::vector<fs::path> found;
  Search(path, 2, &found);
  if (found.size() == 1) return ModelFolder{found[0], found[0] / kGenaiConfig, std::nullopt};
  if (found.empty()) {
    return InvalidInput(
        "{} holds no model: there is no genai_config.json in it or up to two levels below, and no "
        "model.onnx",
        path.native());
  }
  std::sort(found.begin(), found.end());
  std::string list;
  for (const fs::path& folder : found) list += "\n  " + folder.native();
  return InvalidInput("{} holds several models; name one of them:{}", path.native(), list);
}

Result<fs::path> ResolveInside(const fs::path& folder, const std::string& name) {
  const fs::path relative(name);
  if (name.empty() || name.find('\0') != std::string::npos)
    return InvalidInput("the file name is empty or holds a NUL byte");
  if (relative.is_absolute() || HasDotDot(relative)) {
    return InvalidInput("the file name \"{}\" leads out of the model folder", name);
  }
  const fs::path path = folder / relative;
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error) return InvalidInput("missing {}: there is no such file in {}", name, folder.native());
  const fs::path real_folder = fs::canonical(folder, error);
  if (!IsUnder(real, real_folder) && !IsOwnBlob(real, real_folder)) {
    return InvalidInput("{} is a link that leads out of the model folder, to {}", path.native(),
                        real.native());
  }
  return path;
}

}  // namespace granule::package
