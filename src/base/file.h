// Files as the project needs them: read whole through a mapping, written whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace granule {

// A file mapped read-only. The bytes stay valid as long as the object lives.
class MappedFile {
 public:
  // Refuses what is not a regular file (named as such: directory, missing, no permission).
  static Result<std::shared_ptr<MappedFile>> Open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::filesystem::path& path() const { return path_; }

  // The pages will not be needed soon: drops them from this process. They come back on touch.
  void DropPages(std::span<const std::byte> range) const;

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Explains, in plain words, bytes that are not what they should be: "is empty", "is a Git LFS
// pointer, the real file is N bytes (...)", "is an HTML page (...)", "is a ZIP archive (...)", ...
// A predicate, to be put behind a file's name. Empty string when nothing is recognised.
std::string ExplainForeignBytes(std::span<const std::byte> bytes);

// A file that appears under its name complete or not at all: written beside it under a temporary
// name, then renamed. Destroying it without Commit removes the temporary file.
class AtomicFile {
 public:
  static Result<AtomicFile> Create(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  Status Write(std::span<const std::byte> bytes);
  Status Write(std::string_view text);
  uint64_t written_bytes() const { return written_bytes_; }
  // Flushes and renames. A full disk shows here or in Write as kExhausted with path and bytes.
  // After a failed Write the temporary file is gone and every later call gives the same error.
  Status Commit();

 private:
  AtomicFile() = default;
  Status Fail(const char* what, int error);
  void Discard();

  Status failure_;
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_ = -1;
  uint64_t written_bytes_ = 0;
};

Status WriteFileAtomically(const std::filesystem::path& path, std::string_view text);
// Reads to the end; also pipes and files of /proc, whose size is not known before. More than
// max_bytes is an error.
Result<std::string> ReadFile(const std::filesystem::path& path, uint64_t max_bytes);

}  // namespace granule
