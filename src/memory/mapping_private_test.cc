// Windows that are made private again: what a copy leaves when any of its calls fails.
#include <gtest/gtest.h>

#include <cstring>

#include "memory/memory_stack_for_test.h"

namespace granule::memory {
namespace {

constexpr size_t kG = 64 << 10;
constexpr size_t kParent = 0, kChild = 20, kGranules = 3;

// Three granules with a text in each, at kParent, and shown read-only at kChild.
class MakePrivateTest : public testing::Test {
 protected:
  void SetUp() override { Make(0); }
  void Make(uint64_t retained_bytes) {
    stack_.reset();
    stack_ = std::make_unique<MemoryStack>(HostVmmOptions{}, retained_bytes);
    area_ = *stack_->space.Carve(64 * kG);
    ASSERT_TRUE(table().Commit(std::vector{Range(kParent, kGranules)}).ok());
    for (size_t g = 0; g < kGranules; ++g) Write(kParent + g, 'a' + static_cast<char>(g));
    ASSERT_TRUE(table().Share(At(kParent), At(kChild), kGranules * kG, Access::kReadOnly).ok());
    vmm().ResetCounts();
  }
  void TearDown() override {
    if (HasFatalFailure()) return;
    stack_->ExpectSound();
    vmm().Heal();
    ASSERT_TRUE(table().Decommit(area_).ok());
    stack_->pool.Trim(0);
    const HandleCounters c = stack_->pool.counters();
    EXPECT_EQ(c.live_handles, 0u);
    EXPECT_EQ(c.creates, c.releases + c.quarantined_handles);
    EXPECT_EQ(*vmm().ResidentBytes(), c.quarantined_bytes);
  }

  Address At(size_t granule) const { return area_.base + granule * kG; }
  AddressRange Range(size_t first, size_t granules) const { return {At(first), granules * kG}; }
  void Write(size_t granule, char c) { std::memset(Bytes(At(granule)), c, kG); }
  bool Holds(size_t granule, char c) const {
    const char* bytes = Bytes(At(granule));
    return bytes[0] == c && std::memcmp(bytes, bytes + 1, kG - 1) == 0;
  }
  void ExpectContent(size_t first) const {
    for (size_t g = 0; g < kGranules; ++g)
      EXPECT_TRUE(Holds(first + g, 'a' + static_cast<char>(g))) << first + g;
  }
  Status MakePrivate(AddressRange range) {
    return table().MakePrivate(std::vector{range}, stack_->space);
  }
  MappingTable& table() { return stack_->table; }
  FaultVmm& vmm() { return stack_->vmm; }
  uint64_t Quarantined() const { return stack_->pool.counters().quarantined_handles; }

