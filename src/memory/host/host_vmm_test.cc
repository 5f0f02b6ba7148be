#include "memory/host/host_vmm.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "base/arith.h"
#include "base/file.h"

namespace granule::memory {
namespace {

namespace fs = std::filesystem;

char* At(Address address) { return reinterpret_cast<char*>(address); }

class HostVmmTest : public testing::Test {
 protected:
  void Open(const HostVmmOptions& options = {}) {
    auto opened = HostVmm::Open(options);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    vmm_ = *std::move(opened);
    granule_ = vmm_->capabilities().granule_bytes;
  }
  void SetUp() override { Open(); }

  std::unique_ptr<HostVmm> vmm_;
  size_t granule_ = 0;
};

TEST_F(HostVmmTest, Capabilities) {
  const Capabilities& c = vmm_->capabilities();
  EXPECT_EQ(c.name, "host");
  EXPECT_EQ(c.granule_bytes, 64u << 10);
  EXPECT_EQ(c.max_handle_bytes, c.granule_bytes);
  EXPECT_TRUE(c.fresh_is_zero);
  EXPECT_FALSE(c.create_is_slow);
  const auto memory = vmm_->Memory();
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->where, "host");
  EXPECT_GT(memory->free_bytes, 0u);
  EXPECT_GE(memory->total_bytes, memory->free_bytes);
}

TEST(HostVmmOptionsTest, BadGranulesAreUsageErrorsWithTheAcceptedValues) {
  for (const size_t granule : {0ul, 1ul, 2048ul, 5000ul, 12288ul, 2ul << 30}) {
    const auto opened = HostVmm::Open({.granule_bytes = granule});
    ASSERT_FALSE(opened.ok()) << granule;
    EXPECT_EQ(opened.status().code(), Code::kUsage);
    EXPECT_NE(opened.status().message().find("a power of two from 4096 (the page) to 1073741824"),
              std::string::npos)
        << opened.status().message();
  }
  EXPECT_EQ(HostVmm::Open({.max_handle_bytes = 100000}).status().code(), Code::kUsage);
  for (const size_t granule : {4096ul, 65536ul, 2ul << 20, 1ul << 30}) {
    EXPECT_TRUE(HostVmm::Open({.granule_bytes = granule}).ok());
  }
  const auto missing = HostVmm::Open({.backing_directory = "/nowhere"});
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.status().message().find("/nowhere"), std::string::npos);
}

TEST_F(HostVmmTest, ReservationsCostNothingAndAreAligned) {
  for (const size_t granule : {4096ul, 65536ul, 2ul << 20, 1ul << 30}) {
    Open({.granule_bytes = granule});
    const auto a = vmm_->Reserve(granule * 3);
    const auto b = vmm_->Reserve(uint64_t{64} << 30);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a->base % granule, 0u);
    EXPECT_EQ(b->base % granule, 0u);
    EXPECT_EQ(*vmm_->ResidentBytes(), 0u);
    EXPECT_TRUE(vmm_->Free(*a).ok());
    EXPECT_TRUE(vmm_->Free(*b).ok());
  }
}

TEST_F(HostVmmTest, AddressesThatCannotBeAreRefusedAndNothingChanges) {
  const auto range = vmm_->Reserve(RoundDown(~size_t{0}, granule_));
  ASSERT_FALSE(range.ok());
  EXPECT_EQ(range.status().code(), Code::kExhausted);
  EXPECT_EQ(vmm_->Reserve(size_t{1} << 62).status().code(), Code::kExhausted);
  EXPECT_EQ(vmm_->kernel_mappings(), 0u);
  EXPECT_TRUE(vmm_->Reserve(granule_).ok());
}

