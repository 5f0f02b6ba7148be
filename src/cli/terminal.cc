#include "cli/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "base/levers.h"

namespace granule::cli {
namespace {

constexpr auto kProgressDelay = std::chrono::milliseconds(150);
constexpr auto kProgressPeriod = std::chrono::milliseconds(100);

std::atomic<bool> interrupted{false};
std::atomic<bool> stdout_closed{false};
static_assert(std::atomic<bool>::is_always_lock_free, "the signal handler may touch it");

void OnInterrupt(int) {
  if (interrupted.exchange(true)) _exit(ExitCode(Code::kInterrupted));
}

// Everything, or the errno that stopped it.
int WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd ready{fd, POLLOUT, 0};
      if (poll(&ready, 1, /*timeout=*/-1) < 0 && errno != EINTR) return errno;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

void PrepareStreams() {
  for (int fd = 0; fd <= 2; ++fd) {
    // open gives the lowest free number, which is this one.
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) _exit(1);
  }
  signal(SIGPIPE, SIG_IGN);
}

Status WriteStdout(std::string_view text) {
  if (StdoutClosed()) return {};
  const int error = WriteAll(STDOUT_FILENO, text);
  if (error == 0) return {};
  stdout_closed.store(true, std::memory_order_relaxed);
  if (error == EPIPE) return {};
  return Error(Code::kExhausted, "cannot write to standard output: {}", std::strerror(error));
}

bool StdoutClosed() { return stdout_closed.load(std::memory_order_relaxed); }
bool StdoutIsTerminal() { return isatty(STDOUT_FILENO) == 1; }
bool StderrIsTerminal() { return isatty(STDERR_FILENO) == 1; }

std::string Printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) {
      out += Format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

void SayRaw(std::string_view text) { WriteAll(STDERR_FILENO, text); }

void Say(std::string_view verb, std::string_view text) {
  SayRaw(Format("granule {}: {}\n", std::string(verb), Printable(text)));
}

void Warn(std::string_view verb, std::string_view text) {
  Say(verb, "warning: " + std::string(text));
}

void InstallInterruptHandler() {
  struct sigaction action {};
  action.sa_handler = OnInterrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
}

const std::atomic<bool>& InterruptFlag() { return interrupted; }

Progress::Progress(std::string label) : label_(std::move(label)), enabled_(StderrIsTerminal()) {}

void Progress::Update(uint64_t done, uint64_t total, std::string_view detail) {
  if (!enabled_ || total == 0) return;
  const Clock::time_point now = Clock::now();
  if (now - start_ < kProgressDelay || now - last_ < kProgressPeriod) return;
  last_ = now;
  shown_ = true;
  const double percent = 100.0 * static_cast<double>(done) / static_cast<double>(total);
  std::string line = Format("{} {:.0f} %", label_, percent);
  if (!detail.empty()) line += " (" + std::string(detail) + ")";
  if (line.size() > 79) line.resize(79);  // one row of an 80-column terminal
  SayRaw("\r\x1b[K" + line);
}

void Progress::Clear() {
  if (!shown_) return;
  shown_ = false;
  SayRaw("\r\x1b[K");
}

ProcessMemory ReadProcessMemory() {
  ProcessMemory memory;
  const Result<std::string> text = ReadFile("/proc/self/status", /*max_bytes=*/1 << 20);
  if (!text.ok()) return memory;
  const auto kibibytes = [&](std::string_view key) -> uint64_t {
    size_t at = text->find(key);
    if (at == std::string::npos) return 0;
    at = text->find_first_of("0123456789", at + key.size());
    if (at == std::string::npos) return 0;
    const size_t end = text->find_first_not_of("0123456789", at);
    return ParseUnsigned(std::string_view(*text).substr(at, end - at)).value_or(0) * 1024;
  };
  memory.rss_bytes = kibibytes("\nVmRSS:");
  memory.peak_rss_bytes = kibibytes("\nVmHWM:");
  return memory;
}

}  // namespace granule::cli
