// Virtual memory on a GPU, through CUDA's driver interface.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/cuda_device.h"
#include "memory/vmm.h"

namespace granule::memory {

struct CudaVmmOptions {
  // Longest handle, rounded down to whole granules, at least one. The cost of mapping is per handle
  // (46 us for 2 MiB, 70 us for 192 MiB), but a handle is also what is shared and given back whole:
  // at 16 MiB a commit of 1.5 GiB takes 96 mappings, 1 % of the prefill that needs it, and a shared
  // prefix is exact to 16 MiB.
  size_t max_handle_bytes = 16 << 20;
};

// What a pool keeps for reuse on a GPU (HandlePool): creating takes 10 to 200 us.
inline constexpr uint64_t kCudaRetainedBytes = 256 << 20;

// Addresses are the device's, and the host must not follow them. Mapping acts at once, not in the
// order of the stream: so Unmap first waits until everything submitted to the device is done, for a
// step may be reading there. The recommended granularity is the granule; fresh memory is not
// promised to be zero.
//
// After a fault (kDeviceLost) every verb returns that error. What is mapped and alive then goes
// back when the object is destroyed, as far as the driver still takes it.
//
// Thread-safe as the seam says. The device outlives it.
class CudaVmm final : public Vmm {
 public:
  // kUnavailable for a device without virtual memory.
  static Result<std::unique_ptr<CudaVmm>> Open(cuda::Device& device,
                                               const CudaVmmOptions& options = {});
  ~CudaVmm() override;  // takes everything away, mapped or not
  CudaVmm(const CudaVmm&) = delete;
  CudaVmm& operator=(const CudaVmm&) = delete;

  const Capabilities& capabilities() const override { return capabilities_; }
  Result<MemoryInfo> Memory() const override;
  Result<AddressRange> Reserve(size_t bytes) override;
  Status Free(AddressRange reservation) override;
  Result<Handle> Create(size_t bytes, Address home) override;
  Status Release(Handle handle) override;
  // cuMemMap and cuMemSetAccess. When the second fails the first is taken back; when that fails
  // too, kPoisoned.
  Status Map(Address address, Handle handle, Access access) override;
  Status Unmap(AddressRange range) override;
  Status Zero(AddressRange range) override;
  Status Copy(Address to, Address from, size_t bytes) override;
  // The sum of live handles by this object's own count: the driver knows only what the whole device
  // has left.
  Result<uint64_t> ResidentBytes() const override;

 private:
  CudaVmm(cuda::Device& device, const Capabilities& capabilities,
          const cuda::AllocationProperties& properties)
      : device_(device), capabilities_(capabilities), properties_(properties) {}

  bool IsWhole(size_t bytes) const { return bytes > 0 && bytes % capabilities_.granule_bytes == 0; }
  bool InOneReservation(Address address, size_t bytes) const;
  // A refusal by the system in words, or what Device::Check says of anything else.
  Status Refusal(cuda::DriverResult result, const char* verb, size_t bytes) const;
  Status WaitForWork();
  Status CopyPiece(Address to, Address from, size_t bytes, cuda::DevicePtr by_way_of);
  Status CopyOverlapping(Address to, Address from, size_t bytes);

  cuda::Device& device_;
  const Capabilities capabilities_;
  const cuda::AllocationProperties properties_;

  mutable std::mutex mutex_;
  std::map<Address, size_t> reservations_;
  std::map<Address, Handle> windows_;
  std::unordered_map<uint64_t, size_t> handles_;  // id -> bytes
  uint64_t live_bytes_ = 0;
  cuda::Buffer bounce_;  // of overlapping copies over a short distance; made when first needed
};

}  // namespace granule::memory
