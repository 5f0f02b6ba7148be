#include "memory/mapping_table.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "memory/memory_stack_for_test.h"

namespace granule::memory {
namespace {

constexpr size_t kG = 64 << 10;

class MappingTableTest : public testing::Test {
 protected:
  void SetUp() override { Make({}, 0); }
  void Make(const HostVmmOptions& options, uint64_t retained_bytes) {
    stack_.reset();
    stack_ = std::make_unique<MemoryStack>(options, retained_bytes);
    area_ = *stack_->space.Carve(64 * kG);
    stack_->vmm.ResetCounts();
  }
  void TearDown() override { stack_->ExpectSound(); }

  Address At(size_t granule) const { return area_.base + granule * kG; }
  AddressRange Range(size_t first, size_t granules) const { return {At(first), granules * kG}; }
  Result<Committed> Commit(std::initializer_list<AddressRange> ranges) {
    return stack_->table.Commit(std::vector<AddressRange>(ranges));
  }
  MappingTable& table() { return stack_->table; }
  FaultVmm& vmm() { return stack_->vmm; }

  std::unique_ptr<MemoryStack> stack_;
  AddressRange area_;
};

TEST_F(MappingTableTest, BacksEveryGranuleThatARangeTouches) {
  const auto done = Commit({{At(2) + 5, kG}, {At(10), 1}, {At(20) + kG - 1, 2}});
  ASSERT_TRUE(done.ok()) << done.status().message();
  EXPECT_EQ(done->new_bytes, 5 * kG);
  EXPECT_EQ(done->fresh, (std::vector<AddressRange>{Range(2, 2), Range(10, 1), Range(20, 2)}));
  EXPECT_TRUE(done->stale.empty());
  for (size_t g : {2, 3, 10, 20, 21}) {
    EXPECT_EQ(table().BackedBytes(Range(g, 1)), kG);
    std::memset(Bytes(At(g)), 1, kG);
  }
  EXPECT_EQ(table().BackedBytes(area_), 5 * kG);
  EXPECT_EQ(table().BackedBytes({At(3) + 100, 50}), 50u);
  EXPECT_EQ(table().BackedBytes({At(3) + 100, 0}), 0u);
  EXPECT_EQ(table().BackedBytes({At(3) + kG - 10, 30}), 10u);
  EXPECT_EQ(table().unique_bytes(), 5 * kG);
  EXPECT_EQ(table().mapped_bytes(), 5 * kG);
  EXPECT_EQ(table().shared_bytes(), 0u);
}

TEST_F(MappingTableTest, WhatIsBackedStaysAsItIsAndCostsNothing) {
  ASSERT_TRUE(Commit({Range(1, 3)}).ok());
  std::memset(Bytes(At(1)), 9, 3 * kG);
  vmm().ResetCounts();
  const auto same = Commit({Range(1, 3), {At(2) + 7, 9}});
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(same->new_bytes, 0u);
  EXPECT_TRUE(same->fresh.empty());
  for (Verb verb : kAllVerbs) EXPECT_EQ(vmm().calls(verb), 0u);
  const auto wider = Commit({Range(0, 5)});
  ASSERT_TRUE(wider.ok());
  EXPECT_EQ(wider->fresh, (std::vector<AddressRange>{Range(0, 1), Range(4, 1)}));
  EXPECT_EQ(vmm().calls(Verb::kCreate), 2u);
  EXPECT_EQ(Bytes(At(3))[kG - 1], 9);
  EXPECT_EQ(Bytes(At(4))[0], 0);
}

TEST_F(MappingTableTest, RangesOfOneCallMayOverlapAndComeInAnyOrder) {
  const auto done =
      Commit({Range(9, 2), {At(3) + 1, 2 * kG}, Range(5, 2), {At(3), 5}, Range(11, 1)});
  ASSERT_TRUE(done.ok());
  EXPECT_EQ(done->fresh, (std::vector<AddressRange>{Range(3, 4), Range(9, 3)}));
  EXPECT_EQ(done->new_bytes, 7 * kG);
  EXPECT_EQ(vmm().calls(Verb::kMap), 7u);
  EXPECT_TRUE(Commit({}).ok());
  EXPECT_EQ(Commit({{At(0), 0}})->new_bytes, 0u);
}

TEST_F(MappingTableTest, WouldCommitCountsEveryGranuleOnce) {
  ASSERT_TRUE(Commit({Range(4, 1)}).ok());
  const auto would = [&](std::initializer_list<AddressRange> ranges) {
    return table().WouldCommitBytes(std::vector<AddressRange>(ranges));
  };
  EXPECT_EQ(would({}), 0u);
  EXPECT_EQ(would({Range(4, 1)}), 0u);
  EXPECT_EQ(would({Range(3, 3)}), 2 * kG);
  EXPECT_EQ(would({{At(3), 10}, {At(3) + 10, 10}, {At(3) + 20, kG}}), kG);
  EXPECT_EQ(would({Range(8, 2), Range(0, 2), {At(1), 3 * kG + 1}}), 6 * kG);
  EXPECT_EQ(would({Range(0, 10), Range(2, 1)}), 9 * kG);
  EXPECT_EQ(would({{At(7), 0}}), 0u);
}

TEST_F(MappingTableTest, FewLargeHandlesServeALargeNeed) {
  Make({.max_handle_bytes = 4 * kG}, 0);
  ASSERT_TRUE(Commit({Range(0, 10)}).ok());
  EXPECT_EQ(vmm().calls(Verb::kCreate), 3u);
  // A handle that is only partly inside stays.
  ASSERT_TRUE(table().Decommit(Range(1, 8)).ok());
  EXPECT_EQ(table().BackedBytes(area_), 6 * kG);
  EXPECT_EQ(table().BackedBytes(Range(4, 4)), 0u);
  ASSERT_TRUE(table().Decommit(Range(0, 3)).ok());
  EXPECT_EQ(table().BackedBytes(area_), 6 * kG);
  // Sharing takes whole handles.
  EXPECT_EQ(table().Share(At(0), At(20), 2 * kG, Access::kReadOnly).code(), Code::kInternal);
  EXPECT_EQ(table().Share(At(1), At(20), 3 * kG, Access::kReadOnly).code(), Code::kInternal);
  EXPECT_TRUE(table().Share(At(0), At(20), 4 * kG, Access::kReadOnly).ok());
}

TEST_F(MappingTableTest, PooledMemoryIsStaleAndFreshMemoryIsNot) {
  Make({}, 2 * kG);
  ASSERT_TRUE(Commit({Range(0, 3)}).ok());
  std::memset(Bytes(At(0)), 5, 3 * kG);
  ASSERT_TRUE(table().Decommit(Range(0, 3)).ok());
  EXPECT_EQ(stack_->pool.counters().pooled_bytes, 2 * kG);
  stack_->ExpectSound();
  const auto again = Commit({Range(0, 3)});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->fresh, std::vector<AddressRange>{Range(0, 3)});
  EXPECT_EQ(again->stale, std::vector<AddressRange>{Range(0, 2)});
  EXPECT_EQ(Bytes(At(0))[0], 5);  // for the caller to zero
  EXPECT_EQ(Bytes(At(2))[0], 0);
}

TEST_F(MappingTableTest, SharesAreTheSameBytes) {
  ASSERT_TRUE(Commit({Range(0, 4)}).ok());
  std::strcpy(Bytes(At(1)), "prefix");
  ASSERT_TRUE(table().Share(At(0), At(10), 3 * kG, Access::kReadOnly).ok());
  ASSERT_TRUE(table().Share(At(10), At(20), 2 * kG, Access::kReadWrite).ok());
  EXPECT_STREQ(Bytes(At(11)), "prefix");
  std::strcpy(Bytes(At(21)), "changed");
  EXPECT_STREQ(Bytes(At(1)), "changed");
  EXPECT_EQ(table().unique_bytes(), 4 * kG);
  EXPECT_EQ(table().mapped_bytes(), 9 * kG);
  EXPECT_EQ(table().shared_bytes(), 5 * kG);
  stack_->ExpectSound();
  EXPECT_DEATH(*const_cast<volatile char*>(Bytes(At(10))) = 1, "");

  // The bytes live as long as anybody shows them; the last one gives the handle back.
  ASSERT_TRUE(table().Decommit(Range(0, 4)).ok());
  EXPECT_EQ(table().unique_bytes(), 3 * kG);
  EXPECT_EQ(*vmm().ResidentBytes(), 3 * kG);
  EXPECT_STREQ(Bytes(At(11)), "changed");
  // And the first place may be used again meanwhile.
  ASSERT_TRUE(Commit({Range(0, 4)}).ok());
  EXPECT_EQ(Bytes(At(1))[0], 0);
  std::strcpy(Bytes(At(1)), "other");
  EXPECT_STREQ(Bytes(At(11)), "changed");
  stack_->ExpectSound();
  ASSERT_TRUE(table().Decommit(Range(10, 3)).ok());
  EXPECT_EQ(table().unique_bytes(), 6 * kG);
  ASSERT_TRUE(table().Decommit(area_).ok());
  EXPECT_EQ(*vmm().ResidentBytes(), 0u);
  EXPECT_EQ(vmm().calls(Verb::kCreate), vmm().calls(Verb::kRelease));
}

TEST_F(MappingTableTest, EightSequencesOverOnePrefixPayForItOnce) {
  ASSERT_TRUE(Commit({Range(0, 1)}).ok());
  for (size_t i = 1; i <= 8; ++i) {
    ASSERT_TRUE(table().Share(At(0), At(2 * i), kG, Access::kReadOnly).ok());
    ASSERT_TRUE(Commit({Range(2 * i + 1, 1)}).ok());
  }
  EXPECT_EQ(table().unique_bytes(), 9 * kG);
  EXPECT_EQ(table().mapped_bytes(), 17 * kG);
}

TEST_F(MappingTableTest, ImpossibleSharesAreRefusedBeforeAnyVerb) {
  ASSERT_TRUE(Commit({Range(0, 4), Range(20, 1)}).ok());
  vmm().ResetCounts();
  const auto refused = [&](Address source, Address target, size_t bytes) {
    return table().Share(source, target, bytes, Access::kReadOnly).code() == Code::kInternal;
  };
  EXPECT_TRUE(refused(At(0) + 1, At(10), kG));
  EXPECT_TRUE(refused(At(0), At(10) + 1, kG));
  EXPECT_TRUE(refused(At(0), At(10), kG + 1));
  EXPECT_TRUE(refused(At(0), At(10), 5 * kG));  // the source ends before
  EXPECT_TRUE(refused(At(30), At(10), kG));     // nothing there
  EXPECT_TRUE(refused(At(0), At(18), 3 * kG));  // the target is not empty
  EXPECT_TRUE(refused(At(0), At(3), 4 * kG));   // overlap
  EXPECT_TRUE(refused(At(0), At(0), kG));
  for (Verb verb : kAllVerbs) EXPECT_EQ(vmm().calls(verb), 0u);
  EXPECT_TRUE(table().Share(At(0), At(10), 0, Access::kReadOnly).ok());
}

TEST_F(MappingTableTest, ReadOnlyWindowsAreNotCommittedOver) {
  ASSERT_TRUE(Commit({Range(0, 1)}).ok());
  ASSERT_TRUE(table().Share(At(0), At(5), kG, Access::kReadOnly).ok());
  vmm().ResetCounts();
  EXPECT_EQ(Commit({Range(4, 3)}).status().code(), Code::kInternal);
  EXPECT_EQ(Commit({Range(8, 1), {At(5) + 5, 1}}).status().code(), Code::kInternal);
  for (Verb verb : kAllVerbs) EXPECT_EQ(vmm().calls(verb), 0u);
  EXPECT_EQ(table().BackedBytes(area_), 2 * kG);
}

// State that must not change when an operation fails.
struct Snapshot {
  explicit Snapshot(const MemoryStack& stack, AddressRange area)
      : unique(stack.table.unique_bytes()),
        mapped(stack.table.mapped_bytes()),
        poisoned(stack.table.poisoned_bytes()),
        pooled(stack.pool.counters().pooled_bytes),
        live(stack.pool.counters().live_handles),
        resident(*stack.vmm.ResidentBytes()) {
    for (Address at = area.base; at < area.end(); at += kG) {
      backed.push_back(stack.table.BackedBytes({at, kG}) == kG);
    }
  }
  friend bool operator==(const Snapshot&, const Snapshot&) = default;

