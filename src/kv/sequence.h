// The KV of one sequence: a reservation whose memory follows the tokens.
#pragma once

#include <memory>
#include <optional>

#include "base/kv_view.h"
#include "base/status.h"
#include "kv/capacity.h"
#include "kv/counters.h"
#include "kv/growth.h"
#include "kv/layout.h"
#include "memory/address_space.h"
#include "memory/handle_pool.h"
#include "memory/mapping_table.h"
#include "memory/vmm.h"

namespace granule::kv {

// The memory of a device, shared by its sequences; outlives them.
struct Store {
  memory::Vmm* vmm = nullptr;
  memory::AddressSpace* space = nullptr;
  memory::HandlePool* pool = nullptr;
  memory::MappingTable* table = nullptr;
};

struct SequenceOptions {
  LayoutChoice layout;
  CapacityPolicy policy;
  HardMax hard_max;
  std::optional<uint64_t> model_context;  // for messages
};

// Thread rules: one call at a time; different sequences may run at once. Not movable: kernels hold
// its addresses during a step.
class Sequence final : private GrowthBackend {
 public:
  // Reserves addresses; commits nothing. `group` must be Retention::kFull.
  static Result<std::unique_ptr<Sequence>> Create(const Store& store, const Group& group,
                                                  const SequenceOptions& options);
  // Gives everything back. What the system will not take back stays charged and reserved
  // (HandleCounters::quarantined_*).
  ~Sequence() override;
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  // Makes slots [0, tokens) usable. On error nothing changed and the call may be repeated:
  //   kCapacityExceeded  tokens is above the hard maximum (or the reservation of an unbounded
  //   sequence) kExhausted         the system refused memory kPoisoned          an earlier failure
  //   could not be undone
  Status Ensure(uint64_t tokens);
  // Tokens [live, live + count) were written; count <= committed - live.
  void Advance(uint64_t count);
  // Forgets tokens from `length` on; memory stays committed. Returns the length reached (== length
  // here; state groups may only reach less). Above the live length: kInvalidInput.
  Result<uint64_t> Rewind(uint64_t length);
  // Forgets all tokens and gives the memory back; addresses stay.
  Status Reset();

  KvView View(int32_t layer) const { return layout_.View(base(), layer); }
  std::byte* base() const { return reinterpret_cast<std::byte*>(range_.base); }
  const Layout& layout() const { return layout_; }
  const HardMax& hard_max() const { return options_.hard_max; }
  const CapacityPolicy& policy() const { return options_.policy; }

  uint64_t live_length() const { return lengths_.live; }
  uint64_t committed_length() const { return lengths_.committed; }
  uint64_t capacity() const { return lengths_.capacity; }
  uint64_t bytes_per_token() const { return layout_.bytes_per_token; }
  Counters counters() const;
  bool IsValid()
      const;  // walker: lengths ordered, every committed slot backed, nothing backed beyond policy

 private:
  Sequence(const Store& store, const SequenceOptions& options) : store_(store), options_(options) {}

  Lengths lengths() const override { return lengths_; }
  uint64_t Target(uint64_t required) const override;
  CaptureSignature Signature() const override;
  Status Build(const GrowthStep& step) override;
  Status BuildMask(const GrowthStep&) override { return {}; }
  Status InvalidateCapture(const std::string& reason) override;
  void Publish(const GrowthStep& step, bool kept, const std::string& reason) override;
  Status Abandon(const GrowthStep& step) override;
  Status CapacityExceeded(uint64_t required) const override;
  Status GrowthFailed(const GrowthStep& step, const Status& cause) const override;

  std::vector<memory::AddressRange> CommitRanges(uint64_t first, uint64_t end) const;

  Store store_;
  SequenceOptions options_;
  Layout layout_;
  memory::AddressRange range_;
  Lengths lengths_;
  Counters counters_;
  memory::Committed staged_;
  Status poisoned_;
};

}  // namespace granule::kv
