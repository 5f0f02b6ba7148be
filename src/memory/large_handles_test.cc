// Handles of several granules: what a commit asks for, what stays when a part of a handle goes, and
// the pool that serves them. Random use against a model that knows granules only.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "memory/memory_stack_for_test.h"

namespace granule::memory {
namespace {

constexpr size_t kG = 64 << 10;

class LargeHandles : public testing::Test {
 protected:
  void Make(size_t longest_granules, uint64_t retained_bytes) {
    stack_.reset();
    stack_ = std::make_unique<MemoryStack>(
        HostVmmOptions{.max_handle_bytes = longest_granules * kG}, retained_bytes);
    area_ = *stack_->space.Carve(64 * kG);
    stack_->vmm.ResetCounts();
  }
  void TearDown() override {
    if (stack_) stack_->ExpectSound();
  }
  AddressRange Range(size_t first, size_t granules) const {
    return {area_.base + first * kG, granules * kG};
  }
  Result<Committed> Commit(const std::vector<AddressRange>& ranges) {
    return stack_->table.Commit(ranges);
  }
  std::vector<size_t> Sizes(AddressRange range) const {  // in granules
    std::vector<size_t> sizes;
    for (const AddressRange& handle : stack_->table.WholeHandles(range))
      sizes.push_back(handle.bytes / kG);
    return sizes;
  }
  MappingTable& table() { return stack_->table; }
  HandlePool& pool() { return stack_->pool; }
  FaultVmm& vmm() { return stack_->vmm; }