TEST_F(HostVmmTest, FreshMemoryIsZeroAndCountedToTheGranule) {
  const AddressRange range = *vmm_->Reserve(granule_ * 8);
  const Handle handle = *vmm_->Create(granule_, range.base + granule_);
  EXPECT_EQ(*vmm_->ResidentBytes(), granule_);  // before the first touch
  ASSERT_TRUE(vmm_->Map(range.base + granule_, handle, Access::kReadWrite).ok());
  char* bytes = At(range.base + granule_);
  for (size_t i = 0; i < granule_; ++i) ASSERT_EQ(bytes[i], 0);
  std::memset(bytes, 7, granule_);
  EXPECT_EQ(*vmm_->ResidentBytes(), granule_);
  ASSERT_TRUE(vmm_->Unmap({range.base + granule_, granule_}).ok());
  EXPECT_EQ(*vmm_->ResidentBytes(), granule_);  // still held by the handle
  ASSERT_TRUE(vmm_->Release(handle).ok());
  EXPECT_EQ(*vmm_->ResidentBytes(), 0u);

  const Handle again = *vmm_->Create(granule_, range.base + granule_);
  ASSERT_TRUE(vmm_->Map(range.base + granule_, again, Access::kReadWrite).ok());
  for (size_t i = 0; i < granule_; ++i) ASSERT_EQ(bytes[i], 0);
}

TEST_F(HostVmmTest, AHandleShowsTheSameBytesWhereverItIsMapped) {
  const AddressRange range = *vmm_->Reserve(granule_ * 4);
  const AddressRange other = *vmm_->Reserve(granule_ * 4);
  const Handle handle = *vmm_->Create(granule_, range.base);
  ASSERT_TRUE(vmm_->Map(range.base, handle, Access::kReadWrite).ok());
  ASSERT_TRUE(vmm_->Map(other.base + granule_, handle, Access::kReadOnly).ok());
  ASSERT_TRUE(vmm_->Map(range.base + 2 * granule_, handle, Access::kReadWrite).ok());
  std::strcpy(At(range.base), "one");
  EXPECT_STREQ(At(other.base + granule_), "one");
  std::strcpy(At(range.base + 2 * granule_), "two");
  EXPECT_STREQ(At(other.base + granule_), "two");
  EXPECT_EQ(*vmm_->ResidentBytes(), granule_);
}

TEST_F(HostVmmTest, AHandleOutlivesItsHomeAndItsReservation) {
  const AddressRange first = *vmm_->Reserve(granule_);
  const AddressRange second = *vmm_->Reserve(granule_);
  const Handle handle = *vmm_->Create(granule_, first.base);
  ASSERT_TRUE(vmm_->Map(first.base, handle, Access::kReadWrite).ok());
  ASSERT_TRUE(vmm_->Map(second.base, handle, Access::kReadOnly).ok());
  std::strcpy(At(first.base), "kept");
  ASSERT_TRUE(vmm_->Unmap(first).ok());
  // The home is taken by a handle that lives on: the next one made for it goes elsewhere.
  const Handle replacement = *vmm_->Create(granule_, first.base);
  EXPECT_NE(replacement.id, handle.id);
  ASSERT_TRUE(vmm_->Map(first.base, replacement, Access::kReadWrite).ok());
  std::strcpy(At(first.base), "new");
  EXPECT_STREQ(At(second.base), "kept");
  ASSERT_TRUE(vmm_->Unmap(first).ok());
  ASSERT_TRUE(vmm_->Free(first).ok());
  ASSERT_TRUE(vmm_->Release(replacement).ok());
  EXPECT_STREQ(At(second.base), "kept");
  // Addresses may come back, file ranges do not.
  std::set<uint64_t> ids;
  for (int i = 0; i < 100; ++i) {
    const AddressRange range = *vmm_->Reserve(granule_);
    const Handle next = *vmm_->Create(granule_, range.base);
    EXPECT_NE(next.id, handle.id);
    EXPECT_TRUE(ids.insert(next.id).second);
    ASSERT_TRUE(vmm_->Release(next).ok());
    ASSERT_TRUE(vmm_->Free(range).ok());
  }
}

