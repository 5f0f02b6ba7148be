// Which handle is behind each window of address space.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "memory/handle_pool.h"
#include "memory/vmm.h"

namespace granule::memory {

// What a Commit added: runs of newly backed addresses, in ascending order. `stale` lists the part that may
// hold old bytes and must be zeroed by the caller before it is published (pooled memory, or a device
// whose fresh memory is not zero).
struct Committed {
  uint64_t new_bytes = 0;
  std::vector<AddressRange> fresh;
  std::vector<AddressRange> stale;
};

// Invariants (IsValid):
//   a window is backed by exactly one handle and lies whole in that handle's mapping
//   references of a handle == number of places where it is mapped; 0 -> back to the pool
//   unique_bytes == sum over handles with references > 0 of their bytes
//   mapped_bytes == sum over windows; shared_bytes == mapped_bytes - unique_bytes
//   a poisoned window (its unmap failed) is never reused; its handle stays charged, in quarantine
// Thread-safe; ranges given to concurrent calls must not overlap.
class MappingTable {
 public:
  MappingTable(Vmm& vmm, HandlePool& pool);

  // Backs every granule that any of the ranges touches, read-write. Granules already backed stay as
  // they are and cost nothing (idempotent). All or nothing: after an error the table, the windows and the
  // pool are as before (a rollback whose own unmap fails poisons that window and says so).
  // A window that is poisoned, or shared read-only and touched here, is refused before any verb runs.
  Result<Committed> Commit(std::span<const AddressRange> ranges);

  // Bytes that Commit of these ranges would newly back.
  uint64_t WouldCommitBytes(std::span<const AddressRange> ranges) const;

  // Maps the handles behind [source, +bytes) at [target, +bytes) with this access; granule-aligned, whole handles, target
  // empty. All or nothing.
  Status Share(Address source, Address target, size_t bytes, Access access);

  // Takes away every whole handle inside the range. A handle that is only partly inside stays. A failed unmap
  // poisons its window, quarantines its handle and goes on; the status reports the first failure.
  Status Decommit(AddressRange range);

  uint64_t unique_bytes() const;  // each handle once
  uint64_t mapped_bytes() const;  // each window
  uint64_t shared_bytes() const;
  uint64_t poisoned_bytes() const;
  // Bytes of the range that are backed.
  uint64_t BackedBytes(AddressRange range) const;
  bool IsPoisoned(AddressRange range) const;
  bool IsValid() const;

 private:
  struct Window {
    Handle handle;
    Access access = Access::kReadWrite;
    bool poisoned = false;
  };

  Vmm& vmm_;
  HandlePool& pool_;
  const size_t granule_bytes_;
  mutable std::mutex mutex_;
  std::map<Address, Window> windows_;                  // first address of each mapping
  std::unordered_map<uint64_t, uint64_t> references_;  // handle id -> mappings
};

}  // namespace granule::memory
