#include "kernels/cuda/launcher.h"

#include <span>

#include "kernels/cuda/images.h"

namespace granule::kernels {

bool CudaKernels::InThisBuild() { return !CudaImages().empty(); }

uint64_t CudaKernels::ImageBytes() {
  uint64_t bytes = 0;
  for (const std::span<const std::byte> image : CudaImages()) bytes += image.size();
  return bytes;
}

Result<std::unique_ptr<CudaKernels>> CudaKernels::Load(cuda::Device& device) {
  if (!InThisBuild()) {
    return Error(Code::kUnavailable,
                 "this build has no CUDA kernels: nvcc was not found when it was configured");
  }
  device.MakeCurrent();
  std::unique_ptr<CudaKernels> kernels(new CudaKernels(device));
  for (const std::span<const std::byte> image : CudaImages()) {
    cuda::ModuleHandle module = nullptr;
    const cuda::DriverResult result = device.driver().ModuleLoadData(&module, image.data());
    if (result == cuda::kNoBinaryForGpu || result == cuda::kUnsupportedPtxVersion) {
      const cuda::DeviceFacts& facts = device.facts();
      return Error(Code::kUnavailable,
                   "the kernels of this build do not run on {} ({}, compute capability {}.{}): {}. "
                   "They need capability 8.0 or newer and a driver that serves CUDA {}",
                   device.where(), facts.name, facts.capability_major, facts.capability_minor,
                   device.driver().Describe(result), cuda::DriverVersionText(cuda::kOldestDriver));
    }
    if (Status s = device.Check(result, "loading kernels"); !s.ok()) return s;
    kernels->modules_.push_back(module);
  }
  return kernels;
}

CudaKernels::~CudaKernels() {
  device_.MakeCurrent();
  for (const cuda::ModuleHandle module : modules_) device_.driver().ModuleUnload(module);
}

Result<cuda::FunctionHandle> CudaKernels::Find(std::string_view name, int shared_bytes) {
  Function& function = functions_[std::string(name)];
  const cuda::Driver& driver = device_.driver();
  for (size_t i = 0; function.handle == nullptr && i < modules_.size(); ++i) {
    if (driver.ModuleGetFunction(&function.handle, modules_[i], std::string(name).c_str()) !=
        cuda::kSuccess) {
      function.handle = nullptr;
    }
  }
  if (function.handle == nullptr)
    return Error(Code::kInternal, "no kernel {} in the images of this build", name);
  // Without asking, a block gets 48 KiB less what the kernel itself declares.
  if (shared_bytes > function.shared_bytes) {
    if (Status s = device_.Check(
            driver.FuncSetAttribute(function.handle, cuda::kMaxDynamicSharedBytes, shared_bytes),
            "asking for shared memory");
        !s.ok()) {
      return s;
    }
    function.shared_bytes = shared_bytes;
  }
  return function.handle;
}

void Launcher::RecordInto(cuda::GraphHandle graph) {
  graph_ = graph;
  last_node_ = nullptr;
}

void Launcher::Fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void Launcher::Start(std::string_view kernel, Grid grid, unsigned threads, unsigned shared_bytes,
                     void* arguments) {
  if (!status_.ok() || grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const auto function = kernels_.Find(kernel, static_cast<int>(shared_bytes));
  if (!function.ok()) return Fail(function.status());
  const cuda::Driver& driver = device_.driver();
  device_.MakeCurrent();
  void* parameters[] = {arguments};
  if (graph_ != nullptr) {
    cuda::KernelNodeParameters node;
    node.function = *function;
    node.grid_x = grid.x;
    node.grid_y = grid.y;
    node.grid_z = grid.z;
    node.block_x = threads;
    node.shared_bytes = shared_bytes;
    node.arguments = parameters;  // copied by the driver
    cuda::GraphNodeHandle added = nullptr;
    const size_t after = last_node_ == nullptr ? 0 : 1;
    Fail(device_.Check(driver.GraphAddKernelNode(&added, graph_, &last_node_, after, &node),
                       "adding a kernel to a graph"));
    last_node_ = added;
    return;
  }
  Fail(device_.Check(driver.LaunchKernel(*function, grid.x, grid.y, grid.z, threads, 1, 1,
                                         shared_bytes, device_.stream(), parameters, nullptr),
                     "launching a kernel"));
}

}  // namespace granule::kernels