TEST_F(HostVmmTest, HandlesWithoutAHomeAreReused) {
  std::vector<Handle> handles;
  for (int i = 0; i < 5000; ++i) handles.push_back(*vmm_->Create(granule_, 0));
  std::set<uint64_t> ids;
  for (const Handle& handle : handles) ids.insert(handle.id);
  EXPECT_EQ(ids.size(), handles.size());
  EXPECT_EQ(*vmm_->ResidentBytes(), 5000 * granule_);
  for (const Handle& handle : handles) ASSERT_TRUE(vmm_->Release(handle).ok());
  EXPECT_EQ(*vmm_->ResidentBytes(), 0u);
  EXPECT_EQ(ids.count(vmm_->Create(granule_, 0)->id), 1u);
}

TEST_F(HostVmmTest, LargeHandlesWhereAskedFor) {
  Open({.max_handle_bytes = 256 << 10});
  const AddressRange range = *vmm_->Reserve(granule_ * 16);
  const Handle large = *vmm_->Create(granule_ * 4, range.base + granule_);
  ASSERT_TRUE(vmm_->Map(range.base + granule_, large, Access::kReadWrite).ok());
  std::memset(At(range.base + granule_), 1, granule_ * 4);
  // Homes that overlap a live handle, from either side.
  const Handle before = *vmm_->Create(granule_ * 2, range.base);
  const Handle after = *vmm_->Create(granule_ * 2, range.base + 4 * granule_);
  EXPECT_TRUE(before.id + before.bytes <= large.id || before.id >= large.id + large.bytes);
  EXPECT_TRUE(after.id + after.bytes <= large.id || after.id >= large.id + large.bytes);
  EXPECT_EQ(*vmm_->ResidentBytes(), granule_ * 8);
}

// What the kernel says about a range: number of mappings that lie in it.
uint64_t KernelMappingsIn(AddressRange range) {
  std::ifstream maps("/proc/self/maps");
  uint64_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    const Address begin = std::stoull(line, nullptr, 16);
    count += begin >= range.base && begin < range.end();
  }
  return count;
}

TEST_F(HostVmmTest, NeighboursAtHomeMergeAndTheCountAgreesWithTheKernel) {
  const size_t n = 64;
  // A border of its own keeps the kernel from merging the reservation with strangers.
  const AddressRange range = *vmm_->Reserve(granule_ * n);
  std::vector<Handle> handles(n);
  EXPECT_EQ(vmm_->kernel_mappings(), 1u);
  const auto map = [&](size_t i, Access access) {
    handles[i] = *vmm_->Create(granule_, range.base + i * granule_);
    ASSERT_TRUE(vmm_->Map(range.base + i * granule_, handles[i], access).ok());
  };
  uint64_t worst = 0;
  for (size_t i = 0; i < n; ++i) {  // 37 is coprime to 64: every granule once, scattered
    map(i * 37 % n, Access::kReadWrite);
    if (i + 1 < n) {
      EXPECT_NEAR(static_cast<double>(KernelMappingsIn(range)),
                  static_cast<double>(vmm_->kernel_mappings()), 2)
          << i;
    }
    worst = std::max(worst, vmm_->kernel_mappings());
  }
  EXPECT_GT(worst, 20u);
  EXPECT_EQ(vmm_->kernel_mappings(), 1u);
  EXPECT_EQ(KernelMappingsIn(range), 1u);
  // A hole, a read-only window and a window away from home each split.
  ASSERT_TRUE(vmm_->Unmap({range.base + 10 * granule_, granule_}).ok());
  EXPECT_EQ(vmm_->kernel_mappings(), 3u);
  ASSERT_TRUE(vmm_->Map(range.base + 10 * granule_, handles[10], Access::kReadOnly).ok());
  EXPECT_EQ(vmm_->kernel_mappings(), 3u);
  EXPECT_EQ(KernelMappingsIn(range), 3u);
  ASSERT_TRUE(vmm_->Unmap({range.base + 20 * granule_, granule_}).ok());
  ASSERT_TRUE(vmm_->Map(range.base + 20 * granule_, handles[30], Access::kReadWrite).ok());
  EXPECT_EQ(vmm_->kernel_mappings(), 5u);
  EXPECT_EQ(KernelMappingsIn(range), 5u);
  ASSERT_TRUE(vmm_->Unmap({range.base + 20 * granule_, granule_}).ok());
  ASSERT_TRUE(vmm_->Map(range.base + 20 * granule_, handles[20], Access::kReadWrite).ok());
  EXPECT_EQ(vmm_->kernel_mappings(), 3u);
  for (size_t i = 0; i < n; ++i) {
    ASSERT_TRUE(vmm_->Unmap({range.base + i * granule_, granule_}).ok());
    ASSERT_TRUE(vmm_->Release(handles[i]).ok());
  }
  EXPECT_EQ(vmm_->kernel_mappings(), 1u);
  EXPECT_EQ(KernelMappingsIn(range), 1u);
  ASSERT_TRUE(vmm_->Free(range).ok());
  EXPECT_EQ(vmm_->kernel_mappings(), 0u);
}

