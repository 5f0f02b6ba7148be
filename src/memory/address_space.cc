#include "memory/address_space.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "base/arith.h"

namespace granule::memory {
namespace {

constexpr uint64_t kSmallestFirstRung = uint64_t{1} << 40;
constexpr uint64_t kLastRung = uint64_t{64} << 30;

}  // namespace

std::vector<uint64_t> ReservationLadder(uint64_t total_memory_bytes, uint64_t needed_bytes,
                                        size_t granule_bytes) {
  const uint64_t granule = granule_bytes;
  // The largest size that still rounds up to whole granules.
  const uint64_t top = RoundDown(std::numeric_limits<uint64_t>::max(), granule);
  const uint64_t last = RoundUp(std::min(std::max(kLastRung, needed_bytes), top), granule);
  std::vector<uint64_t> rungs;
  for (uint64_t rung = std::max(SaturatingMul(total_memory_bytes, 16), kSmallestFirstRung);
       RoundDown(rung, granule) > last; rung /= 2) {
    rungs.push_back(RoundDown(rung, granule));
  }
  rungs.push_back(last);
  return rungs;
}

AddressSpace::AddressSpace(Vmm& vmm) : vmm_(vmm) {}

AddressSpace::~AddressSpace() {
  const Status ignored = FreeUnused();  // what cannot be freed stays reserved: addresses, no memory
  (void)ignored;
}

Result<AddressSpace::Reservation*> AddressSpace::AddReservation(size_t needed_bytes) {
  const Result<MemoryInfo> memory = vmm_.Memory();  // unknown is fine: 0 gives the smallest ladder
  const uint64_t total = memory.ok() ? memory->total_bytes : 0;
  Status refusal;
  for (uint64_t rung : ReservationLadder(total, needed_bytes, vmm_.capabilities().granule_bytes)) {
    const Result<AddressRange> range = vmm_.Reserve(rung);
    if (!range.ok()) {
      refusal = range.status();
      continue;
    }
    auto reservation = std::make_unique<Reservation>();
    reservation->range = *range;
    reservation->free.emplace(range->base, range->bytes);
    reserved_bytes_ += range->bytes;
    largest_granted_ = std::max<uint64_t>(largest_granted_, range->bytes);
    reservations_.push_back(std::move(reservation));
    return reservations_.back().get();
  }
  return refusal;
}

std::optional<AddressRange> AddressSpace::CarveFrom(Reservation& reservation, size_t bytes) {
  for (auto it = reservation.free.begin(); it != reservation.free.end(); ++it) {
    if (it->second < bytes) continue;
    const AddressRange range{it->first, bytes};
    const size_t rest = it->second - bytes;
    reservation.free.erase(it);
    if (rest > 0) reservation.free.emplace(range.end(), rest);
    live_.emplace(range.base, range.bytes);
    carved_bytes_ += range.bytes;
    return range;
  }
  return std::nullopt;
}

uint64_t AddressSpace::LargestFreeSpan() const {
  uint64_t largest = 0;
  for (const auto& reservation : reservations_) {
    for (const auto& [base, bytes] : reservation->free)
      largest = std::max<uint64_t>(largest, bytes);
  }
  return largest;
}

Result<AddressRange> AddressSpace::Carve(size_t bytes) {
  GRANULE_CHECK(bytes > 0);
  const size_t granule = vmm_.capabilities().granule_bytes;
  std::lock_guard lock(mutex_);
  Status refusal = Error(Code::kExhausted, "there are no such addresses");
  if (bytes <= RoundDown(std::numeric_limits<size_t>::max(), granule)) {
    const size_t whole = RoundUp(bytes, granule);
    for (const auto& reservation : reservations_) {
      if (std::optional<AddressRange> range = CarveFrom(*reservation, whole)) return *range;
    }
    const Result<Reservation*> added = AddReservation(whole);
    if (added.ok()) return *CarveFrom(**added, whole);
    refusal = added.status();
  }
  return Error(
      refusal.code(),
      "no room for {} bytes of addresses: the largest free span has {} bytes, {} reservations hold "
      "{} bytes, and another one was refused: {}",
      bytes, LargestFreeSpan(), reservations_.size(), reserved_bytes_, refusal.message());
}

void AddressSpace::Return(AddressRange range) {
  std::lock_guard lock(mutex_);
  const auto live = live_.find(range.base);
  GRANULE_CHECK(live != live_.end() && live->second == range.bytes);
  const auto owner = std::find_if(reservations_.begin(), reservations_.end(), [&](const auto& r) {
    return range.base >= r->range.base && range.end() <= r->range.end();
  });
  GRANULE_CHECK(owner != reservations_.end());
  live_.erase(live);
  carved_bytes_ -= range.bytes;
  std::map<Address, size_t>& free = (*owner)->free;
  auto next = free.lower_bound(range.base);
  if (next != free.end() && next->first == range.end()) {
    range.bytes += next->second;
    next = free.erase(next);
  }
  if (next != free.begin() && std::prev(next)->first + std::prev(next)->second == range.base) {
    std::prev(next)->second += range.bytes;
  } else {
    free.emplace_hint(next, range.base, range.bytes);
  }
}

Status AddressSpace::FreeUnused() {
  std::lock_guard lock(mutex_);
  Status first;
  std::erase_if(reservations_, [&](const std::unique_ptr<Reservation>& reservation) {
    const auto& free = reservation->free;
    if (free.size() != 1 || free.begin()->second != reservation->range.bytes) return false;
    const Status status = vmm_.Free(reservation->range);
    if (status.ok()) {
      reserved_bytes_ -= reservation->range.bytes;
    } else if (first.ok()) {
      first = status;
    }
    return status.ok();
  });
  return first;
}

uint64_t AddressSpace::reserved_bytes() const {
  std::lock_guard lock(mutex_);
  return reserved_bytes_;
}

uint64_t AddressSpace::carved_bytes() const {
  std::lock_guard lock(mutex_);
  return carved_bytes_;
}

Result<uint64_t> AddressSpace::LargestRungBytes() {
  std::lock_guard lock(mutex_);
  if (largest_granted_ == 0) {
    const Result<Reservation*> added = AddReservation(vmm_.capabilities().granule_bytes);
    if (!added.ok()) return added.status();
  }
  return largest_granted_;
}

bool AddressSpace::IsValid() const {
  std::lock_guard lock(mutex_);
  const size_t granule = vmm_.capabilities().granule_bytes;
  uint64_t reserved = 0;
  uint64_t free_bytes = 0;
  for (const auto& reservation : reservations_) {
    reserved += reservation->range.bytes;
    Address end_before = 0;  // of the free span before; adjacent ones would have been merged
    for (const auto& [base, bytes] : reservation->free) {
      if (base % granule != 0 || bytes == 0 || bytes % granule != 0) return false;
      if (base < reservation->range.base || base + bytes > reservation->range.end()) return false;
      if (base <= end_before) return false;
      const auto live = live_.lower_bound(base);
      if (live != live_.end() && live->first < base + bytes) return false;
      if (live != live_.begin() && std::prev(live)->first + std::prev(live)->second > base)
        return false;
      end_before = base + bytes;
      free_bytes += bytes;
    }
  }
  uint64_t carved = 0;
  Address end_before = 0;
  for (const auto& [live_base, live_bytes] : live_) {
    const Address base = live_base;  // clang 14: a structured binding cannot be captured
    const size_t bytes = live_bytes;
    if (base % granule != 0 || bytes == 0 || bytes % granule != 0 || base < end_before)
      return false;
    const bool inside = std::any_of(reservations_.begin(), reservations_.end(), [&](const auto& r) {
      return base >= r->range.base && base + bytes <= r->range.end();
    });
    if (!inside) return false;
    end_before = base + bytes;
    carved += bytes;
  }
  return reserved == reserved_bytes_ && carved == carved_bytes_ && free_bytes + carved == reserved;
}

}  // namespace granule::memory
