// A GPU's driver in this process, for machines without a GPU: the entry table of base/cuda_driver.h
// with one device behind it. Its memory is host memory, so a test may follow device addresses, but
// only what is mapped can be touched and only with the access that was given: anything else breaks
// the context, as on a real device, and every later call in it says so.
//
// Work of the stream is done at once, or, with Defer(true), when somebody waits for it; taking
// memory away under work that was not waited for breaks the context too.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/arith.h"
#include "base/check.h"
#include "base/cuda_driver.h"

namespace granule::cuda {

struct FakeGpu {
  size_t granule_bytes = 64 << 10;
  uint64_t total_bytes = uint64_t{1} << 30;
  uint64_t largest_reservation_bytes = uint64_t{1} << 42;
  bool virtual_memory = true;
  int devices = 1;
};

// One at a time: the entries are plain functions.
class FakeDriver {
 public:
  static constexpr DriverResult kIllegalAddress = 700;
  static constexpr DriverResult kInvalidValue = 1;
  static constexpr DriverResult kNotSupported = 801;

  explicit FakeDriver(const FakeGpu& gpu = {}) : gpu_(gpu) {
    GRANULE_CHECK(self_ == nullptr);
    self_ = this;
    fd_ = memfd_create("fake-gpu", MFD_CLOEXEC);
    GRANULE_CHECK(fd_ >= 0);
    // Handles are never placed twice: a sparse file costs nothing.
    GRANULE_CHECK(ftruncate(fd_, off_t{1} << 46) == 0);
    Fill();
  }
  ~FakeDriver() {
    for (const auto& [base, bytes] : reservations_) munmap(Pointer(base), bytes);
    for (const auto& [address, buffer] : buffers_) std::free(Pointer(address));
    close(fd_);
    self_ = nullptr;
  }
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  std::shared_ptr<const Driver> driver() const { return driver_; }

  // The nth call from now on of an entry ("MemMap") gives this result, and does nothing; with
  // `and_after`, so do all that follow.
  void Fail(const std::string& entry, uint64_t nth, DriverResult result, bool and_after = false) {
    const std::lock_guard lock(mutex_);
    plans_[entry] = {calls_[entry] + nth, result, and_after};
  }
  void Heal() {
    const std::lock_guard lock(mutex_);
    plans_.clear();
  }
  uint64_t calls(const std::string& entry) {
    const std::lock_guard lock(mutex_);
    return calls_[entry];
  }
  // Every context that exists is broken from now on, as after a fault of a kernel.
  void Break() {
    const std::lock_guard lock(mutex_);
    for (auto& [context, broken] : contexts_) broken = true;
  }
  void Defer(bool defer) {
    const std::lock_guard lock(mutex_);
    RunPending();
    defer_ = defer;
  }

  // What is left of everything that was made.
  size_t live_handles() const { return handles_.size(); }
  size_t windows() const { return windows_.size(); }
  size_t live_reservations() const { return reservations_.size(); }
  size_t live_buffers() const { return buffers_.size(); }
  size_t live_contexts() const { return contexts_.size(); }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t largest_handle() const { return largest_handle_; }

 private:
  struct Plan {
    uint64_t nth = 0;
    DriverResult result = kSuccess;
    bool and_after = false;
  };
  struct Memory {
    size_t bytes = 0;
    uint64_t offset = 0;
    int windows = 0;
  };
  struct Window {
    size_t bytes = 0;
    MemoryHandle handle = 0;
    int access = 0;  // none yet
  };
  struct Work {
    std::function<void()> run;
    std::vector<std::pair<DevicePtr, size_t>> uses;
  };

  static void* Pointer(DevicePtr address) { return reinterpret_cast<void*>(address); }

  template <class F>
  struct Refusing;
  template <class... Args>
  struct Refusing<DriverResult (*)(Args...)> {
    static DriverResult Call(Args...) { return kNotSupported; }
  };

  // Counts the call; the planned result, the error of a broken context, or success.
  DriverResult Enter(const char* entry, bool of_context = true) {
    const uint64_t call = ++calls_[entry];
    if (of_context && current_ != nullptr) {
      const auto context = contexts_.find(current_);
      if (context == contexts_.end()) return 709;  // destroyed
      if (context->second) return kIllegalAddress;
    }
    const auto plan = plans_.find(entry);
    if (plan == plans_.end()) return kSuccess;
    const bool hit = plan->second.and_after ? call >= plan->second.nth : call == plan->second.nth;
    return hit ? plan->second.result : kSuccess;
  }

  void BreakCurrent() {
    if (const auto it = contexts_.find(current_); it != contexts_.end()) it->second = true;
  }

