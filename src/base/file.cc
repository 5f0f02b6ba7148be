#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/arith.h"

namespace granule {
namespace {

const char* KindName(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "not a regular file";
}

// Resources of the system are kExhausted, everything else is what somebody asked for.
Code CodeOf(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return Code::kExhausted;
    default:
      return Code::kInvalidInput;
  }
}

Status OpenError(const std::filesystem::path& path, int error) {
  if (error == ENOENT) return InvalidInput("{}: there is no such file", path.native());
  if (error == EACCES) return InvalidInput("{}: no permission to read it", path.native());
  return Error(CodeOf(error), "{}: cannot be opened: {}", path.native(), std::strerror(error));
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

bool StartsWith(std::string_view text, std::string_view prefix) { return text.starts_with(prefix); }

std::string ExplainGitLfs(std::string_view text) {
  const size_t at = text.find("\nsize ");
  uint64_t size = 0;
  if (at != std::string_view::npos) {
    const char* begin = text.data() + at + 6;
    const auto [end, error] = std::from_chars(begin, text.data() + text.size(), size);
    if (error == std::errc() && end != begin) {
      return Format("is a Git LFS pointer, the real file is {} bytes (run `git lfs pull`)", size);
    }
  }
  return "is a Git LFS pointer (run `git lfs pull`)";
}

// The start of the text without byte-order mark and white space, in lower case.
std::string Opening(std::string_view text) {
  if (StartsWith(text, "\xef\xbb\xbf")) text.remove_prefix(3);
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  std::string opening(text.substr(first, 32));
  for (char& c : opening) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return opening;
}

// Little-endian header length, then a JSON object.
bool IsSafetensors(std::string_view text) {
  if (text.size() < 10 || text[8] != '{') return false;
  uint64_t header = 0;
  for (int i = 7; i >= 0; --i) header = header << 8 | static_cast<unsigned char>(text[i]);
  return header >= 2 && header <= (uint64_t{100} << 20) && (text[9] == '"' || text[9] == '}');
}

struct Magic {
  std::string_view bytes;
  std::string_view explanation;
};

using namespace std::string_view_literals;
constexpr Magic kMagics[] = {
    {"PK\x03\x04"sv, "is a ZIP archive (unpack it; PyTorch checkpoints look like this too)"},
    {"PK\x05\x06"sv, "is an empty ZIP archive"},
    {"\x1f\x8b"sv, "is gzip-compressed (unpack it first)"},
    {"BZh"sv, "is bzip2-compressed (unpack it first)"},
    {"\xfd\x37zXZ\0"sv, "is xz-compressed (unpack it first)"},
    {"\x28\xb5\x2f\xfd"sv, "is zstd-compressed (unpack it first)"},
    {"7z\xbc\xaf\x27\x1c"sv, "is a 7-Zip archive (unpack it first)"},
    {"GGUF"sv, "is a GGUF file (`granule import` turns it into a model folder)"},
    {"tjgg"sv, "is a GGML file from before GGUF (convert it with llama.cpp first)"},
    {"lmgg"sv, "is a GGML file from before GGUF (convert it with llama.cpp first)"},
    {"\x93NUMPY"sv, "is a NumPy array"},
    {"\x89HDF\r\n"sv, "is an HDF5 file"},
    {"%PDF-"sv, "is a PDF document"},
    {"\x89PNG"sv, "is a PNG image"},
    {"\x7f"
     "ELF"sv,
     "is an executable or a shared library"},
    {"/annex/objects/"sv, "is a git-annex pointer (run `git annex get`)"},
};

}  // namespace

Result<std::shared_ptr<MappedFile>> MappedFile::Open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer before we can refuse it.
  Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return OpenError(path, errno);
  struct stat info {};
  if (fstat(file.fd, &info) != 0) return OpenError(path, errno);
  if (!S_ISREG(info.st_mode)) {
    return InvalidInput("{}: expected a file, found {}", path.native(), KindName(info.st_mode));
  }
  std::shared_ptr<MappedFile> mapped(new MappedFile);
  mapped->path_ = path;
  if (info.st_size == 0) return mapped;  // mmap refuses zero bytes
  const auto size = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) {
    return Error(Code::kExhausted, "{}: {} cannot be mapped: {}", path.native(), FormatBytes(size),
                 std::strerror(errno));
  }
  mapped->data_ = static_cast<const std::byte*>(data);
  mapped->size_ = size;
  return mapped;
}

MappedFile::~MappedFile() {
  if (size_ > 0) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::DropPages(std::span<const std::byte> range) const {
  if (range.empty()) return;
  GRANULE_CHECK(range.data() >= data_ && range.data() + range.size() <= data_ + size_);
  // Only pages that lie whole in the range: the neighbours may be in use. The end of the file
  // counts as whole.
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = RoundUp(reinterpret_cast<uintptr_t>(range.data()), page);
  auto end = reinterpret_cast<uintptr_t>(range.data() + range.size());
  if (range.data() + range.size() != data_ + size_) end = RoundDown(end, page);
  if (begin >= end) return;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);  // advice: no error matters
}

