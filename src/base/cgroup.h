// The control groups that this process lives in, as far as it can see them: version 2, version 1,
// or both at once. Limits of every ancestor count, so everything here lists the whole way up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace granule {

// Where the kernel describes the groups. Tests point these at files of their own.
struct CgroupSource {
  std::string cgroup_file = "/proc/self/cgroup";
  std::string mountinfo_file = "/proc/self/mountinfo";
};

struct CgroupDirectory {
  std::string path;  // without a trailing slash
  int version = 2;
};

// Directories that may limit `controller` ("cpu", "memory"): this process's own group first, then
// its parents up to the mount point. Empty where there are none.
std::vector<CgroupDirectory> CgroupDirectories(const std::string& controller,
                                               const CgroupSource& source = {});

// The smallest CPU quota on the way up, in CPUs (1.5 = 150 ms per 100 ms); none = unlimited.
std::optional<double> CgroupCpuQuota(const CgroupSource& source = {});

// The first word of a small kernel file as a number; none when it is missing, "max", negative or
// not a number.
std::optional<uint64_t> ReadCounter(const std::string& path);

}  // namespace granule
