#include "kv/growth.h"

#include <algorithm>

#include "base/check.h"

namespace granule::kv {
namespace {

// Runs the stages that may fail. What a failed stage leaves of earlier ones is undone here.
Status Stage(GrowthBackend& backend, const GrowthStep& step, const CaptureSignature& before,
             bool* kept, std::string* reason) {
  if (Status s = backend.Build(step); !s.ok()) return s;
  Status status = backend.BuildMask(step);
  if (status.ok()) {
    *kept = backend.Signature() == before;
    *reason = *kept ? "kept: every pointer and shape is as before"
                    : "invalidated: a pointer or shape changed";
    if (!*kept) status = backend.InvalidateCapture(*reason);
  }
  if (status.ok()) return status;
  if (Status undo = backend.Abandon(step); !undo.ok()) return undo;
  return status;
}

}  // namespace

const char* GrowthName(GrowthKind kind) {
  switch (kind) {
    case GrowthKind::kCommit:
      return "commit";
    case GrowthKind::kRestride:
      return "restride";
    case GrowthKind::kRealloc:
      return "realloc";
  }
  return "?";
}

Result<GrowthKind> ParseGrowth(const std::string& text) {
  for (const GrowthKind kind : {GrowthKind::kCommit, GrowthKind::kRestride, GrowthKind::kRealloc}) {
    if (text == GrowthName(kind)) return kind;
  }
  return Error(Code::kUsage, "unknown KV growth '{}': expected commit, restride or realloc", text);
}

Result<GrowthOutcome> EnsureCapacity(GrowthBackend& backend, uint64_t hard_max, uint64_t required) {
  if (required > hard_max) return backend.CapacityExceeded(required);
  const Lengths lengths = backend.lengths();
  if (required <= lengths.committed) return GrowthOutcome{};
  if (required > backend.Limit()) return backend.CapacityExceeded(required);

  GrowthOutcome outcome;
  outcome.step = {required, lengths.committed, backend.Target(required), lengths.live};
  GRANULE_CHECK(outcome.step.new_committed >= required);
  std::string reason;
  if (Status s = Stage(backend, outcome.step, backend.Signature(), &outcome.kept, &reason);
      !s.ok()) {
    const bool ends_it = s.code() == Code::kPoisoned || s.code() == Code::kDeviceLost;
    return ends_it ? s : backend.GrowthFailed(outcome.step, s);
  }
  backend.Publish(outcome.step, outcome.kept, reason);
  outcome.grew = true;
  return outcome;
}

}  // namespace granule::kv
