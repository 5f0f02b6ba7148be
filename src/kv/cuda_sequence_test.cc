// Sequences on a GPU: content, the ledger against the driver's free memory, what a commit costs,
// memory that really runs out. The same tests run on the fake driver, with everything 256 times
// smaller but the number of tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "kv/cuda_buffers.h"
#include "kv/random_use_for_test.h"
#include "memory/cuda/cuda_device_for_test.h"
#include "memory/cuda/cuda_vmm.h"

namespace granule::kv {
namespace {

class DeviceBytes final : public TokenBytes {
 public:
  explicit DeviceBytes(cuda::Device& device) : device_(device) {}
  void Write(std::byte* to, const std::vector<uint8_t>& bytes) override {
    const Status s =
        device_.UploadAsync(reinterpret_cast<cuda::DevicePtr>(to), bytes.data(), bytes.size());
    ASSERT_TRUE(s.ok()) << s.message();
  }
  std::vector<uint8_t> Read(const std::byte* from, size_t bytes) override {
    std::vector<uint8_t> read(bytes);
    const Status s =
        device_.DownloadAsync(read.data(), reinterpret_cast<cuda::DevicePtr>(from), bytes);
    EXPECT_TRUE(s.ok()) << s.message();
    const Status done = device_.Synchronize();
    EXPECT_TRUE(done.ok()) << done.message();
    return read;
  }

 private:
  cuda::Device& device_;
};

class CudaSequence : public memory::FakeOrRealGpu {
 protected:
  void SetUp() override {
    memory::FakeOrRealGpu::SetUp();
    if (device_ == nullptr) return;
    if (fake()) Fake({.granule_bytes = 2 * MiB(), .total_bytes = 20000 * MiB()});
    buffers_ = MakeCudaBuffers(*device_);
  }
  void TearDown() override {
    buffers_.reset();
    memory::FakeOrRealGpu::TearDown();
  }
  uint64_t MiB() const { return (uint64_t{1} << 20) / (fake() ? 256 : 1); }
  // qwen2.5-14b: 192 KiB per token.
  Group LargeGroup() const {
    Group group;
    group.layers.assign(48, {8, fake() ? 1 : 128, fake() ? DType::kU8 : DType::kF16});
    EXPECT_EQ(group.BytesPerToken(), 192 * MiB() / 1024);
    return group;
  }
  std::unique_ptr<Fixture> Memory(uint64_t retained_bytes, size_t max_handle_bytes = 0) {
    if (max_handle_bytes == 0) max_handle_bytes = 16 * MiB();
    auto vmm = memory::CudaVmm::Open(device(), {.max_handle_bytes = max_handle_bytes});
    EXPECT_TRUE(vmm.ok()) << vmm.status().message();
    return std::make_unique<Fixture>(std::move(*vmm), *buffers_, retained_bytes);
  }
  std::unique_ptr<Sequence> Make(const Fixture& f, const Group& group, LayoutKind layout,
                                 uint64_t hard_max) {
    auto s =
        Sequence::Create(f.store(), group, Options({layout, 0}, {Rounding::kGranule, 4}, hard_max));
    EXPECT_TRUE(s.ok()) << s.status().message();
    return std::move(*s);
  }
  uint64_t FreeBytes() { return device().Memory()->free_bytes; }

