// Runs the package's graph in ONNX Runtime, one run per sequence, with KV in the sequences' own
// slots.
#pragma once

#include <memory>

#include "engine/backend.h"
#include "engine/ort/ort_model.h"

namespace granule::engine {

// The model outlives the backend.
std::unique_ptr<Backend> MakeOrtBackend(const OrtModel& model);

}  // namespace granule::engine
