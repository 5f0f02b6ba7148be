// Runs the steps of a plan over rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/kv_view.h"
#include "engine/native/plan.h"
#include "kernels/kernels.h"

namespace granule::engine {

// What a plan runs over. The storage belongs to the caller and is big enough.
struct Execution {
  const kernels::Context* kernels = nullptr;
  int64_t rows = 0;
  std::span<const int64_t> token_ids;   // [rows]
  std::span<const int64_t> positions;   // [rows]
  std::span<kernels::RowPlace> places;  // [rows]; cut down to the wanted ones on the way
  std::span<const int64_t> wanted;      // ascending rows whose logits are wanted
  int64_t sequences = 0;
  std::span<const KvView> views;   // [layer * sequences + sequence]
  float* arena = nullptr;          // [arena_floats_per_row * rows]
  float* logits = nullptr;         // [wanted, vocab_size]
  std::span<std::byte> workspace;  // AttentionWorkspaceBytes of rows
  // Reused between runs.
  std::vector<kernels::MatMulOutput>* products = nullptr;
};

// Writes K and V of all rows and the logits of the wanted ones. Without wanted rows it stops once
// the last K and V are written.
void Execute(const Plan& plan, Execution& run);

}  // namespace granule::engine
