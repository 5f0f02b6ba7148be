#include "kv/sequence.h"

#include <algorithm>
#include <chrono>

#include "base/arith.h"
#include "base/check.h"
#include "kv/errors.h"
#include "kv/parking.h"

namespace granule::kv {
namespace {

using Clock = std::chrono::steady_clock;

Status CheckLevers(const Group& group, const SequenceOptions& options) {
  if (group.retention != Retention::kFull) {
    return Error(Code::kUsage, "KV groups that keep their tokens as '{}' are not built yet",
                 RetentionName(group.retention));
  }
  if (options.growth != GrowthKind::kCommit && options.policy.rounding == Rounding::kGranule) {
    return Error(Code::kUsage,
                 "--kv-growth {} rounds by bucket: its strides follow the capacity, and granule "
                 "rounding would move "
                 "everything at every granule. Use --kv-rounding bucket",
                 GrowthName(options.growth));
  }
  return {};
}

// A failure after which the sequence can only be closed.
bool IsFinal(const Status& status) {
  return status.code() == Code::kPoisoned || status.code() == Code::kDeviceLost;
}

}  // namespace

Result<std::unique_ptr<Sequence>> Sequence::Create(const Store& store, const Group& group,
                                                   const SequenceOptions& options) {
  GRANULE_CHECK(!group.layers.empty());
  if (Status s = CheckLevers(group, options); !s.ok()) return s;
  std::unique_ptr<Sequence> sequence(new Sequence(store, group, options));
  const uint64_t hard_max = options.hard_max.or_unbounded();
  if (options.growth == GrowthKind::kCommit) {
    auto storage =
        CommitStorage::Make(store, options.layout, group, hard_max, &sequence->committed_);
    if (!storage.ok()) return storage.status();
    sequence->commit_ = storage->get();
    sequence->storage_ = std::move(*storage);
    return sequence;
  }
  auto storage = options.growth == GrowthKind::kRestride
                     ? MakeRestrideStorage(store, options.layout, group, hard_max)
                     : MakeReallocStorage(store, options.layout, group, hard_max);
  if (!storage.ok()) return storage.status();
  sequence->storage_ = std::move(*storage);
  return sequence;
}

Status Sequence::Ensure(uint64_t tokens) {
  if (!poisoned_.ok()) return poisoned_;
  if (tokens > committed_) {
    const auto start = Clock::now();
    const auto outcome = EnsureCapacity(*this, options_.hard_max.or_unbounded(), tokens);
    if (!outcome.ok()) {
      const bool ended = IsFinal(outcome.status()) && poisoned_.ok();
      return ended ? Poison("a growth", outcome.status()) : outcome.status();
    }
    const auto stall = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
    stall_.Add(static_cast<uint64_t>(stall.count()));
  } else if (tokens > options_.hard_max.or_unbounded()) {
    return CapacityExceeded(tokens);
  }
  if (commit_ == nullptr || tokens <= live_) return {};
  Status status = commit_->MakePrivate(live_, tokens);
  return IsFinal(status) ? Poison("making shared memory private", status) : status;
}

Status Sequence::Prepare(uint64_t tokens) {
  if (!poisoned_.ok()) return poisoned_;
  const uint64_t bound = std::min(options_.hard_max.or_unbounded(), storage_->Limit());
  const bool useful = commit_ != nullptr && store_.vmm->capabilities().create_is_slow;
  if (!useful || tokens <= committed_ || tokens > bound) return {};
  return commit_->Prepare(committed_, Target(tokens));
}

void Sequence::Advance(uint64_t count) {
  GRANULE_CHECK(count <= committed_ - live_);
  live_ += count;
}

Result<uint64_t> Sequence::Rewind(uint64_t length) {
  if (!poisoned_.ok()) return poisoned_;
  if (length > live_) {
    return InvalidInput("cannot rewind to {} tokens: the sequence holds {}", length, live_);
  }
  if (length != live_) {
    live_ = length;
    capture_.Rewound();
  }
  return length;
}

Status Sequence::Trim() {
  if (!poisoned_.ok()) return poisoned_;
  const auto left = storage_->Shrink(live_);
  if (!left.ok()) return Poison("giving memory back", left.status());
  // What granules hold beyond the bucket is not policy; what they no longer hold is gone.
  committed_ = std::min(committed_, *left);
  return {};
}

Status Sequence::Reset() {
  if (!poisoned_.ok()) return poisoned_;
  if (live_ != 0) capture_.Emptied();
  live_ = 0;
  return Trim();
}

Result<std::unique_ptr<Sequence>> Sequence::Fork() {
  if (!poisoned_.ok()) return poisoned_;
  if (commit_ == nullptr) {
    return Error(Code::kUsage,
                 "a sequence that grows by {} cannot be forked: use --kv-growth commit",
                 GrowthName(options_.growth));
  }
  Store store = store_;
  store.parking = nullptr;  // a parked range has memory of its own
  auto child = Create(store, group_, options_);
  if (!child.ok()) return child.status();
  Sequence& c = **child;
  c.store_ = store_;
  const auto committed = c.commit_->ShareFrom(*commit_, live_);
  if (!committed.ok()) {
    return Error(committed.status().code(),
                 "forking a sequence of {} tokens failed, it is unchanged: {}", live_,
                 committed.status().message());
  }
  c.committed_ = std::min(*committed, committed_);
  c.live_ = live_;
  return child;
}

void Sequence::Park(std::unique_ptr<Sequence> sequence) {
  if (sequence->commit_ != nullptr && sequence->poisoned_.ok())
    sequence->commit_->Park(sequence->committed_);
}

uint64_t Sequence::Target(uint64_t required) const {
  const uint64_t bound = std::min(options_.hard_max.or_unbounded(), storage_->Limit());
  if (options_.policy.rounding == Rounding::kBucket) {
    return Bucket(required, bound, options_.policy.min_bucket);
  }
  return std::min(bound, storage_->HeldBy(required));
}

Status Sequence::Poison(const char* what, const Status& cause) {
  poisoned_ =
      cause.code() == Code::kDeviceLost
          ? cause  // says it all
          : Error(Code::kPoisoned, "this sequence can only be closed: {} failed half-way: {}", what,
                  cause.message());
  return poisoned_;
}

Status Sequence::Abandon(const GrowthStep& step) {
  const Status status = storage_->Abandon(step);
  return status.ok() ? status : Poison("undoing a growth", status);
}

void Sequence::Publish(const GrowthStep& step, bool kept, const std::string& reason) {
  const uint64_t copied = storage_->Publish(step);
  const uint64_t start =
      options_.policy.rounding == Rounding::kBucket
          ? Bucket(0, options_.hard_max.or_unbounded(), options_.policy.min_bucket)
          : step.new_committed;
  // The first commit of an empty sequence is its start, not a growth; a first need beyond the floor
  // is both at once.
  if (step.old_committed > 0 || step.new_committed > start) {
    ++growth_events_;
    if (kept) {
      capture_.Keep(reason);
    } else {
      capture_.Invalidate(reason);
    }
    if (storage_->moves())
      moved_bytes_ += step.live * (layout().bytes_per_token + options_.mask_bytes_per_token);
    copied_bytes_ += copied;
  }
  committed_ = step.new_committed;
}

Status Sequence::CapacityExceeded(uint64_t required) const {
  CapacityExceededFacts facts;
  facts.required = required;
  facts.limit = std::min(options_.hard_max.or_unbounded(), storage_->Limit());
  facts.source = options_.hard_max.source;
  facts.model_context = options_.model_context;
  facts.bytes_per_token = layout().bytes_per_token;
  facts.memory = QueryMemory(*store_.vmm);
  return CapacityExceededError(facts);
}

Status Sequence::GrowthFailed(const GrowthStep& step, const Status& cause) const {
  const GrowthNeed need = storage_->Need(step);
  GrowthFailedFacts facts;
  facts.old_tokens = step.old_committed;
  facts.new_tokens = step.new_committed;
  facts.new_bytes = need.new_bytes;
  facts.peak_bytes = need.peak_bytes;
  facts.peak_reason = need.peak_reason;
  facts.bytes_per_token = layout().bytes_per_token;
  facts.memory = QueryMemory(*store_.vmm);
  return GrowthFailedError(facts, cause);
}

Counters Sequence::counters() const {
  Counters c;
  c.growth_events = growth_events_;
  c.kv_bytes_moved = moved_bytes_;
  c.kv_bytes_copied = copied_bytes_;
  const CaptureCounters& capture = capture_.counters();
  c.captures = capture.captures;
  c.replays = capture.replays;
  c.fallbacks = capture.fallbacks;
  c.invalidations = capture.invalidations;
  c.growth_keeps = capture.growth_keeps;
  c.graph_existed = capture.graph_existed;
  const StorageBytes bytes = storage_->bytes(committed_);
  c.committed_bytes = bytes.committed;
  c.unique_physical_bytes = bytes.unique;
  c.reserved_bytes = bytes.reserved;
  c.shared_bytes = bytes.shared;
  c.parked_bytes = store_.parking == nullptr ? 0 : store_.parking->parked_bytes();
  c.pooled_bytes = store_.pool->counters().pooled_bytes;
  const uint64_t live_bytes = live_ * layout().bytes_per_token;
  const uint64_t held = bytes.unique + bytes.shared;
  c.tail_waste_bytes = held - std::min(held, live_bytes);
  c.granules_mapped = storage_->granules_mapped();
  c.commit_stall_us = stall_;
  return c;
}

bool Sequence::IsValid() const {
  if (live_ > committed_ || committed_ > storage_->Capacity()) return false;
  if (committed_ > options_.hard_max.or_unbounded()) return false;
  return !poisoned_.ok() || storage_->IsValid(committed_);
}

}  // namespace granule::kv