  // May the device touch these bytes?
  bool Reachable(DevicePtr address, size_t bytes, bool write) const {
    auto buffer = buffers_.upper_bound(address);
    if (buffer != buffers_.begin() && (--buffer)->first + buffer->second >= address + bytes)
      return true;
    const DevicePtr end = address + bytes;
    while (address < end) {
      auto it = windows_.upper_bound(address);
      if (it == windows_.begin()) return false;
      --it;
      if (address >= it->first + it->second.bytes) return false;
      if (it->second.access < (write ? kAccessReadWrite : kAccessRead)) return false;
      address = it->first + it->second.bytes;
    }
    return true;
  }

  DriverResult Submit(std::vector<std::pair<DevicePtr, size_t>> uses, std::function<void()> run) {
    pending_.push_back({std::move(run), std::move(uses)});
    if (!defer_) RunPending();
    return kSuccess;
  }
  void RunPending() {
    for (Work& work : pending_) work.run();
    pending_.clear();
  }
  bool PendingTouches(DevicePtr address, size_t bytes) const {
    for (const Work& work : pending_) {
      for (const auto& [at, length] : work.uses) {
        if (at < address + bytes && address < at + length) return true;
      }
    }
    return false;
  }
  // A write to or a read from device memory; out of bounds breaks the context when it runs.
  void Touch(DevicePtr to, DevicePtr from, size_t bytes, const std::function<void()>& act) {
    const bool fine =
        (to == 0 || Reachable(to, bytes, true)) && (from == 0 || Reachable(from, bytes, false));
    fine ? act() : BreakCurrent();
  }

  DriverResult WaitAll() {
    RunPending();
    const auto context = contexts_.find(current_);
    return context != contexts_.end() && context->second ? kIllegalAddress : kSuccess;
  }

  static FakeDriver& Self() { return *self_; }
  void Fill();

  static inline FakeDriver* self_ = nullptr;
  static inline thread_local ContextHandle current_ = nullptr;

