// Where each buffer of a plan lies in the arena.
#pragma once

#include "engine/native/plan.h"

namespace granule::engine {

// Fills lifetimes, offsets, arena size, and the buffers to cut at the last attention. Buffers whose
// lifetimes overlap never overlap in memory.
void PlaceBuffers(Plan& plan);

// Buffers that a step reads and writes, in no order; kNoBuffer entries left out.
struct StepBuffers {
  std::vector<BufferId> reads;
  std::vector<BufferId> writes;
};
StepBuffers BuffersOf(const PlanStep& step);

}  // namespace granule::engine
