#include "memory/address_space.h"

#include <gtest/gtest.h>

#include <random>

#include "memory/fault/fault_vmm.h"
#include "memory/host/host_vmm.h"

namespace granule::memory {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kTiB = uint64_t{1} << 40;
constexpr size_t kGranule = 64 << 10;

TEST(ReservationLadder, StartsAtSixteenTimesTheMemoryOrOneTebibyte) {
  EXPECT_EQ(ReservationLadder(0, kGranule, kGranule).front(), kTiB);
  EXPECT_EQ(ReservationLadder(8 * kGiB, kGranule, kGranule).front(), kTiB);
  EXPECT_EQ(ReservationLadder(85094825984, kGranule, 2 << 20).front(), 85094825984 * 16);
}

TEST(ReservationLadder, DescendsStrictlyInWholeGranulesToItsEnd) {
  for (const uint64_t total :
       {uint64_t{0}, uint64_t{1}, 24 * kGiB, uint64_t{85094825984}, ~uint64_t{0}}) {
    for (const uint64_t needed :
         {uint64_t{1}, 64 * kGiB, 100 * kGiB + 5, 3 * kTiB, uint64_t{1} << 63}) {
      for (const size_t granule : {size_t{4096}, kGranule, size_t{1} << 30}) {
        const auto rungs = ReservationLadder(total, needed, granule);
        ASSERT_FALSE(rungs.empty());
        for (size_t i = 0; i < rungs.size(); ++i) {
          EXPECT_EQ(rungs[i] % granule, 0u);
          EXPECT_GE(rungs[i], needed);
          EXPECT_TRUE(i == 0 || rungs[i] < rungs[i - 1]);
        }
        const uint64_t last = std::max(64 * kGiB, needed);
        EXPECT_LT(rungs.back() - last, granule);
      }
    }
  }
  EXPECT_EQ(ReservationLadder(0, 1, kGranule),
            (std::vector<uint64_t>{kTiB, 512 * kGiB, 256 * kGiB, 128 * kGiB, 64 * kGiB}));
  EXPECT_EQ(ReservationLadder(0, 5 * kTiB, kGranule), std::vector<uint64_t>{5 * kTiB});
  EXPECT_EQ(ReservationLadder(0, ~uint64_t{0}, kGranule).size(), 1u);
}

class AddressSpaceTest : public testing::Test {
 protected:
  void SetUp() override {
    host_ = *HostVmm::Open();
    vmm_ = std::make_unique<FaultVmm>(*host_);
    space_ = std::make_unique<AddressSpace>(*vmm_);
  }
  std::unique_ptr<HostVmm> host_;
  std::unique_ptr<FaultVmm> vmm_;
  std::unique_ptr<AddressSpace> space_;
};

TEST_F(AddressSpaceTest, CarvesWholeAlignedGranulesFirstFit) {
  EXPECT_EQ(space_->reserved_bytes(), 0u);  // nothing before it is needed
  const AddressRange a = *space_->Carve(1);
  EXPECT_GE(space_->reserved_bytes(), 64 * kGiB);
  const uint64_t calls = vmm_->calls(Verb::kReserve);
  EXPECT_EQ(a.bytes, kGranule);
  EXPECT_EQ(a.base % kGranule, 0u);
  const AddressRange b = *space_->Carve(3 * kGranule);
  const AddressRange c = *space_->Carve(kGranule + 1);
  EXPECT_EQ(b.base, a.end());
  EXPECT_EQ(c.base, b.end());
  EXPECT_EQ(c.bytes, 2 * kGranule);
  EXPECT_EQ(space_->carved_bytes(), 6 * kGranule);
  space_->Return(b);
  EXPECT_TRUE(space_->IsValid());
  EXPECT_EQ(space_->Carve(2 * kGranule)->base, b.base);  // into the hole
  EXPECT_EQ(space_->Carve(2 * kGranule)->base,
            c.end());  // one granule of the hole is left: too small
  EXPECT_TRUE(space_->IsValid());
  EXPECT_EQ(vmm_->calls(Verb::kReserve), calls);
}

TEST_F(AddressSpaceTest, ReturnedRangesMergeWithBothNeighbours) {
  const AddressRange a = *space_->Carve(kGranule);
  const AddressRange b = *space_->Carve(kGranule);
  const AddressRange c = *space_->Carve(kGranule);
  const AddressRange d = *space_->Carve(kGranule);
  space_->Return(a);
  space_->Return(c);
  space_->Return(b);
  EXPECT_TRUE(space_->IsValid());
  EXPECT_EQ(space_->Carve(3 * kGranule)->base, a.base);
  space_->Return(d);
  EXPECT_TRUE(space_->IsValid());
}

TEST_F(AddressSpaceTest, TheLadderDescendsOnRefusal) {
  vmm_->FailCall(Verb::kReserve, 1);
  ASSERT_TRUE(space_->Carve(kGranule).ok());
  const uint64_t calls = vmm_->calls(Verb::kReserve);
  EXPECT_GE(calls, 2u);  // more where the system itself refuses a rung
  const uint64_t total = vmm_->Memory()->total_bytes;
  EXPECT_EQ(space_->reserved_bytes(), ReservationLadder(total, 1, kGranule)[calls - 1]);
  EXPECT_EQ(*space_->LargestRungBytes(), space_->reserved_bytes());
}

TEST_F(AddressSpaceTest, OnlyTheLastRefusalIsAnErrorWithItsOperands) {
  vmm_->FailFrom(Verb::kReserve, 1);
  const auto refused = space_->Carve(5 * kGranule);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kExhausted);
  const std::string& words = refused.status().message();
  EXPECT_NE(words.find("no room for 327680 bytes"), std::string::npos) << words;
  EXPECT_NE(words.find("largest free span has 0 bytes"), std::string::npos) << words;
  EXPECT_NE(words.find("injected"), std::string::npos) << words;
  EXPECT_EQ(vmm_->calls(Verb::kReserve),
            ReservationLadder(vmm_->Memory()->total_bytes, 1, kGranule).size());
  EXPECT_FALSE(space_->LargestRungBytes().ok());
  EXPECT_EQ(space_->carved_bytes(), 0u);
  vmm_->Heal();
  EXPECT_TRUE(space_->Carve(5 * kGranule).ok());
}

