// Runs the model's plan on the CPU kernels.
#pragma once

#include <memory>

#include "engine/backend.h"
#include "engine/device.h"
#include "engine/native/plan.h"

namespace granule::engine {

// Both outlive the backend.
std::unique_ptr<Backend> MakeNativeBackend(DeviceContext& device, const Plan& plan);

}  // namespace granule::engine
