#include "memory/handle_pool.h"

#include <algorithm>
#include <iterator>
#include <optional>

namespace granule::memory {

HandlePool::HandlePool(Vmm& vmm, uint64_t retained_bytes)
    : vmm_(vmm), retained_bytes_(retained_bytes) {}

HandlePool::~HandlePool() { Trim(0); }

AcquiredHandle HandlePool::TakeOut(std::vector<Pooled>::iterator it) {
  const AcquiredHandle acquired{
      .handle = it->handle, .is_zero = false, .is_new = false, .home = it->home};
  pooled_.erase(it);
  ++counters_.pool_hits;
  --counters_.pooled_handles;
  counters_.pooled_bytes -= acquired.handle.bytes;
  ++counters_.live_handles;
  counters_.live_bytes += acquired.handle.bytes;
  return acquired;
}

std::optional<AcquiredHandle> HandlePool::TakePooled(size_t bytes, Address home) {
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
  if (best == pooled_.rend()) return std::nullopt;
  return TakeOut(std::prev(best.base()));
}

std::optional<AcquiredHandle> HandlePool::TakeLargestBelow(size_t bytes) {
  std::lock_guard lock(mutex_);
  auto best = pooled_.end();
  for (auto it = pooled_.begin(); it != pooled_.end(); ++it) {
    if (it->handle.bytes >= bytes) continue;
    if (best == pooled_.end() || it->handle.bytes >= best->handle.bytes) best = it;
  }
  if (best == pooled_.end()) return std::nullopt;
  return TakeOut(best);
}

Result<AcquiredHandle> HandlePool::Create(size_t bytes, Address home) {
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

Result<AcquiredHandle> HandlePool::Acquire(size_t bytes, Address home) {
  if (const auto pooled = TakePooled(bytes, home)) return *pooled;
  Result<AcquiredHandle> created = Create(bytes, home);
  if (created.ok() || created.status().code() != Code::kExhausted || Trim(0) == 0) return created;
  return Create(bytes, home);
}

Result<AcquiredHandle> HandlePool::AcquireUpTo(size_t bytes, Address home) {
  if (const auto pooled = TakePooled(bytes, home)) return *pooled;
  Result<AcquiredHandle> created = Create(bytes, home);
  if (created.ok() || created.status().code() != Code::kExhausted) return created;
  if (const auto smaller = TakeLargestBelow(bytes)) return *smaller;
  if (Trim(0) == 0) return created;
  return Create(bytes, home);
}

Status HandlePool::Prefill(size_t bytes, uint64_t count) {
  const auto wanted = [&] {
    std::lock_guard lock(mutex_);
    if (bytes > retained_bytes_ || counters_.pooled_bytes > retained_bytes_ - bytes) return false;
    const auto same = [&](const Pooled& pooled) { return pooled.handle.bytes == bytes; };
    return static_cast<uint64_t>(std::count_if(pooled_.begin(), pooled_.end(), same)) < count;
  };
  while (wanted()) {
    const Result<AcquiredHandle> created = Create(bytes, 0);
    if (!created.ok()) return created.status();
    Return(created->handle, 0);
  }
  return {};
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
