// Every verb on the fake driver and on a real GPU, and what only one of them can show.
#include "memory/cuda/cuda_vmm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>

#include "memory/address_space.h"
#include "memory/cuda/cuda_device_for_test.h"
#include "memory/cuda/cuda_memory_probe.h"
#include "memory/fault/fault_vmm.h"
#include "memory/handle_pool.h"
#include "memory/mapping_table.h"

namespace granule::memory {
namespace {

class CudaVmmTest : public FakeOrRealGpu {
 protected:
  void SetUp() override {
    FakeOrRealGpu::SetUp();
    if (device_ != nullptr) OpenVmm();
  }
  void TearDown() override {
    vmm_.reset();
    FakeOrRealGpu::TearDown();
    if (fake_ == nullptr) return;
    EXPECT_EQ(fake_->live_handles(), 0u);
    EXPECT_EQ(fake_->live_reservations(), 0u);
    EXPECT_EQ(fake_->live_buffers(), 0u);
  }
  void OpenVmm(const CudaVmmOptions& options = {}) {
    vmm_.reset();
    auto opened = CudaVmm::Open(*device_, options);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    vmm_ = std::move(*opened);
    granule_ = vmm_->capabilities().granule_bytes;
  }
  // A granule of memory at an address of its own.
  AddressRange Mapped(Access access = Access::kReadWrite) {
    const AddressRange range = *vmm_->Reserve(granule_);
    const Status status = vmm_->Map(range.base, *vmm_->Create(granule_, range.base), access);
    EXPECT_TRUE(status.ok()) << status.message();
    return range;
  }
  void Write(Address to, const std::vector<uint8_t>& bytes) {
    ASSERT_TRUE(device().UploadAsync(to, bytes.data(), bytes.size()).ok());
    ASSERT_TRUE(device().Synchronize().ok());
  }
  std::vector<uint8_t> Read(Address from, size_t bytes) { return Get<uint8_t>(from, bytes); }
  static std::vector<uint8_t> Random(size_t bytes, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<uint8_t> values(bytes);
    for (uint8_t& value : values) value = static_cast<uint8_t>(random());
    return values;
  }

