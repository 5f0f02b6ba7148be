// The levers of granule, and the one parser that reads them, from flags and from the environment.
//
// Every lever has a flag and a GRANULE_ twin. An explicit flag wins over the environment, the
// environment over the default. Text that is not accepted is refused with the name it came from and
// the accepted values, whether or not it would have been used: nothing is replaced silently. An
// environment variable that is set to nothing counts as not set.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/cpu.h"
#include "base/status.h"

namespace granule {

enum class LeverId {
  kThreads,
  kCtxSize,
  kUbatchSize,
  kDevice,
  kBackend,
  kIsa,
  kAct,
  kKvLayout,
  kKvGrowth,
  kKvRounding,
  kKvMinBucket,
  kKvGranule,
  kCudaGraph,
};

struct Lever {
  LeverId id;
  const char* short_flag;   // "-t", or "" for none
  const char* flag;         // "--threads"
  const char* environment;  // "GRANULE_THREADS"
  const char* value;        // what stands for the value in help: "N"
  const char* accepted;     // "auto, or 1 to 1024"
  const char* fallback;     // what holds when nobody says anything: "auto"
  const char* help;         // one sentence
};

std::span<const Lever> AllLevers();
const Lever& GetLever(LeverId id);

// A value, the text that said so, and where that text stood: "--threads", "GRANULE_THREADS" or
// "default".
template <class T>
struct Setting {
  T value{};
  std::string text;
  std::string source = "default";

  bool is_default() const { return source == "default"; }
};

struct LeverValues {
  Setting<int> threads;                       // 0 = auto
  Setting<std::optional<uint64_t>> ctx_size;  // tokens; none or 0 = the model's
  Setting<int64_t> ubatch_size;               // rows of a prefill step
  Setting<std::string> device;                // "cpu", "cuda:0"
  Setting<std::string> backend;               // "native"
  Setting<Isa> isa;                           // resolved: never "auto"
  Setting<std::string> act;                   // "exact"
  Setting<std::string> kv_layout;             // well-formed text for kv::ParseLayout
  Setting<std::string> kv_growth;             // "commit"
  Setting<std::string> kv_rounding;           // "granule" or "bucket"; set by --kv-min-bucket too
  Setting<uint64_t> kv_min_bucket;            // tokens
  Setting<uint64_t> kv_granule;               // bytes; 0 = the host's default
  Setting<std::string> cuda_graph;            // "auto", "on", "off"

  // N of device "cuda:N", or none on a CPU.
  std::optional<int> CudaIndex() const;
};

// N of "cuda:N".
std::optional<int> CudaIndexOf(std::string_view device);

// Flags that were given: long name -> text. The last one counts where a flag came twice.
using FlagTexts = std::map<std::string, std::string, std::less<>>;
// The value of a variable, or null. Tests put a stand-in of their own here.
using EnvironmentLookup = const char* (*)(const char* name);
const char* ProcessEnvironment(const char* name);  // getenv

// Resolves the wanted levers; the others keep their defaults. kUsage for text that is not accepted,
// for a value or a lever that this build lacks (by name), and for contradictions at the same level.
Result<LeverValues> ReadLevers(std::span<const LeverId> wanted, const FlagTexts& flags,
                               EnvironmentLookup environment);

// Flags and levers that the documentation knows and this build does not: the reason, or null.
const char* WhyFlagIsNotBuilt(std::string_view flag);

// Strict numbers: the whole text, plain decimal, no sign but a leading '-', no white space, no
// overflow, no NaN or infinity, the same in every locale.
std::optional<int64_t> ParseInteger(std::string_view text);
std::optional<uint64_t> ParseUnsigned(std::string_view text);
std::optional<double> ParseReal(std::string_view text);
// "65536", "64KiB", "2MiB", "1GiB".
std::optional<uint64_t> ParseByteSize(std::string_view text);

}  // namespace granule
