// What stands between this process and the out-of-memory killer: touching memory past a limit ends
// the process without a word, so host memory is asked for only after a look at every limit that
// could do that.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/cgroup.h"
#include "base/status.h"

namespace granule::memory {

// Where the kernel states the limits. Tests point these at files of their own.
struct MemoryLimitSource {
  std::string meminfo_file = "/proc/meminfo";
  CgroupSource cgroups;
};

struct MemoryLimit {
  std::string name;  // "MemAvailable", "memory.max of /sys/fs/cgroup/a"
  uint64_t available = 0;
  uint64_t total = 0;
};

// This detects an error early; it never is a ceiling that anything is sized by
// (docs/decisions/002). Available =
//   system    MemAvailable of /proc/meminfo (swap does not count: KV that swaps is worse than a
//   refusal) cgroup    limit - usage + file cache, for this group and each of its ancestors: the
//   kernel takes cache
//             back before it kills, and a mapped model file is cache
// Thread-safe.
class MemoryLimits {
 public:
  explicit MemoryLimits(const MemoryLimitSource& source);

  // kExhausted, with operands and the limit's name, when `bytes` more would come too near a limit.
  // The files are read again only after a share of what was left has been admitted, so most calls
  // cost one atomic subtraction.
  Status Admit(uint64_t bytes);

  // The tightest limit at this moment. kUnavailable when the system states none.
  Result<MemoryLimit> Tightest() const;

 private:
  const MemoryLimitSource source_;
  const std::vector<CgroupDirectory> directories_;
  std::mutex refresh_;
  std::atomic<int64_t> allowance_{0};  // bytes that may be admitted before the next look
};

}  // namespace granule::memory
