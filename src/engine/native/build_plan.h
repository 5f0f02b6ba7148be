// Graph -> Plan: recognises nodes, fuses, packs weights, places buffers.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/native/plan.h"
#include "package/package.h"

namespace granule::engine {

struct BuiltPlan {
  std::unique_ptr<Plan> plan;            // null when `unsupported` is not empty
  std::vector<Unsupported> unsupported;  // grouped by operator and reason
  uint64_t packed_bytes = 0;
  uint64_t macs_per_token = 0;
};

// `kernels` null: nothing is packed; the plan has the sources of its weights alone (for a GPU, or
// to recognise). Simplifies the package's graph in place.
Result<BuiltPlan> BuildPlan(package::Package& package, const kernels::Context* kernels);

}  // namespace granule::engine
