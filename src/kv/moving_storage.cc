// Storages whose strides follow the bucket, so that a growth moves live tokens.
#include <algorithm>
#include <vector>

#include "base/arith.h"
#include "base/check.h"
#include "kv/storage.h"

namespace granule::kv {
namespace {

constexpr uint64_t kAlignment = 64;

// A span's fragment of the old strides and of the new ones.
struct Move {
  uint64_t from = 0;
  uint64_t to = 0;
  uint64_t bytes = 0;  // of live tokens
};

// One move per fragment, in ascending order.
std::vector<Move> Moves(const Layout& from, const Layout& to, uint64_t live) {
  const auto source = LiveRanges(from, 0, live);
  const auto target = LiveRanges(to, 0, live);
  GRANULE_CHECK(source.size() == target.size());
  std::vector<Move> moves;
  for (size_t i = 0; i < source.size(); ++i) {
    moves.push_back({source[i].begin, target[i].begin, source[i].end - source[i].begin});
  }
  return moves;
}

// Places stay as reserved for the largest capacity, strides become those of a smaller one.
Layout WithCapacity(const Layout& reserved, uint64_t capacity) {
  Layout layout = reserved;
  layout.capacity = capacity;
  for (Plane& plane : layout.planes) {
    const SpanShape& shape = layout.spans[static_cast<size_t>(plane.span)].shape;
    if (shape.fragments > 1) plane.head_stride = capacity * shape.token_bytes;
  }
  for (Span& span : layout.spans)
    span.bytes = span.shape.fragments * capacity * span.shape.token_bytes;
  return layout;
}

// Head-major inside a reservation, strides of the bucket.
class RestrideStorage final : public Storage {
 public:
  RestrideStorage(const Store& store, Layout reserved, memory::AddressRange range)
      : store_(store), reserved_(std::move(reserved)), range_(range) {
    layout_ = WithCapacity(reserved_, 0);
  }
  ~RestrideStorage() override {
    const Status status = store_.table->Decommit(range_);
    if (status.ok() && !store_.table->IsPoisoned(range_)) store_.space->Return(range_);
  }

  GrowthKind kind() const override { return GrowthKind::kRestride; }
  bool moves() const override { return true; }
  uint64_t Limit() const override { return reserved_.capacity; }
  uint64_t Capacity() const override { return layout_.capacity; }
  std::byte* base() const override { return reinterpret_cast<std::byte*>(range_.base); }

  CaptureSignature Signature() const override {
    CaptureSignature signature;
    const uint64_t capacity = staged_ ? staged_->capacity : layout_.capacity;
    for (const Span& span : layout_.spans)
      signature.emplace_back(range_.base + span.offset, capacity);
    return signature;
  }

  // Maps the whole new bucket, then spreads the heads apart: last head first, so that nothing is
  // overwritten before it has moved (a head moves up by head x (new - old) tokens; Copy covers
  // overlap of a head with itself).
  Status Build(const GrowthStep& step) override {
    Layout next = WithCapacity(reserved_, step.new_committed);
    auto committed = store_.table->Commit(Ranges(next));
    if (!committed.ok()) return committed.status();
    fresh_ = std::move(committed->fresh);
    granules_staged_ = committed->new_bytes / granule();
    moves_ = Moves(layout_, next, step.live);
    moved_from_ = moves_.size();
    copied_ = 0;
    if (Status failure = Fill(next, committed->stale, step.live); !failure.ok()) {
      const Status undone = Abandon(step);
      return undone.ok() || failure.code() == Code::kDeviceLost ? failure : undone;
    }
    staged_ = std::move(next);
    return {};
  }

  // Moves back what has moved, first head first, then gives the new memory back.
  Status Abandon(const GrowthStep& step) override {
    staged_.reset();
    const bool moved = moved_from_ < moves_.size();
    for (; moved_from_ < moves_.size(); ++moved_from_) {
      const Move& move = moves_[moved_from_];
      if (Status s = MoveBytes(move.to, move.from, move.bytes); !s.ok()) return Lost(s);
    }
    if (moved) {
      if (Status s = ZeroBehind(layout_, step.live); !s.ok()) return Lost(s);
    }
    Status first;
    for (const memory::AddressRange& range : fresh_) {
      if (Status s = store_.table->Decommit(range); !s.ok() && first.ok()) first = s;
    }
    fresh_.clear();
    return first;
  }

  uint64_t Publish(const GrowthStep&) override {
    layout_ = std::move(*staged_);
    staged_.reset();
    fresh_.clear();
    moves_.clear();
    granules_mapped_ += granules_staged_;
    return copied_;
  }

  Result<uint64_t> Shrink(uint64_t length) override {
    if (length > 0) return layout_.capacity;  // strides fill the bucket: there is no free tail
    if (Status s = store_.table->Decommit(range_); !s.ok()) return s;
    layout_ = WithCapacity(reserved_, 0);
    return 0;
  }

