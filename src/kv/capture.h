// Captured graphs as a state machine that knows no device.
//
//   NeedsWarmup --(a step runs eagerly)--> Armed --(a step is captured)--> Ready --(replayed)-->
//   Ready Armed --(the device declines)--> Unsupported, until the sequence is emptied; the step
//   runs eagerly Ready --(the graph reports itself invalid)--> NeedsWarmup; the step runs eagerly
//   any but Unsupported --(invalidated)--> NeedsWarmup
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace granule::kv {

enum class CapturePhase { kNeedsWarmup, kArmed, kReady, kUnsupported };

// When a graph is dropped.
enum class CapturePolicy {
  kDefault,  // something baked into it changed: a pointer or a shape
  kSeed,     // that, every step of several rows, and every rewind (what the seeds' table counts)
};

enum class CaptureMode { kAuto, kOn, kOff };         // --cuda-graph
CaptureMode CaptureModeOf(const std::string& text);  // "on", "off", else auto: levers are checked

// What decides whether steps are captured at all, in order of precedence.
struct CaptureInputs {
  enum class Offload { kNotSupplied, kProvenStable, kProvenUnstable };
  bool weight_offload_enabled = false;
  Offload weight_offload = Offload::kNotSupplied;  // are the addresses of streamed weights stable?
  CaptureMode mode = CaptureMode::kAuto;
  std::string mode_source = "default";  // "--cuda-graph", "GRANULE_CUDA_GRAPH"
  std::string device = "cpu";           // "cpu", "cuda:0"
  bool kv_owned = true;                 // false: another owner may move it
};

struct CaptureDecision {
  bool enabled = false;
  // "predicate `P` declined capture: INPUTS" or "predicate `P` enabled capture: INPUTS".
  std::string reason;
};
CaptureDecision DecideCapture(const CaptureInputs& inputs);

enum class StepAction { kEager, kCapture, kReplay };
enum class StepResult { kDone, kDeclined, kGraphInvalid };

struct CaptureCounters {
  uint64_t captures = 0;       // steps captured
  uint64_t replays = 0;        // steps served by a replay
  uint64_t fallbacks = 0;      // captures that the device declined
  uint64_t invalidations = 0;  // calls that drop the graph, even where none exists
  uint64_t growth_keeps =
      0;  // growths after which a graph would still be right, even where none exists
  bool graph_existed = false;
};

class GraphCapture {
 public:
  GraphCapture(CapturePolicy policy, bool enabled) : policy_(policy), enabled_(enabled) {}

  // How to run a step of this many rows.
  StepAction Next(int64_t rows) const;
  // What became of it. Returns kEager when the step has to be run again, eagerly; that run is
  // reported too.
  std::optional<StepAction> Finished(int64_t rows, StepAction action, StepResult result,
                                     const std::string& reason);

  // The device has a graph already that serves any sequence: no warm-up is needed, unless a graph
  // was invalidated here. For CapturePolicy::kDefault; kSeed counts each sequence's own.
  void Adopt();
  void Invalidate(const std::string& reason);
  void Keep(const std::string& reason);  // a growth left every pointer and shape as it was
  void Rewound();
  void Emptied();  // a new generation: what was unsupported is tried again

  CapturePhase phase() const { return phase_; }
  const CaptureCounters& counters() const { return counters_; }
  const std::string& last_reason() const { return last_reason_; }

 private:
  CapturePolicy policy_;
  bool enabled_;
  CapturePhase phase_ = CapturePhase::kNeedsWarmup;
  bool invalidated_ = false;  // since the last capture
  CaptureCounters counters_;
  std::string last_reason_;
};

}  // namespace granule::kv
