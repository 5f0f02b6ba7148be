#include "kv/parking.h"

#include <algorithm>

namespace granule::kv {

void ParkingLot::Put(ParkedRange parked) {
  std::lock_guard lock(mutex_);
  parked_.push_back(std::move(parked));
}

std::optional<ParkedRange> ParkingLot::Take(const Layout& layout) {
  std::lock_guard lock(mutex_);
  auto best = parked_.end();
  for (auto it = parked_.begin(); it != parked_.end(); ++it) {
    if (!(it->layout == layout)) continue;
    if (best == parked_.end() || it->committed > best->committed) best = it;
  }
  if (best == parked_.end()) return std::nullopt;
  ParkedRange parked = std::move(*best);
  parked_.erase(best);
  return parked;
}

uint64_t ParkingLot::Release(uint64_t keep_bytes) {
  std::lock_guard lock(mutex_);
  uint64_t parked = 0;
  for (const ParkedRange& p : parked_) parked += table_.BackedBytes(p.range);
  uint64_t released = 0;
  while (!parked_.empty() && parked - released > keep_bytes) {
    const memory::AddressRange range = parked_.front().range;
    released += table_.BackedBytes(range);
    const Status status = table_.Decommit(range);
    // Addresses whose unmap failed are never used again.
    if (status.ok() && !table_.IsPoisoned(range)) space_.Return(range);
    parked_.erase(parked_.begin());
  }
  return released;
}

uint64_t ParkingLot::parked_bytes() const {
  std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const ParkedRange& p : parked_) bytes += table_.BackedBytes(p.range);
  return bytes;
}

}  // namespace granule::kv