  std::unique_ptr<CudaVmm> vmm_;
  size_t granule_ = 0;
};

INSTANTIATE_TEST_SUITE_P(On, CudaVmmTest, testing::Values(Gpu::kFake, Gpu::kReal), GpuName);

TEST_P(CudaVmmTest, StatesWhatTheDeviceCanDo) {
  const Capabilities& c = vmm_->capabilities();
  EXPECT_EQ(c.name, "cuda:0");
  EXPECT_GT(c.granule_bytes, 0u);
  EXPECT_TRUE(c.create_is_slow);
  EXPECT_FALSE(c.fresh_is_zero);
  EXPECT_EQ(c.max_handle_bytes % c.granule_bytes, 0u);
  EXPECT_GE(c.max_handle_bytes, c.granule_bytes);
  const auto memory = vmm_->Memory();
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->where, "device cuda:0");
  EXPECT_GT(memory->free_bytes, 0u);
  EXPECT_LE(memory->free_bytes, memory->total_bytes);
  OpenVmm({.max_handle_bytes = 1});
  EXPECT_EQ(vmm_->capabilities().max_handle_bytes, granule_);
}

TEST_P(CudaVmmTest, MapsWritesSharesAndTakesAway) {
  const AddressRange range = *vmm_->Reserve(8 * granule_);
  EXPECT_EQ(range.base % granule_, 0u);
  const Handle handle = *vmm_->Create(2 * granule_, range.base);
  EXPECT_EQ(*vmm_->ResidentBytes(), 2 * granule_);
  ASSERT_TRUE(vmm_->Map(range.base, handle, Access::kReadWrite).ok());
  ASSERT_TRUE(vmm_->Map(range.base + 4 * granule_, handle, Access::kReadOnly).ok());
  const std::vector<uint8_t> bytes = Random(1000, 1);
  Write(range.base + granule_ - 500, bytes);
  EXPECT_EQ(Read(range.base + 5 * granule_ - 500, 1000), bytes);
  ASSERT_TRUE(vmm_->Unmap({range.base, 2 * granule_}).ok());
  EXPECT_EQ(Read(range.base + 5 * granule_ - 500, 1000), bytes);
  ASSERT_TRUE(vmm_->Unmap({range.base + 4 * granule_, 2 * granule_}).ok());
  // The memory lives without an address, and may come back at another.
  ASSERT_TRUE(vmm_->Map(range.base + granule_, handle, Access::kReadWrite).ok());
  EXPECT_EQ(Read(range.base + 2 * granule_ - 500, 1000), bytes);
  ASSERT_TRUE(vmm_->Unmap({range.base + granule_, 2 * granule_}).ok());
  ASSERT_TRUE(vmm_->Release(handle).ok());
  EXPECT_EQ(*vmm_->ResidentBytes(), 0u);
  ASSERT_TRUE(vmm_->Free(range).ok());
}

TEST_P(CudaVmmTest, ZeroesAnyBytes) {
  const AddressRange range = Mapped();
  const std::vector<uint8_t> bytes = Random(3000, 2);
  Write(range.base, bytes);
  ASSERT_TRUE(vmm_->Zero({range.base + 777, 1234}).ok());
  ASSERT_TRUE(vmm_->Zero({range.base, 0}).ok());
  std::vector<uint8_t> expected = bytes;
  std::fill_n(expected.begin() + 777, 1234, uint8_t{0});
  EXPECT_EQ(Read(range.base, 3000), expected);
}

// Against memmove, over distances from one byte on: directly, in pieces, and through the buffer.
TEST_P(CudaVmmTest, CopiesAsMemmoveDoes) {
  OpenVmm({.max_handle_bytes = 16 << 20});
  const size_t bytes = std::max<size_t>(granule_, 12 << 20);
  const AddressRange range = *vmm_->Reserve(RoundUp(bytes, granule_));
  for (size_t at = 0; at < range.bytes; at += granule_) {
    ASSERT_TRUE(vmm_->Map(range.base + at, *vmm_->Create(granule_, 0), Access::kReadWrite).ok());
  }
  std::vector<uint8_t> model = Random(bytes, 3);
  Write(range.base, model);
  struct Case {
    size_t to, from, bytes;
  };
  const size_t mib = 1 << 20;
  const Case cases[] = {{0, 5 * mib, 3 * mib},
                        {5 * mib, 0, 5 * mib},
                        {1, 0, 11 * mib},
                        {0, 1, 11 * mib},
                        {5 * mib, mib / 2, 6 * mib},
                        {100, 3 * mib, 8 * mib},
                        {3 * mib, 77, 9 * mib - 77},
                        {4 * mib + 3, 4 * mib, 100},
                        {64 << 10, 0, 9 * mib},
                        {0, 64 << 10, 9 * mib},
                        {7, 7, mib},
                        {9, 20, 0},
                        {4 * mib - 1, 0, 7 * mib + 13},
                        {0, 4 * mib + 1, 7 * mib + 13}};
  for (const Case& c : cases) {
    SCOPED_TRACE(std::to_string(c.from) + " -> " + std::to_string(c.to));
    ASSERT_TRUE(vmm_->Copy(range.base + c.to, range.base + c.from, c.bytes).ok());
    std::memmove(model.data() + c.to, model.data() + c.from, c.bytes);
    ASSERT_TRUE(Read(range.base, bytes) == model);
  }
}

TEST_P(CudaVmmTest, TakesAwayOnlyWhatNoSubmittedWorkTouches) {
  if (fake()) fake_->Defer(true);
  const AddressRange from = Mapped();
  const AddressRange to = Mapped();
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(vmm_->Copy(to.base, from.base, granule_).ok());
  ASSERT_TRUE(vmm_->Zero(from).ok());
  ASSERT_TRUE(vmm_->Unmap(from).ok());
  ASSERT_TRUE(vmm_->Unmap(to).ok());
  const Status status = device().Synchronize();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_P(CudaVmmTest, TheDestructorTakesEverythingAway) {
  const auto before = *device().Memory();
  for (int i = 0; i < 5; ++i) Mapped();
  (void)*vmm_->Create(granule_, 0);
  ASSERT_TRUE(vmm_->Zero(Mapped()).ok());
  vmm_.reset();
  const auto after = *device().Memory();
  EXPECT_GE(after.free_bytes + granule_, before.free_bytes);
}

TEST_P(CudaVmmTest, AReservationThatCannotBeIsRefused) {
  const auto refused = vmm_->Reserve(RoundDown(size_t{1} << 62, granule_));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kExhausted);
  EXPECT_NE(refused.status().message().find("of addresses"), std::string::npos);
  EXPECT_TRUE(vmm_->Reserve(granule_).ok());
  // The ladder comes down to what is granted.
  AddressSpace space(*vmm_);
  const auto rung = space.LargestRungBytes();
  ASSERT_TRUE(rung.ok()) << rung.status().message();
  std::printf("largest reservation on the ladder: %s\n", FormatBytes(*rung).c_str());
}

// The mapping table over faults over CUDA: every call of a commit, a share, a private copy and a
// decommit fails in turn; nothing changes, the retry works, nothing leaks.
TEST_P(CudaVmmTest, EveryFault) {
  for (const size_t longest : {granule_, 4 * granule_}) {
    OpenVmm({.max_handle_bytes = longest});
    for (const Verb verb : {Verb::kCreate, Verb::kMap, Verb::kUnmap, Verb::kRelease, Verb::kCopy}) {
      for (uint64_t nth = 1;; ++nth) {
        SCOPED_TRACE(std::string(VerbName(verb)) + " " + std::to_string(nth));
        FaultVmm faults(*vmm_);
        HandlePool pool(faults, 4 * granule_);
        MappingTable table(faults, pool);
        AddressSpace space(faults);
        const AddressRange area = *space.Carve(40 * granule_);
        const AddressRange target{area.base + 20 * granule_, 8 * granule_};
        faults.FailCall(verb, nth);
        bool failed = false;
        bool final = false;
        const auto attempt = [&](const std::function<Status()>& call) {
          if (final) return;
          Status status = call();
          if (status.ok()) return;
          failed = true;
          final = status.code() == Code::kPoisoned;
          EXPECT_TRUE(table.IsValid() && pool.IsValid());
          if (final) return;
          EXPECT_EQ(status.code(), Code::kExhausted) << status.message();
          status = call();
          EXPECT_TRUE(status.ok()) << status.message();
        };
        const AddressRange parts[] = {{area.base, 8 * granule_}, {area.base + 9 * granule_, 5}};
        attempt([&] { return table.Commit(parts).status(); });
        for (unsigned g = 0; g < 8 && !final; ++g) Write(area.base + g * granule_, Random(300, g));
        attempt(
            [&] { return table.Share(area.base, target.base, target.bytes, Access::kReadOnly); });
        attempt([&] {
          return table.MakePrivate(std::vector<AddressRange>{{target.base, granule_}}, space);
        });
        for (unsigned g = 0; g < 8 && !final; ++g) {
          EXPECT_TRUE(Read(target.base + g * granule_, 300) == Random(300, g)) << g;
        }
        const Status gone = table.Decommit(area);
        EXPECT_TRUE(gone.ok() || gone.code() == Code::kPoisoned);
        EXPECT_TRUE(table.IsValid() && pool.IsValid());
        pool.Trim(0);
        const HandleCounters c = pool.counters();
        EXPECT_EQ(c.creates, c.releases + c.quarantined_handles);
        EXPECT_EQ(c.live_handles, 0u);
        EXPECT_EQ(*vmm_->ResidentBytes(), c.quarantined_bytes);
        const bool reached = faults.calls(verb) >= nth;
        EXPECT_TRUE(!reached || failed || !gone.ok() || verb == Verb::kRelease) << "unseen";
        OpenVmm({.max_handle_bytes = longest});
        if (!reached) {
          EXPECT_GT(nth, 1u) << "the verb was never called";
          break;
        }
      }
    }
  }
}

// ---- what only the fake can do

class FakeCuda : public CudaVmmTest {};
INSTANTIATE_TEST_SUITE_P(On, FakeCuda, testing::Values(Gpu::kFake), GpuName);

TEST_P(FakeCuda, TheGranuleIsAskedFor) {
  vmm_.reset();
  Fake({.granule_bytes = 12288, .total_bytes = 10 << 20});
  OpenVmm({.max_handle_bytes = 100000});
  EXPECT_EQ(granule_, 12288u);
  EXPECT_EQ(vmm_->capabilities().max_handle_bytes, 98304u);
  EXPECT_EQ(vmm_->Memory()->total_bytes, uint64_t{10} << 20);
}

TEST_P(FakeCuda, ADeviceWithoutVirtualMemoryIsRefused) {
  vmm_.reset();
  Fake({.virtual_memory = false});
  const auto refused = CudaVmm::Open(device());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
  EXPECT_NE(refused.status().message().find("--device cpu"), std::string::npos);
}

TEST_P(FakeCuda, OutOfMemoryStatesItsOperands) {
  vmm_.reset();
  Fake({.granule_bytes = 64 << 10, .total_bytes = 192 << 10});
  OpenVmm();
  std::vector<Handle> handles;
  for (int i = 0; i < 3; ++i) handles.push_back(*vmm_->Create(granule_, 0));
  const auto refused = vmm_->Create(granule_, 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kExhausted);
  for (const char* part : {"device cuda:0", "65536 bytes", "CUDA_ERROR_OUT_OF_MEMORY",
                           "0 bytes (0 B) are free of 196608", "--ctx-size"}) {
    EXPECT_NE(refused.status().message().find(part), std::string::npos)
        << part << " in " << refused.status().message();
  }
  ASSERT_TRUE(vmm_->Release(handles[0]).ok());
  EXPECT_TRUE(vmm_->Create(granule_, 0).ok());
}

TEST_P(FakeCuda, AMapWithoutAccessIsTakenBack) {
  const AddressRange range = *vmm_->Reserve(granule_);
  const Handle handle = *vmm_->Create(granule_, 0);
  fake_->Fail("MemSetAccess", 1, cuda::kOutOfMemory);
  EXPECT_EQ(vmm_->Map(range.base, handle, Access::kReadWrite).code(), Code::kExhausted);
  EXPECT_EQ(fake_->windows(), 0u);
  EXPECT_TRUE(vmm_->Map(range.base, handle, Access::kReadWrite).ok());
}

TEST_P(FakeCuda, AMapThatCannotBeTakenBackIsPoisonedAllTheWayUp) {
  HandlePool pool(*vmm_, 0);
  MappingTable table(*vmm_, pool);
  AddressSpace space(*vmm_);
  const AddressRange area = *space.Carve(8 * granule_);
  const auto commit = [&](size_t granule) {
    return table.Commit(std::vector<AddressRange>{{area.base + granule * granule_, granule_}})
        .status();
  };
  ASSERT_TRUE(commit(0).ok());
  fake_->Fail("MemSetAccess", 1, cuda::kOutOfMemory);
  fake_->Fail("MemUnmap", 1, cuda::FakeDriver::kInvalidValue);
  const Status failed = commit(1);
  EXPECT_EQ(failed.code(), Code::kPoisoned);
  EXPECT_NE(failed.message().find("could not be taken back"), std::string::npos);
  EXPECT_TRUE(table.IsPoisoned({area.base + granule_, granule_}));
  EXPECT_TRUE(table.IsValid() && pool.IsValid());
  EXPECT_EQ(pool.counters().quarantined_handles, 1u);
  EXPECT_EQ(commit(1).code(), Code::kPoisoned);
  EXPECT_TRUE(commit(2).ok());

  // The same while a shared window becomes private: in the scratch addresses, then in the window.
  ASSERT_TRUE(table.Share(area.base, area.base + 4 * granule_, granule_, Access::kReadOnly).ok());
  const std::vector<AddressRange> shared{{area.base + 4 * granule_, granule_}};
  fake_->Fail("MemSetAccess", 1, cuda::kOutOfMemory);
  fake_->Fail("MemUnmap", 1, cuda::FakeDriver::kInvalidValue);
  EXPECT_EQ(table.MakePrivate(shared, space).code(), Code::kExhausted);
  EXPECT_TRUE(table.IsValid() && pool.IsValid());
  EXPECT_EQ(table.BackedBytes(shared[0]), granule_);
  fake_->Fail("MemSetAccess", 2, cuda::kOutOfMemory);
  fake_->Fail("MemUnmap", 3, cuda::FakeDriver::kInvalidValue);
  EXPECT_EQ(table.MakePrivate(shared, space).code(), Code::kPoisoned);
  EXPECT_TRUE(table.IsPoisoned(shared[0]));
  EXPECT_TRUE(table.IsValid() && pool.IsValid());
  EXPECT_EQ(pool.counters().quarantined_handles, 3u);
  EXPECT_EQ(table.BackedBytes(area), 2 * granule_);
  EXPECT_TRUE(table.Decommit(area).ok());
  EXPECT_EQ(pool.counters().live_handles, 0u);
}

// The last window of a handle changes its access from read-only: unmapped, then nothing maps.
TEST_P(FakeCuda, AWindowThatCannotComeBackIsLostWithoutALeak) {
  HandlePool pool(*vmm_, 0);
  MappingTable table(*vmm_, pool);
  AddressSpace space(*vmm_);
  const AddressRange area = *space.Carve(8 * granule_);
  ASSERT_TRUE(table.Commit(std::vector<AddressRange>{{area.base, granule_}}).ok());
  ASSERT_TRUE(table.Share(area.base, area.base + 4 * granule_, granule_, Access::kReadOnly).ok());
  const std::vector<AddressRange> shared{{area.base + 4 * granule_, granule_}};
  ASSERT_TRUE(table.Decommit({area.base, granule_}).ok());
  fake_->Fail("MemSetAccess", 1, cuda::kOutOfMemory);
  fake_->Fail("MemUnmap", 2, cuda::FakeDriver::kInvalidValue);
  EXPECT_EQ(table.MakePrivate(shared, space).code(), Code::kPoisoned);
  EXPECT_TRUE(table.IsPoisoned(shared[0]));
  EXPECT_TRUE(table.IsValid() && pool.IsValid());
  EXPECT_EQ(pool.counters().quarantined_handles, 1u);
}

TEST_P(FakeCuda, AnOverlappingCopyThatStopsHalfWayPutsTheSourceBack) {
  const size_t bytes = 12 << 20;
  const Handle handle = *vmm_->Create(vmm_->capabilities().max_handle_bytes, 0);
  ASSERT_LE(bytes, handle.bytes);
  const AddressRange whole = *vmm_->Reserve(handle.bytes);
  ASSERT_TRUE(vmm_->Map(whole.base, handle, Access::kReadWrite).ok());
  const std::vector<uint8_t> content = Random(bytes - (5 << 20), 5);
  for (const size_t distance : {size_t{1000}, size_t{2} << 20, size_t{5} << 20}) {
    for (const bool up : {true, false}) {
      const Address from = whole.base + (up ? 0 : distance);
      const Address to = whole.base + (up ? distance : 0);
      for (uint64_t nth = 1;; ++nth) {
        Write(from, content);
        fake_->Fail("MemcpyDtoDAsync", nth, cuda::FakeDriver::kInvalidValue);
        const uint64_t before = fake_->calls("MemcpyDtoDAsync");
        const Status status = vmm_->Copy(to, from, content.size());
        fake_->Heal();
        if (status.ok()) {
          EXPECT_LT(fake_->calls("MemcpyDtoDAsync") - before, nth);
          EXPECT_TRUE(Read(to, content.size()) == content);
          break;
        }
        EXPECT_NE(status.code(), Code::kPoisoned);
        EXPECT_TRUE(Read(from, content.size()) == content) << distance << " " << up << " " << nth;
      }
    }
  }
  // When putting back fails too, the bytes are said to be lost.
  fake_->Fail("MemcpyDtoDAsync", 3, cuda::FakeDriver::kInvalidValue, /*and_after=*/true);
  EXPECT_EQ(vmm_->Copy(whole.base + 1000, whole.base, content.size()).code(), Code::kPoisoned);
  fake_->Heal();
  // Without memory for the buffer nothing is touched.
  OpenVmm();
  const AddressRange again = Mapped();
  fake_->Fail("MemAlloc", 1, cuda::kOutOfMemory);
  EXPECT_EQ(vmm_->Copy(again.base + 1, again.base, granule_ - 1).code(), Code::kExhausted);
  EXPECT_TRUE(vmm_->Copy(again.base + 1, again.base, granule_ - 1).ok());
}

TEST_P(FakeCuda, ABrokenContextIsWhatEveryVerbSaysFromThenOn) {
  const AddressRange range = Mapped();
  const Handle handle = *vmm_->Create(granule_, 0);
  const AddressRange other = *vmm_->Reserve(granule_);
  fake_->Break();
  const Status first = vmm_->Create(granule_, 0).status();
  EXPECT_EQ(first.code(), Code::kDeviceLost);
  EXPECT_EQ(vmm_->Zero(range).message(), first.message());
  EXPECT_EQ(vmm_->Copy(range.base + 1, range.base, 1).message(), first.message());
  EXPECT_EQ(vmm_->Map(other.base, handle, Access::kReadOnly).message(), first.message());
  EXPECT_EQ(vmm_->Unmap(range).message(), first.message());
  EXPECT_EQ(vmm_->Release(handle).message(), first.message());
  EXPECT_EQ(vmm_->Reserve(granule_).status().message(), first.message());
  EXPECT_EQ(vmm_->Free(other).message(), first.message());
  EXPECT_EQ(vmm_->Memory().status().message(), first.message());
  vmm_.reset();  // takes everything back all the same: TearDown counts
  EXPECT_EQ(fake_->live_handles(), 0u);
}

// ---- the probe, and drivers that are none

TEST_P(FakeCuda, TheProbeSaysWhatItCouldNotTry) {
  vmm_.reset();
  Fake({.total_bytes = 1 << 20});
  OpenVmm();
  const auto probe = ProbeCudaMemory(fake_->driver(), 0);
  ASSERT_TRUE(probe.ok());
  EXPECT_EQ(probe->aliases, Seen::kYes);
  EXPECT_EQ(probe->maps_beside_work, Seen::kNotTried);
  EXPECT_NE(probe->note.find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos) << probe->note;
  EXPECT_EQ(ProbeCudaMemory(fake_->driver(), 5).status().code(), Code::kUnavailable);
}

TEST(CudaDriver, LibrariesThatAreNoDriverAreRefusedInWords) {
  const auto missing = cuda::OpenDriver("libno-such-driver.so.1");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), Code::kUnavailable);
  EXPECT_NE(missing.status().message().find("libno-such-driver.so.1"), std::string::npos);
  EXPECT_NE(missing.status().message().find("--device cpu"), std::string::npos);
  const auto other = cuda::OpenDriver("libc.so.6");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.status().code(), Code::kUnavailable);
  EXPECT_NE(other.status().message().find("cuMemCreate"), std::string::npos);
}