  std::unique_ptr<BufferAllocator> buffers_;
};

INSTANTIATE_TEST_SUITE_P(On, CudaSequence, testing::Values(memory::Gpu::kFake, memory::Gpu::kReal),
                         memory::GpuName);

// ---- content

TEST_P(CudaSequence, RandomUseKeepsContentAndBooks) {
  Group group;  // 8 KiB per token, so that a growth crosses granules in every layout
  group.layers.assign(
      2, fake() ? LayerGeometry{2, 1, DType::kF32} : LayerGeometry{2, 256, DType::kF32});
  DeviceBytes access(device());
  const uint64_t operations = std::getenv("GRANULE_NIGHTLY") != nullptr ? 100000 : 2000;
  constexpr uint64_t kAtOnce = 500;
  for (unsigned seed = 0; seed * kAtOnce < operations && !HasFailure(); ++seed) {
    auto f = Memory(seed % 3 * 64 * MiB(), seed % 2 == 0 ? 16 * MiB() : 1);
    RandomUse(*f, access,
              {.group = group,
               .hard_maxes = {1, 700, 3000, 6000},
               .longest_step = 900,
               .operations = kAtOnce,
               .seed = seed})
        .Run();
    ASSERT_TRUE(device().lost().ok()) << device().lost().message();
  }
  std::printf("%llu operations\n", static_cast<unsigned long long>(operations));
}

// ---- the floor, by the ledger and by the driver

TEST_P(CudaSequence, CommittedMemoryIsWhatTheDriverLost) {
  struct Row {
    LayoutKind layout;
    uint64_t mib[4];
  };
  const uint64_t lengths[] = {1, 1000, 8192, 32000};
  const Row rows[] = {{LayoutKind::kHeadMajor, {1536, 1536, 1536, 6144}},
                      {LayoutKind::kSeqMajor, {192, 192, 1536, 6144}},
                      {LayoutKind::kTokenMajor, {2, 188, 1536, 6000}}};
  auto f = Memory(/*retained_bytes=*/0);
  const uint64_t granule = f->fault->capabilities().granule_bytes;
  if (granule != 2 * MiB()) GTEST_SKIP() << "the numbers are for granules of 2 MiB";
  // What the driver keeps for itself from the first mapping on is not ours.
  { ASSERT_TRUE(Make(*f, LargeGroup(), LayoutKind::kTokenMajor, 32768)->Ensure(32000).ok()); }
  const uint64_t start = FreeBytes();
  for (const Row& row : rows) {
    auto s = Make(*f, LargeGroup(), row.layout, 32768);
    const auto* base = s->base();
    for (size_t i = 0; i < std::size(lengths); ++i) {
      SCOPED_TRACE(LayoutName({row.layout, 0}) + " " + std::to_string(lengths[i]));
      const Status status = s->Ensure(lengths[i]);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(device().Synchronize().ok());
      const Counters c = s->counters();
      const auto fallen = static_cast<int64_t>(start) - static_cast<int64_t>(FreeBytes());
      std::printf(
          "%-11s %5llu tokens: ledger %5llu MiB, free memory fell by %lld bytes, %llu maps\n",
          LayoutName({row.layout, 0}).c_str(), (unsigned long long)lengths[i],
          (unsigned long long)(c.unique_physical_bytes / MiB()), (long long)fallen,
          (unsigned long long)f->fault->calls(memory::Verb::kMap));
      EXPECT_EQ(c.unique_physical_bytes, row.mib[i] * MiB());
      EXPECT_EQ(*f->fault->ResidentBytes(), row.mib[i] * MiB());
      EXPECT_LE(std::abs(fallen - static_cast<int64_t>(row.mib[i] * MiB())),
                static_cast<int64_t>(granule));
      EXPECT_EQ(c.kv_bytes_moved, 0u);
      EXPECT_EQ(c.growth_keeps, c.growth_events);
      EXPECT_EQ(s->base(), base);
      EXPECT_TRUE(s->IsValid());
    }
    s.reset();
    EXPECT_LE(std::abs(static_cast<int64_t>(start) - static_cast<int64_t>(FreeBytes())),
              static_cast<int64_t>(granule));
  }
}

// ---- memory that runs out

TEST_P(CudaSequence, OutOfDeviceMemory) {
  auto f = Memory(0);
  const uint64_t granule = f->fault->capabilities().granule_bytes;
  // What the driver keeps for itself from the first mapping on is not ours.
  { ASSERT_TRUE(Make(*f, LargeGroup(), LayoutKind::kTokenMajor, 32768)->Ensure(32000).ok()); }
  const uint64_t start = FreeBytes();
  DeviceBytes access(device());
  {
    auto s = Make(*f, LargeGroup(), LayoutKind::kTokenMajor, 32768);
    auto other = Make(*f, LargeGroup(), LayoutKind::kTokenMajor, 32768);
    ASSERT_TRUE(s->Ensure(1000).ok());
    s->Advance(1000);
    Canary(access, *s, LargeGroup(), 999, 3, false);
    ASSERT_TRUE(other->Ensure(1).ok());
    const uint64_t held = other->committed_length();
    // Everything but little, in ever smaller pieces.
    std::vector<cuda::Buffer> fillers;
    for (uint64_t piece = 16384 * MiB(); piece >= 2 * MiB();) {
      if (FreeBytes() < 64 * MiB()) break;
      auto filler = cuda::Buffer::Allocate(device(), piece, "a test");
      if (filler.ok()) {
        fillers.push_back(std::move(*filler));
      } else {
        ASSERT_EQ(filler.status().code(), Code::kExhausted) << filler.status().message();
        piece /= 2;
      }
    }
    std::printf("%zu fillers, %s left\n", fillers.size(), FormatBytes(FreeBytes()).c_str());
    const uint64_t committed = s->committed_length();
    const uint64_t resident = *f->fault->ResidentBytes();
    const Status refused = s->Ensure(32000);
    ASSERT_EQ(refused.code(), Code::kExhausted) << refused.message();
    std::printf("%s\n", refused.message().c_str());
    EXPECT_NE(refused.message().find("device cuda:0 memory: free="), std::string::npos);
    EXPECT_NE(refused.message().find("session is unchanged"), std::string::npos);
    EXPECT_EQ(s->committed_length(), committed);
    EXPECT_EQ(*f->fault->ResidentBytes(), resident);
    EXPECT_TRUE(s->IsValid());
    Canary(access, *s, LargeGroup(), 999, 3, true);
    ASSERT_TRUE(other->Ensure(held).ok());
    Canary(access, *other, LargeGroup(), held - 1, 9, false);
    Canary(access, *other, LargeGroup(), held - 1, 9, true);
    // The largest filler goes: the same call works.
    fillers.erase(fillers.begin());
    const Status retry = s->Ensure(32000);
    ASSERT_TRUE(retry.ok()) << retry.message();
    Canary(access, *s, LargeGroup(), 999, 3, true);
    Canary(access, *s, LargeGroup(), 31999, 4, false);
    Canary(access, *s, LargeGroup(), 31999, 4, true);
  }
  EXPECT_LE(std::abs(static_cast<int64_t>(start) - static_cast<int64_t>(FreeBytes())),
            static_cast<int64_t>(2 * granule));
}

TEST_P(CudaSequence, TheLastRungOfTheLadderGivesTheCapacityError) {
  auto f = Memory(0);
  const auto rungs = memory::ReservationLadder(device().facts().total_bytes,
                                               f->fault->capabilities().granule_bytes,
                                               f->fault->capabilities().granule_bytes);
  f->fault->FailNext(memory::Verb::kReserve, rungs.size() - 1);
  auto s = Make(*f, LargeGroup(), LayoutKind::kTokenMajor, 0);
  EXPECT_EQ(f->space->reserved_bytes(), rungs.back());
  EXPECT_EQ(s->capacity(), std::min<uint64_t>(rungs.back() / 2, device().facts().total_bytes) /
                               LargeGroup().BytesPerToken());
  ASSERT_TRUE(s->Ensure(100).ok());
  const Status status = s->Ensure(s->capacity() + 1);
  EXPECT_EQ(status.code(), Code::kCapacityExceeded);
  EXPECT_NE(status.message().find("device cuda:0 memory"), std::string::npos) << status.message();
  // And no rung at all is a typed error, too.
  s.reset();
  auto none = Memory(0);
  none->fault->FailFrom(memory::Verb::kReserve, 1);
  EXPECT_EQ(Sequence::Create(none->store(), LargeGroup(),
                             Options({LayoutKind::kTokenMajor, 0}, {Rounding::kGranule, 4}, 100))
                .status()
                .code(),
            Code::kExhausted);
}

// ---- what a growth costs

class SpeedOfCudaGrowth : public CudaSequence {
 protected:
  using Clock = std::chrono::steady_clock;
  static void Print(const char* what, std::vector<double> us) {
    std::sort(us.begin(), us.end());
    std::printf("%-46s %4zu growths: p50 %7.1f us, p99 %7.1f us, max %7.1f us\n", what, us.size(),
                us[us.size() / 2], us[(us.size() * 99 - 1) / 100], us.back());
  }
  // Grows by one slot behind what is committed, `count` times; the time of each Ensure alone.
  std::vector<double> Grow(Sequence& s, int count, bool prepare, bool beside_work) {
    std::vector<double> us;
    for (int i = 0; i < count; ++i) {
      const uint64_t next = s.committed_length() + 1;
      if (prepare) {
        EXPECT_TRUE(s.Prepare(next).ok());
      }
      if (beside_work) {
        for (int copy = 0; copy < 10; ++copy) {
          EXPECT_TRUE(device().CopyAsync(to_.address(), from_.address(), from_.bytes()).ok());
        }
      }
      const auto start = Clock::now();
      const Status status = s.Ensure(next);
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(device().Synchronize().ok());
    }
    return us;
  }

