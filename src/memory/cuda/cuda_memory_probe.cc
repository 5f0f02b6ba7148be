#include "memory/cuda/cuda_memory_probe.h"

#include <array>
#include <iterator>
#include <utility>

#include "base/cuda_device.h"
#include "memory/address_space.h"
#include "memory/cuda/cuda_vmm.h"

namespace granule::memory {
namespace {

constexpr int kMinimumGranularity = 0;  // of CUmemAllocationGranularity_flags

// A device with its virtual memory, thrown away after use. The Vmm's destructor takes back whatever
// a probe left.
struct Throwaway {
  std::unique_ptr<cuda::Device> device;
  std::unique_ptr<CudaVmm> vmm;

  static Result<Throwaway> Open(const std::shared_ptr<const cuda::Driver>& driver, int index,
                                const CudaVmmOptions& options = {}) {
    auto device = cuda::Device::Open(driver, index);
    if (!device.ok()) return device.status();
    auto vmm = CudaVmm::Open(**device, options);
    if (!vmm.ok()) return vmm.status();
    return Throwaway{std::move(*device), std::move(*vmm)};
  }
};

// One granule of memory behind two windows of a reservation.
struct Twice {
  AddressRange first, second;
};
Result<Twice> MapTwice(CudaVmm& vmm, Access second_access) {
  const size_t granule = vmm.capabilities().granule_bytes;
  const auto range = vmm.Reserve(2 * granule);
  if (!range.ok()) return range.status();
  const auto handle = vmm.Create(granule, 0);
  if (!handle.ok()) return handle.status();
  const Twice twice{{range->base, granule}, {range->base + granule, granule}};
  if (Status s = vmm.Map(twice.first.base, *handle, Access::kReadWrite); !s.ok()) return s;
  if (Status s = vmm.Map(twice.second.base, *handle, second_access); !s.ok()) return s;
  return twice;
}

constexpr size_t kPattern = 4096;
using Bytes = std::array<unsigned char, kPattern>;

Status Write(cuda::Device& device, Address to, const Bytes& bytes) {
  if (Status s = device.UploadAsync(to, bytes.data(), bytes.size()); !s.ok()) return s;
  return device.Synchronize();
}
Result<Bytes> Read(cuda::Device& device, Address from) {
  Bytes bytes{};
  if (Status s = device.DownloadAsync(bytes.data(), from, bytes.size()); !s.ok()) return s;
  if (Status s = device.Synchronize(); !s.ok()) return s;
  return bytes;
}

Bytes Pattern() {
  Bytes bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 7 + 1);
  return bytes;
}

Result<Seen> TryAliases(Throwaway& on) {
  const auto twice = MapTwice(*on.vmm, Access::kReadWrite);
  if (!twice.ok()) return twice.status();
  const Bytes pattern = Pattern();
  if (Status s = on.vmm->Zero(twice->second); !s.ok()) return s;
  if (Status s = Write(*on.device, twice->first.base, pattern); !s.ok()) return s;
  const auto read = Read(*on.device, twice->second.base);
  if (!read.ok()) return read.status();
  return *read == pattern ? Seen::kYes : Seen::kNo;
}

// An error at any point after the write was asked for is a refusal, and so is a write that does not
// arrive.
Result<Seen> TryReadOnly(Throwaway& on) {
  const auto twice = MapTwice(*on.vmm, Access::kReadOnly);
  if (!twice.ok()) return twice.status();
  const Bytes pattern = Pattern();
  if (Status s = Write(*on.device, twice->first.base, pattern); !s.ok()) return s;
  if (!on.vmm->Zero(twice->second).ok() || !on.device->Synchronize().ok()) return Seen::kYes;
  const auto read = Read(*on.device, twice->first.base);
  return !read.ok() || *read == pattern ? Seen::kYes : Seen::kNo;
}

// Copies between two long windows of a reservation run on the stream while short ones come and go
// around them, without waiting. The driver is called directly: the seam would wait.
Result<Seen> TryMapsBesideWork(Throwaway& on) {
  constexpr int kCopies = 400;
  constexpr int kMaps = 100;
  const size_t granule = on.vmm->capabilities().granule_bytes;
  const size_t longest = on.vmm->capabilities().max_handle_bytes;
  const auto range = on.vmm->Reserve(2 * longest + 8 * granule);
  if (!range.ok()) return range.status();
  const Address from = range->base + 2 * granule;
  const Address to = from + longest + 2 * granule;
  for (const Address address : {from, to}) {
    const auto handle = on.vmm->Create(longest, 0);
    if (!handle.ok()) return handle.status();
    if (Status s = on.vmm->Map(address, *handle, Access::kReadWrite); !s.ok()) return s;
    if (Status s = on.vmm->Zero({address, longest}); !s.ok()) return s;
  }
  const auto handle = on.vmm->Create(granule, 0);
  if (!handle.ok()) return handle.status();
  const Bytes pattern = Pattern();
  if (Status s = Write(*on.device, from + longest - kPattern, pattern); !s.ok()) return s;

  const cuda::Driver& driver = on.device->driver();
  cuda::AccessDescription access;
  access.location.id = on.device->facts().index;
  const Address windows[] = {range->base, from + longest, to + longest + granule};
  for (int i = 0; i < kCopies; ++i) {
    if (Status s = on.vmm->Copy(to, from, longest); !s.ok()) return s;
    if (i % (kCopies / kMaps) != 0) continue;
    const Address window = windows[static_cast<size_t>(i) % std::size(windows)];
    for (const cuda::DriverResult result :
         {driver.MemMap(window, granule, 0, handle->id, 0),
          driver.MemSetAccess(window, granule, &access, 1), driver.MemUnmap(window, granule)}) {
      if (Status s = on.device->Check(result, "mapping beside work"); !s.ok()) return s;
    }
  }
  if (!on.device->Synchronize().ok()) return Seen::kNo;
  const auto read = Read(*on.device, to + longest - kPattern);
  return read.ok() && *read == pattern ? Seen::kYes : Seen::kNo;
}

Result<uint64_t> LargestReservation(Throwaway& on) {
  Status refusal;
  for (const uint64_t rung :
       ReservationLadder(on.device->facts().total_bytes, on.vmm->capabilities().granule_bytes,
                         on.vmm->capabilities().granule_bytes)) {
    const auto range = on.vmm->Reserve(rung);
    if (!range.ok()) {
      refusal = range.status();
      continue;
    }
    if (Status s = on.vmm->Free(*range); !s.ok()) return s;
    return rung;
  }
  return refusal;
}

}  // namespace