  StorageBytes bytes(uint64_t committed) const override {
    StorageBytes bytes;
    bytes.committed =
        committed == 0 ? 0 : SpanwiseGranules(layout_, committed, granule()) * granule();
    bytes.unique = store_.table->BackedBytes(range_);
    bytes.reserved = range_.bytes;
    return bytes;
  }
  uint64_t granules_mapped() const override { return granules_mapped_; }

  GrowthNeed Need(const GrowthStep& step) const override {
    GrowthNeed need;
    need.new_bytes =
        store_.table->WouldCommitBytes(Ranges(WithCapacity(reserved_, step.new_committed)));
    need.peak_bytes = SaturatingAdd(store_.table->BackedBytes(range_), need.new_bytes);
    need.peak_reason =
        "re-stride growth puts memory behind the same addresses and moves live tokens in place";
    return need;
  }

  bool IsValid(uint64_t committed) const override {
    if (committed != layout_.capacity) return false;
    const auto live = committed == 0 ? std::vector<ByteRange>() : LiveRanges(layout_, 0, committed);
    return store_.table->BackedBytes(range_) == TouchedGranules(live, granule()) * granule();
  }

 private:
  uint64_t granule() const { return store_.vmm->capabilities().granule_bytes; }

  std::vector<memory::AddressRange> Ranges(const Layout& layout) const {
    std::vector<memory::AddressRange> ranges;
    for (const Span& span : layout.spans) {
      ranges.push_back({range_.base + span.offset, static_cast<size_t>(span.bytes)});
    }
    return ranges;
  }

  // What Build puts into the new memory. `moved_from_` says at any moment how far the moves came.
  Status Fill(const Layout& next, const std::vector<memory::AddressRange>& stale, uint64_t live) {
    for (const memory::AddressRange& range : stale) {
      if (Status s = store_.vmm->Zero(range); !s.ok()) return s;
    }
    while (moved_from_ > 0) {
      const Move& move = moves_[moved_from_ - 1];
      if (Status s = MoveBytes(move.from, move.to, move.bytes); !s.ok()) return s;
      --moved_from_;
      copied_ += move.from == move.to ? 0 : move.bytes;
    }
    return ZeroBehind(next, live);
  }

  Status MoveBytes(uint64_t from, uint64_t to, uint64_t bytes) {
    return from == to ? Status() : store_.vmm->Copy(range_.base + to, range_.base + from, bytes);
  }

  // Slots at and above the live length read as zeros, whatever moved away from there.
  Status ZeroBehind(const Layout& layout, uint64_t live) {
    if (layout.capacity == 0) return {};
    for (const ByteRange& range : LiveRanges(layout, live, layout.capacity)) {
      Status s = store_.vmm->Zero(
          {range_.base + range.begin, static_cast<size_t>(range.end - range.begin)});
      if (!s.ok()) return s;
    }
    return {};
  }

  // The strides are neither the old ones nor the new ones any more.
  static Status Lost(const Status& cause) {
    if (cause.code() == Code::kDeviceLost) return cause;
    return Error(Code::kPoisoned, "live tokens that had moved could not be moved back: {}",
                 cause.message());
  }

  Store store_;
  Layout reserved_;  // at the largest capacity: places of spans
  memory::AddressRange range_;
  std::optional<Layout> staged_;
  std::vector<memory::AddressRange> fresh_;
  std::vector<Move> moves_;  // of the growth that is staged, ascending
  size_t moved_from_ = 0;    // moves from this one on are done
  uint64_t copied_ = 0;
  uint64_t granules_staged_ = 0;
  uint64_t granules_mapped_ = 0;
};

// A plain buffer of exactly the bucket.
class ReallocStorage final : public Storage {
 public:
  ReallocStorage(const Store& store, const LayoutChoice& choice, const Group& group, uint64_t limit)
      : store_(store),
        buffers_(store.buffers ? *store.buffers : PlainBuffers()),
        choice_(choice),
        group_(group),
        limit_(limit) {
    layout_ = *MakeLayout(choice_, group_, 0, kAlignment);
  }
  ~ReallocStorage() override {
    if (buffer_ != nullptr) buffers_.Free(buffer_);
  }

  GrowthKind kind() const override { return GrowthKind::kRealloc; }
  bool moves() const override { return true; }
  uint64_t Limit() const override { return limit_; }
  uint64_t Capacity() const override { return layout_.capacity; }
  std::byte* base() const override { return buffer_; }

  CaptureSignature Signature() const override {
    const Layout& layout = staged_ ? *staged_ : layout_;
    const auto base = reinterpret_cast<uintptr_t>(staged_ ? staged_buffer_ : buffer_);
    CaptureSignature signature;
    for (const Span& span : layout.spans)
      signature.emplace_back(base + span.offset, layout.capacity);
    return signature;
  }