TEST_F(HostVmmTest, MappingsAreRefusedBeforeTheSystemsLimitWithAHint) {
  const auto lines = ReadFile("/proc/self/maps", 64 << 20);
  ASSERT_TRUE(lines.ok());
  const auto now = static_cast<uint64_t>(std::count(lines->begin(), lines->end(), '\n'));
  Open({.max_mappings = now + 1024 + 40});
  const AddressRange range = *vmm_->Reserve(granule_ * 200);
  size_t mapped = 0;
  Status refused;
  Handle handle;
  for (size_t i = 0; i < 200 && refused.ok(); i += 2) {  // every second one: nothing merges
    handle = *vmm_->Create(granule_, range.base + i * granule_);
    refused = vmm_->Map(range.base + i * granule_, handle, Access::kReadWrite);
    mapped += refused.ok();
  }
  ASSERT_FALSE(refused.ok());
  EXPECT_GT(mapped, 5u);
  EXPECT_LT(mapped, 40u);
  EXPECT_EQ(refused.code(), Code::kExhausted);
  EXPECT_NE(refused.message().find("sysctl -w vm.max_map_count="), std::string::npos);
  // Nothing changed; with room again the same call works.
  // All of them go: a sanitizer's own mappings come and go beside ours.
  for (size_t i = 0; i < mapped; ++i) {
    ASSERT_TRUE(vmm_->Unmap({range.base + 2 * i * granule_, granule_}).ok());
  }
  EXPECT_TRUE(vmm_->Map(range.base + mapped * 2 * granule_, handle, Access::kReadWrite).ok());
}

TEST_F(HostVmmTest, AFileSizeLimitIsAnErrorAndNotASignal) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1 << 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto range = vmm_->Reserve(granule_ * 64);
  const auto handle = vmm_->Create(granule_, 0);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_FALSE(range.ok());
  EXPECT_EQ(range.status().code(), Code::kExhausted);
  EXPECT_NE(range.status().message().find("ulimit -f"), std::string::npos);
  ASSERT_FALSE(handle.ok());
  EXPECT_EQ(vmm_->kernel_mappings(), 0u);
  EXPECT_TRUE(vmm_->Reserve(granule_ * 64).ok());
}

// A file system of one MiB: the refusal comes from the system itself.
TEST_F(HostVmmTest, AFullFileSystemIsExhaustedAndRecovers) {
  std::string pattern = (fs::temp_directory_path() / "granule-full-XXXXXX").string();
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const fs::path folder = pattern;
  if (mount("none", folder.c_str(), "tmpfs", 0, "size=1m") != 0) {
    fs::remove_all(folder);
    GTEST_SKIP() << "mounting a small tmpfs needs privileges";
  }
  {
    Open({.backing_directory = folder.string()});
    const AddressRange range = *vmm_->Reserve(granule_ * 64);
    std::vector<Handle> handles;
    Status refused;
    while (refused.ok() && handles.size() < 64) {
      const auto handle = vmm_->Create(granule_, range.base + handles.size() * granule_);
      refused = handle.status();
      if (handle.ok()) handles.push_back(*handle);
    }
    EXPECT_GE(handles.size(), 14u);
    EXPECT_LE(handles.size(), 16u);
    EXPECT_EQ(refused.code(), Code::kExhausted);
    EXPECT_NE(refused.message().find("65536 more bytes"), std::string::npos) << refused.message();
    EXPECT_EQ(*vmm_->ResidentBytes(), handles.size() * granule_);
    ASSERT_TRUE(vmm_->Release(handles[0]).ok());
    EXPECT_TRUE(vmm_->Create(granule_, range.base + handles.size() * granule_).ok());
    EXPECT_EQ(*vmm_->ResidentBytes(), handles.size() * granule_);
    vmm_.reset();
  }
  umount(folder.c_str());
  fs::remove_all(folder);
}