  std::unique_ptr<MemoryStack> stack_;
  AddressRange area_;
};

using Granules = std::vector<size_t>;

TEST_F(LargeHandles, AGapIsFilledByPowersOfTwoUpToTheLongest) {
  Make(8, 0);
  ASSERT_TRUE(Commit({Range(0, 1)}).ok());
  const std::vector<AddressRange> need{Range(0, 24), Range(22, 8)};
  EXPECT_EQ(table().HandlesFor(need),
            (std::map<size_t, uint64_t>{{kG, 1}, {2 * kG, 2}, {4 * kG, 2}, {8 * kG, 2}}));
  ASSERT_TRUE(Commit(need).ok());
  EXPECT_EQ(Sizes(area_), (Granules{1, 8, 8, 4, 2, 1, 4, 2}));
  EXPECT_EQ(table().BackedBytes(area_), 30 * kG);
  EXPECT_TRUE(table().HandlesFor(need).empty());
  // No power of two itself: the longest is what it holds.
  Make(6, 0);
  ASSERT_TRUE(Commit({Range(0, 11)}).ok());
  EXPECT_EQ(Sizes(area_), (Granules{4, 4, 2, 1}));
}

TEST_F(LargeHandles, BytesUnderRangesCountHandlesWhole) {
  Make(8, 0);
  ASSERT_TRUE(Commit({Range(0, 8), Range(10, 3)}).ok());
  const auto under = [&](const std::vector<AddressRange>& ranges) {
    return table().HandleBytesUnder(ranges) / kG;
  };
  EXPECT_EQ(under({}), 0u);
  EXPECT_EQ(under({{area_.base + 3 * kG + 5, 1}}), 8u);
  EXPECT_EQ(under({Range(8, 2)}), 0u);
  EXPECT_EQ(under({Range(7, 4)}), 10u);
  EXPECT_EQ(under({Range(12, 1), Range(0, 2), Range(1, 5)}), 9u);
  EXPECT_EQ(under({{area_.base + kG, 0}}), 0u);
  EXPECT_EQ(Sizes(Range(0, 12)), (Granules{8, 2}));
  EXPECT_EQ(Sizes(Range(1, 12)), (Granules{2, 1}));
}

TEST_F(LargeHandles, AHandleIsTakenAwayWholeOrNotAtAll) {
  Make(8, 0);
  ASSERT_TRUE(Commit({Range(0, 16)}).ok());
  ASSERT_TRUE(table().Decommit(Range(4, 12)).ok());
  EXPECT_EQ(Sizes(area_), (Granules{8}));
  ASSERT_TRUE(Commit({Range(4, 6)}).ok());
  EXPECT_EQ(Sizes(area_), (Granules{8, 2}));
}

TEST_F(LargeHandles, APrivateCopyTakesTheWholeHandle) {
  Make(4, 0);
  ASSERT_TRUE(Commit({Range(0, 4)}).ok());
  for (size_t g = 0; g < 4; ++g) std::memset(Bytes(Range(g, 1).base), static_cast<int>(g + 1), kG);
  ASSERT_TRUE(table().Share(area_.base, Range(8, 1).base, 4 * kG, Access::kReadOnly).ok());
  ASSERT_TRUE(table()
                  .MakePrivate(std::vector<AddressRange>{{Range(10, 1).base + 7, 1}}, stack_->space)
                  .ok());
  EXPECT_EQ(table().ReadOnlyBytes(area_), 0u);
  EXPECT_EQ(table().unique_bytes(), 8 * kG);
  std::memset(Bytes(area_.base), 9, 4 * kG);
  for (size_t g = 0; g < 4; ++g)
    EXPECT_EQ(Bytes(Range(8 + g, 1).base)[kG - 1], static_cast<char>(g + 1));
}

TEST_F(LargeHandles, ACopyThatFailsLeavesTheShareAsItIs) {
  Make(4, 0);
  ASSERT_TRUE(Commit({Range(0, 4)}).ok());
  std::strcpy(Bytes(area_.base), "shared");
  ASSERT_TRUE(table().Share(area_.base, Range(8, 1).base, 4 * kG, Access::kReadOnly).ok());
  const std::vector<AddressRange> part{Range(9, 1)};
  vmm().FailCall(Verb::kCopy, 1);
  EXPECT_EQ(table().MakePrivate(part, stack_->space).code(), Code::kExhausted);
  stack_->ExpectSound();
  EXPECT_EQ(table().ReadOnlyBytes(area_), 4 * kG);
  EXPECT_EQ(pool().counters().live_handles, 1u);
  // The copy's scratch addresses keep it when they cannot be taken away.
  vmm().FailCall(Verb::kCopy, 1);
  vmm().FailCall(Verb::kUnmap, 1);
  EXPECT_EQ(table().MakePrivate(part, stack_->space).code(), Code::kExhausted);
  EXPECT_EQ(pool().counters().quarantined_bytes, 4 * kG);
  stack_->ExpectSound();
  EXPECT_TRUE(table().MakePrivate(part, stack_->space).ok());
  EXPECT_STREQ(Bytes(Range(8, 1).base), "shared");
}

TEST_F(LargeHandles, ThePoolServesSizesAgain) {
  Make(8, 64 * kG);
  ASSERT_TRUE(Commit({Range(0, 15)}).ok());
  ASSERT_TRUE(table().Decommit(area_).ok());
  vmm().ResetCounts();
  ASSERT_TRUE(Commit({Range(20, 11)}).ok());  // 8 + 2 + 1 of 8 + 4 + 2 + 1
  EXPECT_EQ(vmm().calls(Verb::kCreate), 0u);
  EXPECT_EQ(pool().counters().pooled_bytes, 4 * kG);
}

TEST_F(LargeHandles, WhereTheSystemRefusesThePoolIsUsedUpAndThenGivenBack) {
  Make(8, 64 * kG);
  ASSERT_TRUE(Commit({Range(0, 7)}).ok());  // 4 + 2 + 1
  ASSERT_TRUE(Commit({Range(8, 1)}).ok());
  ASSERT_TRUE(table().Decommit(area_).ok());
  // No new handles at all: the need is met by the smaller ones that are there.
  vmm().FailFrom(Verb::kCreate, 1);
  ASSERT_TRUE(Commit({Range(0, 8)}).ok());
  vmm().Heal();
  EXPECT_EQ(Sizes(area_), (Granules{4, 2, 1, 1}));
  EXPECT_EQ(pool().counters().pooled_bytes, 0u);
  ASSERT_TRUE(table().Decommit(area_).ok());
  pool().Trim(0);
  ASSERT_TRUE(Commit({Range(0, 4)}).ok());
  ASSERT_TRUE(Commit({Range(4, 3)}).ok());
  // Pooled memory that is of no use as it is goes back to the system, which then has enough.
  ASSERT_TRUE(table().Decommit(Range(0, 4)).ok());
  ASSERT_TRUE(Commit({Range(20, 1)}).ok());
  ASSERT_EQ(pool().counters().pooled_bytes, 4 * kG);
  vmm().FailCall(Verb::kCreate, 1);
  ASSERT_TRUE(Commit({Range(30, 1)}).ok());
  EXPECT_EQ(pool().counters().pooled_bytes, 0u);
  // A private copy needs one handle: what is pooled in other sizes makes room for it.
  ASSERT_TRUE(table().Share(Range(4, 1).base, Range(40, 1).base, 2 * kG, Access::kReadOnly).ok());
  ASSERT_TRUE(table().Decommit(Range(30, 1)).ok());
  vmm().FailCall(Verb::kCreate, 1);
  ASSERT_TRUE(table().MakePrivate(std::vector<AddressRange>{Range(40, 1)}, stack_->space).ok());
  EXPECT_EQ(pool().counters().pooled_bytes, 0u);
  // With nothing pooled a refusal is a refusal.
  vmm().FailFrom(Verb::kCreate, 1);
  EXPECT_EQ(Commit({Range(50, 4)}).status().code(), Code::kExhausted);
}

TEST_F(LargeHandles, PrefillPoolsAheadWithinTheBound) {
  Make(8, 10 * kG);
  ASSERT_TRUE(pool().Prefill(4 * kG, 2).ok());
  ASSERT_TRUE(pool().Prefill(4 * kG, 2).ok());  // they are there
  EXPECT_EQ(pool().counters().pooled_handles, 2u);
  ASSERT_TRUE(pool().Prefill(kG, 5).ok());
  EXPECT_EQ(pool().counters().pooled_bytes, 10 * kG);  // as far as the bound reaches
  ASSERT_TRUE(pool().Prefill(kG, 5).ok());
  EXPECT_EQ(vmm().calls(Verb::kCreate), 4u);
  EXPECT_EQ(vmm().calls(Verb::kMap), 0u);
  EXPECT_TRUE(pool().IsValid());
  vmm().ResetCounts();
  ASSERT_TRUE(Commit({Range(0, 9)}).ok());
  EXPECT_EQ(vmm().calls(Verb::kCreate), 1u);  // of 8; the one comes from the pool
  pool().Trim(0);
  vmm().FailCall(Verb::kCreate, 2);
  EXPECT_EQ(pool().Prefill(kG, 3).code(), Code::kExhausted);
  EXPECT_EQ(pool().counters().pooled_handles, 1u);  // what was made stays
  EXPECT_TRUE(pool().Prefill(kG, 3).ok());
  EXPECT_EQ(pool().counters().pooled_handles, 3u);
  // Without a bound nothing is pooled ahead.
  Make(8, 0);
  EXPECT_TRUE(pool().Prefill(kG, 3).ok());
  EXPECT_EQ(vmm().calls(Verb::kCreate), 0u);
}

// A granule is backed or not, poisoned or not, read-only or not, and shows a tag; which handle lies
// under it is the table's business, but handles tile what is backed and go whole.
class Machine {
 public:
  static constexpr size_t kGranules = 40;
  struct Cell {
    bool backed = false, poisoned = false, read_only = false;
    uint64_t tag = 0;
  };

