// What runs a step once its rows are checked and their KV is there. engine.cc owns everything
// around it: checks, growth, lengths, counters. Backends differ only here.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "kernels/attention.h"
#include "kv/sequence.h"

namespace granule::engine {

// The rows of all items of a step, one after the other.
struct StepBatch {
  std::span<kv::Sequence* const> sequences;  // [B]
  std::span<const int64_t> token_ids;        // [R]
  std::span<const int64_t> positions;        // [R] slot == position
  std::span<kernels::RowPlace> places;       // [R]; a backend may cut it down on the way
  std::span<const int64_t> wanted;           // ascending rows whose logits are wanted
  // Where a backend picks tokens itself: how, and where they go, one per wanted row. Empty: the
  // logits are wanted on the host.
  std::span<const RowSampling> sampling;
  std::span<TokenId> sampled;
};

// What became of a step that was to be captured or replayed.
struct GraphRun {
  const float* logits = nullptr;  // as Run's, where `result` is kDone; otherwise nothing ran
  kv::StepResult result = kv::StepResult::kDone;
  std::string reason;  // why not
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;  // "native", "ort"

  // kUsage, by the layout's name, where the backend cannot read KV that lies so.
  virtual Status CheckLayout(const kv::LayoutChoice&) const { return {}; }

  // Memory for a step of this size; called before any KV grows. After a failure steps that fitted
  // before still do; what was enlarged on the way may stay so.
  virtual Status Prepare(int64_t rows, int64_t wanted_rows) = 0;

  // Writes K and V of all rows to their slots (committed before) and the logits of the wanted rows.
  // Returns the logits [wanted, vocab_size], valid until the next call; null where the batch is
  // sampled. A failure leaves slots
  // below every live length as they were.
  virtual Result<const float*> Run(const StepBatch& batch) = 0;

  virtual bool SamplesOnDevice() const { return false; }

  // The size class whose graph serves decode steps of this many sequences, 0 where there is none.
  virtual int64_t GraphClass(int64_t) const { return 0; }
  // Whether that class has a graph that is right for any sequence.
  virtual bool HasGraph(int64_t) const { return false; }
  // Captures the step into its class's graph and runs it, or runs the graph that is there.
  virtual Result<GraphRun> RunGraph(const StepBatch&, kv::StepAction) {
    return GraphRun{nullptr, kv::StepResult::kDeclined,
                    Format("predicate `backend` declined capture: {} on a cpu, expected native on "
                           "a GPU",
                           name())};
  }
};

}  // namespace granule::engine