  uint64_t unique, mapped, poisoned, pooled, live, resident;
  std::vector<bool> backed;
};

// Fails each call of each verb of an operation in turn. `prepare` brings a new stack to the state
// before; `act` is the operation. Without a poisoned window the failure must leave no trace, and
// the retry succeeds.
class EveryFault : public MappingTableTest {
 protected:
  template <class Prepare, class Act>
  void Run(std::initializer_list<Verb> expected_verbs, const HostVmmOptions& options,
           uint64_t retained_bytes, const Prepare& prepare, const Act& act) {
    Make(options, retained_bytes);
    prepare();
    vmm().ResetCounts();
    ASSERT_TRUE(act().ok());
    std::array<uint64_t, kAllVerbs.size()> calls{};
    for (Verb verb : kAllVerbs) calls[static_cast<size_t>(verb)] = vmm().calls(verb);
    for (Verb verb : expected_verbs)
      ASSERT_GT(calls[static_cast<size_t>(verb)], 0u) << VerbName(verb);
    for (Verb verb : expected_verbs) {
      for (uint64_t nth = 1; nth <= calls[static_cast<size_t>(verb)]; ++nth) {
        SCOPED_TRACE(std::string(VerbName(verb)) + " " + std::to_string(nth));
        Make(options, retained_bytes);
        prepare();
        const Snapshot before(*stack_, area_);
        vmm().FailCall(verb, nth);
        const Status failed = act();
        ASSERT_EQ(vmm().failures(verb), 1u);
        ASSERT_EQ(failed.code(), Code::kExhausted) << failed.message();
        EXPECT_NE(failed.message().find("injected"), std::string::npos);
        EXPECT_EQ(before, Snapshot(*stack_, area_));
        stack_->ExpectSound();
        ASSERT_TRUE(act().ok());  // the retry
        stack_->ExpectSound();
        ExpectNothingLeaks(0);
      }
    }
  }

