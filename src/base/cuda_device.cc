#include "base/cuda_device.h"

#include <utility>

namespace granule::cuda {
namespace {

bool LosesDevice(DriverResult result) {
  switch (result) {
    case kEccUncorrectable:
    case kNvlinkUncorrectable:
    case kContained:
    case kIllegalAddress:
    case kLaunchTimeout:
    case kContextIsDestroyed:
    case kAssert:
    case kHardwareStackError:
    case kIllegalInstruction:
    case kMisalignedAddress:
    case kInvalidAddressSpace:
    case kInvalidPc:
    case kLaunchFailed:
      return true;
    default:
      return false;
  }
}

}  // namespace

Result<std::unique_ptr<Device>> Device::Open(std::shared_ptr<const Driver> driver, int index) {
  const Driver& api = *driver;
  int count = 0;
  if (const DriverResult r = api.DeviceGetCount(&count); r != kSuccess)
    return Error(Code::kUnavailable, "counting CUDA devices: {}", api.Describe(r));
  if (index < 0 || index >= count) {
    return Error(Code::kUnavailable, "there is no device cuda:{}: this machine has {} (cuda:0{})",
                 index, count, count > 1 ? Format(" to cuda:{}", count - 1) : "");
  }
  DeviceOrdinal ordinal = 0;
  if (const DriverResult r = api.DeviceGet(&ordinal, index); r != kSuccess)
    return Error(Code::kUnavailable, "opening device cuda:{}: {}", index, api.Describe(r));
  DeviceFacts facts;
  facts.index = index;
  char name[256] = {};
  const auto attribute = [&](int which) {
    int value = 0;
    return api.DeviceGetAttribute(&value, which, ordinal) == kSuccess ? value : 0;
  };
  if (api.DeviceGetName(name, sizeof name - 1, ordinal) == kSuccess) facts.name = name;
  facts.capability_major = attribute(kAttributeCapabilityMajor);
  facts.capability_minor = attribute(kAttributeCapabilityMinor);
  facts.multiprocessors = attribute(kAttributeMultiprocessors);
  facts.max_shared_bytes = attribute(kAttributeMaxSharedBytes);
  facts.l2_bytes = static_cast<uint64_t>(attribute(kAttributeL2CacheBytes));
  facts.virtual_memory = attribute(kAttributeVirtualMemory) != 0;
  size_t total = 0;
  if (api.DeviceTotalMem(&total, ordinal) == kSuccess) facts.total_bytes = total;

  std::unique_ptr<Device> device(new Device(std::move(driver), std::move(facts)));
  // A context of our own: one that a fault ruined is destroyed and another made, without touching
  // what else runs in this process.
  if (const DriverResult r = api.CtxCreate(&device->context_, 0, ordinal); r != kSuccess) {
    if (LosesDevice(r)) {
      return Error(
          Code::kDeviceLost,
          "{} cannot be used by this process any more: {}. A fault on a device can outlive "
          "its context; start the program again",
          device->where(), api.Describe(r));
    }
    return Error(Code::kExhausted, "no context on {}: {}", device->where(), api.Describe(r));
  }
  device->MakeCurrent();
  if (const DriverResult r = api.StreamCreate(&device->stream_, kStreamNonBlocking); r != kSuccess)
    return Error(Code::kExhausted, "no stream on {}: {}", device->where(), api.Describe(r));
  if (const DriverResult r = api.EventCreate(&device->fence_, kEventDisableTiming); r != kSuccess)
    return Error(Code::kExhausted, "no event on {}: {}", device->where(), api.Describe(r));
  return device;
}

Device::~Device() {
  if (context_ == nullptr) return;
  MakeCurrent();
  if (fence_ != nullptr) driver_->EventDestroy(fence_);
  if (stream_ != nullptr) driver_->StreamDestroy(stream_);
  driver_->CtxDestroy(context_);
}

std::string Device::where() const { return Format("cuda:{}", facts_.index); }

void Device::MakeCurrent() const { driver_->CtxSetCurrent(context_); }

Status Device::Check(DriverResult result, const char* what) {
  if (result == kSuccess) return {};
  const std::scoped_lock lock(mutex_);
  if (!lost_.ok()) return lost_;
  if (LosesDevice(result)) {
    lost_ = Error(Code::kDeviceLost,
                  "{} is lost: {} failed with {}. Every sequence on it has ended; load the model "
                  "again, or start the program again where the driver keeps this process out",
                  where(), what, driver_->Describe(result));
    return lost_;
  }
  const Code code = result == kOutOfMemory ? Code::kExhausted : Code::kInternal;
  return Error(code, "{} on {}: {}", what, where(), driver_->Describe(result));
}

Status Device::lost() const {
  const std::scoped_lock lock(mutex_);
  return lost_;
}

Status Device::Synchronize() {
  MakeCurrent();
  return Check(driver_->StreamSynchronize(stream_), "waiting for the stream");
}

Status Device::Submitted() {
  MakeCurrent();
  Status status = Check(driver_->EventRecord(fence_, stream_), "marking a step");
  const std::scoped_lock lock(mutex_);
  fence_set_ = fence_set_ || status.ok();
  return status;
}

Status Device::WaitSubmitted() {
  {
    const std::scoped_lock lock(mutex_);
    if (!fence_set_) return lost_;
  }
  MakeCurrent();
  DriverResult result = driver_->EventQuery(fence_);
  if (result == kNotReady) result = driver_->EventSynchronize(fence_);
  return Check(result, "waiting for a step");
}

Status Device::ZeroAsync(DevicePtr to, size_t bytes) {
  MakeCurrent();
  return Check(driver_->MemsetD8Async(to, 0, bytes, stream_), "zeroing memory");
}

Status Device::CopyAsync(DevicePtr to, DevicePtr from, size_t bytes) {
  MakeCurrent();
  return Check(driver_->MemcpyDtoDAsync(to, from, bytes, stream_), "copying memory");
}

Status Device::UploadAsync(DevicePtr to, const void* from, size_t bytes) {
  MakeCurrent();
  return Check(driver_->MemcpyHtoDAsync(to, from, bytes, stream_), "uploading");
}

Status Device::DownloadAsync(void* to, DevicePtr from, size_t bytes) {
  MakeCurrent();
  return Check(driver_->MemcpyDtoHAsync(to, from, bytes, stream_), "downloading");
}

Result<Device::Free> Device::Memory() const {
  MakeCurrent();
  size_t free = 0;
  size_t total = 0;
  if (const DriverResult r = driver_->MemGetInfo(&free, &total); r != kSuccess)
    return Error(Code::kInternal, "asking {} for its memory: {}", where(), driver_->Describe(r));
  return Free{free, total};
}

Result<Buffer> Buffer::Allocate(Device& device, size_t bytes, const char* what) {
  device.MakeCurrent();
  Buffer buffer;
  const DriverResult result = device.driver().MemAlloc(&buffer.address_, bytes == 0 ? 1 : bytes);
  if (result == kOutOfMemory) {
    const auto memory = device.Memory();
    return Error(Code::kExhausted, "{} has no {} bytes for {} ({} bytes are free)", device.where(),
                 bytes, what, memory.ok() ? Format("{}", memory->free_bytes) : "unknown");
  }
  if (Status s = device.Check(result, what); !s.ok()) return s;
  buffer.device_ = &device;
  buffer.bytes_ = bytes;
  device.allocated_bytes_ += bytes;
  return buffer;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    Reset();
    device_ = std::exchange(other.device_, nullptr);
    address_ = std::exchange(other.address_, 0);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

Status Buffer::Reserve(Device& device, size_t bytes, const char* what) {
  if (address_ != 0 && bytes <= bytes_) return {};
  auto larger = Allocate(device, bytes, what);
  if (!larger.ok()) return larger.status();
  if (Status s = device.WaitSubmitted(); !s.ok()) return s;
  *this = std::move(*larger);
  return {};
}

void Buffer::Reset() {
  if (device_ == nullptr) return;
  device_->MakeCurrent();
  device_->driver().MemFree(address_);
  device_->allocated_bytes_ -= bytes_;
  device_ = nullptr;
  address_ = 0;
  bytes_ = 0;
}

Result<PinnedBuffer> PinnedBuffer::Allocate(Device& device, size_t bytes, const char* what) {
  device.MakeCurrent();
  PinnedBuffer buffer;
  void* data = nullptr;
  const DriverResult result = device.driver().MemHostAlloc(&data, bytes == 0 ? 1 : bytes, 0);
  if (result == kOutOfMemory)
    return Error(Code::kExhausted, "the host has no {} page-locked bytes for {}", bytes, what);
  if (Status s = device.Check(result, what); !s.ok()) return s;
  buffer.device_ = &device;
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  if (this != &other) {
    Reset();
    device_ = std::exchange(other.device_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

Status PinnedBuffer::Reserve(Device& device, size_t bytes, const char* what) {
  if (data_ != nullptr && bytes <= bytes_) return {};
  auto larger = Allocate(device, bytes, what);
  if (!larger.ok()) return larger.status();
  if (Status s = device.WaitSubmitted(); !s.ok()) return s;
  *this = std::move(*larger);
  return {};
}

void PinnedBuffer::Reset() {
  if (device_ == nullptr) return;
  device_->MakeCurrent();
  device_->driver().MemFreeHost(data_);
  device_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace granule::cuda
