// Runs the model's plan on a GPU, eagerly or through graphs.
#pragma once

#include <memory>
#include <span>

#include "engine/backend.h"
#include "engine/cuda/gpu.h"
#include "engine/native/plan.h"
#include "kv/layout.h"

namespace granule::engine {

// Most sequences that one step may have.
inline constexpr int64_t kMaxCudaSequences = 256;

// `plan` has device pointers (PutOnDevice). All outlive the backend.
std::unique_ptr<Backend> MakeCudaBackend(Gpu& gpu, const Plan& plan, const kv::Group& group);

}  // namespace granule::engine
