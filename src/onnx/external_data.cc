#include "onnx/external_data.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "base/arith.h"
#include "onnx/words.h"

namespace granule::onnx {
namespace fs = std::filesystem;
namespace {

// Both resolved. A file is not under itself.
bool IsUnder(const fs::path& file, const fs::path& folder) {
  if (folder.empty()) return false;
  const auto [in_folder, in_file] =
      std::mismatch(folder.begin(), folder.end(), file.begin(), file.end());
  return in_folder == folder.end() && in_file != file.end();
}

// A decimal number from 0 to 2^63 - 1, and nothing else in the text.
Result<uint64_t> ParseBytes(std::string_view what, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    return InvalidInput("the {} of its external data is {}, not a number from 0 to 2^63-1", what,
                        Quoted(text));
  }
  return static_cast<uint64_t>(value);
}

}  // namespace

ExternalData::ExternalData(const fs::path& model_path, const ReadOptions& options) {
  std::error_code ignored;  // a folder that does not resolve holds no file either
  if (model_path.empty()) {
    folder_ = options.root;
  } else {
    folder_ = model_path.has_parent_path() ? model_path.parent_path() : fs::path(".");
    if (fs::is_symlink(model_path, ignored)) {
      const fs::path real_folder = fs::canonical(model_path, ignored).parent_path();
      if (real_folder.filename() == "blobs") blobs_ = real_folder;
    }
  }
  const fs::path& root = options.root.empty() ? folder_ : options.root;
  if (!root.empty()) root_ = fs::canonical(root, ignored);
}

Result<std::shared_ptr<MappedFile>> ExternalData::Open(std::string_view location) {
  if (const auto known = by_location_.find(location); known != by_location_.end())
    return known->second;
  if (folder_.empty()) {
    return InvalidInput(
        "its data is in the file {}, and a model read from memory has no folder to look in",
        Quoted(location));
  }
  if (location.empty()) return InvalidInput("its external data names no file (location is empty)");
  const fs::path relative{std::string(location)};
  if (location.find('\0') != std::string_view::npos) {
    return InvalidInput("the external file name {} has a NUL byte in it", Quoted(location));
  }
  if (relative.is_absolute()) {
    return InvalidInput(
        "the external file {} is an absolute path; it must be relative to the model's folder",
        Quoted(location));
  }
  if (std::find(relative.begin(), relative.end(), "..") != relative.end()) {
    return InvalidInput("the external file {} leaves the model's folder through \"..\"",
                        Quoted(location));
  }
  const fs::path path = folder_ / relative;
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error == std::errc::no_such_file_or_directory) {
    const std::string quoted = Quoted(location);
    return InvalidInput("missing {}: its data is in that file, which is not in {}",
                        quoted.substr(1, quoted.size() - 2), folder_.string());
  }
  if (error)
    return InvalidInput("the external file {} cannot be opened: {}", Quoted(location),
                        error.message());
  if (!IsUnder(real, root_) && !IsUnder(real, blobs_)) {
    return InvalidInput("the external file {} is a link to {}, outside of the model's folder {}",
                        Quoted(location), Quoted(real.string()), root_.string());
  }
  for (const auto& file : files_) {
    if (file->path() == real) return by_location_[std::string(location)] = file;
  }
  auto file = MappedFile::Open(real);
  if (!file.ok()) return file.status();
  files_.push_back(*file);
  return by_location_[std::string(location)] = *file;
}

Result<std::span<const std::byte>> ExternalData::Bytes(const ExternalEntry& entry,
                                                       uint64_t need_bytes) {
  uint64_t offset = 0;
  if (entry.offset) {
    const Result<uint64_t> parsed = ParseBytes("offset", *entry.offset);
    if (!parsed.ok()) return parsed.status();
    offset = *parsed;
  }
  if (entry.length) {
    const Result<uint64_t> length = ParseBytes("length", *entry.length);
    if (!length.ok()) return length.status();
    if (*length != need_bytes) {
      return InvalidInput("its external data has length {}, its dims need {} bytes", *length,
                          need_bytes);
    }
  }
  const auto file = Open(entry.location);
  if (!file.ok()) return file.status();
  const std::span<const std::byte> bytes = (*file)->bytes();
  const std::optional<uint64_t> end = CheckedAdd(offset, need_bytes);
  if (!end || *end > bytes.size()) {
    const std::string foreign = ExplainForeignBytes(bytes);
    return InvalidInput("{} needs {} bytes (offset {} and {} more), has {}{}{}",
                        Quoted(entry.location),
                        end ? Format("{}", *end) : std::string("more than 2^64"), offset,
                        need_bytes, bytes.size(), foreign.empty() ? "" : "; it ", foreign);
  }
  return bytes.subspan(offset, need_bytes);
}

}  // namespace granule::onnx