const char* SeenText(Seen seen) {
  switch (seen) {
    case Seen::kNotTried:
      return "not tried";
    case Seen::kYes:
      return "yes";
    case Seen::kNo:
      return "no";
  }
  return "?";
}

Result<CudaMemoryProbe> ProbeCudaMemory(const std::shared_ptr<const cuda::Driver>& driver,
                                        int index) {
  CudaMemoryProbe probe;
  const auto note = [&](const Status& status) {
    if (!status.ok()) probe.note += (probe.note.empty() ? "" : "; ") + status.message();
  };
  {
    auto on = Throwaway::Open(driver, index, {.max_handle_bytes = 64 << 20});
    if (!on.ok()) return on.status();
    cuda::AllocationProperties properties;
    properties.location.id = index;
    on->device->MakeCurrent();
    size_t smallest = 0;
    if (on->device->driver().MemGetAllocationGranularity(&smallest, &properties,
                                                         kMinimumGranularity) == cuda::kSuccess) {
      probe.smallest_granule_bytes = smallest;
    }
    probe.granule_bytes = on->vmm->capabilities().granule_bytes;
    const auto largest = LargestReservation(*on);
    note(largest.status());
    if (largest.ok()) probe.largest_reservation_bytes = *largest;
    const auto aliases = TryAliases(*on);
    note(aliases.status());
    if (aliases.ok()) probe.aliases = *aliases;
    const auto beside = TryMapsBesideWork(*on);
    note(beside.status());
    if (beside.ok()) {
      probe.maps_beside_work = *beside;
    } else if (beside.status().code() == Code::kDeviceLost) {
      probe.maps_beside_work = Seen::kNo;
    }
  }
  // Last, for it may break more than its own context.
  auto on = Throwaway::Open(driver, index);
  if (!on.ok()) {
    note(on.status());
    return probe;
  }
  const auto refuses = TryReadOnly(*on);
  note(refuses.status());
  if (refuses.ok()) probe.read_only_refuses = *refuses;
  return probe;
}

}  // namespace granule::memory
