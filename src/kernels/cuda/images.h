// The compiled kernels that the build put into this program: one compressed fat binary per .cu
// file. Empty in a build without nvcc. The definition is generated (cmake/cuda.cmake).
#pragma once

#include <cstddef>
#include <span>

namespace granule::kernels {

std::span<const std::span<const std::byte>> CudaImages();

}  // namespace granule::kernels