std::string ExplainForeignBytes(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.empty()) return "is empty";
  if (StartsWith(text, "version https://git-lfs")) return ExplainGitLfs(text.substr(0, 1024));
  for (const Magic& magic : kMagics) {
    if (StartsWith(text, magic.bytes)) return std::string(magic.explanation);
  }
  if (text.size() >= 262 && text.substr(257, 5) == "ustar")
    return "is a tar archive (unpack it first)";
  if (IsSafetensors(text)) {
    return "is a safetensors file (`granule import` turns its folder into a model folder)";
  }
  const std::string opening = Opening(text);
  if (StartsWith(opening, "<!doctype html") || StartsWith(opening, "<html")) {
    return "is an HTML page (a download that answered with a web page)";
  }
  if (StartsWith(opening, "<?xml"))
    return "is an XML document (a download that answered with an error?)";
  if (StartsWith(opening, "{\"error\"") || opening == "entry not found" ||
      StartsWith(opening, "access to model ") || opening == "invalid username or password.") {
    return Format("is an error message of a web server: {}", text.substr(0, 200));
  }
  if (text.substr(0, 4096).find_first_not_of('\0') == std::string_view::npos) {
    return "holds only zero bytes (an interrupted download?)";
  }
  return "";
}

Result<AtomicFile> AtomicFile::Create(const std::filesystem::path& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return InvalidInput("{}: cannot be written: it is {}", path.native(), KindName(info.st_mode));
  }
  static std::atomic<uint64_t> counter{0};
  AtomicFile file;
  file.path_ = path;
  for (;;) {
    file.temporary_ = path.parent_path() / Format(".{}.{}-{}.tmp", path.filename().native(),
                                                  getpid(), counter.fetch_add(1));
    file.fd_ = open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.fd_ >= 0) return file;
    if (errno == EEXIST || errno == EINTR) continue;  // left by a dead process with our number
    const int error = errno;
    if (error == ENOENT) {
      return InvalidInput("{}: cannot be written: the folder {} does not exist", path.native(),
                          path.parent_path().native());
    }
    return Error(CodeOf(error), "{}: cannot be written: {}", path.native(), std::strerror(error));
  }
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : failure_(std::move(other.failure_)),
      path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)),
      written_bytes_(other.written_bytes_) {}

AtomicFile::~AtomicFile() { Discard(); }

void AtomicFile::Discard() {
  if (fd_ < 0) return;
  close(std::exchange(fd_, -1));
  unlink(temporary_.c_str());
}

Status AtomicFile::Fail(const char* what, int error) {
  Discard();
  // Any refusal to take bytes is the system's, whatever its number.
  failure_ = Error(Code::kExhausted, "{}: {} failed after {} bytes: {}; nothing was left behind",
                   path_.native(), what, written_bytes_,
                   error == ENOSPC ? "the disk is full" : std::strerror(error));
  return failure_;
}

Status AtomicFile::Write(std::span<const std::byte> bytes) {
  if (!failure_.ok()) return failure_;
  GRANULE_CHECK(fd_ >= 0);
  while (!bytes.empty()) {
    const ssize_t n = write(fd_, bytes.data(), std::min<size_t>(bytes.size(), size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Fail("writing", n < 0 ? errno : ENOSPC);
    written_bytes_ += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status AtomicFile::Write(std::string_view text) { return Write(std::as_bytes(std::span(text))); }

Status AtomicFile::Commit() {
  if (!failure_.ok()) return failure_;
  GRANULE_CHECK(fd_ >= 0);
  // Without the flush a crash after the rename can leave an empty file under the final name.
  if (fsync(fd_) != 0) return Fail("flushing", errno);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return Fail("renaming", errno);
  close(std::exchange(fd_, -1));
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  Descriptor parent{open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (parent.fd >= 0) fsync(parent.fd);  // the name itself; the bytes are safe already
  return {};
}

Status WriteFileAtomically(const std::filesystem::path& path, std::string_view text) {
  Result<AtomicFile> file = AtomicFile::Create(path);
  if (!file.ok()) return file.status();
  if (Status s = file->Write(text); !s.ok()) return s;
  return file->Commit();
}

Result<std::string> ReadFile(const std::filesystem::path& path, uint64_t max_bytes) {
  Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return OpenError(path, errno);
  struct stat info {};
  if (fstat(file.fd, &info) != 0) return OpenError(path, errno);
  if (S_ISDIR(info.st_mode)) {
    return InvalidInput("{}: expected a file, found a directory", path.native());
  }
  const auto size = static_cast<uint64_t>(std::max<off_t>(info.st_size, 0));
  const auto too_long = [&](uint64_t bytes) {
    return InvalidInput("{}: {} bytes or more, at most {} are accepted", path.native(), bytes,
                        max_bytes);
  };
  if (S_ISREG(info.st_mode) && size > max_bytes) return too_long(size);
  std::string text;
  text.reserve(std::min(size, max_bytes));
  std::array<char, 16384> buffer;
  for (;;) {
    const ssize_t n = read(file.fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return Error(CodeOf(errno), "{}: reading failed: {}", path.native(), std::strerror(errno));
    }
    if (n == 0) return text;
    if (static_cast<uint64_t>(n) > max_bytes - text.size()) {
      return too_long(text.size() + static_cast<uint64_t>(n));
    }
    text.append(buffer.data(), static_cast<size_t>(n));
  }
}

}  // namespace granule
