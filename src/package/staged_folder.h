// A folder that appears under its name complete or not at all.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/status.h"

namespace granule::package {

// Stages in a hidden sibling (".NAME.partial-XXXXXX", same file system) and renames it at the end;
// destroying the object before Commit removes it. The staging folder is locked while its process
// lives, so Create can remove those that were left behind.
class StagedFolder {
 public:
  // With `overwrite` a model folder (one that holds genai_config.json) or an empty folder may be
  // there already. Everything else that exists is refused.
  static Result<StagedFolder> Create(const std::filesystem::path& destination, bool overwrite);
  ~StagedFolder();
  StagedFolder(StagedFolder&& other) noexcept;
  StagedFolder& operator=(StagedFolder&&) = delete;

  const std::filesystem::path& path() const { return staging_; }
  Result<uint64_t> Bytes() const;  // of the files in it so far
  Status Commit();

 private:
  StagedFolder() = default;
  std::filesystem::path destination_;
  std::filesystem::path staging_;  // empty once committed
  bool overwrite_ = false;
  int lock_ = -1;
};

}  // namespace granule::package
