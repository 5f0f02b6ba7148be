#include "memory/handle_pool.h"

#include <gtest/gtest.h>

#include <thread>

#include "memory/fault/fault_vmm.h"
#include "memory/host/host_vmm.h"

namespace granule::memory {
namespace {

constexpr size_t kGranule = 64 << 10;

class HandlePoolTest : public testing::Test {
 protected:
  void SetUp() override {
    host_ = *HostVmm::Open({.max_handle_bytes = 4 * kGranule});
    vmm_ = std::make_unique<FaultVmm>(*host_);
    range_ = *host_->Reserve(64 * kGranule);
  }
  void Make(uint64_t retained_bytes) {
    pool_ = std::make_unique<HandlePool>(*vmm_, retained_bytes);
  }
  Address Home(size_t granule) const { return range_.base + granule * kGranule; }

  std::unique_ptr<HostVmm> host_;
  std::unique_ptr<FaultVmm> vmm_;
  std::unique_ptr<HandlePool> pool_;
  AddressRange range_;
};

TEST_F(HandlePoolTest, WithoutABoundEveryReturnIsARelease) {
  Make(0);
  const AcquiredHandle a = *pool_->Acquire(kGranule, Home(0));
  EXPECT_TRUE(a.is_zero);
  EXPECT_TRUE(a.is_new);
  EXPECT_EQ(pool_->counters().live_bytes, kGranule);
  pool_->Return(a.handle, Home(0));
  const HandleCounters c = pool_->counters();
  EXPECT_EQ(c.creates, 1u);
  EXPECT_EQ(c.releases, 1u);
  EXPECT_EQ(c.pooled_handles, 0u);
  EXPECT_EQ(*vmm_->ResidentBytes(), 0u);
  EXPECT_TRUE(pool_->IsValid());
}

TEST_F(HandlePoolTest, KeepsHandlesWithinTheBound) {
  Make(2 * kGranule + kGranule / 2);
  std::vector<AcquiredHandle> handles;
  for (size_t i = 0; i < 4; ++i) handles.push_back(*pool_->Acquire(kGranule, Home(i)));
  for (size_t i = 0; i < 4; ++i) pool_->Return(handles[i].handle, Home(i));
  EXPECT_EQ(pool_->counters().pooled_bytes, 2 * kGranule);
  EXPECT_EQ(pool_->counters().releases, 2u);
  EXPECT_EQ(*vmm_->ResidentBytes(), 2 * kGranule);
  EXPECT_TRUE(pool_->IsValid());
  const AcquiredHandle again = *pool_->Acquire(kGranule, Home(9));
  EXPECT_FALSE(again.is_zero);  // its old bytes are still there
  EXPECT_FALSE(again.is_new);
  EXPECT_EQ(pool_->counters().pool_hits, 1u);
  EXPECT_EQ(pool_->counters().creates, 4u);
}

TEST_F(HandlePoolTest, TheSameHomeComesFirstThenTheSameSizeThenANewOne) {
  Make(16 * kGranule);
  const Handle a = pool_->Acquire(kGranule, Home(0))->handle;
  const Handle b = pool_->Acquire(kGranule, Home(1))->handle;
  const Handle c = pool_->Acquire(kGranule, Home(2))->handle;
  const Handle large = pool_->Acquire(2 * kGranule, Home(4))->handle;
  pool_->Return(a, Home(0));
  pool_->Return(b, Home(1));
  pool_->Return(c, Home(2));
  pool_->Return(large, Home(4));
  EXPECT_EQ(pool_->Acquire(kGranule, Home(1))->handle, b);
  const AcquiredHandle other = *pool_->Acquire(kGranule, Home(7));
  EXPECT_EQ(other.handle, c);
  EXPECT_EQ(other.home, Home(2));
  EXPECT_EQ(pool_->Acquire(kGranule, Home(7))->handle, a);
  EXPECT_TRUE(pool_->Acquire(kGranule, Home(7))->is_new);  // never one of another size
  EXPECT_TRUE(pool_->Acquire(3 * kGranule, Home(8))->is_new);
  EXPECT_EQ(pool_->Acquire(2 * kGranule, Home(20))->handle, large);
  EXPECT_TRUE(pool_->IsValid());
}

TEST_F(HandlePoolTest, AFailedCreateChangesNothing) {
  Make(kGranule);
  vmm_->FailCall(Verb::kCreate, 1);
  const auto refused = pool_->Acquire(kGranule, Home(0));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kExhausted);
  EXPECT_EQ(pool_->counters().creates, 0u);
  EXPECT_EQ(pool_->counters().live_handles, 0u);
  EXPECT_TRUE(pool_->Acquire(kGranule, Home(0)).ok());
}

TEST_F(HandlePoolTest, AFailedReleaseQuarantines) {
  Make(0);
  const Handle handle = pool_->Acquire(kGranule, Home(0))->handle;
  vmm_->FailCall(Verb::kRelease, 1);
  pool_->Return(handle, Home(0));
  const HandleCounters c = pool_->counters();
  EXPECT_EQ(c.quarantined_handles, 1u);
  EXPECT_EQ(c.quarantined_bytes, kGranule);
  EXPECT_EQ(c.live_handles, 0u);
  EXPECT_EQ(*vmm_->ResidentBytes(), kGranule);  // still charged
  EXPECT_TRUE(pool_->IsValid());
}

TEST_F(HandlePoolTest, QuarantineIsForGood) {
  Make(kGranule);
  const Handle handle = pool_->Acquire(kGranule, Home(0))->handle;
  pool_->Quarantine(handle);
  EXPECT_EQ(pool_->counters().quarantined_handles, 1u);
  EXPECT_NE(pool_->Acquire(kGranule, Home(1))->handle, handle);
  EXPECT_EQ(pool_->Trim(0), 0u);
  EXPECT_TRUE(pool_->IsValid());
}

TEST_F(HandlePoolTest, UndoPutsBackWhereItCameFrom) {
  Make(8 * kGranule);
  pool_->Return(pool_->Acquire(kGranule, Home(0))->handle, Home(0));
  const AcquiredHandle pooled = *pool_->Acquire(kGranule, Home(3));
  const AcquiredHandle fresh = *pool_->Acquire(kGranule, Home(4));
  pool_->Undo(fresh);
  EXPECT_EQ(pool_->counters().releases, 1u);  // although there would be room
  pool_->Undo(pooled);
  EXPECT_EQ(pool_->counters().pooled_handles, 1u);
  EXPECT_EQ(pool_->Acquire(kGranule, Home(0))->home, Home(0));
  EXPECT_TRUE(pool_->IsValid());
}

TEST_F(HandlePoolTest, TrimReleasesTheOldestDownToTheBound) {
  Make(16 * kGranule);
  std::vector<Handle> handles;
  for (size_t i = 0; i < 8; ++i) handles.push_back(pool_->Acquire(kGranule, Home(i))->handle);
  for (size_t i = 0; i < 8; ++i) pool_->Return(handles[i], Home(i));
  EXPECT_EQ(pool_->Trim(6 * kGranule + 5), 2 * kGranule);
  EXPECT_EQ(pool_->counters().pooled_handles, 6u);
  vmm_->FailCall(Verb::kRelease, 2);
  EXPECT_EQ(pool_->Trim(0), 5 * kGranule);  // the refused one is not given back
  EXPECT_EQ(pool_->counters().quarantined_handles, 1u);
  EXPECT_EQ(pool_->counters().pooled_handles, 0u);
  EXPECT_EQ(*vmm_->ResidentBytes(), kGranule);
  EXPECT_TRUE(pool_->IsValid());
}

TEST_F(HandlePoolTest, TheDestructorReleasesWhatIsPooled) {
  Make(16 * kGranule);
  pool_->Return(pool_->Acquire(kGranule, Home(0))->handle, Home(0));
  EXPECT_EQ(*vmm_->ResidentBytes(), kGranule);
  pool_.reset();
  EXPECT_EQ(*vmm_->ResidentBytes(), 0u);
}

TEST_F(HandlePoolTest, ManyThreads) {
  Make(4 * kGranule);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const auto handle = pool_->Acquire(kGranule, Home(t));
        ASSERT_TRUE(handle.ok());
        if (i % 10 == 0) pool_->Trim(kGranule);
        pool_->Return(handle->handle, handle->home);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(pool_->IsValid());
  EXPECT_EQ(pool_->counters().live_handles, 0u);
  EXPECT_EQ(*vmm_->ResidentBytes(), pool_->counters().pooled_bytes);
}

}  // namespace
}  // namespace granule::memory