  // Takes everything away and checks that the system has everything back but the quarantined
  // handles.
  void ExpectNothingLeaks(uint64_t quarantined) {
    vmm().Heal();
    ASSERT_TRUE(table().Decommit(area_).ok());
    stack_->pool.Trim(0);
    const HandleCounters c = stack_->pool.counters();
    EXPECT_EQ(c.creates, c.releases + c.quarantined_handles);
    EXPECT_EQ(c.quarantined_handles, quarantined);
    EXPECT_EQ(c.live_handles, 0u);
    EXPECT_EQ(table().unique_bytes(), 0u);
    EXPECT_EQ(*vmm().ResidentBytes(), c.quarantined_bytes);
  }
};

TEST_F(EveryFault, OfACommit) {
  const auto prepare = [&] { ASSERT_TRUE(Commit({Range(3, 1), Range(7, 2)}).ok()); };
  const auto act = [&] { return Commit({Range(0, 5), Range(6, 4), Range(30, 2)}).status(); };
  Run({Verb::kCreate, Verb::kMap}, {}, 0, prepare, act);
  Run({Verb::kCreate, Verb::kMap}, {.max_handle_bytes = 2 * kG}, 0, prepare, act);
}

TEST_F(EveryFault, OfACommitFromAPool) {
  const auto prepare = [&] {
    ASSERT_TRUE(Commit({Range(40, 3)}).ok());
    ASSERT_TRUE(table().Decommit(Range(40, 3)).ok());
  };
  const auto act = [&] { return Commit({Range(0, 6)}).status(); };
  Run({Verb::kCreate, Verb::kMap}, {}, 20 * kG, prepare, act);
}

TEST_F(EveryFault, OfAShare) {
  const auto prepare = [&] { ASSERT_TRUE(Commit({Range(0, 5)}).ok()); };
  const auto act = [&] { return table().Share(At(0), At(10), 5 * kG, Access::kReadOnly); };
  Run({Verb::kMap}, {}, 0, prepare, act);
}

TEST_F(EveryFault, OfACarve) {
  // Reserve is its only verb. Any one rung refused is still a success, all of them change nothing.
  const size_t rungs = ReservationLadder(vmm().Memory()->total_bytes, kG, kG).size();
  for (size_t nth = 1; nth < rungs; ++nth) {
    AddressSpace space(vmm());
    vmm().FailCall(Verb::kReserve, nth);
    EXPECT_TRUE(space.Carve(kG).ok());
    EXPECT_TRUE(space.IsValid());
    vmm().Heal();
  }
  AddressSpace space(vmm());
  vmm().FailFrom(Verb::kReserve, 1);
  EXPECT_EQ(space.Carve(kG).status().code(), Code::kExhausted);
  EXPECT_EQ(space.reserved_bytes(), 0u);
  vmm().Heal();
  EXPECT_TRUE(space.Carve(kG).ok());
}

TEST_F(EveryFault, OfADecommit) {
  for (uint64_t nth = 1; nth <= 5; ++nth) {
    Make({}, 0);
    ASSERT_TRUE(Commit({Range(0, 5)}).ok());
    vmm().FailCall(Verb::kUnmap, nth);
    const Status failed = table().Decommit(Range(0, 5));
    EXPECT_EQ(failed.code(), Code::kPoisoned);
    EXPECT_NE(failed.message().find("65536 bytes could not be taken away (injected"),
              std::string::npos)
        << failed.message();
    // The others are gone, the one is poisoned, charged and quarantined.
    EXPECT_EQ(table().unique_bytes(), 0u);
    EXPECT_EQ(table().poisoned_bytes(), kG);
    EXPECT_TRUE(table().IsPoisoned(Range(nth - 1, 1)));
    EXPECT_EQ(table().BackedBytes(area_), 0u);
    EXPECT_EQ(stack_->pool.counters().quarantined_bytes, kG);
    stack_->ExpectSound();
    // Never reused: refused before any verb, also as a part of more.
    vmm().ResetCounts();
    EXPECT_EQ(Commit({Range(20, 1), Range(0, 5)}).status().code(), Code::kPoisoned);
    EXPECT_EQ(Commit({{At(nth - 1) + 9, 1}}).status().code(), Code::kPoisoned);
    EXPECT_EQ(table().Share(At(nth - 1), At(30), kG, Access::kReadOnly).code(), Code::kPoisoned);
    ASSERT_TRUE(Commit({Range(40, 1)}).ok());
    vmm().ResetCounts();
    EXPECT_FALSE(table().Share(At(40), At(nth - 1), kG, Access::kReadOnly).ok());
    for (Verb verb : kAllVerbs) EXPECT_EQ(vmm().calls(verb), 0u);
    EXPECT_TRUE(Commit({Range(10, 3)}).ok());
    ExpectNothingLeaks(1);
  }
}

TEST_F(EveryFault, OfAReleaseInADecommit) {
  for (uint64_t nth = 1; nth <= 3; ++nth) {
    Make({}, 0);
    ASSERT_TRUE(Commit({Range(0, 3)}).ok());
    vmm().FailCall(Verb::kRelease, nth);
    EXPECT_TRUE(table().Decommit(Range(0, 3)).ok());  // the addresses are free again
    EXPECT_FALSE(table().IsPoisoned(area_));
    EXPECT_EQ(stack_->pool.counters().quarantined_bytes, kG);
    stack_->ExpectSound();
    EXPECT_TRUE(Commit({Range(0, 3)}).ok());  // away from the home that is still held
    std::memset(Bytes(At(0)), 1, 3 * kG);
    ExpectNothingLeaks(1);
  }
}

TEST_F(EveryFault, OfARollback) {
  // The third map fails and so does an unmap of the two that must be undone.
  for (uint64_t nth = 1; nth <= 2; ++nth) {
    Make({}, 0);
    vmm().FailCall(Verb::kMap, 3);
    vmm().FailCall(Verb::kUnmap, nth);
    const Status failed = Commit({Range(0, 4)}).status();
    EXPECT_EQ(failed.code(), Code::kPoisoned);
    EXPECT_NE(failed.message().find("injected failure of map"), std::string::npos);
    EXPECT_NE(failed.message().find("injected failure of unmap"), std::string::npos);
    EXPECT_NE(failed.message().find("65536 bytes"), std::string::npos);
    EXPECT_EQ(table().poisoned_bytes(), kG);
    EXPECT_TRUE(table().IsPoisoned(Range(2 - nth, 1)));  // undone in reverse
    EXPECT_EQ(table().unique_bytes(), 0u);
    stack_->ExpectSound();
    EXPECT_EQ(Commit({Range(0, 4)}).status().code(), Code::kPoisoned);
    EXPECT_TRUE(Commit({Range(2, 4)}).ok());
    ExpectNothingLeaks(1);
  }
}

TEST_F(EveryFault, OfTheRollbackOfAShare) {
  ASSERT_TRUE(Commit({Range(0, 3)}).ok());
  std::strcpy(Bytes(At(1)), "alive");
  vmm().FailCall(Verb::kMap, 3);
  vmm().FailCall(Verb::kUnmap, 1);
  const Status failed = table().Share(At(0), At(10), 3 * kG, Access::kReadOnly);
  EXPECT_EQ(failed.code(), Code::kPoisoned);
  EXPECT_TRUE(table().IsPoisoned(Range(11, 1)));
  EXPECT_FALSE(table().IsPoisoned(Range(10, 1)));
  // The source is whole and its handle is not in quarantine while it shows it.
  EXPECT_STREQ(Bytes(At(1)), "alive");
  EXPECT_EQ(table().unique_bytes(), 3 * kG);
  EXPECT_EQ(stack_->pool.counters().quarantined_handles, 0u);
  stack_->ExpectSound();
  EXPECT_TRUE(table().Share(At(0), At(20), 3 * kG, Access::kReadOnly).ok());
  ExpectNothingLeaks(1);  // quarantined with its last healthy window
}

TEST_F(EveryFault, WhenTheSystemRefusesForGood) {
  ASSERT_TRUE(Commit({Range(0, 2)}).ok());
  for (Verb verb : {Verb::kCreate, Verb::kMap}) {
    const Snapshot before(*stack_, area_);
    vmm().FailFrom(verb, 1);
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(Commit({Range(0, 8)}).ok());
    EXPECT_EQ(before, Snapshot(*stack_, area_));
    vmm().Heal();
  }
  EXPECT_TRUE(Commit({Range(0, 8)}).ok());
  ExpectNothingLeaks(0);
}

// A device whose fresh memory holds anything.
class DirtyVmm final : public Vmm {
 public:
  explicit DirtyVmm(Vmm& inner) : inner_(inner), capabilities_(inner.capabilities()) {
    capabilities_.fresh_is_zero = false;
  }
  const Capabilities& capabilities() const override { return capabilities_; }
  Result<MemoryInfo> Memory() const override { return inner_.Memory(); }
  Result<AddressRange> Reserve(size_t bytes) override { return inner_.Reserve(bytes); }
  Status Free(AddressRange range) override { return inner_.Free(range); }
  Result<Handle> Create(size_t bytes, Address home) override { return inner_.Create(bytes, home); }
  Status Release(Handle handle) override { return inner_.Release(handle); }
  Status Map(Address at, Handle handle, Access access) override {
    return inner_.Map(at, handle, access);
  }
  Status Unmap(AddressRange range) override { return inner_.Unmap(range); }
  Result<uint64_t> ResidentBytes() const override { return inner_.ResidentBytes(); }

