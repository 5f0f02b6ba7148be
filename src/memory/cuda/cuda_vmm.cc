#include "memory/cuda/cuda_vmm.h"

#include <algorithm>
#include <iterator>

#include "base/arith.h"

namespace granule::memory {
namespace {

constexpr int kRecommendedGranularity = 1;  // of CUmemAllocationGranularity_flags
// Overlapping copies go in pieces: of the distance where that is long, otherwise through a buffer
// of this size.
constexpr size_t kBounceBytes = 4 << 20;
constexpr size_t kFewPieces = 8;

}  // namespace

Result<std::unique_ptr<CudaVmm>> CudaVmm::Open(cuda::Device& device,
                                               const CudaVmmOptions& options) {
  if (!device.facts().virtual_memory) {
    return Error(
        Code::kUnavailable,
        "{} ({}) has no virtual memory management, which KV growth needs: use --device cpu",
        device.where(), device.facts().name);
  }
  cuda::AllocationProperties properties;
  properties.location.id = device.facts().index;
  device.MakeCurrent();
  size_t granule = 0;
  const cuda::DriverResult result =
      device.driver().MemGetAllocationGranularity(&granule, &properties, kRecommendedGranularity);
  if (Status s = device.Check(result, "asking for the granularity of memory"); !s.ok()) return s;
  if (granule == 0)
    return Error(Code::kInternal, "{} states a granularity of 0 bytes", device.where());
  Capabilities capabilities;
  capabilities.name = device.where();
  capabilities.granule_bytes = granule;
  capabilities.fresh_is_zero = false;
  capabilities.create_is_slow = true;
  capabilities.max_handle_bytes = std::max(granule, RoundDown(options.max_handle_bytes, granule));
  return std::unique_ptr<CudaVmm>(new CudaVmm(device, capabilities, properties));
}

CudaVmm::~CudaVmm() {
  const cuda::Driver& driver = device_.driver();
  if (device_.lost().ok()) {
    const Status ignored = device_.Synchronize();
    (void)ignored;
  }
  // These calls belong to the process, not to a context: without a current one they do not meet the
  // error of a context that broke.
  if (!device_.lost().ok()) driver.CtxSetCurrent(nullptr);
  for (const auto& [address, handle] : windows_) driver.MemUnmap(address, handle.bytes);
  for (const auto& [id, bytes] : handles_) driver.MemRelease(id);
  for (const auto& [address, bytes] : reservations_) driver.MemAddressFree(address, bytes);
}

Status CudaVmm::Refusal(cuda::DriverResult result, const char* verb, size_t bytes) const {
  if (result != cuda::kOutOfMemory) return device_.Check(result, verb);
  const Result<cuda::Device::Free> memory = device_.Memory();
  return Error(Code::kExhausted,
               "device {} refused {} {} bytes ({}): {}; {}. Close other sequences or programs that "
               "use the GPU, or lower -c/--ctx-size",
               device_.where(), verb, bytes, FormatBytes(bytes), device_.driver().Describe(result),
               memory.ok() ? Format("{} bytes ({}) are free of {} ({})", memory->free_bytes,
                                    FormatBytes(memory->free_bytes), memory->total_bytes,
                                    FormatBytes(memory->total_bytes))
                           : "how much is free is not known");
}

Result<MemoryInfo> CudaVmm::Memory() const {
  if (Status s = device_.lost(); !s.ok()) return s;
  const Result<cuda::Device::Free> memory = device_.Memory();
  if (!memory.ok()) return memory.status();
  return MemoryInfo{"device " + device_.where(), memory->free_bytes, memory->total_bytes};
}

Result<AddressRange> CudaVmm::Reserve(size_t bytes) {
  GRANULE_CHECK(IsWhole(bytes));
  if (Status s = device_.lost(); !s.ok()) return s;
  device_.MakeCurrent();
  cuda::DevicePtr address = 0;
  const cuda::DriverResult result = device_.driver().MemAddressReserve(
      &address, bytes, capabilities_.granule_bytes, /*wish=*/0, /*flags=*/0);
  if (result != cuda::kSuccess) {
    // Whatever the driver calls it, there are no such addresses; a broken context is another thing.
    Status status = device_.Check(result, "reserving addresses");
    if (status.code() == Code::kDeviceLost) return status;
    return Error(Code::kExhausted, "{} refused {} ({} bytes) of addresses: {}", device_.where(),
                 FormatBytes(bytes), bytes, device_.driver().Describe(result));
  }
  const std::scoped_lock lock(mutex_);
  reservations_.emplace(address, bytes);
  return AddressRange{address, bytes};
}

Status CudaVmm::Free(AddressRange range) {
  if (Status s = device_.lost(); !s.ok()) return s;
  const std::scoped_lock lock(mutex_);
  const auto it = reservations_.find(range.base);
  GRANULE_CHECK(it != reservations_.end() && it->second == range.bytes);
  const auto window = windows_.lower_bound(range.base);
  GRANULE_CHECK(window == windows_.end() || window->first >= range.end());
  device_.MakeCurrent();
  const cuda::DriverResult result = device_.driver().MemAddressFree(range.base, range.bytes);
  if (Status s = device_.Check(result, "giving addresses back"); !s.ok()) return s;
  reservations_.erase(it);
  return {};
}

Result<Handle> CudaVmm::Create(size_t bytes, Address home) {
  GRANULE_CHECK(IsWhole(bytes) && bytes <= capabilities_.max_handle_bytes);
  GRANULE_CHECK(home % capabilities_.granule_bytes == 0);
  if (Status s = device_.lost(); !s.ok()) return s;
  device_.MakeCurrent();
  cuda::MemoryHandle id = 0;
  const cuda::DriverResult result = device_.driver().MemCreate(&id, bytes, &properties_, 0);
  if (result != cuda::kSuccess) return Refusal(result, "to create", bytes);
  const std::scoped_lock lock(mutex_);
  handles_.emplace(id, bytes);
  live_bytes_ += bytes;
  return Handle{id, bytes};
}

Status CudaVmm::Release(Handle handle) {
  if (Status s = device_.lost(); !s.ok()) return s;
  const std::scoped_lock lock(mutex_);
  const auto it = handles_.find(handle.id);
  GRANULE_CHECK(it != handles_.end() && it->second == handle.bytes);
  device_.MakeCurrent();
  const cuda::DriverResult result = device_.driver().MemRelease(handle.id);
  if (Status s = device_.Check(result, "giving memory back"); !s.ok()) return s;
  handles_.erase(it);
  live_bytes_ -= handle.bytes;
  return {};
}

bool CudaVmm::InOneReservation(Address address, size_t bytes) const {
  auto it = reservations_.upper_bound(address);
  if (it == reservations_.begin()) return false;
  --it;
  const size_t distance = address - it->first;
  return distance < it->second && bytes <= it->second - distance;
}

Status CudaVmm::Map(Address address, Handle handle, Access access) {
  GRANULE_CHECK(address % capabilities_.granule_bytes == 0);
  if (Status s = device_.lost(); !s.ok()) return s;
  const cuda::Driver& driver = device_.driver();
  const std::scoped_lock lock(mutex_);
  const auto live = handles_.find(handle.id);
  GRANULE_CHECK(live != handles_.end() && live->second == handle.bytes);
  GRANULE_CHECK(InOneReservation(address, handle.bytes));
  const auto next = windows_.lower_bound(address);
  GRANULE_CHECK(next == windows_.end() || next->first >= address + handle.bytes);
  GRANULE_CHECK(next == windows_.begin() ||
                std::prev(next)->first + std::prev(next)->second.bytes <= address);
  device_.MakeCurrent();
  cuda::DriverResult result =
      driver.MemMap(address, handle.bytes, /*offset=*/0, handle.id, /*flags=*/0);
  if (result != cuda::kSuccess) return Refusal(result, "to map", handle.bytes);
  cuda::AccessDescription description;
  description.location = properties_.location;
  description.flags = access == Access::kReadOnly ? cuda::kAccessRead : cuda::kAccessReadWrite;
  result = driver.MemSetAccess(address, handle.bytes, &description, 1);
  if (result == cuda::kSuccess) {
    windows_.emplace_hint(next, address, handle);
    return {};
  }
  Status refusal = Refusal(result, "access to", handle.bytes);
  const cuda::DriverResult undone = driver.MemUnmap(address, handle.bytes);
  if (undone == cuda::kSuccess) return refusal;
  windows_.emplace_hint(next, address, handle);
  if (refusal.code() == Code::kDeviceLost) return refusal;
  return Error(Code::kPoisoned,
               "{}; and the mapping at {:#x} could not be taken back ({}): its addresses and its "
               "{} bytes are not used any more",
               refusal.message(), address, driver.Describe(undone), handle.bytes);
}

// For everything submitted so far, whoever submitted it; free where the stream is idle.
Status CudaVmm::WaitForWork() {
  device_.MakeCurrent();
  const cuda::DriverResult result = device_.driver().StreamQuery(device_.stream());
  if (result != cuda::kNotReady) return device_.Check(result, "asking what runs");
  if (Status s = device_.Submitted(); !s.ok()) return s;
  return device_.WaitSubmitted();
}

Status CudaVmm::Unmap(AddressRange range) {
  if (Status s = device_.lost(); !s.ok()) return s;
  if (Status s = WaitForWork(); !s.ok()) return s;
  const std::scoped_lock lock(mutex_);
  const auto window = windows_.find(range.base);
  GRANULE_CHECK(window != windows_.end() && window->second.bytes == range.bytes);
  device_.MakeCurrent();
  const cuda::DriverResult result = device_.driver().MemUnmap(range.base, range.bytes);
  if (Status s = device_.Check(result, "taking a mapping away"); !s.ok()) return s;
  windows_.erase(window);
  return {};
}

Status CudaVmm::Zero(AddressRange range) {
  if (Status s = device_.lost(); !s.ok()) return s;
  return range.bytes == 0 ? Status() : device_.ZeroAsync(range.base, range.bytes);
}

Status CudaVmm::Copy(Address to, Address from, size_t bytes) {
  if (Status s = device_.lost(); !s.ok()) return s;
  if (bytes == 0 || to == from) return {};
  const size_t distance = to > from ? to - from : from - to;
  if (distance >= bytes) return device_.CopyAsync(to, from, bytes);
  return CopyOverlapping(to, from, bytes);
}

Status CudaVmm::CopyPiece(Address to, Address from, size_t bytes, cuda::DevicePtr by_way_of) {
  if (by_way_of == 0) return device_.CopyAsync(to, from, bytes);
  if (Status s = device_.CopyAsync(by_way_of, from, bytes); !s.ok()) return s;
  return device_.CopyAsync(to, by_way_of, bytes);
}

// Piece by piece against the direction of the move, so that what a piece overwrites has been read:
// moving up, the last piece goes first. Pieces that do not overlap themselves go directly; over a
// short distance those would be many, so larger ones go through a buffer.
Status CudaVmm::CopyOverlapping(Address to, Address from, size_t bytes) {
  const bool up = to > from;
  const size_t distance = up ? to - from : from - to;
  const std::scoped_lock lock(mutex_);  // one user of the buffer at a time
  size_t piece_bytes = distance;
  cuda::DevicePtr bounce = 0;
  if (distance < kBounceBytes && CeilDiv(bytes, distance) > kFewPieces) {
    if (Status s = bounce_.Reserve(device_, kBounceBytes, "moving KV in place"); !s.ok()) return s;
    piece_bytes = kBounceBytes;
    bounce = bounce_.address();
  }
  const size_t pieces = CeilDiv(bytes, piece_bytes);
  const auto move = [&](size_t piece, Address target, Address source) {
    const size_t start = piece * piece_bytes;
    const size_t length = std::min(piece_bytes, bytes - start);
    const size_t offset = up ? bytes - start - length : start;
    return CopyPiece(target + offset, source + offset, length, bounce);
  };
  for (size_t piece = 0; piece < pieces; ++piece) {
    Status failure = move(piece, to, from);
    if (failure.ok()) continue;
    // Back again, the newest piece first: each puts what it carried away where it was.
    while (piece-- > 0) {
      if (move(piece, from, to).ok()) continue;
      if (failure.code() == Code::kDeviceLost) return failure;
      return Error(Code::kPoisoned,
                   "{} bytes at {:#x} were lost in a move that stopped half-way: {}", bytes, from,
                   failure.message());
    }
    return failure;
  }
  return {};
}

Result<uint64_t> CudaVmm::ResidentBytes() const {
  const std::scoped_lock lock(mutex_);
  return live_bytes_;
}

}  // namespace granule::memory
