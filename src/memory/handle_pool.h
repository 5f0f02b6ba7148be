// Physical memory that waits for its next use, on devices where creating it is slow.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "memory/vmm.h"

namespace granule::memory {

// Invariant: creates == releases + live + pooled + quarantined (in handles).
struct HandleCounters {
  uint64_t creates = 0;
  uint64_t releases = 0;
  uint64_t pool_hits = 0;
  uint64_t live_handles = 0;  // handed out
  uint64_t live_bytes = 0;
  uint64_t pooled_handles = 0;  // kept for the next Acquire
  uint64_t pooled_bytes = 0;
  uint64_t quarantined_handles = 0;  // the system would not take them back, or their unmap failed:
                                     // never used again, still charged
  uint64_t quarantined_bytes = 0;
};

struct AcquiredHandle {
  Handle handle;
  bool is_zero = false;  // fresh from the system and fresh_is_zero
  bool is_new = false;   // created for this call, not from the pool
  Address home = 0;      // the home that it was made for or returned with
};

// Keeps up to `retained_bytes` of returned handles. Thread-safe; no Vmm verb runs under the lock.
class HandlePool {
 public:
  HandlePool(Vmm& vmm, uint64_t retained_bytes);
  ~HandlePool();  // releases what is pooled

  // A handle of exactly `bytes`; pooled ones with the same home first, then any pooled one of that
  // size, then a new one. Where the system refuses a new one, pooled memory of other sizes is given
  // back to it and it is asked once more.
  Result<AcquiredHandle> Acquire(size_t bytes, Address home);
  // The same for a need that several handles may meet: where the system refuses, the largest
  // smaller one of the pool comes before the pool is given back.
  Result<AcquiredHandle> AcquireUpTo(size_t bytes, Address home);
  // Creates handles ahead of their use, on any thread, until `count` of `bytes` are pooled or the
  // bound is reached; they count as pooled. An error leaves those that were made.
  Status Prefill(size_t bytes, uint64_t count);
  // Takes back a handle that is mapped nowhere. Keeps it within the bound, releases it otherwise; a
  // failed release quarantines it. Never fails.
  void Return(Handle handle, Address home);
  // Undoes an Acquire whose handle is mapped nowhere: a pooled handle is pooled again, a new one is
  // released.
  void Undo(const AcquiredHandle& acquired);
  // Takes back a handle that may still be mapped because its unmap failed: quarantined for good.
  void Quarantine(Handle handle);

  // Releases pooled handles until at most `keep_bytes` stay; returns the bytes given back.
  uint64_t Trim(uint64_t keep_bytes);

  HandleCounters counters() const;
  bool IsValid() const;

 private:
  struct Pooled {
    Handle handle;
    Address home;
  };

  std::optional<AcquiredHandle> TakePooled(size_t bytes, Address home);
  std::optional<AcquiredHandle> TakeLargestBelow(size_t bytes);
  AcquiredHandle TakeOut(std::vector<Pooled>::iterator it);  // the lock is held
  Result<AcquiredHandle> Create(size_t bytes, Address home);

  // Gives a handle that is counted in `live` (or was just taken out of the pool) back to the
  // system.
  bool ReleaseToSystem(Handle handle);

  Vmm& vmm_;
  const uint64_t retained_bytes_;
  mutable std::mutex mutex_;
  std::vector<Pooled> pooled_;
  HandleCounters counters_;
};

}  // namespace granule::memory
