// Virtual memory on the host: one sparse memory file per object
// (docs/decisions/002-host-virtual-memory.md).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memory/host/memory_limits.h"
#include "memory/vmm.h"

namespace granule::memory {

struct HostVmmOptions {
  // A power of two, at least a page, at most 1 GiB (--kv-granule).
  size_t granule_bytes = 64 << 10;
  // 0 = one granule, so that any granule can be shared and given back alone. Otherwise a multiple
  // of it.
  size_t max_handle_bytes = 0;
  // Empty: memory (memfd). Otherwise an unnamed file in this folder, for file systems with a size
  // of their own.
  std::string backing_directory = {};
  // 0 = what the system allows (vm.max_map_count), read again before each refusal.
  uint64_t max_mappings = 0;
  MemoryLimitSource limits = {};
};

// Address <-> file: each reservation owns a range of file offsets, and the home of an address is
// the same distance into that range. Handles at their home continue their neighbours' file range,
// so the kernel merges the mappings; a handle anywhere else (an alias, or one whose home is still
// held by another) costs a mapping. File ranges are never used twice: a handle may outlive its
// reservation, and offsets cost nothing.
//
// Resident memory = the file's allocated blocks = the bytes of live handles, exactly.
class HostVmm final : public Vmm {
 public:
  // kUsage for a granule that cannot be; kExhausted when the system gives no file.
  static Result<std::unique_ptr<HostVmm>> Open(const HostVmmOptions& options = {});
  ~HostVmm() override;  // takes everything away, mapped or not
  HostVmm(const HostVmm&) = delete;
  HostVmm& operator=(const HostVmm&) = delete;

  const Capabilities& capabilities() const override { return capabilities_; }
  Result<MemoryInfo> Memory() const override;
  Result<AddressRange> Reserve(size_t bytes) override;
  Status Free(AddressRange reservation) override;
  Result<Handle> Create(size_t bytes, Address home) override;
  Status Release(Handle handle) override;
  Status Map(Address address, Handle handle, Access access) override;
  Status Unmap(AddressRange range) override;
  Result<uint64_t> ResidentBytes() const override;

  // Kernel mappings that this object is expected to cause, merged neighbours counted once.
  uint64_t kernel_mappings() const;

 private:
  struct Reservation {
    size_t bytes = 0;
    uint64_t file_offset = 0;
  };
  struct Window {
    size_t bytes = 0;
    uint64_t file_offset = 0;
    Access access = Access::kReadWrite;
  };
  using Windows = std::map<Address, Window>;

  HostVmm(const HostVmmOptions& options, int fd);

  bool IsWhole(size_t bytes) const { return bytes > 0 && bytes % capabilities_.granule_bytes == 0; }
  Result<uint64_t> TakeFileRange(uint64_t bytes);
  Result<uint64_t> TakeOffset(size_t bytes, Address home);
  void GiveBackOffset(uint64_t offset, size_t bytes);
  // The reservation that holds the range whole, or end().
  std::map<Address, Reservation>::const_iterator FindReservation(Address address,
                                                                 size_t bytes) const;
  // How many kernel mappings more there are with this window than without it (may be negative).
  int64_t MappingsAddedBy(Windows::const_iterator window) const;
  Status AdmitMappings(uint64_t more);

  const HostVmmOptions options_;
  const int fd_;
  Capabilities capabilities_;
  MemoryLimits limits_;

  mutable std::mutex mutex_;
  std::map<Address, Reservation> reservations_;
  Windows windows_;
  std::map<uint64_t, size_t> live_;                   // file offset -> bytes of live handles
  std::map<size_t, std::vector<uint64_t>> homeless_;  // free offsets outside of homes, by size
  std::map<uint64_t, uint64_t> homeless_areas_;       // their file ranges: offset -> bytes
  uint64_t file_bytes_ = 0;
  uint64_t max_mappings_ = 0;    // the limit, when last read
  int64_t mappings_ = 0;         // ours
  uint64_t other_mappings_ = 0;  // of the rest of the process, when last counted
};

}  // namespace granule::memory
