#include "memory/handle_pool.h"

#include <algorithm>
#include <iterator>
#include <optional>

namespace granule::memory {

HandlePool::HandlePool(Vmm& vmm, uint64_t retained_bytes)
    : vmm_(vmm), retained_bytes_(retained_bytes) {}

HandlePool::~HandlePool() { Trim(0); }

Result<AcquiredHandle> HandlePool::Acquire(size_t bytes, Address home) {
  {
    std::lock_guard lock(mutex_);
    // Newest first: its bytes are the likeliest to be in a cache.
    auto best = pooled_.rend();
    for (auto it = pooled_.rbegin(); it != pooled_.rend(); ++it) {
      if (it->handle.bytes != bytes) continue;
      if (best == pooled_.rend()) best = it;
      if (it->home == home) {
        best = it;
        break;
      }
    }
    if (best != pooled_.rend()) {
      const AcquiredHandle acquired{
          .handle = best->handle, .is_zero = false, .is_new = false, .home = best->home};
      pooled_.erase(std::prev(best.base()));
      ++counters_.pool_hits;
      --counters_.pooled_handles;
      counters_.pooled_bytes -= bytes;
      ++counters_.live_handles;
      counters_.live_bytes += bytes;
      return acquired;
    }
  }
  const Result<Handle> created = vmm_.Create(bytes, home);
  if (!created.ok()) return created.status();
  std::lock_guard lock(mutex_);
  ++counters_.creates;
  ++counters_.live_handles;
  counters_.live_bytes += bytes;
  return AcquiredHandle{.handle = *created,
                        .is_zero = vmm_.capabilities().fresh_is_zero,
                        .is_new = true,
                        .home = home};
}

bool HandlePool::ReleaseToSystem(Handle handle) {
  const Status status = vmm_.Release(handle);
  std::lock_guard lock(mutex_);
  --counters_.live_handles;
  counters_.live_bytes -= handle.bytes;
  if (status.ok()) {
    ++counters_.releases;
  } else {
    ++counters_.quarantined_handles;
    counters_.quarantined_bytes += handle.bytes;
  }
  return status.ok();
}

void HandlePool::Return(Handle handle, Address home) {
  {
    std::lock_guard lock(mutex_);
    GRANULE_CHECK(counters_.live_handles > 0);
    if (handle.bytes <= retained_bytes_ &&
        counters_.pooled_bytes <= retained_bytes_ - handle.bytes) {
      pooled_.push_back({handle, home});
      ++counters_.pooled_handles;
      counters_.pooled_bytes += handle.bytes;
      --counters_.live_handles;
      counters_.live_bytes -= handle.bytes;
      return;
    }
  }
  ReleaseToSystem(handle);
}

void HandlePool::Undo(const AcquiredHandle& acquired) {
  if (acquired.is_new) {
    ReleaseToSystem(acquired.handle);
  } else {
    Return(acquired.handle, acquired.home);
  }
}

void HandlePool::Quarantine(Handle handle) {
  std::lock_guard lock(mutex_);
  GRANULE_CHECK(counters_.live_handles > 0);
  --counters_.live_handles;
  counters_.live_bytes -= handle.bytes;
  ++counters_.quarantined_handles;
  counters_.quarantined_bytes += handle.bytes;
}

uint64_t HandlePool::Trim(uint64_t keep_bytes) {
  uint64_t given_back = 0;
  for (;;) {
    Handle oldest;
    {
      std::lock_guard lock(mutex_);
      if (pooled_.empty() || counters_.pooled_bytes <= keep_bytes) return given_back;
      oldest = pooled_.front().handle;
      pooled_.erase(pooled_.begin());
      --counters_.pooled_handles;
      counters_.pooled_bytes -= oldest.bytes;
      ++counters_.live_handles;  // in our hands until the system has it
      counters_.live_bytes += oldest.bytes;
    }
    if (ReleaseToSystem(oldest)) given_back += oldest.bytes;
  }
}

HandleCounters HandlePool::counters() const {
  std::lock_guard lock(mutex_);
  return counters_;
}

bool HandlePool::IsValid() const {
  std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const Pooled& pooled : pooled_) bytes += pooled.handle.bytes;
  return counters_.creates == counters_.releases + counters_.live_handles +
                                  counters_.pooled_handles + counters_.quarantined_handles &&
         pooled_.size() == counters_.pooled_handles && bytes == counters_.pooled_bytes &&
         bytes <= retained_bytes_;
}

}  // namespace granule::memory
