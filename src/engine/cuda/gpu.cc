#include "engine/cuda/gpu.h"

namespace granule::engine {

Result<std::unique_ptr<Gpu>> OpenGpu(int index) {
  if (!kernels::CudaKernels::InThisBuild()) {
    return Error(Code::kUnavailable,
                 "this build has no CUDA kernels (nvcc was not found when it was configured): use "
                 "--device cpu, or build with CUDA's toolkit on PATH");
  }
  auto driver = cuda::OpenDriver();
  if (!driver.ok()) return driver.status();
  auto gpu = std::make_unique<Gpu>();
  auto device = cuda::Device::Open(*driver, index);
  if (!device.ok()) return device.status();
  gpu->device = std::move(*device);
  auto kernels = kernels::CudaKernels::Load(*gpu->device);
  if (!kernels.ok()) return kernels.status();
  gpu->kernels = std::move(*kernels);
  if (auto blas = kernels::CublasLt::Open(*gpu->device); blas.ok()) {
    gpu->blas = std::move(*blas);
    gpu->blas_note = Format("{}, version {}", gpu->blas->path(), gpu->blas->version());
  } else {
    gpu->blas_note = blas.status().message();
  }
  gpu->launcher = std::make_unique<kernels::Launcher>(*gpu->device, *gpu->kernels);
  return gpu;
}

}  // namespace granule::engine
