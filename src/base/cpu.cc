#include "base/cpu.h"

#include <cpuid.h>
#include <sched.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/cgroup.h"

namespace granule {
namespace {

// Bits of XCR0: which register files the operating system saves. A CPU feature whose registers are
// not saved is not usable, whatever cpuid says.
constexpr uint64_t kSavesAvx = 0x6;      // XMM, YMM
constexpr uint64_t kSavesAvx512 = 0xe6;  // and opmask, the upper halves of ZMM, ZMM16-31

uint64_t SavedRegisters() {
  uint32_t low = 0;
  uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

Isa DetectIsa() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return Isa::kPortable;
  constexpr uint32_t kLeaf1 = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
  if ((c & kLeaf1) != kLeaf1) return Isa::kPortable;
  const uint64_t saved = SavedRegisters();
  if ((saved & kSavesAvx) != kSavesAvx) return Isa::kPortable;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return Isa::kPortable;
  constexpr uint32_t kAvx2Bits = bit_AVX2 | bit_BMI | bit_BMI2;  // the build flags of isa_avx2.cc
  if ((b & kAvx2Bits) != kAvx2Bits) return Isa::kPortable;
  constexpr uint32_t kAvx512Bits =
      bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL | bit_AVX512CD;
  if ((b & kAvx512Bits) != kAvx512Bits) return Isa::kAvx2;
  return (saved & kSavesAvx512) == kSavesAvx512 ? Isa::kAvx512 : Isa::kAvx2;
}

constexpr Isa kLevels[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512};

std::string AcceptedLevels() {
  std::string list = "auto";
  for (Isa isa : kLevels) {
    if (isa <= BestIsa()) list += std::string(", ") + IsaName(isa);
  }
  return list;
}

// The mask may be wider than cpu_set_t; the kernel says so with EINVAL.
int AffinityCpus() {
  for (size_t cpus = 1024; cpus <= (size_t{1} << 20); cpus *= 2) {
    cpu_set_t* mask = CPU_ALLOC(cpus);
    if (mask == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    const int result = sched_getaffinity(0, bytes, mask);
    const int error = errno;
    const int count = result == 0 ? CPU_COUNT_S(bytes, mask) : 0;
    CPU_FREE(mask);
    if (result == 0 && count > 0) return count;
    if (error != EINVAL) break;
  }
  const unsigned online = std::thread::hardware_concurrency();
  return online > 0 ? static_cast<int>(online) : 1;
}

// OpenMP allows one number per nesting level; the first is the outermost.
int OmpThreads() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  if (text == nullptr) return 0;
  const std::string value(text);
  int threads = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), threads);
  const bool whole = end == value.data() + value.size() || *end == ',';
  return error == std::errc() && whole && threads > 0 ? threads : 0;
}

}  // namespace

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "?";
}

Isa BestIsa() {
  static const Isa best = DetectIsa();
  return best;
}

Result<Isa> ParseIsa(const std::string& text) {
  if (text == "auto") return BestIsa();
  for (Isa isa : kLevels) {
    if (text != IsaName(isa)) continue;
    if (isa <= BestIsa()) return isa;
    return Error(
        Code::kUsage,
        "this CPU ({}) has no {} instructions that the system lets programs use; accepted here: {}",
        CpuModelName(), text, AcceptedLevels());
  }
  return Error(Code::kUsage, "unknown instruction set \"{}\"; accepted here: {}", text,
               AcceptedLevels());
}

std::string CpuModelName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    if (begin != std::string::npos) return line.substr(begin);
  }
  return "unknown CPU";
}

CpuBudget UsableCpus() {
  const int affinity = AffinityCpus();
  CpuBudget budget{affinity,
                   Format("{} CPU{} in the affinity mask", affinity, affinity == 1 ? "" : "s")};
  if (const std::optional<double> quota = CgroupCpuQuota()) {
    const double threads = std::max(1.0, std::ceil(*quota));
    if (threads < budget.threads) {
      budget = {static_cast<int>(threads), Format("cgroup quota of {:.4g} CPUs", *quota)};
    }
  }
  const int omp = OmpThreads();
  if (omp > 0 && omp < budget.threads) budget = {omp, Format("OMP_NUM_THREADS={}", omp)};
  return budget;
}

}  // namespace granule