  cuda::Buffer from_, to_;
};

INSTANTIATE_TEST_SUITE_P(On, SpeedOfCudaGrowth,
                         testing::Values(memory::Gpu::kFake, memory::Gpu::kReal), memory::GpuName);

TEST_P(SpeedOfCudaGrowth, CommitStall) {
  from_ = *cuda::Buffer::Allocate(device(), 256 * MiB(), "a test");
  to_ = *cuda::Buffer::Allocate(device(), 256 * MiB(), "a test");
  {
    auto f = Memory(fake() ? 256 * MiB() : memory::kCudaRetainedBytes);
    for (const bool beside_work : {false, true}) {
      for (const bool prepare : {true, false}) {
        auto s = Make(*f, LargeGroup(), LayoutKind::kTokenMajor, 32768);
        ASSERT_TRUE(s->Ensure(1).ok());
        const auto us = Grow(*s, 200, prepare, beside_work);
        Print(Format("token-major, 1 granule, {}, {}", prepare ? "prepared" : "created",
                     beside_work ? "beside copies" : "in the gap")
                  .c_str(),
              us);
        s.reset();
        f->pool->Trim(0);
      }
      auto s = Make(*f, LargeGroup(), LayoutKind::kSeqMajor, 32768);
      ASSERT_TRUE(s->Ensure(1).ok());
      Print(Format("seq-major, 96 granules, prepared, {}",
                   beside_work ? "beside copies" : "in the gap")
                .c_str(),
            Grow(*s, 20, true, beside_work));
    }
  }
  from_.Reset();
  to_.Reset();
}

TEST_P(SpeedOfCudaGrowth, OneLongGrowthByHandleSize) {
  for (const uint64_t longest : {2 * MiB(), 16 * MiB(), 64 * MiB(), 256 * MiB()}) {
    auto f = Memory(0, longest);
    std::vector<double> us;
    for (int i = 0; i < 5; ++i) {
      auto s = Make(*f, LargeGroup(), LayoutKind::kTokenMajor, 32768);
      const auto start = Clock::now();
      ASSERT_TRUE(s->Ensure(8192).ok());
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
      ASSERT_TRUE(device().Synchronize().ok());
    }
    Print(Format("token-major, 1536 MiB, handles up to {}", FormatBytes(longest)).c_str(), us);
  }
}

// ---- last, for on a real GPU it breaks a context in earnest

class CudaSequenceFaults : public CudaSequence {};
INSTANTIATE_TEST_SUITE_P(On, CudaSequenceFaults,
                         testing::Values(memory::Gpu::kFake, memory::Gpu::kReal), memory::GpuName);

TEST_P(CudaSequenceFaults, AWriteIntoASharedPrefixIsRefusedAndTheProcessGoesOn) {
  auto f = Memory(0);
  auto parent = Make(*f, LargeGroup(), LayoutKind::kTokenMajor, 1000);
  ASSERT_TRUE(parent->Ensure(500).ok());
  parent->Advance(500);
  DeviceBytes access(device());
  Canary(access, *parent, LargeGroup(), 0, 77, false);
  auto child = parent->Fork();
  ASSERT_TRUE(child.ok()) << child.status().message();
  ASSERT_GT((*child)->counters().shared_bytes, 0u);
  Canary(access, **child, LargeGroup(), 0, 77, true);
  const Status written =
      device().ZeroAsync(reinterpret_cast<cuda::DevicePtr>((*child)->base()), 4096);
  const Status after = device().Synchronize();
  EXPECT_TRUE(!written.ok() || !after.ok()) << "the shared prefix took a write";
  std::printf("a write into a read-only share: %s\n",
              (written.ok() ? after : written).message().c_str());
  if (!device().lost().ok()) {
    EXPECT_EQ(parent->Ensure(1000).code(), Code::kDeviceLost);
    EXPECT_EQ((*child)->Ensure(1000).code(), Code::kDeviceLost);
  }
  child->reset();
  parent.reset();
  f.reset();
  TearDown();
  SetUp();  // the model is loaded again
  ASSERT_NE(device_, nullptr);
  auto again = Memory(0);
  auto s = Make(*again, LargeGroup(), LayoutKind::kTokenMajor, 1000);
  ASSERT_TRUE(s->Ensure(100).ok());
  DeviceBytes fresh(device());
  Canary(fresh, *s, LargeGroup(), 99, 5, false);
  Canary(fresh, *s, LargeGroup(), 99, 5, true);
}

}  // namespace
}  // namespace granule::kv
