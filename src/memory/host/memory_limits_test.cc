#include "memory/host/memory_limits.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "memory/host/host_vmm.h"

namespace granule::memory {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMiB = 1 << 20;

class MemoryLimitsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "granule-limits-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    Write("meminfo", "MemTotal:       1024000 kB\nMemFree: 1 kB\nMemAvailable:    512000 kB\n");
    source_.meminfo_file = (root_ / "meminfo").string();
    source_.cgroups = {(root_ / "cgroup").string(), (root_ / "mountinfo").string()};
  }
  void TearDown() override { fs::remove_all(root_); }
  void Write(const std::string& name, const std::string& text) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  void InGroupV2(const std::string& group) {
    Write("cgroup", "0::" + group + "\n");
    Write("mountinfo", "30 1 0:26 / " + (root_ / "cg").string() + " rw - cgroup2 cgroup2 rw\n");
  }

  fs::path root_;
  MemoryLimitSource source_;
};

TEST_F(MemoryLimitsTest, WithoutGroupsTheSystemsAvailableMemoryCounts) {
  MemoryLimits limits(source_);
  const auto tightest = limits.Tightest();
  ASSERT_TRUE(tightest.ok());
  EXPECT_EQ(tightest->name, "MemAvailable");
  EXPECT_EQ(tightest->available, 512000u * 1024);
  EXPECT_EQ(tightest->total, 1024000u * 1024);
  EXPECT_TRUE(limits.Admit(400 * kMiB).ok());
  const Status refused = limits.Admit(600 * kMiB);
  EXPECT_EQ(refused.code(), Code::kExhausted);
  EXPECT_NE(refused.message().find("629145600 bytes are needed"), std::string::npos);
  EXPECT_NE(refused.message().find("524288000 are left by MemAvailable"), std::string::npos);
}

TEST_F(MemoryLimitsTest, TheTightestAncestorWinsAndFileCacheIsNotInTheWay) {
  InGroupV2("/a/b");
  Write("cg/a/b/memory.max", "max\n");
  Write("cg/a/b/memory.current", "1000\n");
  Write("cg/a/memory.max", "209715200\n");      // 200 MiB
  Write("cg/a/memory.current", "188743680\n");  // 180 MiB
  MemoryLimits limits(source_);
  auto tightest = limits.Tightest();
  ASSERT_TRUE(tightest.ok());
  EXPECT_EQ(tightest->name, "memory.max of " + (root_ / "cg/a").string());
  EXPECT_EQ(tightest->available, 20 * kMiB);
  EXPECT_EQ(tightest->total, 200 * kMiB);
  EXPECT_FALSE(limits.Admit(100 * kMiB).ok());
  Write("cg/a/memory.stat", "anon 5\nactive_file 104857600\ninactive_file 20971520\n");
  EXPECT_EQ(limits.Tightest()->available, 140 * kMiB);
  EXPECT_TRUE(limits.Admit(100 * kMiB).ok());
  Write("cg/a/memory.current", "999999999\n");  // above the limit
  Write("cg/a/memory.stat", "");
  EXPECT_EQ(limits.Tightest()->available, 0u);
}

TEST_F(MemoryLimitsTest, Version1) {
  Write("cgroup", "4:memory:/x\n");
  Write("mountinfo", "30 1 0:26 / " + (root_ / "cg").string() + " rw - cgroup cgroup rw,memory\n");
  Write("cg/x/memory.limit_in_bytes", "104857600\n");
  Write("cg/x/memory.usage_in_bytes", "52428800\n");
  Write("cg/x/memory.stat", "total_inactive_file 10485760\ninactive_file 1\n");
  Write("cg/memory.limit_in_bytes", "9223372036854771712\n");
  Write("cg/memory.usage_in_bytes", "52428800\n");
  MemoryLimits limits(source_);
  EXPECT_EQ(limits.Tightest()->available, 60 * kMiB);
  EXPECT_EQ(limits.Tightest()->total, 100 * kMiB);
}

