#include "base/levers.h"

#include <unistd.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/arith.h"

namespace granule {
namespace {

constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kMaxUbatch = 1 << 20;
constexpr uint64_t kMaxTokens = uint64_t{1} << 48;  // far beyond any address space
constexpr uint64_t kMaxGranule = uint64_t{1} << 30;

constexpr auto kLevers = std::to_array<Lever>({
    {LeverId::kThreads, "-t", "--threads", "GRANULE_THREADS", "N", "auto, or 1 to 1024", "auto",
     "compute threads; auto = the CPUs that affinity and cgroup quota allow"},
    {LeverId::kCtxSize, "-c", "--ctx-size", "GRANULE_CTX_SIZE", "N", "0, or a number of tokens",
     "0", "tokens the sequence may ever hold; 0 = the model's context. Costs no memory by itself"},
    {LeverId::kUbatchSize, "-ub", "--ubatch-size", "GRANULE_UBATCH_SIZE", "N", "1 to 1048576",
     "512", "prompt tokens per step"},
    {LeverId::kDevice, "", "--device", "GRANULE_DEVICE", "DEVICE", "cpu, cuda, cuda:N", "cpu",
     "where the model and its KV are; cuda = the first GPU"},
    {LeverId::kBackend, "", "--backend", "GRANULE_BACKEND", "NAME", "native, ort", "native",
     "what runs the graph: our kernels, or ONNX Runtime (its library is found at run time)"},
    {LeverId::kIsa, "", "--isa", "GRANULE_ISA", "LEVEL", "auto, portable, avx2, avx512", "auto",
     "instruction-set level of the kernels; auto = the best that this CPU has"},
    {LeverId::kAct, "", "--act", "GRANULE_ACT", "HOW", "exact", "exact",
     "activations in products with quantised weights"},
    {LeverId::kKvLayout, "", "--kv-layout", "GRANULE_KV_LAYOUT", "LAYOUT",
     "auto, head-major, seq-major, stripe:G (G layers, G >= 1), token-major", "auto",
     "how keys and values lie in memory; changes no logits"},
    {LeverId::kKvGrowth, "", "--kv-growth", "GRANULE_KV_GROWTH", "HOW", "commit, restride, realloc",
     "commit",
     "how the KV grows: commit maps memory behind reserved addresses, nothing moves; restride "
     "(head-major) and realloc move live tokens, bucket by bucket"},
    {LeverId::kKvRounding, "", "--kv-rounding", "GRANULE_KV_ROUNDING", "HOW", "granule, bucket",
     "granule", "granule commits what the tokens need; bucket rounds up to a power of two"},
    {LeverId::kKvMinBucket, "", "--kv-min-bucket", "GRANULE_KV_MIN_BUCKET", "N",
     "a number of tokens, 1 or more", "256", "smallest bucket; implies --kv-rounding bucket"},
    {LeverId::kKvGranule, "", "--kv-granule", "GRANULE_KV_GRANULE", "BYTES",
     "a multiple of the page up to 1GiB, as 65536, 64KiB or 2MiB", "64KiB",
     "smallest piece of memory that is mapped; on the host only, a GPU has its own"},
    {LeverId::kCudaGraph, "", "--cuda-graph", "GRANULE_CUDA_GRAPH", "WHEN", "auto, on, off", "auto",
     "capture decode steps into a graph and replay it; auto = on a GPU"},
});

// Values that the documentation names and this build lacks, by lever.
struct UnbuiltValue {
  LeverId id;
  std::string_view prefix;
  bool is_prefix;
  const char* why;
};
constexpr auto kUnbuiltValues = std::to_array<UnbuiltValue>({
    {LeverId::kAct, "int8", false, "int8 activations are not built yet"},
});

struct UnbuiltFlag {
  const char* flag;
  const char* environment;  // null: a flag without a twin
  const char* why;
};
constexpr auto kUnbuiltFlags = std::to_array<UnbuiltFlag>({
    {"--kv-dtype", "GRANULE_KV_DTYPE", "KV of another type than the graph's is not built yet"},
    {"--ram-limit", "GRANULE_RAM_LIMIT", "the memory governor is not built yet"},
    {"--vram-limit", "GRANULE_VRAM_LIMIT", "the memory governor is not built yet"},
    {"--chat", nullptr, "chat templates are not built yet"},
    {"--system", nullptr, "chat templates are not built yet"},
    {"--grammar", nullptr, "grammars are not built yet"},
    {"--json-schema", nullptr, "grammars are not built yet"},
    {"--stop", nullptr, "stop strings are not built yet"},
    {"--repeat-penalty", nullptr, "repetition penalties are not built yet"},
});

struct Chosen {
  std::string text;
  std::string source;
};

Chosen Choose(const Lever& lever, const FlagTexts& flags, EnvironmentLookup environment) {
  if (const auto it = flags.find(lever.flag); it != flags.end()) return {it->second, lever.flag};
  if (const char* text = environment(lever.environment); text != nullptr && *text != '\0') {
    return {text, lever.environment};
  }
  return {lever.fallback, "default"};
}

Status NotAccepted(const Lever& lever, const Chosen& chosen) {
  return Error(Code::kUsage, "{}: \"{}\" is not accepted; accepted: {}", chosen.source, chosen.text,
               lever.accepted);
}

Status CheckBuilt(const Lever& lever, const Chosen& chosen) {
  for (const UnbuiltValue& unbuilt : kUnbuiltValues) {
    if (unbuilt.id != lever.id) continue;
    const bool matches =
        unbuilt.is_prefix ? chosen.text.starts_with(unbuilt.prefix) : chosen.text == unbuilt.prefix;
    if (matches) {
      return Error(Code::kUsage, "{} {}: {}; accepted: {}", chosen.source, chosen.text, unbuilt.why,
                   lever.accepted);
    }
  }
  return {};
}

template <class T>
void Set(Setting<T>& setting, T value, const Chosen& chosen) {
  setting = {std::move(value), chosen.text, chosen.source};
}

bool IsLayout(std::string_view text) {
  if (text == "auto" || text == "head-major" || text == "seq-major" || text == "token-major") {
    return true;
  }
  constexpr std::string_view kStripe = "stripe:";
  if (!text.starts_with(kStripe)) return false;
  const std::optional<uint64_t> layers = ParseUnsigned(text.substr(kStripe.size()));
  return layers.has_value() && *layers >= 1 && *layers <= (1u << 20);
}

Status Apply(const Lever& lever, const Chosen& chosen, LeverValues& values) {
  if (Status s = CheckBuilt(lever, chosen); !s.ok()) return s;
  const std::string& text = chosen.text;
  const auto choice = [&](Setting<std::string>& setting,
                          std::initializer_list<std::string_view> accepted) -> Status {
    for (const std::string_view option : accepted) {
      if (text == option) {
        Set(setting, text, chosen);
        return {};
      }
    }
    return NotAccepted(lever, chosen);
  };
  switch (lever.id) {
    case LeverId::kThreads: {
      const std::optional<int64_t> n = text == "auto" ? 0 : ParseInteger(text);
      if (!n || *n > kMaxThreads || (*n < 1 && text != "auto")) return NotAccepted(lever, chosen);
      Set(values.threads, static_cast<int>(*n), chosen);
      return {};
    }
    case LeverId::kCtxSize: {
      const std::optional<uint64_t> n = ParseUnsigned(text);
      if (!n || *n > kMaxTokens) return NotAccepted(lever, chosen);
      const bool said = chosen.source != "default";
      Set(values.ctx_size, said ? n : std::optional<uint64_t>(), chosen);
      return {};
    }
    case LeverId::kUbatchSize: {
      const std::optional<int64_t> n = ParseInteger(text);
      if (!n || *n < 1 || *n > kMaxUbatch) return NotAccepted(lever, chosen);
      Set(values.ubatch_size, *n, chosen);
      return {};
    }
    case LeverId::kDevice:
      if (text == "cuda") {
        Set(values.device, std::string("cuda:0"), chosen);
        return {};
      }
      if (text != "cpu" && !CudaIndexOf(text)) return NotAccepted(lever, chosen);
      Set(values.device, text, chosen);
      return {};
    case LeverId::kBackend:
      return choice(values.backend, {"native", "ort"});
    case LeverId::kIsa: {
      Result<Isa> isa = ParseIsa(text);
      if (!isa.ok()) return isa.status().In(chosen.source);
      Set(values.isa, *isa, chosen);
      return {};
    }
    case LeverId::kAct:
      return choice(values.act, {"exact"});
    case LeverId::kKvLayout:
      if (!IsLayout(text)) return NotAccepted(lever, chosen);
      Set(values.kv_layout, text, chosen);
      return {};
    case LeverId::kKvGrowth:
      return choice(values.kv_growth, {"commit", "restride", "realloc"});
    case LeverId::kKvRounding:
      return choice(values.kv_rounding, {"granule", "bucket"});
    case LeverId::kKvMinBucket: {
      const std::optional<uint64_t> n = ParseUnsigned(text);
      if (!n || *n < 1 || *n > kMaxTokens) return NotAccepted(lever, chosen);
      Set(values.kv_min_bucket, *n, chosen);
      return {};
    }
    case LeverId::kKvGranule: {
      const std::optional<uint64_t> n = ParseByteSize(text);
      const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
      if (!n || *n == 0 || *n > kMaxGranule || *n % page != 0) return NotAccepted(lever, chosen);
      Set(values.kv_granule, *n, chosen);
      return {};
    }
    case LeverId::kCudaGraph:
      return choice(values.cuda_graph, {"auto", "on", "off"});
  }
  return NotAccepted(lever, chosen);
}

// 2 = a flag said it, 1 = the environment, 0 = nobody.
template <class T>
int Rank(const Setting<T>& setting) {
  return setting.is_default() ? 0 : setting.source.starts_with("--") ? 2 : 1;
}

// Growth that moves goes by buckets, and a smallest bucket asks for them, unless rounding by
// granule was asked for at a higher level.
Status ImplyBucketRounding(LeverValues& values) {
  if (values.kv_growth.value != "commit" && values.kv_rounding.is_default()) {
    values.kv_rounding = {"bucket", "bucket", "implied by " + values.kv_growth.source};
  }
  const int bucket = Rank(values.kv_min_bucket);
  const int rounding = Rank(values.kv_rounding);
  if (bucket == 0) return {};
  if (values.kv_rounding.value == "granule" && rounding == bucket) {
    return Error(Code::kUsage,
                 "{} {} asks for buckets and {} granule for none: leave one of them out",
                 values.kv_min_bucket.source, values.kv_min_bucket.text, values.kv_rounding.source);
  }
  if (bucket > rounding) {
    values.kv_rounding = {"bucket", "bucket", "implied by " + values.kv_min_bucket.source};
  }
  return {};
}

}  // namespace

std::optional<int> CudaIndexOf(std::string_view text) {
  constexpr std::string_view kCuda = "cuda:";
  if (!text.starts_with(kCuda)) return std::nullopt;
  const std::optional<uint64_t> index = ParseUnsigned(text.substr(kCuda.size()));
  if (!index || *index > 1023) return std::nullopt;
  return static_cast<int>(*index);
}

std::optional<int> LeverValues::CudaIndex() const { return CudaIndexOf(device.value); }

const char* ProcessEnvironment(const char* name) { return std::getenv(name); }

std::span<const Lever> AllLevers() { return kLevers; }

const Lever& GetLever(LeverId id) {
  for (const Lever& lever : kLevers) {
    if (lever.id == id) return lever;
  }
  GRANULE_CHECK(false);
  return kLevers[0];
}

Result<LeverValues> ReadLevers(std::span<const LeverId> wanted, const FlagTexts& flags,
                               EnvironmentLookup environment) {
  LeverValues values;
  for (const Lever& lever : kLevers) {
    const Status s = Apply(lever, {lever.fallback, "default"}, values);
    GRANULE_CHECK(s.ok());
  }
  for (const UnbuiltFlag& unbuilt : kUnbuiltFlags) {
    if (unbuilt.environment == nullptr) continue;
    const char* text = environment(unbuilt.environment);
    if (text != nullptr && *text != '\0') {
      return Error(Code::kUsage, "{}: {}; unset it", unbuilt.environment, unbuilt.why);
    }
  }
  for (const LeverId id : wanted) {
    const Lever& lever = GetLever(id);
    // A bad value in the environment is told even where a flag overrides it.
    if (flags.contains(lever.flag)) {
      LeverValues ignored;
      if (Status s = Apply(lever, Choose(lever, {}, environment), ignored); !s.ok()) return s;
    }
    if (Status s = Apply(lever, Choose(lever, flags, environment), values); !s.ok()) return s;
  }
  if (Status s = ImplyBucketRounding(values); !s.ok()) return s;
  if (values.CudaIndex()) {
    if (!values.kv_granule.is_default()) {
      return Error(Code::kUsage,
                   "{} is for the host: the granule of {} is its driver's. Leave it out",
                   values.kv_granule.source, values.device.value);
    }
    if (values.backend.value == "ort") {
      return Error(Code::kUsage,
                   "{} ort runs on the CPU, and {} asks for {}: leave one of them out",
                   values.backend.source, values.device.source, values.device.value);
    }
  }
  return values;
}

const char* WhyFlagIsNotBuilt(std::string_view flag) {
  for (const UnbuiltFlag& unbuilt : kUnbuiltFlags) {
    if (flag == unbuilt.flag) return unbuilt.why;
  }
  return nullptr;
}

namespace {

template <class T>
std::optional<T> ParseWhole(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

}  // namespace

std::optional<int64_t> ParseInteger(std::string_view text) { return ParseWhole<int64_t>(text); }

std::optional<uint64_t> ParseUnsigned(std::string_view text) { return ParseWhole<uint64_t>(text); }

std::optional<double> ParseReal(std::string_view text) {
  const std::optional<double> value = ParseWhole<double>(text);
  if (!value || !std::isfinite(*value)) return std::nullopt;
  return value;
}

std::optional<uint64_t> ParseByteSize(std::string_view text) {
  uint64_t unit = 1;
  if (text.size() > 3 && text.ends_with("iB")) {
    switch (text[text.size() - 3]) {
      case 'K':
        unit = uint64_t{1} << 10;
        break;
      case 'M':
        unit = uint64_t{1} << 20;
        break;
      case 'G':
        unit = uint64_t{1} << 30;
        break;
      default:
        return std::nullopt;
    }
    text.remove_suffix(3);
  }
  const std::optional<uint64_t> count = ParseUnsigned(text);
  if (!count) return std::nullopt;
  return CheckedMul(*count, unit);
}

}  // namespace granule
