// What a verb says and hears: stdout for the result alone, stderr for everything else, Ctrl-C.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace granule::cli {

// Once, before anything else: missing standard streams become /dev/null (so that no file of ours
// gets their numbers), a closed pipe is an error return instead of a signal.
void PrepareStreams();

// Writes all of it to stdout, at once. A reader that went away is no error: the text is dropped,
// and StdoutClosed() is true from then on. Anything else (a full disk) is kExhausted.
Status WriteStdout(std::string_view text);
bool StdoutClosed();
bool StdoutIsTerminal();
bool StderrIsTerminal();

// Text from files and users made fit for a terminal: control characters other than line feed and
// tab become \xNN, so no model file can move the cursor or change colours.
std::string Printable(std::string_view text);

// A line on stderr: "granule run: " + Printable(text). Never fails.
void Say(std::string_view verb, std::string_view text);
void Warn(std::string_view verb, std::string_view text);
void SayRaw(std::string_view text);

// The first SIGINT sets the flag; the second ends the process with 130 at once.
void InstallInterruptHandler();
const std::atomic<bool>& InterruptFlag();

// One line on a terminal that says how far long work is; silent where stderr is no terminal.
// Appears only once the work has taken a moment, and is wiped by Clear or destruction.
class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `detail` follows the percentage: "1.2 GiB of 4 GiB".
  void Update(uint64_t done, uint64_t total, std::string_view detail = {});
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;
  const std::string label_;
  const bool enabled_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_;
  bool shown_ = false;
};

// Resident memory of this process in bytes, now and at its highest; 0 where /proc does not say.
struct ProcessMemory {
  uint64_t rss_bytes = 0;
  uint64_t peak_rss_bytes = 0;
};
ProcessMemory ReadProcessMemory();

}  // namespace granule::cli
