#include "engine/device.h"

#include "engine/cuda/gpu.h"
#include "kv/cuda_buffers.h"
#include "memory/cuda/cuda_vmm.h"
#include "memory/host/host_vmm.h"

namespace granule::engine {

Result<std::unique_ptr<DeviceContext>> DeviceContext::CreateCpu(const DeviceOptions& options) {
  memory::HostVmmOptions host;
  if (options.granule_bytes != 0) host.granule_bytes = options.granule_bytes;
  auto vmm = memory::HostVmm::Open(host);
  if (!vmm.ok()) return vmm.status();
  return CreateCpu(options, std::move(*vmm));
}

namespace {

Status CheckThreads(const DeviceOptions& options) {
  if (options.threads >= 0) return {};
  return Error(Code::kUsage,
               "cannot run on {} threads: expected 1 or more, or 0 for what this machine allows",
               options.threads);
}

}  // namespace

Result<std::unique_ptr<DeviceContext>> DeviceContext::CreateCpu(const DeviceOptions& options,
                                                                std::unique_ptr<memory::Vmm> vmm) {
  if (Status s = CheckThreads(options); !s.ok()) return s;
  return std::unique_ptr<DeviceContext>(new DeviceContext(options, std::move(vmm), nullptr));
}

Result<std::unique_ptr<DeviceContext>> DeviceContext::CreateCuda(const DeviceOptions& options,
                                                                 int index) {
  if (Status s = CheckThreads(options); !s.ok()) return s;
  auto gpu = OpenGpu(index);
  if (!gpu.ok()) return gpu.status();
  auto vmm = memory::CudaVmm::Open(*(*gpu)->device);
  if (!vmm.ok()) return vmm.status();
  DeviceOptions on_gpu = options;
  if (on_gpu.pool_retained_bytes == 0) on_gpu.pool_retained_bytes = memory::kCudaRetainedBytes;
  return std::unique_ptr<DeviceContext>(
      new DeviceContext(on_gpu, std::move(*vmm), std::move(*gpu)));
}

DeviceContext::DeviceContext(const DeviceOptions& options, std::unique_ptr<memory::Vmm> vmm,
                             std::unique_ptr<Gpu> gpu)
    : name_(gpu == nullptr ? "cpu" : gpu->device->where()),
      gpu_(std::move(gpu)),
      threads_reason_(options.threads == 0 ? UsableCpus().reason : "asked for"),
      pool_(options.threads == 0 ? UsableCpus().threads : options.threads),
      kernels_(kernels::MakeContext(pool_, options.isa)),
      vmm_(std::move(vmm)),
      buffers_(gpu_ == nullptr ? nullptr : kv::MakeCudaBuffers(*gpu_->device)),
      space_(*vmm_),
      handles_(*vmm_, options.pool_retained_bytes),
      table_(*vmm_, handles_),
      parking_(space_, table_) {}

DeviceContext::~DeviceContext() = default;

uint64_t DeviceContext::device_bytes() const {
  if (gpu_ == nullptr) return 0;
  const auto resident = vmm_->ResidentBytes();
  return gpu_->device->allocated_bytes() + (resident.ok() ? *resident : 0);
}

}  // namespace granule::engine
