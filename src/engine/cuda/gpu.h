// A GPU with granule's kernels loaded: what models and engines on it share.
#pragma once

#include <memory>
#include <string>

#include "base/cuda_device.h"
#include "base/status.h"
#include "kernels/cuda/cuda_matmul.h"
#include "kernels/cuda/launcher.h"

namespace granule::engine {

// Members die in the reverse order.
struct Gpu {
  std::unique_ptr<cuda::Device> device;
  std::unique_ptr<kernels::CudaKernels> kernels;
  std::unique_ptr<kernels::CublasLt> blas;  // null where it is not on this machine
  std::string blas_note;                    // its path and version, or why it is not there
  std::unique_ptr<kernels::Launcher> launcher;
};

// kUnavailable: no driver, no such device, no kernels for it.
Result<std::unique_ptr<Gpu>> OpenGpu(int index);

}  // namespace granule::engine
