// A device: memory, threads and kernels that models and sequences share, and that outlives them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/cpu.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kv/parking.h"
#include "kv/sequence.h"
#include "memory/address_space.h"
#include "memory/handle_pool.h"
#include "memory/mapping_table.h"
#include "memory/vmm.h"

namespace granule::engine {

struct Gpu;  // cuda/gpu.h

struct DeviceOptions {
  int threads = 0;  // 0 = what affinity and quota allow
  Isa isa = BestIsa();
  size_t granule_bytes = 0;  // host granule; 0 = the default of 64 KiB
  // What the handle pool keeps; 0 = the default: nothing on a CPU, memory::kCudaRetainedBytes on a
  // GPU.
  uint64_t pool_retained_bytes = 0;
};

// One context object instead of globals. Models and sequences must be gone before it is destroyed.
class DeviceContext {
 public:
  static Result<std::unique_ptr<DeviceContext>> CreateCpu(const DeviceOptions& options);
  // The same over a virtual memory of the caller's (tests put faults there).
  static Result<std::unique_ptr<DeviceContext>> CreateCpu(const DeviceOptions& options,
                                                          std::unique_ptr<memory::Vmm> vmm);

  // A GPU by its index. Sequences live in its memory; the threads stay for what the host does.
  // kUnavailable: no driver, no such device, a build without kernels for it.
  static Result<std::unique_ptr<DeviceContext>> CreateCuda(const DeviceOptions& options, int index);
  // The GPU of this index, or the CPU where there is none.
  static Result<std::unique_ptr<DeviceContext>> Create(const DeviceOptions& options,
                                                       std::optional<int> gpu) {
    return gpu ? CreateCuda(options, *gpu) : CreateCpu(options);
  }
  ~DeviceContext();

  // "cpu", "cuda:0".
  const std::string& name() const { return name_; }
  Gpu* gpu() { return gpu_.get(); }  // null on a CPU
  // Bytes of a GPU's memory that this process holds: buffers and physical KV. 0 on a CPU.
  uint64_t device_bytes() const;
  int threads() const { return pool_.threads(); }
  const std::string& threads_reason() const { return threads_reason_; }
  const kernels::Context& kernels() const { return kernels_; }
  ThreadPool& pool() { return pool_; }
  memory::Vmm& vmm() { return *vmm_; }
  kv::Store store() { return {vmm_.get(), &space_, &handles_, &table_, &parking_, buffers_.get()}; }

 private:
  DeviceContext(const DeviceOptions& options, std::unique_ptr<memory::Vmm> vmm,
                std::unique_ptr<Gpu> gpu);

  std::string name_;
  std::unique_ptr<Gpu> gpu_;  // first: what follows lives on it
  std::string threads_reason_;
  ThreadPool pool_;
  kernels::Context kernels_;
  std::unique_ptr<memory::Vmm> vmm_;
  std::unique_ptr<kv::BufferAllocator> buffers_;  // of a GPU; null: the heap
  memory::AddressSpace space_;
  memory::HandlePool handles_;
  memory::MappingTable table_;
  kv::ParkingLot parking_;
};

}  // namespace granule::engine