  Machine(unsigned seed, size_t longest, uint64_t retained)
      : random_(seed),
        longest_(longest),
        stack_(HostVmmOptions{.max_handle_bytes = longest * kG}, retained),
        area_(*stack_.space.Carve(kGranules * kG)),
        cells_(kGranules) {}

  void Run(int steps) {
    for (int step = 0; step < steps && !testing::Test::HasFatalFailure(); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      Step();
      Check();
    }
    stack_.vmm.Heal();
    (void)stack_.table.Decommit(area_);
    stack_.pool.Trim(0);
    const HandleCounters c = stack_.pool.counters();
    EXPECT_EQ(c.creates, c.releases + c.quarantined_handles);
    EXPECT_EQ(c.live_handles, 0u);
    EXPECT_TRUE(c.quarantined_handles == 0 || may_poison_);
  }

 private:
  size_t Pick(size_t end) { return random_() % end; }
  AddressRange At(size_t first, size_t granules) const {
    return {area_.base + first * kG, granules * kG};
  }
  uint64_t* Word(size_t g) const { return reinterpret_cast<uint64_t*>(At(g, 1).base); }

  void Step() {
    const size_t first = Pick(kGranules);
    const size_t granules = std::min(1 + Pick(14), kGranules - first);
    const AddressRange range = At(first, granules);
    switch (Pick(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return Commit(first, granules);
      case 4:
      case 5:
      case 6:
        return Decommit(first, granules);
      case 7:
      case 8:
        return Share();
      case 9:
        return MakePrivate(range, first, granules);
      case 10: {
        const Verb verbs[] = {Verb::kCreate, Verb::kMap, Verb::kCopy, Verb::kUnmap, Verb::kRelease};
        const Verb verb = verbs[Pick(Pick(3) == 0 ? 5 : 3)];
        may_poison_ |= verb == Verb::kUnmap || verb == Verb::kRelease;
        return stack_.vmm.FailCall(verb, 1 + Pick(5));
      }
      default:
        stack_.vmm.Heal();
        if (Pick(3) == 0) stack_.pool.Trim(Pick(10) * kG);
        (void)stack_.pool.Prefill((1 + Pick(longest_)) * kG, Pick(3));
    }
  }

  void Commit(size_t first, size_t granules) {
    const auto done = stack_.table.Commit(std::vector<AddressRange>{At(first, granules)});
    if (!done.ok()) return LearnPoison();
    for (const AddressRange& stale : done->stale) std::memset(Bytes(stale.base), 0, stale.bytes);
    for (size_t g = first; g < first + granules; ++g) {
      ASSERT_FALSE(cells_[g].poisoned || cells_[g].read_only);
      if (cells_[g].backed) continue;
      ASSERT_EQ(*Word(g), 0u);
      cells_[g] = {.backed = true, .tag = ++last_tag_};
      *Word(g) = last_tag_;
    }
  }

  void Decommit(size_t first, size_t granules) {
    const auto whole = stack_.table.WholeHandles(At(first, granules));
    (void)stack_.table.Decommit(At(first, granules));
    for (const AddressRange& handle : whole) {
      for (size_t g = (handle.base - area_.base) / kG; g * kG < handle.end() - area_.base; ++g)
        cells_[g] = {.poisoned = stack_.table.IsPoisoned(At(g, 1))};
    }
  }

  void Share() {
    const auto handles = stack_.table.WholeHandles(area_);
    if (handles.empty()) return;
    const AddressRange source = handles[Pick(handles.size())];
    const size_t from = (source.base - area_.base) / kG;
    const size_t to = Pick(kGranules);
    const size_t granules = source.bytes / kG;
    if (to + granules > kGranules) return;
    bool empty = to + granules <= from || from + granules <= to;
    for (size_t g = to; g < to + granules; ++g) empty &= !cells_[g].backed && !cells_[g].poisoned;
    const Status done =
        stack_.table.Share(source.base, At(to, 1).base, source.bytes, Access::kReadOnly);
    ASSERT_TRUE(empty || !done.ok());
    if (!done.ok()) return LearnPoison();
    for (size_t g = 0; g < granules; ++g) {
      cells_[to + g] = {.backed = true, .read_only = true, .tag = cells_[from + g].tag};
    }
  }

  void MakePrivate(AddressRange range, size_t first, size_t granules) {
    // What a handle under the range covers becomes private whole; a failure may come in between.
    const Status done = stack_.table.MakePrivate(std::vector<AddressRange>{range}, stack_.space);
    for (size_t g = 0; g < kGranules; ++g) {
      Cell& cell = cells_[g];
      if (cell.poisoned || !cell.backed) continue;
      const bool backed = stack_.table.BackedBytes(At(g, 1)) == kG;
      if (!backed) {
        ASSERT_FALSE(done.ok());
        cell = {.poisoned = stack_.table.IsPoisoned(At(g, 1))};
        continue;
      }
      cell.read_only = stack_.table.ReadOnlyBytes(At(g, 1)) == kG;
      ASSERT_FALSE(done.ok() && g >= first && g < first + granules && cell.read_only);
      ASSERT_EQ(*Word(g), cell.tag);
    }
    // Who shows the same memory as before, and who a copy: a new tag tells.
    for (size_t g = 0; g < kGranules; ++g) {
      if (!cells_[g].backed || cells_[g].read_only) continue;
      const uint64_t old_tag = cells_[g].tag;
      *Word(g) = ++last_tag_;
      for (size_t h = 0; h < kGranules; ++h) {
        if (!cells_[h].backed || cells_[h].tag != old_tag || *Word(h) != last_tag_) continue;
        ASSERT_FALSE(done.ok() && h != g && g >= first && g < first + granules);
        cells_[h].tag = last_tag_;
      }
    }
  }

  void LearnPoison() {
    for (size_t g = 0; g < kGranules; ++g) {
      const bool poisoned = stack_.table.IsPoisoned(At(g, 1));
      ASSERT_TRUE(!poisoned || cells_[g].poisoned || (!cells_[g].backed && may_poison_));
      cells_[g].poisoned = poisoned;
    }
  }

  void Check() {
    ASSERT_TRUE(stack_.table.IsValid());
    ASSERT_TRUE(stack_.pool.IsValid());
    std::vector<bool> covered(kGranules, false);
    for (const AddressRange& handle : stack_.table.WholeHandles(area_)) {
      for (size_t g = (handle.base - area_.base) / kG; g * kG < handle.end() - area_.base; ++g)
        covered[g] = true;
    }
    std::map<uint64_t, int> tags;
    for (size_t g = 0; g < kGranules; ++g) {
      ASSERT_EQ(covered[g], cells_[g].backed) << g;
      ASSERT_EQ(stack_.table.BackedBytes(At(g, 1)), cells_[g].backed ? kG : 0) << g;
      if (cells_[g].backed) {
        ASSERT_EQ(*Word(g), cells_[g].tag) << g;
        ++tags[cells_[g].tag];
      }
    }
    ASSERT_EQ(stack_.table.unique_bytes(), tags.size() * kG);
    const HandleCounters c = stack_.pool.counters();
    ASSERT_EQ(*stack_.vmm.ResidentBytes(), c.live_bytes + c.pooled_bytes + c.quarantined_bytes);
  }

  std::mt19937 random_;
  const size_t longest_;
  MemoryStack stack_;
  AddressRange area_;
  std::vector<Cell> cells_;
  uint64_t last_tag_ = 0;
  bool may_poison_ = false;
};

TEST(LargeHandlesProperty, RandomSequencesStaySound) {
  const unsigned cases = std::getenv("GRANULE_NIGHTLY") != nullptr ? 4000 : 120;
  for (unsigned seed = 0; seed < cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Machine(seed, size_t{1} << seed % 4, seed % 3 * 9 * kG).Run(80);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace granule::memory
