// One GPU as this process uses it: a context of its own, and one stream on which everything that
// granule does there runs in order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/cuda_driver.h"
#include "base/status.h"

namespace granule::cuda {

struct DeviceFacts {
  int index = 0;
  std::string name;
  int capability_major = 0, capability_minor = 0;
  int multiprocessors = 0;
  int max_shared_bytes = 0;  // per block, when asked for
  uint64_t l2_bytes = 0;
  uint64_t total_bytes = 0;
  bool virtual_memory = false;
};

// Outlives everything made on it. Thread-safe, except that work is submitted by one thread at a
// time.
class Device {
 public:
  // kUnavailable for an index that is not there; kExhausted when a context cannot be made;
  // kDeviceLost where the driver keeps this process from the device after a fault.
  static Result<std::unique_ptr<Device>> Open(std::shared_ptr<const Driver> driver, int index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& driver() const { return *driver_; }
  const DeviceFacts& facts() const { return facts_; }
  StreamHandle stream() const { return stream_; }
  std::string where() const;  // "cuda:0"

  // Driver calls work on the calling thread's current context: every function here makes this one
  // current first; call it before using driver() directly.
  void MakeCurrent() const;

  // ok, or a Status that names `what` was done. kExhausted for lack of memory. Everything that
  // leaves the context unusable is kDeviceLost, now and at every later call: all that lives on
  // the device can only be closed, and the model loaded again on a new Device.
  Status Check(DriverResult result, const char* what);
  Status lost() const;  // ok while the context works

  // Waits for everything submitted.
  Status Synchronize();

  // Fences. A step that was submitted reads what it was given until it is done: nothing that it may
  // read is unmapped before. Submitted() marks the end of the work submitted so far.
  Status Submitted();
  // Waits until the last mark has passed; free when it has.
  Status WaitSubmitted();

  // On the stream, in order with the steps; return at once.
  Status ZeroAsync(DevicePtr to, size_t bytes);
  Status CopyAsync(DevicePtr to, DevicePtr from, size_t bytes);  // must not overlap
  // Host memory: pinned, or the call returns only when the bytes are taken.
  Status UploadAsync(DevicePtr to, const void* from, size_t bytes);
  Status DownloadAsync(void* to, DevicePtr from, size_t bytes);

  struct Free {
    uint64_t free_bytes = 0;
    uint64_t total_bytes = 0;
  };
  Result<Free> Memory() const;
  // Of all Buffers that live.
  uint64_t allocated_bytes() const { return allocated_bytes_.load(std::memory_order_relaxed); }

 private:
  friend class Buffer;
  Device(std::shared_ptr<const Driver> driver, DeviceFacts facts)
      : driver_(std::move(driver)), facts_(std::move(facts)) {}

  std::shared_ptr<const Driver> driver_;
  DeviceFacts facts_;
  ContextHandle context_ = nullptr;
  StreamHandle stream_ = nullptr;
  EventHandle fence_ = nullptr;
  mutable std::mutex mutex_;
  bool fence_set_ = false;
  std::atomic<uint64_t> allocated_bytes_{0};
  Status lost_;
};

// Plain device memory, apart from the KV (weights, activations). Movable; empty when default-made.
class Buffer {
 public:
  Buffer() = default;
  // kExhausted names `what`, bytes asked and free.
  static Result<Buffer> Allocate(Device& device, size_t bytes, const char* what);
  ~Buffer() { Reset(); }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;

  DevicePtr address() const { return address_; }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {  // a pointer that only kernels may follow
    return reinterpret_cast<T*>(address_);
  }
  // Grows to at least `bytes`, content lost; an error changes nothing. Waits for submitted work
  // before the old memory goes.
  Status Reserve(Device& device, size_t bytes, const char* what);
  void Reset();

 private:
  Device* device_ = nullptr;
  DevicePtr address_ = 0;
  size_t bytes_ = 0;
};

// Page-locked host memory, for transfers that run beside the host.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  static Result<PinnedBuffer> Allocate(Device& device, size_t bytes, const char* what);
  ~PinnedBuffer() { Reset(); }
  PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Status Reserve(Device& device, size_t bytes, const char* what);
  void Reset();

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace granule::cuda
