#include "package/staged_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

namespace granule::package {
namespace {

namespace fs = std::filesystem;

Status SystemError(const fs::path& path, const char* verb, int error) {
  const bool resource =
      error == ENOSPC || error == EDQUOT || error == EMFILE || error == ENFILE || error == ENOMEM;
  return Error(resource ? Code::kExhausted : Code::kInvalidInput, "{}: cannot {}: {}",
               path.native(), verb, std::strerror(error));
}

Status CheckDestination(const fs::path& destination, bool overwrite) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(destination, error);
  if (!fs::exists(status)) return {};
  if (!overwrite) {
    return Error(Code::kUsage,
                 "{} exists already; remove it, choose another name or allow overwriting",
                 destination.native());
  }
  const bool replaceable =
      fs::is_directory(status) &&
      (fs::exists(destination / "genai_config.json", error) || fs::is_empty(destination, error));
  if (!replaceable) {
    return Error(
        Code::kUsage,
        "{} is not a model folder (it has no genai_config.json) and will not be overwritten",
        destination.native());
  }
  return {};
}

// A path without a name of its own ("models/", ".") -> one that has it.
fs::path Named(const fs::path& destination) {
  fs::path path = fs::absolute(destination).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path;
}

std::string StagingPrefix(const fs::path& destination) {
  return "." + destination.filename().native() + ".partial-";
}

int LockFolder(const fs::path& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

// Staging folders of this destination whose process is gone.
void RemoveLeftovers(const fs::path& destination) {
  const std::string prefix = StagingPrefix(destination);
  std::error_code error;
  for (fs::directory_iterator it(destination.parent_path(), error), end; !error && it != end;
       it.increment(error)) {
    if (!it->path().filename().native().starts_with(prefix)) continue;
    const int lock = LockFolder(it->path());
    if (lock < 0) continue;
    std::error_code ignored;
    fs::remove_all(it->path(), ignored);
    close(lock);
  }
}

}  // namespace

Result<StagedFolder> StagedFolder::Create(const fs::path& destination, bool overwrite) {
  StagedFolder folder;
  folder.destination_ = Named(destination);
  folder.overwrite_ = overwrite;
  if (Status s = CheckDestination(folder.destination_, overwrite); !s.ok()) return s;
  std::error_code error;
  fs::create_directories(folder.destination_.parent_path(), error);
  if (error) return SystemError(folder.destination_.parent_path(), "be created", error.value());
  RemoveLeftovers(folder.destination_);

  std::string name =
      (folder.destination_.parent_path() / (StagingPrefix(folder.destination_) + "XXXXXX"))
          .native();
  if (mkdtemp(name.data()) == nullptr) return SystemError(name, "be created", errno);
  folder.staging_ = name;
  folder.lock_ = LockFolder(folder.staging_);
  fs::permissions(folder.staging_, fs::perms(0755),
                  error);  // mkdtemp makes it private; other users may read models
  return folder;
}

StagedFolder::StagedFolder(StagedFolder&& other) noexcept
    : destination_(std::move(other.destination_)),
      staging_(std::exchange(other.staging_, {})),
      overwrite_(other.overwrite_),
      lock_(std::exchange(other.lock_, -1)) {}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  if (!staging_.empty()) fs::remove_all(staging_, ignored);
  if (lock_ >= 0) close(lock_);
}

Result<uint64_t> StagedFolder::Bytes() const {
  std::error_code error;
  uint64_t bytes = 0;
  for (fs::directory_iterator it(staging_, error), end; !error && it != end; it.increment(error))
    bytes += it->file_size(error);
  if (error) return SystemError(staging_, "be read", error.value());
  return bytes;
}

Status StagedFolder::Commit() {
  if (Status s = CheckDestination(destination_, overwrite_); !s.ok()) return s;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(destination_, error))) {
    if (renameat2(AT_FDCWD, staging_.c_str(), AT_FDCWD, destination_.c_str(), RENAME_NOREPLACE) ==
        0) {
      staging_.clear();
      return {};
    }
    if (errno != EINVAL && errno != ENOSYS) return SystemError(destination_, "be created", errno);
    fs::rename(staging_, destination_, error);
    if (error) return SystemError(destination_, "be created", error.value());
    staging_.clear();
    return {};
  }
  // Swap the old folder for the new one in one step; the destructor then removes the old one under
  // the staging name.
  if (renameat2(AT_FDCWD, staging_.c_str(), AT_FDCWD, destination_.c_str(), RENAME_EXCHANGE) == 0)
    return {};
  if (errno != EINVAL && errno != ENOSYS) return SystemError(destination_, "be replaced", errno);
  const fs::path aside = staging_.native() + ".old";  // file systems without exchange: two renames
  fs::rename(destination_, aside, error);
  if (error) return SystemError(destination_, "be moved aside", error.value());
  fs::rename(staging_, destination_, error);
  if (error) {
    std::error_code ignored;
    fs::rename(aside, destination_, ignored);
    return SystemError(destination_, "be replaced", error.value());
  }
  staging_ = aside;
  return {};
}

}  // namespace granule::package
