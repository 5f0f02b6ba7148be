#include "kv/capture.h"

#include "base/check.h"
#include "base/format.h"

namespace granule::kv {
namespace {

const char* OffloadText(CaptureInputs::Offload offload) {
  switch (offload) {
    case CaptureInputs::Offload::kNotSupplied:
      return "not supplied";
    case CaptureInputs::Offload::kProvenStable:
      return "proven stable";
    case CaptureInputs::Offload::kProvenUnstable:
      return "proven unstable";
  }
  return "?";
}

const char* ModeText(CaptureMode mode) {
  switch (mode) {
    case CaptureMode::kAuto:
      return "auto";
    case CaptureMode::kOn:
      return "on";
    case CaptureMode::kOff:
      return "off";
  }
  return "?";
}

CaptureDecision Decision(bool enabled, const char* predicate, const std::string& inputs) {
  return {enabled, Format("predicate `{}` {} capture: {}", predicate,
                          enabled ? "enabled" : "declined", inputs)};
}

}  // namespace

CaptureMode CaptureModeOf(const std::string& text) {
  if (text == "on") return CaptureMode::kOn;
  return text == "off" ? CaptureMode::kOff : CaptureMode::kAuto;
}

CaptureDecision DecideCapture(const CaptureInputs& in) {
  if (in.weight_offload_enabled && in.weight_offload != CaptureInputs::Offload::kProvenStable) {
    return Decision(
        false, "weight offload",
        Format("weights are streamed and their addresses are {}", OffloadText(in.weight_offload)));
  }
  if (in.mode != CaptureMode::kAuto) {
    return Decision(in.mode == CaptureMode::kOn, "cuda-graph",
                    Format("{} from {}", ModeText(in.mode), in.mode_source));
  }
  if (!in.device.starts_with("cuda"))
    return Decision(false, "device", Format("device is {}, expected cuda", in.device));
  if (!in.kv_owned)
    return Decision(false, "kv ownership", "the KV is shared with another owner, who may move it");
  return Decision(true, "default", Format("device is {}, the KV is owned", in.device));
}

StepAction GraphCapture::Next(int64_t rows) const {
  if (!enabled_ || rows != 1) return StepAction::kEager;
  switch (phase_) {
    case CapturePhase::kArmed:
      return StepAction::kCapture;
    case CapturePhase::kReady:
      return StepAction::kReplay;
    case CapturePhase::kNeedsWarmup:
    case CapturePhase::kUnsupported:
      break;
  }
  return StepAction::kEager;
}

std::optional<StepAction> GraphCapture::Finished(int64_t rows, StepAction action, StepResult result,
                                                 const std::string& reason) {
  switch (action) {
    case StepAction::kEager:
      if (rows != 1) {
        if (policy_ == CapturePolicy::kSeed) Invalidate("invalidated: a step of several rows");
      } else if (enabled_ && phase_ == CapturePhase::kNeedsWarmup) {
        phase_ = CapturePhase::kArmed;
      }
      return std::nullopt;
    case StepAction::kCapture:
      GRANULE_CHECK(phase_ == CapturePhase::kArmed);
      if (result == StepResult::kDone) {
        ++counters_.captures;
        invalidated_ = false;
        counters_.graph_existed = true;
        phase_ = CapturePhase::kReady;
        return std::nullopt;
      }
      ++counters_.fallbacks;
      phase_ = CapturePhase::kUnsupported;
      last_reason_ = reason;
      return StepAction::kEager;
    case StepAction::kReplay:
      GRANULE_CHECK(phase_ == CapturePhase::kReady);
      if (result == StepResult::kDone) {
        ++counters_.replays;
        return std::nullopt;
      }
      phase_ = CapturePhase::kNeedsWarmup;
      last_reason_ = reason;
      return StepAction::kEager;
  }
  return std::nullopt;
}

void GraphCapture::Adopt() {
  if (!enabled_ || policy_ != CapturePolicy::kDefault || invalidated_) return;
  if (phase_ != CapturePhase::kNeedsWarmup && phase_ != CapturePhase::kArmed) return;
  phase_ = CapturePhase::kReady;
  counters_.graph_existed = true;
}

void GraphCapture::Invalidate(const std::string& reason) {
  GRANULE_DCHECK(reason.starts_with("invalidated"));
  ++counters_.invalidations;
  invalidated_ = true;
  last_reason_ = reason;
  if (phase_ != CapturePhase::kUnsupported) phase_ = CapturePhase::kNeedsWarmup;
}

void GraphCapture::Keep(const std::string& reason) {
  GRANULE_DCHECK(reason.starts_with("kept"));
  ++counters_.growth_keeps;
  last_reason_ = reason;
}

void GraphCapture::Rewound() {
  if (policy_ == CapturePolicy::kSeed) Invalidate("invalidated: rewound");
}

void GraphCapture::Emptied() {
  Rewound();
  if (phase_ == CapturePhase::kUnsupported) phase_ = CapturePhase::kNeedsWarmup;
}

}  // namespace granule::kv
