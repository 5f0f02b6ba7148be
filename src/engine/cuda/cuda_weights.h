// The weights and constants of a plan in device memory.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/cuda_device.h"
#include "base/status.h"
#include "engine/cuda/gpu.h"
#include "engine/native/plan.h"
#include "package/package.h"

namespace granule::engine {

// What the plan's pointers lead to; lives as long as the plan.
struct CudaWeights {
  cuda::Buffer constants;            // norm weights, biases, rotary tables: fp32
  std::vector<cuda::Buffer> tables;  // embeddings
  uint64_t bytes = 0;                // of everything, matrices included
};

// Called with bytes done and in all; may be empty.
using WeightProgress = std::function<void(uint64_t done, uint64_t total)>;

// Uploads what the plan points to and points it there: afterwards every pointer of the plan is a
// device address. The bill is checked before anything is loaded: kExhausted with what is needed and
// what is free. kInvalidInput for what no kernel was built for. After an error the device holds
// nothing of it and the plan must not be used. What `on_demand` describes (the package's; may be
// null) is made on the device instead: its host addresses are names, and nothing is read there.
Result<CudaWeights> PutOnDevice(Gpu& gpu, Plan& plan, const package::SynthContent* on_demand,
                                const WeightProgress& progress);

}  // namespace granule::engine