TEST_F(AddressSpaceTest, ImpossibleRequestsSayWhatThereIs) {
  ASSERT_TRUE(space_->Carve(kGranule).ok());
  const uint64_t reserved = space_->reserved_bytes();
  for (const size_t bytes : {~size_t{0}, size_t{1} << 62}) {
    const auto refused = space_->Carve(bytes);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message().find(std::to_string(reserved - kGranule)),
              std::string::npos);
    EXPECT_NE(refused.status().message().find(std::to_string(reserved)), std::string::npos);
    EXPECT_EQ(space_->reserved_bytes(), reserved);
    EXPECT_TRUE(space_->IsValid());
  }
}

TEST_F(AddressSpaceTest, ASecondReservationIsAddedWhenACarveDoesNotFit) {
  const uint64_t first = *space_->LargestRungBytes();
  const uint64_t calls =
      vmm_->calls(Verb::kReserve);  // more than one where the system refuses the first rung
  const AddressRange most = *space_->Carve(first - kGranule);
  EXPECT_EQ(vmm_->calls(Verb::kReserve), calls);
  const AddressRange second = *space_->Carve(2 * kGranule);
  EXPECT_GT(vmm_->calls(Verb::kReserve), calls);
  EXPECT_GT(space_->reserved_bytes(), first);
  EXPECT_TRUE(space_->IsValid());
  const AddressRange last = *space_->Carve(kGranule);  // first fit: the rest of the first one
  EXPECT_EQ(last.base, most.end());
  space_->Return(most);
  space_->Return(last);
  // The first is whole again, the second is not.
  EXPECT_TRUE(space_->FreeUnused().ok());
  EXPECT_EQ(vmm_->calls(Verb::kFree), 1u);
  EXPECT_TRUE(space_->IsValid());
  space_->Return(second);
  EXPECT_TRUE(space_->FreeUnused().ok());
  EXPECT_EQ(space_->reserved_bytes(), 0u);
  EXPECT_EQ(host_->kernel_mappings(), 0u);
  EXPECT_EQ(*space_->LargestRungBytes(), first);  // what the system granted, still
}

TEST_F(AddressSpaceTest, AReservationThatCannotBeFreedIsKeptForAnotherTry) {
  const AddressRange range = *space_->Carve(kGranule);
  space_->Return(range);
  vmm_->FailCall(Verb::kFree, 1);
  EXPECT_EQ(space_->FreeUnused().code(), Code::kExhausted);
  EXPECT_GT(space_->reserved_bytes(), 0u);
  EXPECT_TRUE(space_->IsValid());
  EXPECT_EQ(space_->Carve(kGranule)->base, range.base);
  space_->Return(range);
  EXPECT_TRUE(space_->FreeUnused().ok());
  EXPECT_EQ(space_->reserved_bytes(), 0u);
}

TEST_F(AddressSpaceTest, TheDestructorFreesWhatIsWholeAndLeavesTheRest) {
  const AddressRange kept = *space_->Carve(kGranule);
  (void)kept;
  space_.reset();
  EXPECT_EQ(vmm_->calls(Verb::kFree), 0u);
  space_ = std::make_unique<AddressSpace>(*vmm_);
  space_->Return(*space_->Carve(kGranule));
  space_.reset();
  EXPECT_EQ(vmm_->calls(Verb::kFree), 1u);
}

TEST_F(AddressSpaceTest, RandomCarvesAndReturnsStayValid) {
  std::mt19937 random(7);
  std::vector<AddressRange> live;
  for (int i = 0; i < 3000; ++i) {
    if (live.size() < 5 || random() % 5 < 3) {
      live.push_back(*space_->Carve(1 + random() % (20 * kGranule)));
    } else {
      std::swap(live[random() % live.size()], live.back());
      space_->Return(live.back());
      live.pop_back();
    }
    ASSERT_TRUE(i % 50 != 0 || space_->IsValid()) << i;
  }
  uint64_t bytes = 0;
  for (const AddressRange& range : live) bytes += range.bytes;
  EXPECT_EQ(space_->carved_bytes(), bytes);
  for (const AddressRange& range : live) space_->Return(range);
  EXPECT_TRUE(space_->IsValid());
  EXPECT_TRUE(space_->FreeUnused().ok());
  EXPECT_EQ(space_->reserved_bytes(), 0u);
}

TEST_F(AddressSpaceTest, OnlyCarvedRangesMayReturn) {
  const AddressRange range = *space_->Carve(2 * kGranule);
  EXPECT_DEATH(space_->Return({range.base, kGranule}), "this must hold");
  EXPECT_DEATH(space_->Return({range.base + kGranule, kGranule}), "this must hold");
  EXPECT_DEATH(space_->Return({range.end(), kGranule}), "this must hold");
  space_->Return(range);
  EXPECT_DEATH(space_->Return(range), "this must hold");
}

}  // namespace
}  // namespace granule::memory
