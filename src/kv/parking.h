// Committed ranges of finished sequences, kept whole for the next sequence of the same shape.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "kv/layout.h"
#include "memory/address_space.h"
#include "memory/mapping_table.h"

namespace granule::kv {

struct ParkedRange {
  Layout layout;
  memory::AddressRange range;
  uint64_t committed = 0;  // tokens
};

// Thread-safe. Old content stays in a parked range: kernels never read at or above a live length.
class ParkingLot {
 public:
  ParkingLot(memory::AddressSpace& space, memory::MappingTable& table)
      : space_(space), table_(table) {}
  ~ParkingLot() { Release(0); }

  void Put(ParkedRange parked);
  // The one with the most memory among those with these strides and places.
  std::optional<ParkedRange> Take(const Layout& layout);
  // Gives memory back, oldest first, until at most `keep_bytes` stay parked. Returns the bytes
  // given back.
  uint64_t Release(uint64_t keep_bytes);
  uint64_t parked_bytes() const;

 private:
  memory::AddressSpace& space_;
  memory::MappingTable& table_;
  mutable std::mutex mutex_;
  std::vector<ParkedRange> parked_;
};

}  // namespace granule::kv
