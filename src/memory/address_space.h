// Address ranges for everything that grows: a few large reservations, carved first-fit.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "memory/vmm.h"

namespace granule::memory {

// The ladder: the first reservation asks for max(16 x total memory, 1 TiB) and halves on refusal
// down to 64 GiB (or to `needed` where that is more); only the last refusal is an error. Sanitizers
// and ulimit -v make the lower rungs real. Later reservations are added when a carve does not fit.
// Thread-safe.
class AddressSpace {
 public:
  explicit AddressSpace(Vmm& vmm);
  ~AddressSpace();  // frees reservations that are whole again; others stay (never asserts)

  // A range of whole granules (rounded up), aligned to the granule. Reserves the first time it is
  // called. The error of an impossible request states bytes asked, largest free span, and what was
  // reserved.
  Result<AddressRange> Carve(size_t bytes);
  // Exactly a range that Carve gave, with nothing mapped in it. Anything else trips a check.
  void Return(AddressRange range);
  // Frees every reservation that is whole again; the error of the first Free that failed (that
  // reservation is kept for another try).
  Status FreeUnused();

  uint64_t reserved_bytes() const;  // sum of reservations
  uint64_t carved_bytes() const;    // sum of live ranges
  // The largest reservation that the system granted, or would by the ladder: the bound for a
  // sequence whose hard maximum is unknown. Reserves the first time it is called.
  Result<uint64_t> LargestRungBytes();

  bool IsValid() const;  // walker: spans sorted, disjoint, merged, inside reservations

 private:
  struct Reservation {
    AddressRange range;
    std::map<Address, size_t> free;  // base -> bytes; no two adjacent
  };

  Result<Reservation*> AddReservation(size_t needed_bytes);
  std::optional<AddressRange> CarveFrom(Reservation& reservation, size_t bytes);
  uint64_t LargestFreeSpan() const;

  Vmm& vmm_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Reservation>> reservations_;
  std::map<Address, size_t> live_;
  uint64_t reserved_bytes_ = 0;
  uint64_t carved_bytes_ = 0;
  uint64_t largest_granted_ = 0;  // also after it was freed
};

// The rungs tried for a machine with this much memory (0 = unknown) and a need: strictly
// descending, largest first.
std::vector<uint64_t> ReservationLadder(uint64_t total_memory_bytes, uint64_t needed_bytes,
                                        size_t granule_bytes);

}  // namespace granule::memory