// ---- last, for on a real GPU they break a context in earnest

class CudaFaults : public CudaVmmTest {};
INSTANTIATE_TEST_SUITE_P(On, CudaFaults, testing::Values(Gpu::kFake, Gpu::kReal), GpuName);

TEST_P(CudaFaults, AWriteToAReadOnlyMapIsRefusedAndTheProcessGoesOn) {
  const AddressRange range = Mapped(Access::kReadOnly);
  const Status written = vmm_->Zero(range);
  const Status after = device().Synchronize();
  EXPECT_TRUE(!written.ok() || !after.ok()) << "a read-only mapping took a write";
  if (!device().lost().ok()) {
    // Every later call says the same, and nothing crashes.
    EXPECT_EQ(vmm_->Reserve(granule_).status().code(), Code::kDeviceLost);
    EXPECT_EQ(vmm_->Create(granule_, 0).status().code(), Code::kDeviceLost);
    EXPECT_EQ(vmm_->Unmap(range).code(), Code::kDeviceLost);
    EXPECT_EQ(vmm_->Zero(range).code(), Code::kDeviceLost);
    EXPECT_EQ(vmm_->Copy(range.base, range.base + 1, 1).code(), Code::kDeviceLost);
    EXPECT_EQ(vmm_->Memory().status().code(), Code::kDeviceLost);
  }
  vmm_.reset();
  device_.reset();
  device_ = AnotherDevice();
  ASSERT_NE(device_, nullptr);
  OpenVmm();
  const AddressRange again = Mapped();
  const std::vector<uint8_t> bytes = Random(100, 4);
  Write(again.base, bytes);
  EXPECT_EQ(Read(again.base, 100), bytes);
}

