// Storage whose memory is put behind reserved addresses: nothing ever moves.
#pragma once

#include <vector>

#include "kv/storage.h"

namespace granule::kv {

class CommitStorage final : public Storage {
 public:
  // Takes a parked range of the same layout where there is one; *committed is what it holds
  // already.
  static Result<std::unique_ptr<CommitStorage>> Make(const Store& store, const LayoutChoice& choice,
                                                     const Group& group, uint64_t hard_max,
                                                     uint64_t* committed);
  ~CommitStorage() override;

  GrowthKind kind() const override { return GrowthKind::kCommit; }
  bool moves() const override { return false; }
  uint64_t Limit() const override { return layout_.capacity; }
  uint64_t Capacity() const override { return layout_.capacity; }
  std::byte* base() const override { return reinterpret_cast<std::byte*>(range_.base); }
  uint64_t HeldBy(uint64_t length) const override;
  CaptureSignature Signature() const override;

  Status Build(const GrowthStep& step) override;
  Status Abandon(const GrowthStep& step) override;
  uint64_t Publish(const GrowthStep& step) override;
  Result<uint64_t> Shrink(uint64_t length) override;

  StorageBytes bytes(uint64_t committed) const override;
  uint64_t granules_mapped() const override { return granules_mapped_; }
  GrowthNeed Need(const GrowthStep& step) const override;
  bool IsValid(uint64_t committed) const override;

  // Creates the handles that a growth of the committed length would map, ahead of it: they wait in
  // the pool. Nothing is mapped.
  Status Prepare(uint64_t old_committed, uint64_t new_committed);

  // Shows the first `live` tokens of `parent` here: handles that hold nothing else are shared
  // read-only, granules of the rest are copied. This storage is empty before; after a failure it is
  // empty again. Returns the committed length.
  Result<uint64_t> ShareFrom(CommitStorage& parent, uint64_t live);
  // Makes slots [first, end) writable where other sequences show the same memory: a private copy.
  // Staged like a growth: all or nothing.
  Status MakePrivate(uint64_t first, uint64_t end);
  // Hands the range with its memory to the parking lot.
  void Park(uint64_t committed);

 private:
  CommitStorage(const Store& store) : store_(store) {}  // NOLINT

  std::vector<memory::AddressRange> Ranges(uint64_t first, uint64_t end) const;
  uint64_t BackedLength(uint64_t known) const;
  std::vector<memory::AddressRange> FullHandles(const CommitStorage& parent, uint64_t live) const;
  uint64_t granule() const { return store_.vmm->capabilities().granule_bytes; }

  Store store_;
  memory::AddressRange range_;
  memory::Committed staged_;
  uint64_t granules_mapped_ = 0;
  bool may_be_shared_ = false;  // this range shows or gave memory to another
};

}  // namespace granule::kv