 private:
  Vmm& inner_;
  Capabilities capabilities_;
};

TEST(MappingTableOnADevice, FreshMemoryThatIsNotZeroIsStale) {
  const auto host = *HostVmm::Open();
  DirtyVmm vmm(*host);
  HandlePool pool(vmm, 0);
  MappingTable table(vmm, pool);
  const AddressRange range = *vmm.Reserve(4 * kG);
  const auto done = table.Commit(std::vector<AddressRange>{range});
  ASSERT_TRUE(done.ok());
  EXPECT_EQ(done->stale, done->fresh);
  EXPECT_TRUE(table.Decommit(range).ok());
}

TEST_F(MappingTableTest, ThreadsMayCommitDisjointRanges) {
  Make({}, 4 * kG);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 50; ++round) {
        const AddressRange mine = Range(16 * t, 16);
        for (size_t g = 0; g < 16; g += 3) {
          const size_t granules = std::min<size_t>(3, 16 - g);
          const auto done = table().Commit(std::vector<AddressRange>{Range(16 * t + g, granules)});
          ASSERT_TRUE(done.ok());
          std::memset(Bytes(At(16 * t + g)), static_cast<int>(t + 1), granules * kG);
        }
        for (size_t g = 0; g < 16; ++g)
          ASSERT_EQ(Bytes(At(16 * t + g))[77], static_cast<char>(t + 1));
        (void)table().WouldCommitBytes(std::vector<AddressRange>{mine});
        (void)table().unique_bytes();
        ASSERT_TRUE(table().Decommit(mine).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(table().mapped_bytes(), 0u);
}

TEST(MappingTableCost, OfACommit) {
  MemoryStack stack;
  const size_t layers = 60;
  const size_t granules = 64;
  const AddressRange area = *stack.space.Carve(layers * granules * kG);
  std::vector<AddressRange> ranges(layers);
  using Clock = std::chrono::steady_clock;
  const auto us = [](Clock::duration d) {
    return std::chrono::duration<double, std::micro>(d).count();
  };
  double fresh = 0;
  double backed = 0;
  for (size_t g = 0; g < granules; ++g) {
    for (size_t l = 0; l < layers; ++l) ranges[l] = {area.base + (l * granules + g) * kG, 100};
    auto start = Clock::now();
    ASSERT_TRUE(stack.table.Commit(ranges).ok());
    fresh += us(Clock::now() - start);
    start = Clock::now();
    ASSERT_EQ(stack.table.Commit(ranges)->new_bytes, 0u);
    backed += us(Clock::now() - start);
  }
  std::printf("commit of 60 ranges: %.2f us per new granule, %.2f us per call when all is backed\n",
              fresh / static_cast<double>(granules * layers), backed / granules);
  EXPECT_TRUE(stack.table.Decommit(area).ok());
  stack.ExpectSound();
}

}  // namespace
}  // namespace granule::memory