TEST_P(CudaFaults, TheProbeFindsWhatIsThere) {
  const auto probe = ProbeCudaMemory(fake() ? fake_->driver() : *cuda::OpenDriver(), 0);
  ASSERT_TRUE(probe.ok()) << probe.status().message();
  std::printf(
      "granule %s (smallest %s), largest reservation %s, aliases: %s, read-only refuses: %s, maps "
      "beside work: %s %s\n",
      FormatBytes(probe->granule_bytes).c_str(), FormatBytes(probe->smallest_granule_bytes).c_str(),
      FormatBytes(probe->largest_reservation_bytes).c_str(), SeenText(probe->aliases),
      SeenText(probe->read_only_refuses), SeenText(probe->maps_beside_work), probe->note.c_str());
  EXPECT_EQ(probe->granule_bytes, granule_);
  EXPECT_GT(probe->smallest_granule_bytes, 0u);
  EXPECT_GE(probe->largest_reservation_bytes, uint64_t{64} << 30);
  EXPECT_EQ(probe->aliases, Seen::kYes);
  EXPECT_EQ(probe->read_only_refuses, Seen::kYes);
  EXPECT_EQ(probe->maps_beside_work, Seen::kYes);
  EXPECT_EQ(probe->note, "");
  // This device is untouched by all of it.
  EXPECT_TRUE(device().Synchronize().ok());
  Write(Mapped().base, Random(10, 1));
}

}  // namespace
}  // namespace granule::memory
