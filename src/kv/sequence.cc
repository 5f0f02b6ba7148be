#include "kv/sequence.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/arith.h"
#include "base/check.h"
#include "kv/errors.h"

namespace granule::kv {
namespace {

using Clock = std::chrono::steady_clock;

std::optional<memory::MemoryInfo> QueryMemory(const memory::Vmm& vmm) {
  auto info = vmm.Memory();
  if (!info.ok()) return std::nullopt;
  return *info;
}

// Tokens that the strides assume: the hard maximum, but never more than the device could ever hold
// and never more than a reservation the system grants. Bounds the reservation only; the hard
// maximum stays what it is.
Result<uint64_t> ReservationTokens(const Store& store, const HardMax& hard_max,
                                   uint64_t bytes_per_token) {
  uint64_t tokens = hard_max.or_unbounded();
  if (const auto memory = QueryMemory(*store.vmm); memory && memory->total_bytes > 0) {
    tokens = std::min(tokens, memory->total_bytes / bytes_per_token);
  }
  auto rung = store.space->LargestRungBytes();
  if (!rung.ok()) return rung.status();
  // Half of the rung: a reservation rounds every span up to a granule and shares the rung with
  // others.
  tokens = std::min(tokens, *rung / 2 / bytes_per_token);
  if (tokens == 0) {
    return Error(Code::kExhausted,
                 "one token of KV takes {} bytes, which neither memory nor address space can hold",
                 bytes_per_token);
  }
  return tokens;
}

}  // namespace

Result<std::unique_ptr<Sequence>> Sequence::Create(const Store& store, const Group& group,
                                                   const SequenceOptions& options) {
  if (group.retention != Retention::kFull) {
    return Error(Code::kUsage, "KV groups that keep their tokens as '{}' are not built yet",
                 RetentionName(group.retention));
  }
  GRANULE_CHECK(!group.layers.empty());
  const auto capacity = ReservationTokens(store, options.hard_max, group.BytesPerToken());
  if (!capacity.ok()) return capacity.status();
  const size_t granule = store.vmm->capabilities().granule_bytes;
  auto layout = MakeLayout(options.layout, group, *capacity, granule);
  if (!layout.ok()) return layout.status();
  auto range = store.space->Carve(layout->bytes);
  if (!range.ok()) return range.status();

  std::unique_ptr<Sequence> sequence(new Sequence(store, options));
  sequence->layout_ = std::move(*layout);
  sequence->range_ = *range;
  sequence->lengths_.capacity = *capacity;
  return sequence;
}

Sequence::~Sequence() {
  if (range_.bytes == 0) return;
  const Status status = store_.table->Decommit(range_);
  // Addresses whose unmap failed are never used again.
  if (status.ok() && store_.table->BackedBytes(range_) == 0 && !store_.table->IsPoisoned(range_)) {
    store_.space->Return(range_);
  }
}

Status Sequence::Ensure(uint64_t tokens) {
  if (!poisoned_.ok()) return poisoned_;
  const auto outcome = EnsureCapacity(*this, options_.hard_max.or_unbounded(), tokens);
  return outcome.ok() ? Status() : outcome.status();
}

void Sequence::Advance(uint64_t count) {
  GRANULE_CHECK(count <= lengths_.committed - lengths_.live);
  lengths_.live += count;
}

Result<uint64_t> Sequence::Rewind(uint64_t length) {
  if (!poisoned_.ok()) return poisoned_;
  if (length > lengths_.live) {
    return InvalidInput("cannot rewind to {} tokens: the sequence holds {}", length, lengths_.live);
  }
  if (length != lengths_.live) {
    lengths_.live = length;
    ++counters_.invalidations;
  }
  return length;
}

Status Sequence::Reset() {
  if (!poisoned_.ok()) return poisoned_;
  if (lengths_.live != 0) ++counters_.invalidations;
  lengths_.live = 0;
  lengths_.committed = 0;
  Status status = store_.table->Decommit(range_);
  if (!status.ok()) {
    poisoned_ = Error(Code::kPoisoned,
                      "this sequence can only be closed: giving its memory back failed: {}",
                      status.message());
    return poisoned_;
  }
  return status;
}

uint64_t Sequence::Target(uint64_t required) const {
  if (options_.policy.rounding == Rounding::kBucket) {
    const uint64_t bound = std::min(options_.hard_max.or_unbounded(), lengths_.capacity);
    return Bucket(required, bound, options_.policy.min_bucket);
  }
  return LengthHeldByGranules(layout_, required, store_.vmm->capabilities().granule_bytes);
}

CaptureSignature Sequence::Signature() const {
  CaptureSignature signature;
  for (const Span& span : layout_.spans) {
    signature.emplace_back(range_.base + span.offset, layout_.capacity);
  }
  return signature;
}

std::vector<memory::AddressRange> Sequence::CommitRanges(uint64_t first, uint64_t end) const {
  std::vector<memory::AddressRange> ranges;
  for (const ByteRange& range : LiveRanges(layout_, first, end)) {
    ranges.push_back({range_.base + range.begin, static_cast<size_t>(range.end - range.begin)});
  }
  return ranges;
}

// Maps what the new slots touch and zeroes what may hold old bytes.
Status Sequence::Build(const GrowthStep& step) {
  const auto start = Clock::now();
  auto committed = store_.table->Commit(CommitRanges(step.old_committed, step.new_committed));
  if (!committed.ok()) return committed.status();
  staged_ = std::move(*committed);
  for (const memory::AddressRange& range : staged_.stale) {
    std::memset(reinterpret_cast<void*>(range.base), 0, range.bytes);
  }
  const auto stall = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
  counters_.commit_stall_us.Add(static_cast<uint64_t>(stall.count()));
  return {};
}

Status Sequence::InvalidateCapture(const std::string&) { return {}; }

Status Sequence::Abandon(const GrowthStep&) {
  Status first;
  for (const memory::AddressRange& range : staged_.fresh) {
    if (Status s = store_.table->Decommit(range); !s.ok() && first.ok()) first = s;
  }
  staged_ = {};
  if (!first.ok()) {
    poisoned_ =
        Error(Code::kPoisoned, "this sequence can only be closed: undoing a growth failed: {}",
              first.message());
    return poisoned_;
  }
  return first;
}

void Sequence::Publish(const GrowthStep& step, bool kept, const std::string&) {
  const uint64_t initial =
      options_.policy.rounding == Rounding::kBucket
          ? Bucket(0, options_.hard_max.or_unbounded(), options_.policy.min_bucket)
          : step.new_committed;
  // The first commit of an empty sequence is its start, not a growth; a first need beyond the floor
  // is both at once.
  if (step.old_committed > 0 || step.new_committed > initial) {
    ++counters_.growth_events;
    ++(kept ? counters_.growth_keeps : counters_.invalidations);
  }
  counters_.granules_mapped += staged_.new_bytes / store_.vmm->capabilities().granule_bytes;
  lengths_.committed = step.new_committed;
  staged_ = {};
}

Status Sequence::CapacityExceeded(uint64_t required) const {
  CapacityExceededFacts facts;
  facts.required = required;
  facts.limit = std::min(options_.hard_max.or_unbounded(), lengths_.capacity);
  facts.source = options_.hard_max.source;
  facts.model_context = options_.model_context;
  facts.bytes_per_token = layout_.bytes_per_token;
  facts.memory = QueryMemory(*store_.vmm);
  return CapacityExceededError(facts);
}

Status Sequence::GrowthFailed(const GrowthStep& step, const Status& cause) const {
  GrowthFailedFacts facts;
  facts.old_tokens = step.old_committed;
  facts.new_tokens = step.new_committed;
  facts.new_bytes =
      store_.table->WouldCommitBytes(CommitRanges(step.old_committed, step.new_committed));
  facts.peak_bytes = SaturatingAdd(store_.table->BackedBytes(range_), facts.new_bytes);
  facts.peak_reason = "commit growth adds memory behind the same addresses and copies nothing";
  facts.bytes_per_token = layout_.bytes_per_token;
  facts.memory = QueryMemory(*store_.vmm);
  return GrowthFailedError(facts, cause);
}

Counters Sequence::counters() const {
  const uint64_t granule = store_.vmm->capabilities().granule_bytes;
  Counters counters = counters_;
  counters.committed_bytes = SpanwiseGranules(layout_, lengths_.committed, granule) * granule;
  counters.unique_physical_bytes = store_.table->BackedBytes(range_);
  counters.reserved_bytes = range_.bytes;
  counters.pooled_bytes = store_.pool->counters().pooled_bytes;
  counters.tail_waste_bytes =
      counters.unique_physical_bytes -
      std::min(counters.unique_physical_bytes, lengths_.live * layout_.bytes_per_token);
  return counters;
}

bool Sequence::IsValid() const {
  if (lengths_.live > lengths_.committed || lengths_.committed > lengths_.capacity) return false;
  if (lengths_.committed > options_.hard_max.or_unbounded()) return false;
  if (!poisoned_.ok()) return true;
  const uint64_t granule = store_.vmm->capabilities().granule_bytes;
  const uint64_t expected =
      TouchedGranules(LiveRanges(layout_, 0, lengths_.committed), granule) * granule;
  return store_.table->BackedBytes(range_) == expected &&
         store_.table->WouldCommitBytes(CommitRanges(0, lengths_.committed)) == 0;
}

}  // namespace granule::kv
