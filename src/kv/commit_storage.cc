#include "kv/commit_storage.h"

#include <algorithm>

#include "base/arith.h"
#include "base/check.h"
#include "kv/parking.h"

namespace granule::kv {
namespace {

// Granule windows [begin, end) that the ranges touch, as byte ranges: ascending, disjoint, not
// adjacent.
std::vector<ByteRange> TouchedWindows(const std::vector<ByteRange>& ranges, uint64_t granule) {
  std::vector<ByteRange> windows;
  windows.reserve(ranges.size());
  for (const ByteRange& range : ranges) {
    windows.push_back({RoundDown(range.begin, granule), RoundUp(range.end, granule)});
  }
  std::sort(windows.begin(), windows.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  std::vector<ByteRange> merged;
  for (const ByteRange& window : windows) {
    if (!merged.empty() && window.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, window.end);
    } else {
      merged.push_back(window);
    }
  }
  return merged;
}

}  // namespace

Result<std::unique_ptr<CommitStorage>> CommitStorage::Make(const Store& store,
                                                           const LayoutChoice& choice,
                                                           const Group& group, uint64_t hard_max,
                                                           uint64_t* committed) {
  *committed = 0;
  const auto capacity = ReservationTokens(store, hard_max, group.BytesPerToken());
  if (!capacity.ok()) return capacity.status();
  auto layout = MakeLayout(choice, group, *capacity, store.vmm->capabilities().granule_bytes);
  if (!layout.ok()) return layout.status();
  std::unique_ptr<CommitStorage> storage(new CommitStorage(store));
  storage->layout_ = std::move(*layout);
  if (store.parking != nullptr) {
    if (auto parked = store.parking->Take(storage->layout_)) {
      storage->range_ = parked->range;
      *committed = parked->committed;
      return storage;
    }
  }
  auto range = store.space->Carve(storage->layout_.bytes);
  if (!range.ok()) return range.status();
  storage->range_ = *range;
  return storage;
}

CommitStorage::~CommitStorage() {
  if (range_.bytes == 0) return;
  const Status status = store_.table->Decommit(range_);
  // Addresses whose unmap failed are never used again.
  if (status.ok() && !store_.table->IsPoisoned(range_)) store_.space->Return(range_);
}

uint64_t CommitStorage::HeldBy(uint64_t length) const {
  return LengthHeldByGranules(layout_, length, granule());
}

CaptureSignature CommitStorage::Signature() const {
  CaptureSignature signature;
  for (const Span& span : layout_.spans) {
    signature.emplace_back(range_.base + span.offset, layout_.capacity);
  }
  return signature;
}

std::vector<memory::AddressRange> CommitStorage::Ranges(uint64_t first, uint64_t end) const {
  std::vector<memory::AddressRange> ranges;
  for (const ByteRange& range : LiveRanges(layout_, first, end)) {
    ranges.push_back({range_.base + range.begin, static_cast<size_t>(range.end - range.begin)});
  }
  return ranges;
}

// Maps what the new slots touch and zeroes what may hold old bytes.
Status CommitStorage::Build(const GrowthStep& step) {
  // A fragment's new slots may begin inside a granule that a fork shows read-only.
  if (Status s = MakePrivate(step.old_committed, step.new_committed); !s.ok()) return s;
  auto committed = store_.table->Commit(Ranges(step.old_committed, step.new_committed));
  if (!committed.ok()) return committed.status();
  staged_ = std::move(*committed);
  for (const memory::AddressRange& range : staged_.stale) {
    const Status zeroed = store_.vmm->Zero(range);
    if (zeroed.ok()) continue;
    const Status undone = Abandon(step);
    return undone.ok() || zeroed.code() == Code::kDeviceLost ? zeroed : undone;
  }
  return {};
}

Status CommitStorage::Abandon(const GrowthStep&) {
  Status first;
  for (const memory::AddressRange& range : staged_.fresh) {
    if (Status s = store_.table->Decommit(range); !s.ok() && first.ok()) first = s;
  }
  staged_ = {};
  return first;
}

uint64_t CommitStorage::Publish(const GrowthStep&) {
  granules_mapped_ += staged_.new_bytes / granule();
  staged_ = {};
  return 0;
}

Status CommitStorage::Prepare(uint64_t old_committed, uint64_t new_committed) {
  for (const auto& [bytes, count] :
       store_.table->HandlesFor(Ranges(old_committed, new_committed))) {
    if (Status s = store_.pool->Prefill(bytes, count); !s.ok()) return s;
  }
  return {};
}

// The longest length whose slots are all backed, where those of `known` are: a handle of several
// granules stays whole while any of its bytes is needed.
uint64_t CommitStorage::BackedLength(uint64_t known) const {
  if (store_.vmm->capabilities().max_handle_bytes == granule()) return HeldBy(known);
  uint64_t backed = known;
  uint64_t end = layout_.capacity;
  while (backed < end) {
    const uint64_t middle = backed + (end - backed + 1) / 2;
    if (store_.table->WouldCommitBytes(Ranges(backed, middle)) == 0) {
      backed = middle;
    } else {
      end = middle - 1;
    }
  }
  return backed;
}

Result<uint64_t> CommitStorage::Shrink(uint64_t length) {
  // Everything between the windows that the kept tokens touch goes back.
  uint64_t at = 0;
  Status status;
  auto windows = TouchedWindows(LiveRanges(layout_, 0, length), granule());
  windows.push_back({layout_.bytes, layout_.bytes});
  for (const ByteRange& kept : windows) {
    if (kept.begin > at) {
      const Status s =
          store_.table->Decommit({range_.base + at, static_cast<size_t>(kept.begin - at)});
      if (!s.ok() && status.ok()) status = s;
    }
    at = kept.end;
  }
  if (!status.ok()) return status;
  return length == 0 ? 0 : BackedLength(length);
}

StorageBytes CommitStorage::bytes(uint64_t committed) const {
  StorageBytes bytes;
  bytes.committed = SpanwiseGranules(layout_, committed, granule()) * granule();
  bytes.shared = may_be_shared_ ? store_.table->ReadOnlyBytes(range_) : 0;
  bytes.unique = store_.table->BackedBytes(range_) - bytes.shared;
  bytes.reserved = range_.bytes;
  return bytes;
}

GrowthNeed CommitStorage::Need(const GrowthStep& step) const {
  GrowthNeed need;
  need.new_bytes = store_.table->WouldCommitBytes(Ranges(step.old_committed, step.new_committed));
  need.peak_bytes = SaturatingAdd(store_.table->BackedBytes(range_), need.new_bytes);
  need.peak_reason = "commit growth puts memory behind the same addresses and copies nothing";
  return need;
}

bool CommitStorage::IsValid(uint64_t committed) const {
  const auto ranges = Ranges(0, committed);
  const uint64_t backed = store_.table->BackedBytes(range_);
  if (store_.vmm->capabilities().max_handle_bytes == granule() &&
      backed != TouchedGranules(LiveRanges(layout_, 0, committed), granule()) * granule()) {
    return false;
  }
  return backed == store_.table->HandleBytesUnder(ranges) &&
         store_.table->WouldCommitBytes(ranges) == 0;
}

// The parent's handles that live tokens fill to the last byte, as ranges here.
std::vector<memory::AddressRange> CommitStorage::FullHandles(const CommitStorage& parent,
                                                             uint64_t live) const {
  std::vector<ByteRange> ranges = LiveRanges(layout_, 0, live);
  std::sort(ranges.begin(), ranges.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  std::vector<memory::AddressRange> handles;
  for (size_t i = 0; i < ranges.size();) {
    ByteRange run = ranges[i++];
    while (i < ranges.size() && ranges[i].begin <= run.end)
      run.end = std::max(run.end, ranges[i++].end);
    for (const memory::AddressRange& handle : store_.table->WholeHandles(
             {parent.range_.base + run.begin, static_cast<size_t>(run.end - run.begin)})) {
      handles.push_back({handle.base - parent.range_.base + range_.base, handle.bytes});
    }
  }
  return handles;
}

Result<uint64_t> CommitStorage::ShareFrom(CommitStorage& parent, uint64_t live) {
  GRANULE_CHECK(parent.layout_ == layout_ && store_.table->BackedBytes(range_) == 0);
  if (live == 0) return 0;
  // What is not shown is copied: the rest of the granules that live tokens touch.
  const std::vector<memory::AddressRange> shared = FullHandles(parent, live);
  std::vector<memory::AddressRange> copied;
  auto next = shared.begin();
  for (const ByteRange& window : TouchedWindows(LiveRanges(layout_, 0, live), granule())) {
    memory::Address at = range_.base + window.begin;
    const memory::Address end = range_.base + window.end;
    for (; next != shared.end() && next->base < end; ++next) {
      if (next->base > at) copied.push_back({at, next->base - at});
      at = next->end();
    }
    if (at < end) copied.push_back({at, end - at});
  }

  const auto undo = [&](const Status& status) {
    // What cannot be taken back stays charged; this storage is closed by the caller either way.
    (void)store_.table->Decommit(range_);
    return status;
  };
  const auto source = [&](const memory::AddressRange& range) {
    return parent.range_.base + (range.base - range_.base);
  };
  auto committed = store_.table->Commit(copied);
  if (!committed.ok()) return committed.status();
  for (const memory::AddressRange& handle : shared) {
    const Status s =
        store_.table->Share(source(handle), handle.base, handle.bytes, memory::Access::kReadOnly);
    if (!s.ok()) return undo(s);
  }
  for (const memory::AddressRange& rest : copied) {
    const Status s = store_.vmm->Copy(rest.base, source(rest), rest.bytes);
    if (!s.ok()) return undo(s);
  }
  granules_mapped_ += committed->new_bytes / granule();
  may_be_shared_ = true;
  parent.may_be_shared_ = true;
  return HeldBy(live);
}

Status CommitStorage::MakePrivate(uint64_t first, uint64_t end) {
  if (!may_be_shared_) return {};
  std::vector<memory::AddressRange> windows;
  for (const ByteRange& window : TouchedWindows(LiveRanges(layout_, first, end), granule())) {
    windows.push_back({range_.base + window.begin, static_cast<size_t>(window.end - window.begin)});
  }
  return store_.table->MakePrivate(windows, *store_.space);
}

void CommitStorage::Park(uint64_t committed) {
  if (store_.parking == nullptr || committed == 0 || may_be_shared_ ||
      store_.table->IsPoisoned(range_)) {
    return;  // closed as usual by the destructor
  }
  store_.parking->Put({layout_, range_, committed});
  range_ = {};
}

}  // namespace granule::kv
