// Finds the ONNX Runtime that tests run on.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace granule::engine {

// Folder of the library in a folder of Python packages' parent, or empty.
inline std::string OrtFolderUnder(const std::filesystem::path& packages) {
  const std::filesystem::path capi = packages / "onnxruntime" / "capi";
  return std::filesystem::is_directory(capi) ? capi.string() : "";
}

// GRANULE_ORT_LIB where it is set, else the wheel in build/venv; empty when there is neither.
inline std::string UsualOrtForTest() {
  if (const char* named = std::getenv("GRANULE_ORT_LIB"); named != nullptr && *named != '\0') {
    return named;
  }
  std::error_code error;
  const std::filesystem::path lib =
      std::filesystem::path(GRANULE_SOURCE_DIR) / "build" / "venv" / "lib";
  for (std::filesystem::directory_iterator it(lib, error), end; !error && it != end;
       it.increment(error)) {
    if (auto found = OrtFolderUnder(it->path() / "site-packages"); !found.empty()) return found;
  }
  return "";
}

// The oldest supported wheel, unpacked to build/ort-oldest (pip install --target); empty without.
inline std::string OldestOrtForTest() {
  return OrtFolderUnder(std::filesystem::path(GRANULE_SOURCE_DIR) / "build" / "ort-oldest");
}

}  // namespace granule::engine
