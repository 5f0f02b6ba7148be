// How a CudaMatrix lies on the device.
#pragma once

#include <cstdint>

#include "base/cuda_device.h"
#include "kernels/cuda/cuda_matmul.h"
#include "kernels/cuda/matmul_args.h"

namespace granule::kernels {

// One allocation: the rows, then scales, then zero points, each part from a multiple of 256 bytes.
struct CudaMatrix::Data {
  cuda::Buffer memory;
  CudaWeights view;  // into memory
};

// Values from row to row of an fp16 copy of a matrix, or of x for it: k rounded up to a unit.
constexpr int64_t HalfRow(int64_t k) { return (k + kUnit - 1) / kUnit * kUnit; }

}  // namespace granule::kernels
