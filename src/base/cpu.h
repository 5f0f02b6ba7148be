// What the CPU of this machine is, and how much of it this process may use.
#pragma once

#include <string>

#include "base/status.h"

namespace granule {

// Instruction-set levels with kernels of their own. Ordered: a higher level implies the lower ones.
//   kPortable  any x86-64
//   kAvx2      AVX2 + FMA + F16C
//   kAvx512    AVX-512 F, BW, DQ, VL, CD
enum class Isa { kPortable, kAvx2, kAvx512 };

const char* IsaName(Isa isa);  // "portable", "avx2", "avx512"

// The best level that this CPU and operating system support.
Isa BestIsa();

// "auto" or a level's name. An unknown name or a level this CPU lacks is a usage error that lists
// the accepted values.
Result<Isa> ParseIsa(const std::string& text);

std::string CpuModelName();  // from /proc/cpuinfo, "unknown CPU" when it does not say

// How many compute threads to run and why: the smallest of the CPUs in the affinity mask, the
// ceiling of the cgroup CPU quota over all ancestors (v2 cpu.max, v1 cfs_quota), and
// OMP_NUM_THREADS where it is set to a positive number.
struct CpuBudget {
  int threads = 1;
  std::string reason;  // "2 CPUs in the affinity mask", "cgroup quota of 1.5 CPUs", ...
};
CpuBudget UsableCpus();

}  // namespace granule