using HostVmmDeathTest = HostVmmTest;

TEST_F(HostVmmDeathTest, AStoreThroughAReadOnlyMappingStopsTheProcess) {
  const AddressRange range = *vmm_->Reserve(granule_ * 2);
  const Handle handle = *vmm_->Create(granule_, range.base);
  ASSERT_TRUE(vmm_->Map(range.base, handle, Access::kReadWrite).ok());
  ASSERT_TRUE(vmm_->Map(range.base + granule_, handle, Access::kReadOnly).ok());
  EXPECT_EQ(*At(range.base + granule_), 0);
  // SIGSEGV, or the sanitizer's report of it.
  EXPECT_DEATH(*const_cast<volatile char*>(At(range.base + granule_)) = 1, "");
  *At(range.base) = 1;
  EXPECT_EQ(*At(range.base + granule_), 1);
}

TEST_F(HostVmmDeathTest, NothingIsBehindAReservationOrAnUnmappedWindow) {
  const AddressRange range = *vmm_->Reserve(granule_ * 2);
  EXPECT_DEATH((void)*const_cast<volatile char*>(At(range.base)), "");
  const Handle handle = *vmm_->Create(granule_, range.base);
  ASSERT_TRUE(vmm_->Map(range.base, handle, Access::kReadWrite).ok());
  *At(range.base) = 1;
  ASSERT_TRUE(vmm_->Unmap({range.base, granule_}).ok());
  EXPECT_DEATH((void)*const_cast<volatile char*>(At(range.base)), "");
}

TEST_F(HostVmmDeathTest, BrokenPreconditionsTripChecks) {
  const AddressRange range = *vmm_->Reserve(granule_ * 4);
  const Handle handle = *vmm_->Create(granule_, range.base);
  const char* check = "this must hold";
  EXPECT_DEATH((void)vmm_->Reserve(0), check);
  EXPECT_DEATH((void)vmm_->Reserve(granule_ + 1), check);
  EXPECT_DEATH((void)vmm_->Create(granule_ / 2, 0), check);
  EXPECT_DEATH((void)vmm_->Create(granule_ * 2, 0), check);           // longer than a handle
  EXPECT_DEATH((void)vmm_->Create(granule_, range.base + 1), check);  // home not aligned
  EXPECT_DEATH((void)vmm_->Create(granule_, range.end() + (granule_ << 20)), check);
  EXPECT_DEATH((void)vmm_->Release({handle.id + granule_, granule_}), check);  // not a handle
  EXPECT_DEATH((void)vmm_->Map(range.base + 1, handle, Access::kReadOnly), check);
  EXPECT_DEATH((void)vmm_->Map(range.end() + (granule_ << 20), handle, Access::kReadOnly), check);
  EXPECT_DEATH((void)vmm_->Map(range.base, {1, granule_}, Access::kReadOnly), check);
  EXPECT_DEATH((void)vmm_->Unmap({range.base, granule_}), check);  // not mapped
  EXPECT_DEATH((void)vmm_->Free({range.base, granule_}), check);   // not the whole reservation
  ASSERT_TRUE(vmm_->Map(range.base, handle, Access::kReadOnly).ok());
  EXPECT_DEATH((void)vmm_->Map(range.base, handle, Access::kReadOnly), check);  // not empty
  EXPECT_DEATH((void)vmm_->Free(range), check);                                 // not empty
}

}  // namespace
}  // namespace granule::memory