  std::unique_ptr<MemoryStack> stack_;
  AddressRange area_;
};

TEST_F(MakePrivateTest, AShareBecomesACopyThatEitherSideMayWrite) {
  ASSERT_TRUE(MakePrivate(Range(kChild, kGranules)).ok());
  ExpectContent(kChild);
  EXPECT_EQ(table().unique_bytes(), 2 * kGranules * kG);
  EXPECT_EQ(table().shared_bytes(), 0u);
  EXPECT_EQ(table().ReadOnlyBytes(area_), 0u);
  Write(kChild, 'x');
  Write(kParent + 1, 'y');
  EXPECT_TRUE(Holds(kParent, 'a'));
  EXPECT_TRUE(Holds(kChild + 1, 'b'));
  // The scratch addresses came back: the next copy carves no others.
  const uint64_t carved = stack_->space.reserved_bytes();
  vmm().ResetCounts();
  ASSERT_TRUE(table().Share(At(kParent), At(40), kG, Access::kReadOnly).ok());
  ASSERT_TRUE(MakePrivate(Range(40, 1)).ok());
  EXPECT_EQ(stack_->space.reserved_bytes(), carved);
}

TEST_F(MakePrivateTest, TheWritableSideIsCopiedTooWhileTheOtherShowsIt) {
  ASSERT_TRUE(MakePrivate(Range(kParent, 1)).ok());
  Write(kParent, 'x');
  ExpectContent(kChild);
  EXPECT_EQ(table().unique_bytes(), (kGranules + 1) * kG);
  EXPECT_EQ(table().ReadOnlyBytes(area_), kGranules * kG);
}

TEST_F(MakePrivateTest, WhatNobodyElseShowsOnlyChangesItsProtection) {
  ASSERT_TRUE(table().Decommit(Range(kParent, kGranules)).ok());
  vmm().ResetCounts();
  ASSERT_TRUE(MakePrivate(Range(kChild, kGranules)).ok());
  EXPECT_EQ(vmm().calls(Verb::kCreate), 0u);
  EXPECT_EQ(vmm().calls(Verb::kMap), kGranules);
  ExpectContent(kChild);
  Write(kChild, 'x');
  // Again costs nothing, nor does what was never shared.
  vmm().ResetCounts();
  ASSERT_TRUE(MakePrivate(Range(kChild, kGranules)).ok());
  ASSERT_TRUE(MakePrivate(Range(0, 64)).ok());
  for (const Verb verb : kAllVerbs) EXPECT_EQ(vmm().calls(verb), 0u);
}

TEST_F(MakePrivateTest, OnlyTheWindowsInTheRangeAndGapsCostNothing) {
  ASSERT_TRUE(MakePrivate(Range(10, kChild - 10 + 1)).ok());
  EXPECT_EQ(table().ReadOnlyBytes(area_), (kGranules - 1) * kG);
  ASSERT_TRUE(MakePrivate(Range(kChild + kGranules, 10)).ok());
  EXPECT_EQ(table().ReadOnlyBytes(area_), (kGranules - 1) * kG);
}

// Every call of a copy fails in turn: both sides show what they showed, and the retry finishes.
TEST_F(MakePrivateTest, EveryFaultOfACopyLeavesBothSidesAsTheyWere) {
  for (const uint64_t retained : {uint64_t{0}, uint64_t{8 * kG}}) {
    for (const Verb verb : {Verb::kCreate, Verb::kMap, Verb::kUnmap}) {
      const uint64_t per_window = verb == Verb::kCreate ? 1 : 2;
      for (uint64_t nth = 1; nth <= per_window * kGranules; ++nth) {
        SCOPED_TRACE(std::string(VerbName(verb)) + " " + std::to_string(nth));
        Make(retained);
        vmm().FailCall(verb, nth);
        const Status failed = MakePrivate(Range(kChild, kGranules));
        ASSERT_EQ(vmm().failures(verb), 1u);
        EXPECT_EQ(failed.code(), Code::kExhausted) << failed.message();
        ExpectContent(kParent);
        ExpectContent(kChild);
        EXPECT_EQ(table().poisoned_bytes(), 0u);
        EXPECT_EQ(table().BackedBytes(Range(kChild, kGranules)), kGranules * kG);
        // Scratch addresses that could not be unmapped show their copy for good: it is charged.
        const bool scratch = verb == Verb::kUnmap && nth % 2 == 1;
        EXPECT_EQ(Quarantined(), scratch ? 1u : 0u);
        stack_->ExpectSound();
        // What is read-only still is, what was made private is.
        EXPECT_EQ(table().ReadOnlyBytes(area_), (kGranules - (nth - 1) / per_window) * kG);
        ASSERT_TRUE(MakePrivate(Range(kChild, kGranules)).ok());
        EXPECT_EQ(table().ReadOnlyBytes(area_), 0u);
        ExpectContent(kChild);
        stack_->ExpectSound();
      }
    }
  }
}

TEST_F(MakePrivateTest, WithoutAddressesForTheScratchNothingHappens) {
  // The reservation that is there is full, and no other is granted.
  std::vector<AddressRange> filler;
  vmm().FailFrom(Verb::kReserve, 1);
  for (size_t bytes = size_t{1} << 50; bytes >= kG; bytes /= 2) {
    for (;;) {
      const auto carved = stack_->space.Carve(bytes);
      if (!carved.ok()) break;
      filler.push_back(*carved);
    }
  }
  EXPECT_FALSE(MakePrivate(Range(kChild, 1)).ok());
  ExpectContent(kChild);
  EXPECT_EQ(table().ReadOnlyBytes(area_), kGranules * kG);
  for (const AddressRange& range : filler) stack_->space.Return(range);
  vmm().Heal();
  EXPECT_TRUE(MakePrivate(Range(kChild, 1)).ok());
}

TEST_F(MakePrivateTest, EveryFaultOfAProtectionChangeLeavesTheWindow) {
  for (const Verb verb : {Verb::kMap, Verb::kUnmap}) {
    for (uint64_t nth = 1; nth <= kGranules; ++nth) {
      SCOPED_TRACE(std::string(VerbName(verb)) + " " + std::to_string(nth));
      Make(0);
      ASSERT_TRUE(table().Decommit(Range(kParent, kGranules)).ok());
      vmm().FailCall(verb, nth);
      EXPECT_EQ(MakePrivate(Range(kChild, kGranules)).code(), Code::kExhausted);
      ExpectContent(kChild);
      EXPECT_EQ(table().ReadOnlyBytes(area_), (kGranules - (nth - 1)) * kG);
      stack_->ExpectSound();
      ASSERT_TRUE(MakePrivate(Range(kChild, kGranules)).ok());
      Write(kChild, 'x');
    }
  }
}

// The new handle cannot be mapped, and neither can the old one again: the window is gone, said by
// name, and nothing is charged for it any more.
TEST_F(MakePrivateTest, AWindowThatCannotBePutBackIsLostAndSaysSo) {
  vmm().FailFrom(Verb::kMap, 2);
  const Status failed = MakePrivate(Range(kChild, kGranules));
  EXPECT_EQ(failed.code(), Code::kPoisoned);
  EXPECT_NE(failed.message().find("65536 bytes at"), std::string::npos) << failed.message();
  EXPECT_NE(failed.message().find("were lost: injected"), std::string::npos) << failed.message();
  EXPECT_EQ(table().BackedBytes(Range(kChild, kGranules)), (kGranules - 1) * kG);
  EXPECT_EQ(table().unique_bytes(), kGranules * kG);
  ExpectContent(kParent);
  vmm().Heal();
  stack_->ExpectSound();
  // The addresses are free for what comes.
  ASSERT_TRUE(table().Commit(std::vector{Range(kChild, 1)}).ok());
  Write(kChild, 'x');
  EXPECT_TRUE(Holds(kParent, 'a'));
}

TEST_F(MakePrivateTest, TheLastWindowOfAHandleThatIsLostGivesTheHandleBack) {
  for (const uint64_t retained : {uint64_t{0}, uint64_t{8 * kG}}) {
    Make(retained);
    ASSERT_TRUE(table().Decommit(Range(kParent, kGranules)).ok());
    vmm().FailFrom(Verb::kMap, 1);
    EXPECT_EQ(MakePrivate(Range(kChild, 1)).code(), Code::kPoisoned);
    vmm().Heal();
    EXPECT_EQ(table().unique_bytes(), (kGranules - 1) * kG);
    EXPECT_EQ(stack_->pool.counters().live_handles, kGranules - 1);
    stack_->ExpectSound();
  }
}

// A handle with a poisoned window elsewhere is never writable from here: it is copied, and goes to
// quarantine with its last good window.
TEST_F(MakePrivateTest, AHandleWithAPoisonedWindowIsLeftForACopy) {
  vmm().FailCall(Verb::kUnmap, 1);
  EXPECT_EQ(table().Decommit(Range(kParent, 1)).code(), Code::kPoisoned);
  EXPECT_EQ(Quarantined(), 0u);
  ASSERT_TRUE(MakePrivate(Range(kChild, 1)).ok());
  EXPECT_TRUE(Holds(kChild, 'a'));
  EXPECT_EQ(Quarantined(), 1u);
  stack_->ExpectSound();
  // The poisoned window itself is passed over.
  vmm().ResetCounts();
  ASSERT_TRUE(MakePrivate(Range(kParent, 1)).ok());
  for (const Verb verb : kAllVerbs) EXPECT_EQ(vmm().calls(verb), 0u);
  EXPECT_TRUE(table().IsPoisoned(Range(kParent, 1)));
}

}  // namespace
}  // namespace granule::memory