TEST_F(MemoryLimitsTest, WhereNothingIsStatedNothingIsRefused) {
  Write("meminfo", "");
  MemoryLimits limits(source_);
  EXPECT_EQ(limits.Tightest().status().code(), Code::kUnavailable);
  EXPECT_TRUE(limits.Admit(uint64_t{1} << 50).ok());
}

TEST_F(MemoryLimitsTest, ChangesAreSeenBeforeTheLimitIsReached) {
  InGroupV2("/a");
  Write("cg/a/memory.max", "268435456\n");
  Write("cg/a/memory.current", "0\n");
  Write("meminfo", "MemTotal: 99999999 kB\nMemAvailable: 99999999 kB\n");
  MemoryLimits limits(source_);
  // Usage grows with what is admitted, as it does when the memory is real.
  uint64_t used = 0;
  Status refused;
  while (refused.ok()) {
    Write("cg/a/memory.current", std::to_string(used) + "\n");
    refused = limits.Admit(kMiB);
    if (refused.ok()) used += kMiB;
    ASSERT_LT(used, 256 * kMiB);
  }
  EXPECT_GE(used, 240 * kMiB);
  EXPECT_LE(used, 248 * kMiB);
  // Memory that comes back is seen at once.
  Write("cg/a/memory.current", "1000\n");
  EXPECT_TRUE(limits.Admit(kMiB).ok());
}

TEST_F(MemoryLimitsTest, ManyThreadsMayAsk) {
  MemoryLimits limits(source_);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 2000; ++k) EXPECT_TRUE(limits.Admit(65536).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A real control group of 64 MiB: the process must get words instead of a kill.
TEST(MemoryLimitsOfTheSystem, ARealGroupRefusesInsteadOfKilling) {
  const auto directories = CgroupDirectories("memory");
  if (directories.empty()) GTEST_SKIP() << "no memory control groups here";
  const bool v1 = directories[0].version == 1;
  const std::string group = directories[0].path + "/granule-test-" + std::to_string(getpid());
  if (mkdir(group.c_str(), 0755) != 0) GTEST_SKIP() << "no right to make a control group";
  const auto write = [](const std::string& path, const std::string& text) {
    std::ofstream file(path);
    file << text << std::flush;
    return file.good();
  };
  if (!write(group + (v1 ? "/memory.limit_in_bytes" : "/memory.max"), "67108864")) {
    rmdir(group.c_str());
    GTEST_SKIP() << "the memory controller is not delegated here";
  }
  const pid_t child = fork();
  if (child == 0) {
    if (!write(group + "/cgroup.procs", std::to_string(getpid()))) _exit(77);
    auto vmm = HostVmm::Open();
    if (!vmm.ok()) _exit(1);
    const size_t granule = (*vmm)->capabilities().granule_bytes;
    const auto range = (*vmm)->Reserve(granule * 4096);
    if (!range.ok()) _exit(2);
    for (size_t i = 0; i < 4096; ++i) {  // 256 MiB
      const auto handle = (*vmm)->Create(granule, range->base + i * granule);
      if (!handle.ok()) {
        const bool named = handle.status().message().find(group) != std::string::npos;
        _exit(handle.status().code() == Code::kExhausted && named && i > 300 ? 42 : 3);
      }
      if (!(*vmm)->Map(range->base + i * granule, *handle, Access::kReadWrite).ok()) _exit(4);
      for (size_t at = 0; at < granule; at += 4096) {
        reinterpret_cast<volatile char*>(range->base + i * granule)[at] = 1;
      }
    }
    _exit(5);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  rmdir(group.c_str());
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no right to enter the group";
  ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

TEST(MemoryLimitsOfTheSystem, AskingIsCheap) {
  MemoryLimits limits({});
  const auto start = std::chrono::steady_clock::now();
  constexpr int kCalls = 20000;
  for (int i = 0; i < kCalls; ++i) EXPECT_TRUE(limits.Admit(65536).ok());
  const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - start;
  std::printf("Admit: %.3f us on average\n", us.count() / kCalls);
}

}  // namespace
}  // namespace granule::memory