  const FakeGpu gpu_;
  int fd_ = -1;
  std::shared_ptr<Driver> driver_ = std::make_shared<Driver>();
  std::mutex mutex_;
  std::map<std::string, uint64_t> calls_;
  std::map<std::string, Plan> plans_;
  std::map<ContextHandle, bool> contexts_;  // broken?
  std::map<DevicePtr, size_t> reservations_;
  std::map<MemoryHandle, Memory> handles_;
  std::map<DevicePtr, Window> windows_;
  std::map<DevicePtr, size_t> buffers_;
  std::vector<Work> pending_;
  bool defer_ = false;
  uint64_t used_bytes_ = 0;
  uint64_t next_ = 1;         // ids
  uint64_t next_offset_ = 0;  // in the file
  uint64_t largest_handle_ = 0;
};

inline void FakeDriver::Fill() {
  Driver& d = *driver_;
#define GRANULE_FAKE_ENTRY(name, symbol, parameters) d.name = Refusing<decltype(d.name)>::Call;
  GRANULE_CUDA_ENTRIES(GRANULE_FAKE_ENTRY)
#undef GRANULE_FAKE_ENTRY
  d.version = kOldestDriver;
  d.path = "fake";

  // ---- the device
  d.Init = [](unsigned) { return kSuccess; };
  d.DriverGetVersion = [](int* version) { return *version = kOldestDriver, kSuccess; };
  d.GetErrorName = [](DriverResult result, const char** text) {
    *text = result == kOutOfMemory      ? "CUDA_ERROR_OUT_OF_MEMORY"
            : result == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                        : "CUDA_ERROR_FAKE";
    return kSuccess;
  };
  d.GetErrorString = [](DriverResult, const char** text) {
    return *text = "from the fake driver", kSuccess;
  };
  d.DeviceGetCount = [](int* count) { return *count = Self().gpu_.devices, kSuccess; };
  d.DeviceGet = [](DeviceOrdinal* device, int ordinal) { return *device = ordinal, kSuccess; };
  d.DeviceGetName = [](char* name, int bytes, DeviceOrdinal) {
    std::strncpy(name, "fake GPU", static_cast<size_t>(bytes));
    return kSuccess;
  };
  d.DeviceGetAttribute = [](int* value, int attribute, DeviceOrdinal) {
    *value = attribute == kAttributeVirtualMemory ? Self().gpu_.virtual_memory : 1;
    return kSuccess;
  };
  d.DeviceTotalMem = [](size_t* bytes, DeviceOrdinal) {
    return *bytes = Self().gpu_.total_bytes, kSuccess;
  };
  d.CtxCreate = [](ContextHandle* context, unsigned, DeviceOrdinal) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("CtxCreate", false); r != kSuccess) return r;
    *context = reinterpret_cast<ContextHandle>(f.next_++);
    f.contexts_[*context] = false;
    current_ = *context;
    return kSuccess;
  };
  d.CtxDestroy = [](ContextHandle context) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    f.RunPending();
    f.contexts_.erase(context);
    if (current_ == context) current_ = nullptr;
    return kSuccess;
  };
  d.CtxSetCurrent = [](ContextHandle context) { return current_ = context, kSuccess; };
  d.MemGetInfo = [](size_t* free, size_t* total) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("MemGetInfo"); r != kSuccess) return r;
    *total = f.gpu_.total_bytes;
    *free = f.gpu_.total_bytes - f.used_bytes_;
    return kSuccess;
  };

  // ---- streams and events
  d.StreamCreate = [](StreamHandle* stream, unsigned) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("StreamCreate"); r != kSuccess) return r;
    return *stream = reinterpret_cast<StreamHandle>(f.next_++), kSuccess;
  };
  d.StreamDestroy = [](StreamHandle) { return kSuccess; };
  d.StreamSynchronize = [](StreamHandle) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("StreamSynchronize"); r != kSuccess) return r;
    return f.WaitAll();
  };
  d.StreamQuery = [](StreamHandle) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("StreamQuery"); r != kSuccess) return r;
    return f.pending_.empty() ? kSuccess : kNotReady;
  };
  d.EventCreate = [](EventHandle* event, unsigned) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("EventCreate"); r != kSuccess) return r;
    return *event = reinterpret_cast<EventHandle>(f.next_++), kSuccess;
  };
  d.EventDestroy = [](EventHandle) { return kSuccess; };
  d.EventRecord = [](EventHandle, StreamHandle) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    return f.Enter("EventRecord");
  };
  d.EventQuery = [](EventHandle) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("EventQuery"); r != kSuccess) return r;
    return f.pending_.empty() ? kSuccess : kNotReady;
  };
  d.EventSynchronize = [](EventHandle) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("EventSynchronize"); r != kSuccess) return r;
    return f.WaitAll();
  };

  // ---- plain memory and content
  d.MemAlloc = [](DevicePtr* address, size_t bytes) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("MemAlloc"); r != kSuccess) return r;
    if (bytes > f.gpu_.total_bytes - f.used_bytes_) return kOutOfMemory;
    void* memory = std::aligned_alloc(256, RoundUp(bytes, size_t{256}));
    if (memory == nullptr) return kOutOfMemory;
    std::memset(memory, 0xa5, bytes);
    *address = reinterpret_cast<DevicePtr>(memory);
    f.buffers_[*address] = bytes;
    f.used_bytes_ += bytes;
    return kSuccess;
  };
  d.MemFree = [](DevicePtr address) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("MemFree"); r != kSuccess) return r;
    const auto it = f.buffers_.find(address);
    if (it == f.buffers_.end()) return kInvalidValue;
    f.RunPending();  // as the real one does
    f.used_bytes_ -= it->second;
    std::free(Pointer(address));
    f.buffers_.erase(it);
    return kSuccess;
  };
  d.MemcpyHtoDAsync = [](DevicePtr to, const void* from, size_t bytes, StreamHandle) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("MemcpyHtoDAsync"); r != kSuccess) return r;
    f.RunPending();  // pageable memory: the bytes are taken before the call returns
    f.Touch(to, 0, bytes, [&] { std::memcpy(Pointer(to), from, bytes); });
    return kSuccess;
  };
  d.MemcpyDtoHAsync = [](void* to, DevicePtr from, size_t bytes, StreamHandle) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("MemcpyDtoHAsync"); r != kSuccess) return r;
    return f.Submit({{from, bytes}}, [=] {
      Self().Touch(0, from, bytes, [=] { std::memcpy(to, Pointer(from), bytes); });
    });
  };
  d.MemcpyDtoDAsync = [](DevicePtr to, DevicePtr from, size_t bytes, StreamHandle) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("MemcpyDtoDAsync"); r != kSuccess) return r;
    if ((to > from ? to - from : from - to) < bytes) return kInvalidValue;  // undefined there
    return f.Submit({{to, bytes}, {from, bytes}}, [=] {
      Self().Touch(to, from, bytes, [=] { std::memcpy(Pointer(to), Pointer(from), bytes); });
    });
  };
  d.MemsetD8Async = [](DevicePtr to, unsigned char value, size_t bytes, StreamHandle) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("MemsetD8Async"); r != kSuccess) return r;
    return f.Submit({{to, bytes}}, [=] {
      Self().Touch(to, 0, bytes, [=] { std::memset(Pointer(to), value, bytes); });
    });
  };

  // ---- virtual memory
  d.MemGetAllocationGranularity = [](size_t* bytes, const AllocationProperties*, int) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("MemGetAllocationGranularity"); r != kSuccess) return r;
    return *bytes = f.gpu_.granule_bytes, kSuccess;
  };
  d.MemAddressReserve = [](DevicePtr* address, size_t bytes, size_t alignment, DevicePtr,
                           unsigned long long) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("MemAddressReserve"); r != kSuccess) return r;
    if (bytes > f.gpu_.largest_reservation_bytes) return kOutOfMemory;
    const size_t padded = bytes + alignment;
    void* memory =
        mmap(nullptr, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return kOutOfMemory;
    const auto begin = reinterpret_cast<DevicePtr>(memory);
    *address = RoundUp(begin, static_cast<DevicePtr>(alignment));
    if (*address > begin) munmap(memory, *address - begin);
    if (begin + padded > *address + bytes)
      munmap(Pointer(*address + bytes), begin + padded - *address - bytes);
    f.reservations_[*address] = bytes;
    return kSuccess;
  };
  d.MemAddressFree = [](DevicePtr address, size_t bytes) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("MemAddressFree"); r != kSuccess) return r;
    const auto it = f.reservations_.find(address);
    if (it == f.reservations_.end() || it->second != bytes) return kInvalidValue;
    const auto window = f.windows_.lower_bound(address);
    if (window != f.windows_.end() && window->first < address + bytes) return kInvalidValue;
    munmap(Pointer(address), bytes);
    f.reservations_.erase(it);
    return kSuccess;
  };
  d.MemCreate = [](MemoryHandle* handle, size_t bytes, const AllocationProperties* properties,
                   unsigned long long) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("MemCreate"); r != kSuccess) return r;
    if (bytes == 0 || bytes % f.gpu_.granule_bytes != 0 || properties->location.type != 1)
      return kInvalidValue;
    if (bytes > f.gpu_.total_bytes - f.used_bytes_) return kOutOfMemory;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f.fd_,
                        static_cast<off_t>(f.next_offset_));
    if (memory == MAP_FAILED) return kOutOfMemory;
    std::memset(memory, 0xa5, bytes);  // what another program may have left
    munmap(memory, bytes);
    *handle = f.next_++;
    f.handles_[*handle] = {bytes, f.next_offset_, 0};
    f.next_offset_ += bytes;
    f.used_bytes_ += bytes;
    f.largest_handle_ = std::max<uint64_t>(f.largest_handle_, bytes);
    return kSuccess;
  };
  d.MemRelease = [](MemoryHandle handle) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("MemRelease"); r != kSuccess) return r;
    const auto it = f.handles_.find(handle);
    if (it == f.handles_.end() || it->second.windows != 0) return kInvalidValue;
    fallocate(f.fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(it->second.offset), static_cast<off_t>(it->second.bytes));
    f.used_bytes_ -= it->second.bytes;
    f.handles_.erase(it);
    return kSuccess;
  };
  d.MemMap = [](DevicePtr address, size_t bytes, size_t offset, MemoryHandle handle,
                unsigned long long) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("MemMap"); r != kSuccess) return r;
    const auto it = f.handles_.find(handle);
    if (it == f.handles_.end() || it->second.bytes != bytes || offset != 0) return kInvalidValue;
    const auto next = f.windows_.lower_bound(address);
    if (next != f.windows_.end() && next->first < address + bytes) return kInvalidValue;
    f.windows_[address] = {bytes, handle, 0};
    ++it->second.windows;
    return kSuccess;
  };
  d.MemSetAccess = [](DevicePtr address, size_t bytes, const AccessDescription* access, size_t) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("MemSetAccess"); r != kSuccess) return r;
    const auto window = f.windows_.find(address);
    if (window == f.windows_.end() || window->second.bytes != bytes) return kInvalidValue;
    const Memory& memory = f.handles_.at(window->second.handle);
    const int protection = access->flags == kAccessReadWrite ? PROT_READ | PROT_WRITE : PROT_READ;
    if (mmap(Pointer(address), bytes, protection, MAP_SHARED | MAP_FIXED, f.fd_,
             static_cast<off_t>(memory.offset)) == MAP_FAILED) {
      return kOutOfMemory;
    }
    window->second.access = access->flags;
    return kSuccess;
  };
  d.MemUnmap = [](DevicePtr address, size_t bytes) {
    FakeDriver& f = Self();
    const std::lock_guard lock(f.mutex_);
    if (const DriverResult r = f.Enter("MemUnmap"); r != kSuccess) return r;
    const auto window = f.windows_.find(address);
    if (window == f.windows_.end() || window->second.bytes != bytes) return kInvalidValue;
    if (f.PendingTouches(address, bytes)) {  // the device is still reading there
      f.BreakCurrent();
      return kIllegalAddress;
    }
    mmap(Pointer(address), bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    --f.handles_.at(window->second.handle).windows;
    f.windows_.erase(window);
    return kSuccess;
  };
}

}  // namespace granule::cuda
