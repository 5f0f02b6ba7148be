// Plain device memory for growth by reallocation on a GPU.
#pragma once

#include <memory>

#include "base/cuda_device.h"
#include "kv/storage.h"

namespace granule::kv {

// The device outlives it, and it outlives what it gave. Thread-safe.
std::unique_ptr<BufferAllocator> MakeCudaBuffers(cuda::Device& device);

}  // namespace granule::kv
