#include "memory/host/memory_limits.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "base/arith.h"
#include "base/file.h"

namespace granule::memory {
namespace {

// Left for what the process needs besides: page tables of the new memory, stacks, small
// allocations.
constexpr uint64_t kKeepFree = 8 << 20;
// A look costs some tens of microseconds; one per this much memory does not show.
constexpr uint64_t kMaxAllowance = 64 << 20;

// The number behind a name at the start of a line, as in memory.stat and /proc/meminfo.
std::optional<uint64_t> Field(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    uint64_t value = 0;
    if (words >> word && word == name && words >> value) return value;
  }
  return std::nullopt;
}

std::string Text(const std::string& path) {
  Result<std::string> text = ReadFile(path, 1 << 20);
  return text.ok() ? *std::move(text) : std::string();
}

std::optional<MemoryLimit> SystemLimit(const std::string& meminfo_file) {
  const std::string text = Text(meminfo_file);
  const auto available = Field(text, "MemAvailable:");
  const auto total = Field(text, "MemTotal:");
  if (!available || !total) return std::nullopt;
  return MemoryLimit{"MemAvailable", SaturatingMul(*available, 1024), SaturatingMul(*total, 1024)};
}

std::optional<MemoryLimit> GroupLimit(const CgroupDirectory& directory) {
  const bool v1 = directory.version == 1;
  const char* name = v1 ? "memory.limit_in_bytes" : "memory.max";
  const auto limit = ReadCounter(directory.path + "/" + name);
  const auto usage =
      ReadCounter(directory.path + (v1 ? "/memory.usage_in_bytes" : "/memory.current"));
  if (!limit || !usage) return std::nullopt;  // no limit ("max"), or the root group
  const std::string stat = Text(directory.path + "/memory.stat");
  const uint64_t cache =
      SaturatingAdd(Field(stat, v1 ? "total_active_file" : "active_file").value_or(0),
                    Field(stat, v1 ? "total_inactive_file" : "inactive_file").value_or(0));
  const uint64_t used = *usage - std::min(cache, *usage);
  return MemoryLimit{std::string(name) + " of " + directory.path, *limit - std::min(used, *limit),
                     *limit};
}

}  // namespace

MemoryLimits::MemoryLimits(const MemoryLimitSource& source)
    : source_(source), directories_(CgroupDirectories("memory", source.cgroups)) {}

Result<MemoryLimit> MemoryLimits::Tightest() const {
  std::optional<MemoryLimit> tightest = SystemLimit(source_.meminfo_file);
  for (const CgroupDirectory& directory : directories_) {
    std::optional<MemoryLimit> limit = GroupLimit(directory);
    if (!limit) continue;
    if (!tightest || limit->available < tightest->available) {
      if (tightest) limit->total = std::min(limit->total, tightest->total);
      tightest = std::move(limit);
    } else {
      tightest->total = std::min(tightest->total, limit->total);
    }
  }
  if (!tightest) return Error(Code::kUnavailable, "the system states no memory limit");
  return *std::move(tightest);
}

Status MemoryLimits::Admit(uint64_t bytes) {
  const auto wanted = static_cast<int64_t>(std::min(bytes, uint64_t{1} << 62));
  int64_t allowance = allowance_.load(std::memory_order_relaxed);
  while (allowance >= wanted) {
    if (allowance_.compare_exchange_weak(allowance, allowance - wanted,
                                         std::memory_order_relaxed)) {
      return {};
    }
  }
  std::lock_guard lock(refresh_);
  const Result<MemoryLimit> limit = Tightest();
  if (!limit.ok()) {  // nothing to compare with: the system's own refusal decides
    allowance_.store(static_cast<int64_t>(kMaxAllowance), std::memory_order_relaxed);
    return {};
  }
  if (SaturatingAdd(bytes, kKeepFree) > limit->available) {
    allowance_.store(0, std::memory_order_relaxed);
    return Error(
        Code::kExhausted,
        "the host has no {} more: {} bytes are needed and {} are left by {} ({} of them stay free "
        "for the process itself). Use a shorter context or fewer sequences, or free memory",
        FormatBytes(bytes), bytes, limit->available, limit->name, kKeepFree);
  }
  // The nearer the limit the sooner the next look: others use the same memory.
  const uint64_t left = limit->available - kKeepFree - bytes;
  allowance_.store(static_cast<int64_t>(std::min(left / 16, kMaxAllowance)),
                   std::memory_order_relaxed);
  return {};
}

}  // namespace granule::memory
