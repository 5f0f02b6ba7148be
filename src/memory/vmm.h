// The one seam to virtual memory. Everything the project knows about reserving addresses and
// putting physical memory behind them goes through these verbs; memory/host, memory/cuda and
// memory/fault implement them.
//
// Preconditions of the verbs for addresses and handles: addresses and byte counts are multiples of
// capabilities().granule_bytes, byte counts are > 0. A violation is a bug of the caller and trips a
// check. The verbs for content (Zero, Copy) take any bytes that are mapped.
//
// Failure: a verb that returns an error has changed nothing. Code::kExhausted = the system refused
// (memory, address space, number of mappings, file size), with operands and a hint. Two others:
//   kPoisoned    a step of the verb failed and so did taking it back: these addresses and this
//                handle can never be used again
//   kDeviceLost  the GPU's context broke: this error is all that any verb returns from now on
//
// Threads: verbs may be called from any thread; calls on overlapping addresses or on the same
// handle must not overlap in time. No verb may run while a CUDA stream is being captured
// (granule captures none: docs/decisions/007).
//
// | verb    | host                                        | cuda                                  |
// |---------|---------------------------------------------|---------------------------------------|
// | Reserve | mmap PROT_NONE, no reserve; 3 us            | cuMemAddressReserve; 3 us             |
// | Free    | munmap                                      | cuMemAddressFree                      |
// | Create  | fallocate of the sparse memfd; 5 us / 64 KiB| cuMemCreate; 10-200 us                |
// | Release | fallocate PUNCH_HOLE                        | cuMemRelease                          |
// | Map     | mmap MAP_FIXED of the memfd; 1.3 us         | cuMemMap + cuMemSetAccess; 27-46 us   |
// | Unmap   | mmap MAP_FIXED PROT_NONE over it            | waits for submitted work; cuMemUnmap  |
// | Zero    | memset, at once                             | cuMemsetD8Async on the device's stream|
// | Copy    | memmove, at once                            | cuMemcpyDtoDAsync on the same stream  |
// (times: shared measurements of one machine each, see docs/decisions/002-host-virtual-memory.md)
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace granule::memory {

using Address = uintptr_t;

struct AddressRange {
  Address base = 0;
  size_t bytes = 0;
  Address end() const { return base + bytes; }
  friend bool operator==(const AddressRange&, const AddressRange&) = default;
};

enum class Access { kReadOnly, kReadWrite };

// One piece of physical memory: created once, mapped any number of times, released once.
struct Handle {
  uint64_t id = 0;  // meaning known to the implementation (host: file offset)
  size_t bytes = 0;
  friend bool operator==(const Handle&, const Handle&) = default;
};

struct Capabilities {
  std::string name;             // "host", "cuda:0", "host behind faults"
  size_t granule_bytes = 0;     // smallest mappable unit
  bool fresh_is_zero = false;   // a newly created handle reads as zeros
  bool create_is_slow = false;  // worth keeping handles in a pool
  size_t max_handle_bytes =
      0;  // longest handle that Create is asked for; a multiple of the granule
};

// Physical memory as the system reports it at this moment; for messages and for sizing
// reservations, never a ceiling (docs/decisions/004-no-derived-ceiling.md).
struct MemoryInfo {
  std::string where;  // "host", "device cuda:0"
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
};

class Vmm {
 public:
  virtual ~Vmm() = default;

  virtual const Capabilities& capabilities() const = 0;
  virtual Result<MemoryInfo> Memory() const = 0;

  // Addresses with nothing behind them. Touching them is a fault.
  virtual Result<AddressRange> Reserve(size_t bytes) = 0;
  // The whole range of one Reserve, with nothing mapped in it.
  virtual Status Free(AddressRange reservation) = 0;

  // Physical memory. `home` = the address where it will be mapped first, 0 for none: the host
  // places it so that neighbouring homes merge into one kernel mapping; others ignore it. When a
  // handle made for the same home is still alive (shared, or pooled), the host places the new one
  // elsewhere.
  virtual Result<Handle> Create(size_t bytes, Address home) = 0;
  // The handle is mapped nowhere.
  virtual Status Release(Handle handle) = 0;

  // Puts the whole handle behind [address, address + handle.bytes), which lies in one reservation
  // and has nothing mapped. The same handle may be mapped at several addresses: all show the same
  // bytes.
  virtual Status Map(Address address, Handle handle, Access access) = 0;
  // Takes away what Map put at exactly this range.
  virtual Status Unmap(AddressRange range) = 0;

  // Content, because what is mapped may lie where the host cannot reach. In order with the work of
  // the device: later work sees it done. Plain memory of the same device (kv::BufferAllocator) is
  // welcome too. The base does both at once, for memory that the host addresses.
  //
  // Fills the bytes with zeros. After an error their content is not known.
  virtual Status Zero(AddressRange range);
  // Copies as memmove does: the two may overlap. After an error the bytes at `from` are as before,
  // and those of `to` outside of it are not known; kPoisoned: what was at `from` is lost.
  virtual Status Copy(Address to, Address from, size_t bytes);

  // Bytes of physical memory that this object holds, by the system's own count (host: the file's
  // allocated blocks; cuda: its own books, for a driver counts the whole device only). Equal to the
  // sum of live handles; for tests and diagnostics.
  virtual Result<uint64_t> ResidentBytes() const = 0;
};

}  // namespace granule::memory
