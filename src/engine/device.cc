#include "engine/device.h"

#include "memory/host/host_vmm.h"

namespace granule::engine {

Result<std::unique_ptr<DeviceContext>> DeviceContext::CreateCpu(const DeviceOptions& options) {
  memory::HostVmmOptions host;
  if (options.granule_bytes != 0) host.granule_bytes = options.granule_bytes;
  auto vmm = memory::HostVmm::Open(host);
  if (!vmm.ok()) return vmm.status();
  return CreateCpu(options, std::move(*vmm));
}

Result<std::unique_ptr<DeviceContext>> DeviceContext::CreateCpu(const DeviceOptions& options,
                                                                std::unique_ptr<memory::Vmm> vmm) {
  if (options.threads < 0) {
    return Error(Code::kUsage,
                 "cannot run on {} threads: expected 1 or more, or 0 for what this machine allows",
                 options.threads);
  }
  const CpuBudget budget = UsableCpus();
  const bool automatic = options.threads == 0;
  return std::unique_ptr<DeviceContext>(
      new DeviceContext(options, automatic ? budget.threads : options.threads,
                        automatic ? budget.reason : "asked for", std::move(vmm)));
}

DeviceContext::DeviceContext(const DeviceOptions& options, int threads, std::string threads_reason,
                             std::unique_ptr<memory::Vmm> vmm)
    : threads_reason_(std::move(threads_reason)),
      pool_(threads),
      kernels_(kernels::MakeContext(pool_, options.isa)),
      vmm_(std::move(vmm)),
      space_(*vmm_),
      handles_(*vmm_, options.pool_retained_bytes),
      table_(*vmm_, handles_),
      parking_(space_, table_) {}

}  // namespace granule::engine
