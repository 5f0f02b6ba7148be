// Where the KV of a sequence lies and what a growth does to it: the part of growth that differs by
// kind.
//
//   commit    any layout; strides assume the reservation; maps what the new slots touch
//   restride  head-major; strides assume the bucket; maps, then spreads the heads apart in place
//   realloc   any layout; strides assume the bucket; a new plain buffer, then a copy
//
// A growth is staged by Build, and then either Published (plain assignment) or Abandoned (undone).
// layout() and base() describe what is live: they change in Publish only.
#pragma once

#include <memory>
#include <optional>

#include "base/status.h"
#include "kv/growth.h"
#include "kv/layout.h"
#include "memory/address_space.h"
#include "memory/handle_pool.h"
#include "memory/mapping_table.h"
#include "memory/vmm.h"

namespace granule::kv {

class ParkingLot;  // parking.h

// Plain memory for reallocation, of the device that the Store's Vmm maps: its content goes through
// the Vmm's Zero and Copy. Tests put failures there.
class BufferAllocator {
 public:
  virtual ~BufferAllocator() = default;
  // 64-byte aligned, content undefined. kExhausted when there is none.
  virtual Result<std::byte*> Allocate(uint64_t bytes) = 0;
  // Returns when nothing that was submitted can touch it any more.
  virtual void Free(std::byte* buffer) = 0;
};
BufferAllocator& PlainBuffers();  // the process's heap (a GPU's: kv/cuda_buffers.h)

// The memory of a device, shared by its sequences; outlives them.
struct Store {
  memory::Vmm* vmm = nullptr;
  memory::AddressSpace* space = nullptr;
  memory::HandlePool* pool = nullptr;
  memory::MappingTable* table = nullptr;
  ParkingLot* parking = nullptr;       // null: nothing is parked
  BufferAllocator* buffers = nullptr;  // null: PlainBuffers()
};

struct StorageBytes {
  uint64_t committed = 0;  // the seeds' number (counters.h)
  uint64_t unique = 0;
  uint64_t reserved = 0;
  uint64_t shared = 0;  // shown here, owned by another
};

// What a growth that failed would have needed, for the error.
struct GrowthNeed {
  uint64_t new_bytes = 0;
  uint64_t peak_bytes = 0;
  std::string peak_reason;
};

class Storage {
 public:
  virtual ~Storage() = default;
  Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  virtual GrowthKind kind() const = 0;
  virtual bool moves() const = 0;         // a growth moves or copies live tokens
  virtual uint64_t Limit() const = 0;     // most tokens it can take
  virtual uint64_t Capacity() const = 0;  // tokens that the live strides assume
  virtual std::byte* base() const = 0;
  const Layout& layout() const { return layout_; }

  // The longest length that costs no more than `length` does, at most Limit().
  virtual uint64_t HeldBy(uint64_t length) const { return length; }
  virtual CaptureSignature Signature() const = 0;

  virtual Status Build(const GrowthStep& step) = 0;
  virtual Status Abandon(const GrowthStep& step) = 0;
  // Returns the bytes of live tokens that were really copied.
  virtual uint64_t Publish(const GrowthStep& step) = 0;

  // Gives back what slots from `length` on hold alone; returns the committed length that is left.
  virtual Result<uint64_t> Shrink(uint64_t length) = 0;

  virtual StorageBytes bytes(uint64_t committed) const = 0;
  virtual uint64_t granules_mapped() const { return 0; }
  virtual GrowthNeed Need(const GrowthStep& step) const = 0;
  virtual bool IsValid(uint64_t committed) const = 0;

 protected:
  Layout layout_;
};

// `hard_max` in tokens, UINT64_MAX = unbounded. kUsage for a layout that the kind cannot have.
Result<std::unique_ptr<Storage>> MakeRestrideStorage(const Store& store, const LayoutChoice& choice,
                                                     const Group& group, uint64_t hard_max);
Result<std::unique_ptr<Storage>> MakeReallocStorage(const Store& store, const LayoutChoice& choice,
                                                    const Group& group, uint64_t hard_max);

// Tokens to reserve addresses for: the hard maximum, but never more than the device could ever hold
// nor more than a reservation that the system grants. Bounds the reservation only; the hard maximum
// stays what it is.
Result<uint64_t> ReservationTokens(const Store& store, uint64_t hard_max, uint64_t bytes_per_token);

// Memory at this moment, or none when the query fails.
std::optional<memory::MemoryInfo> QueryMemory(const memory::Vmm& vmm);

}  // namespace granule::kv