  Status Build(const GrowthStep& step) override {
    // With an alignment of 64 bytes instead of a granule the spans lie back to back.
    auto next = MakeLayout(choice_, group_, step.new_committed, kAlignment);
    if (!next.ok()) return next.status();
    // The heap promises more than there is and the process would be killed on touch, so look first.
    if (const auto memory = QueryMemory(*store_.vmm); memory && next->bytes > memory->free_bytes) {
      return Error(Code::kExhausted, "{} bytes are needed and {} are free", next->bytes,
                   memory->free_bytes);
    }
    auto buffer = buffers_.Allocate(next->bytes);
    if (!buffer.ok()) return buffer.status();
    if (Status s = Fill(*buffer, *next, step.live); !s.ok()) {
      buffers_.Free(*buffer);
      return s;
    }
    staged_ = std::move(*next);
    staged_buffer_ = *buffer;
    return {};
  }

  Status Abandon(const GrowthStep&) override {
    buffers_.Free(staged_buffer_);
    staged_buffer_ = nullptr;
    staged_.reset();
    return {};
  }

  uint64_t Publish(const GrowthStep&) override {
    if (buffer_ != nullptr) buffers_.Free(buffer_);
    buffer_ = staged_buffer_;
    layout_ = std::move(*staged_);
    staged_buffer_ = nullptr;
    staged_.reset();
    return copied_;
  }

  Result<uint64_t> Shrink(uint64_t length) override {
    if (length > 0) return layout_.capacity;
    if (buffer_ != nullptr) buffers_.Free(buffer_);
    buffer_ = nullptr;
    layout_ = *MakeLayout(choice_, group_, 0, kAlignment);
    return 0;
  }

  StorageBytes bytes(uint64_t committed) const override {
    StorageBytes bytes;
    bytes.committed = committed * layout_.bytes_per_token;
    bytes.unique = buffer_ == nullptr ? 0 : layout_.bytes;
    bytes.reserved = bytes.unique;
    return bytes;
  }

  GrowthNeed Need(const GrowthStep& step) const override {
    GrowthNeed need;
    need.new_bytes = SaturatingMul(step.new_committed, layout_.bytes_per_token);
    need.peak_bytes = SaturatingMul(SaturatingAdd(step.old_committed, step.new_committed),
                                    layout_.bytes_per_token);
    need.peak_reason = "reallocation holds the old and the new buffer at once";
    return need;
  }

  bool IsValid(uint64_t committed) const override {
    return committed == layout_.capacity && (committed == 0) == (buffer_ == nullptr);
  }

 private:
  // The new buffer is of the Vmm's device: its content goes through the Vmm as well.
  Status Fill(std::byte* buffer, const Layout& next, uint64_t live) {
    const auto to = reinterpret_cast<memory::Address>(buffer);
    const auto from = reinterpret_cast<memory::Address>(buffer_);
    if (Status s = store_.vmm->Zero({to, static_cast<size_t>(next.bytes)}); !s.ok()) return s;
    copied_ = 0;
    for (const Move& move : Moves(layout_, next, live)) {
      Status s = store_.vmm->Copy(to + move.to, from + move.from, move.bytes);
      if (!s.ok()) return s;
      copied_ += move.bytes;
    }
    return {};
  }

  Store store_;
  BufferAllocator& buffers_;
  LayoutChoice choice_;
  Group group_;
  uint64_t limit_;
  std::byte* buffer_ = nullptr;
  std::optional<Layout> staged_;
  std::byte* staged_buffer_ = nullptr;
  uint64_t copied_ = 0;
};

}  // namespace

Result<std::unique_ptr<Storage>> MakeRestrideStorage(const Store& store, const LayoutChoice& choice,
                                                     const Group& group, uint64_t hard_max) {
  if (choice.kind != LayoutKind::kHeadMajor) {
    return Error(Code::kUsage,
                 "growth by restride is for the head-major layout, whose strides depend on the "
                 "capacity; {} never needs it: "
                 "use --kv-growth commit, or --kv-layout head-major",
                 LayoutName(choice));
  }
  const auto capacity = ReservationTokens(store, hard_max, group.BytesPerToken());
  if (!capacity.ok()) return capacity.status();
  auto layout = MakeLayout(choice, group, *capacity, store.vmm->capabilities().granule_bytes);
  if (!layout.ok()) return layout.status();
  auto range = store.space->Carve(layout->bytes);
  if (!range.ok()) return range.status();
  return std::unique_ptr<Storage>(new RestrideStorage(store, std::move(*layout), *range));
}

Result<std::unique_ptr<Storage>> MakeReallocStorage(const Store& store, const LayoutChoice& choice,
                                                    const Group& group, uint64_t hard_max) {
  const auto limit = ReservationTokens(store, hard_max, group.BytesPerToken());
  if (!limit.ok()) return limit.status();
  return std::unique_ptr<Storage>(new ReallocStorage(store, choice, group, *limit));
}

}  // namespace granule::kv
