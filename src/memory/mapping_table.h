// Which handle is behind each window of address space.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "memory/address_space.h"
#include "memory/handle_pool.h"
#include "memory/vmm.h"

namespace granule::memory {

// What a Commit added: runs of newly backed addresses, in ascending order. `stale` lists the part
// that may hold old bytes and must be zeroed by the caller before it is published (pooled memory,
// or a device whose fresh memory is not zero).
struct Committed {
  uint64_t new_bytes = 0;
  std::vector<AddressRange> fresh;
  std::vector<AddressRange> stale;
};

// Invariants (IsValid):
//   a window is backed by exactly one handle and lies whole in that handle's mapping
//   references of a handle == number of healthy windows that show it; 0 -> back to the pool
//   unique_bytes == sum over handles with references > 0 of their bytes
//   mapped_bytes == sum over healthy windows; shared_bytes == mapped_bytes - unique_bytes
//   a poisoned window (its unmap failed) is never reused and counts in poisoned_bytes alone; its
//   handle stays charged: it is quarantined for good as soon as no healthy window shows it
// A need of many granules is met by few handles, of up to capabilities().max_handle_bytes: the cost
// of a mapping is per handle. Every handle is a power of two of granules, so that pooled ones fit
// again, and covers nothing but the need. The price: a handle is shared, copied and given back
// whole.
//
// Thread-safe; ranges given to concurrent calls must not overlap.
class MappingTable {
 public:
  MappingTable(Vmm& vmm, HandlePool& pool);

  // Backs every granule that any of the ranges touches, read-write. Granules already backed stay as
  // they are and cost nothing (idempotent). All or nothing: after an error the table, the windows
  // and the pool are as before (a rollback whose own unmap fails poisons that window and says so).
  // A window that is poisoned, or shared read-only and touched here, is refused before any verb
  // runs.
  Result<Committed> Commit(std::span<const AddressRange> ranges);

  // Bytes that Commit of these ranges would newly back.
  uint64_t WouldCommitBytes(std::span<const AddressRange> ranges) const;

  // Maps the handles behind [source, +bytes) at [target, +bytes) with this access; granule-aligned,
  // whole handles, target empty, the two apart: anything else is refused with nothing changed
  // (kInternal: whoever plans sharing knows the table). All or nothing, like Commit.
  Status Share(Address source, Address target, size_t bytes, Access access);

  // Takes away every whole handle inside the range. A handle that is only partly inside stays, and
  // so does a poisoned window. A failed unmap poisons its window, quarantines its handle and goes
  // on; the status reports the first failure (kPoisoned).
  Status Decommit(AddressRange range);

  // Makes every granule that the ranges touch writable and shown by nobody else, with the same
  // content: where another window shows the same handle, a copy of the whole handle takes its
  // place. `space` lends
  // addresses to copy through. After an error the content is as before and the call may be repeated
  // (kExhausted), or a window was lost on the way back (kPoisoned).
  Status MakePrivate(std::span<const AddressRange> ranges, AddressSpace& space);

  uint64_t unique_bytes() const;  // each handle once
  uint64_t mapped_bytes() const;  // each window
  uint64_t shared_bytes() const;
  uint64_t poisoned_bytes() const;
  // Bytes of the range that are backed.
  uint64_t BackedBytes(AddressRange range) const;
  uint64_t ReadOnlyBytes(AddressRange range) const;  // of those, the bytes mapped read-only
  // The healthy windows that lie whole inside the range, ascending: what Share and Decommit take.
  std::vector<AddressRange> WholeHandles(AddressRange range) const;
  // Bytes of the healthy windows that the ranges touch, each counted whole, and once. The ranges
  // may come in any order.
  uint64_t HandleBytesUnder(std::span<const AddressRange> ranges) const;
  // The sizes of the handles that Commit of these ranges would ask the pool for, with how many of
  // each.
  std::map<size_t, uint64_t> HandlesFor(std::span<const AddressRange> ranges) const;
  bool IsPoisoned(AddressRange range) const;
  bool IsValid() const;

 private:
  struct Window {
    Handle handle;
    Access access = Access::kReadWrite;
    bool poisoned = false;
  };
  struct Use {
    uint64_t references = 0;  // healthy windows
    uint64_t poisoned = 0;    // windows that could not be taken away
    Address home = 0;         // for the pool
  };
  struct Added {
    Address address = 0;
    AcquiredHandle acquired;
  };
  struct Removed {
    Status status;        // of the unmap
    bool orphan = false;  // the handle is mapped nowhere any more and is the caller's to give back
    Handle handle;
    Address home = 0;
  };
  using Windows = std::map<Address, Window>;

  AddressRange Granules(AddressRange range) const;  // rounded outwards
  Windows::const_iterator FirstAt(
      Address address) const;  // the first window that ends behind the address
  // Calls visit(gap) for each stretch of whole granules of the range without a window, in ascending
  // order, until it gives an error. The visit may add windows inside its gap.
  template <class Visit>
  Status ForEachGap(AddressRange range, const Visit& visit) const;
  Status RefuseUncommittable(std::span<const AddressRange> ranges, bool* complete) const;
  template <class Visit>
  Status ForEachGapOnce(std::span<const AddressRange> ranges, const Visit& visit) const;
  size_t LargestPiece(size_t gap_bytes) const;
  Status CommitGap(AddressRange gap, std::vector<Added>& added, Committed& out);
  Status CheckShare(Address source, Address target, size_t bytes) const;
  Status MapWindow(Address address, Handle handle, Address home, Access access);
  void NotePoisoned(Address address, Handle handle);
  Removed TakeAway(Windows::iterator it);
  Status MakeWindowPrivate(Windows::iterator it, AddressSpace& space);
  Status Replace(Windows::iterator it, const AcquiredHandle& next, Access access);
  bool IsValidLocked() const;

  Vmm& vmm_;
  HandlePool& pool_;
  const size_t granule_bytes_;
  mutable std::mutex mutex_;
  Windows windows_;                         // first address of each mapping
  std::unordered_map<uint64_t, Use> uses_;  // handle id -> where it is shown
  uint64_t unique_bytes_ = 0;
  uint64_t mapped_bytes_ = 0;
  uint64_t poisoned_bytes_ = 0;
};

}  // namespace granule::memory
