// The KV of one sequence: a reservation whose memory follows the tokens.
#pragma once

#include <memory>
#include <optional>

#include "base/kv_view.h"
#include "base/status.h"
#include "kv/capacity.h"
#include "kv/capture.h"
#include "kv/commit_storage.h"
#include "kv/counters.h"
#include "kv/growth.h"
#include "kv/layout.h"
#include "kv/storage.h"

namespace granule::kv {

struct SequenceOptions {
  LayoutChoice layout;
  GrowthKind growth = GrowthKind::kCommit;
  CapacityPolicy policy;  // kBucket for the growth kinds that move
  HardMax hard_max;
  std::optional<uint64_t> model_context;  // for messages
  uint64_t mask_bytes_per_token =
      0;  // 8 where the graph has an int64 attention mask; counted in kv_bytes_moved
  CapturePolicy capture_policy = CapturePolicy::kDefault;
  bool capture_enabled = false;
};

// Thread rules: one call at a time; different sequences may run at once. Not movable: kernels hold
// its addresses during a step.
class Sequence final : private GrowthBackend {
 public:
  // Reserves addresses; commits nothing. `group` must be Retention::kFull. kUsage for levers that
  // do not go together.
  static Result<std::unique_ptr<Sequence>> Create(const Store& store, const Group& group,
                                                  const SequenceOptions& options);
  // Gives everything back. What the system will not take back stays charged and reserved
  // (HandleCounters::quarantined_*).
  ~Sequence() override = default;
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  // Makes slots [0, tokens) usable. On error nothing changed and the call may be repeated:
  //   kCapacityExceeded  tokens is above the hard maximum, or the reservation of an unbounded one
  //   kExhausted         the system refused memory
  //   kPoisoned          a failure could not be undone; the sequence can only be closed
  //   kDeviceLost        the GPU's context broke; the same
  Status Ensure(uint64_t tokens);
  // Ahead of Ensure(tokens), on any thread, but not beside another call of this sequence: creates
  // the handles that it would map and leaves them in the pool, unmapped, where creating is slow
  // (commit growth; otherwise, and as far as the pool's bound does not reach, nothing). An error is
  // no harm: Ensure creates what it lacks. Sequences that are prepared for the same step share what
  // is in the pool.
  Status Prepare(uint64_t tokens);
  // Tokens [live, live + count) were written; count <= committed - live.
  void Advance(uint64_t count);
  // Forgets tokens from `length` on; memory stays committed. Returns the length reached (== length
  // here; state groups may only reach less). Above the live length: kInvalidInput.
  Result<uint64_t> Rewind(uint64_t length);
  // Gives back memory that holds no live token, as far as the growth kind can.
  Status Trim();
  // Forgets all tokens and gives the memory back; addresses stay.
  Status Reset();
  // Another sequence that starts with the same tokens: granules full of live tokens are shared
  // read-only, the rest is copied. Commit growth only. The memory is private again, granule by
  // granule, when either side writes to it.
  Result<std::unique_ptr<Sequence>> Fork();
  // Closes a finished sequence and keeps its committed range for the next one of the same shape
  // (commit growth; otherwise it is closed).
  static void Park(std::unique_ptr<Sequence> sequence);

  KvView View(int32_t layer) const { return storage_->layout().View(storage_->base(), layer); }
  std::byte* base() const { return storage_->base(); }
  const Layout& layout() const { return storage_->layout(); }
  const SequenceOptions& options() const { return options_; }
  const HardMax& hard_max() const { return options_.hard_max; }
  const CapacityPolicy& policy() const { return options_.policy; }

  uint64_t live_length() const { return live_; }
  uint64_t committed_length() const { return committed_; }
  uint64_t capacity() const { return storage_->Capacity(); }
  uint64_t bytes_per_token() const { return layout().bytes_per_token; }
  GraphCapture& capture() { return capture_; }
  const GraphCapture& capture() const { return capture_; }
  Counters counters() const;
  bool IsValid()
      const;  // walker: lengths ordered, every committed slot backed, nothing backed beyond policy

 private:
  Sequence(const Store& store, const Group& group, const SequenceOptions& options)
      : store_(store),
        group_(group),
        options_(options),
        capture_(options.capture_policy, options.capture_enabled) {}

  Lengths lengths() const override { return {live_, committed_, storage_->Capacity()}; }
  uint64_t Limit() const override { return storage_->Limit(); }
  uint64_t Target(uint64_t required) const override;
  CaptureSignature Signature() const override { return storage_->Signature(); }
  Status Build(const GrowthStep& step) override { return storage_->Build(step); }
  Status BuildMask(const GrowthStep&) override { return {}; }
  Status InvalidateCapture(const std::string&) override { return {}; }
  void Publish(const GrowthStep& step, bool kept, const std::string& reason) override;
  Status Abandon(const GrowthStep& step) override;
  Status CapacityExceeded(uint64_t required) const override;
  Status GrowthFailed(const GrowthStep& step, const Status& cause) const override;

  Status Poison(const char* what, const Status& cause);

  Store store_;
  Group group_;
  SequenceOptions options_;
  std::unique_ptr<Storage> storage_;
  CommitStorage* commit_ = nullptr;  // storage_ where growth is by commit
  uint64_t live_ = 0;
  uint64_t committed_ = 0;
  GraphCapture capture_;
  uint64_t growth_events_ = 0;
  uint64_t moved_bytes_ = 0;
  uint64_t copied_bytes_ = 0;
  StallHistogram stall_;
  Status poisoned_;
};

}  // namespace granule::kv
