#include "memory/fault/fault_vmm.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "memory/host/host_vmm.h"

namespace granule::memory {
namespace {

class FaultVmmTest : public testing::Test {
 protected:
  void SetUp() override {
    host_ = *HostVmm::Open();
    vmm_ = std::make_unique<FaultVmm>(*host_);
    granule_ = vmm_->capabilities().granule_bytes;
  }
  // Calls the verb once in a way that the host accepts.
  Status Call(Verb verb) {
    const AddressRange range = *host_->Reserve(granule_);
    const Handle handle = *host_->Create(granule_, range.base);
    switch (verb) {
      case Verb::kReserve:
        return vmm_->Reserve(granule_).status();
      case Verb::kFree:
        return vmm_->Free(range);
      case Verb::kCreate:
        return vmm_->Create(granule_, 0).status();
      case Verb::kRelease:
        return vmm_->Release(handle);
      case Verb::kMap:
        return vmm_->Map(range.base, handle, Access::kReadWrite);
      case Verb::kUnmap:
        if (Status s = host_->Map(range.base, handle, Access::kReadWrite); !s.ok()) return s;
        return vmm_->Unmap(range);
      case Verb::kZero:
        if (Status s = host_->Map(range.base, handle, Access::kReadWrite); !s.ok()) return s;
        return vmm_->Zero(range);
      case Verb::kCopy:
        if (Status s = host_->Map(range.base, handle, Access::kReadWrite); !s.ok()) return s;
        return vmm_->Copy(range.base, range.base + 1, 1);
    }
    return {};
  }

  std::unique_ptr<HostVmm> host_;
  std::unique_ptr<FaultVmm> vmm_;
  size_t granule_ = 0;
};

TEST_F(FaultVmmTest, PassesOnAndCounts) {
  EXPECT_EQ(vmm_->capabilities().name, "host behind faults");
  EXPECT_TRUE(vmm_->Memory().ok());
  for (Verb verb : kAllVerbs) {
    EXPECT_EQ(vmm_->calls(verb), 0u);
    EXPECT_TRUE(Call(verb).ok()) << VerbName(verb);
    EXPECT_TRUE(Call(verb).ok());
    EXPECT_EQ(vmm_->calls(verb), 2u);
    EXPECT_EQ(vmm_->failures(verb), 0u);
  }
  EXPECT_EQ(*vmm_->ResidentBytes(), *host_->ResidentBytes());
}

TEST_F(FaultVmmTest, FailsTheChosenCallOnce) {
  for (Verb verb : kAllVerbs) {
    ASSERT_TRUE(Call(verb).ok());
    vmm_->FailCall(verb, 2);
    EXPECT_TRUE(Call(verb).ok());
    const Status failed = Call(verb);
    EXPECT_EQ(failed.code(), Code::kExhausted);
    EXPECT_EQ(failed.message(), std::string("injected failure of ") + VerbName(verb) + ", call 3");
    EXPECT_TRUE(Call(verb).ok());
    EXPECT_EQ(vmm_->calls(verb), 4u);
    EXPECT_EQ(vmm_->failures(verb), 1u);
  }
}

TEST_F(FaultVmmTest, FailsFromACallOnUntilHealed) {
  for (Verb verb : kAllVerbs) {
    vmm_->FailFrom(verb, 2);
    EXPECT_TRUE(Call(verb).ok());
    for (int i = 0; i < 5; ++i) EXPECT_FALSE(Call(verb).ok());
    vmm_->Heal();
    EXPECT_TRUE(Call(verb).ok());
    EXPECT_EQ(vmm_->failures(verb), 5u);
  }
}

TEST_F(FaultVmmTest, FailsTheNextCallsAndThenWorks) {
  for (Verb verb : kAllVerbs) {
    vmm_->FailNext(verb, 3);
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(Call(verb).ok());
    EXPECT_TRUE(Call(verb).ok());
    EXPECT_EQ(vmm_->failures(verb), 3u);
  }
}

TEST_F(FaultVmmTest, CountsStartAgainWithoutMovingThePlan) {
  vmm_->FailCall(Verb::kCreate, 3);
  EXPECT_TRUE(Call(Verb::kCreate).ok());
  vmm_->ResetCounts();
  EXPECT_EQ(vmm_->calls(Verb::kCreate), 0u);
  EXPECT_TRUE(Call(Verb::kCreate).ok());
  EXPECT_FALSE(Call(Verb::kCreate).ok());
  EXPECT_EQ(vmm_->calls(Verb::kCreate), 2u);
}

TEST_F(FaultVmmTest, ARefusedCallDoesNotReachTheInside) {
  const uint64_t before = *host_->ResidentBytes();
  vmm_->FailCall(Verb::kCreate, 1);
  EXPECT_FALSE(vmm_->Create(granule_, 0).ok());
  EXPECT_EQ(*host_->ResidentBytes(), before);
}

TEST(Verbs, HaveNames) {
  std::set<std::string> names;
  for (Verb verb : kAllVerbs) names.insert(VerbName(verb));
  EXPECT_EQ(names.size(), kAllVerbs.size());
}

}  // namespace
}  // namespace granule::memory
