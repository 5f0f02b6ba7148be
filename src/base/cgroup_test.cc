#include "base/cgroup.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace granule {
namespace {

namespace fs = std::filesystem;

// A folder that plays the kernel's files.
class CgroupTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "granule-cgroup-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& name, const std::string& text) {
    const fs::path path = root_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  CgroupSource Source(const std::string& cgroup, const std::string& mountinfo) {
    Write("cgroup", cgroup);
    Write("mountinfo", mountinfo);
    return {(root_ / "cgroup").string(), (root_ / "mountinfo").string()};
  }
  std::string At(const std::string& name) const { return (root_ / name).string(); }

  fs::path root_;
};

TEST_F(CgroupTest, Version2ListsEveryAncestorFromTheInside) {
  const CgroupSource source =
      Source("0::/a/b\n", "30 1 0:26 / " + At("cg") + " rw - cgroup2 cgroup2 rw,nsdelegate\n");
  const auto directories = CgroupDirectories("cpu", source);
  ASSERT_EQ(directories.size(), 3u);
  EXPECT_EQ(directories[0].path, At("cg/a/b"));
  EXPECT_EQ(directories[1].path, At("cg/a"));
  EXPECT_EQ(directories[2].path, At("cg"));
  EXPECT_EQ(directories[0].version, 2);
}

TEST_F(CgroupTest, TheTightestQuotaOnTheWayUpWins) {
  const CgroupSource source =
      Source("0::/a/b\n", "30 1 0:26 / " + At("cg") + " rw shared:4 - cgroup2 cgroup2 rw\n");
  Write("cg/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(CgroupCpuQuota(source), std::nullopt);
  Write("cg/a/cpu.max", "150000 100000\n");
  EXPECT_EQ(CgroupCpuQuota(source), 1.5);
  Write("cg/a/b/cpu.max", "400000 100000\n");
  EXPECT_EQ(CgroupCpuQuota(source), 1.5);
  Write("cg/a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(CgroupCpuQuota(source), 0.5);
}

TEST_F(CgroupTest, Version1ReadsTheControllersOwnHierarchy) {
  const CgroupSource source =
      Source("4:memory:/m\n3:cpu,cpuacct:/x/y\n0::/\n",
             "32 31 0:29 / " + At("v1 memory") + " rw - cgroup cgroup rw,memory\n33 31 0:30 / " +
                 At("cpu") + " rw - cgroup cgroup rw,cpu,cpuacct\n");
  Write("cpu/x/y/cpu.cfs_quota_us", "-1\n");
  Write("cpu/x/y/cpu.cfs_period_us", "100000\n");
  Write("cpu/x/cpu.cfs_quota_us", "250000\n");
  Write("cpu/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CgroupCpuQuota(source), 2.5);
  const auto directories = CgroupDirectories("memory", source);
  ASSERT_EQ(directories.size(), 2u);
  EXPECT_EQ(directories[0].version, 1);
  EXPECT_TRUE(CgroupDirectories("pids", source).empty());
}

TEST_F(CgroupTest, BlanksInPathsAndSubtreeMounts) {
  const CgroupSource source =
      Source("0::/docker/c1/inner\n",
             "30 1 0:26 /docker/c1 " + At("c\\040g") + " rw - cgroup2 cgroup2 rw\n");
  const auto directories = CgroupDirectories("memory", source);
  ASSERT_EQ(directories.size(), 2u);
  EXPECT_EQ(directories[0].path, At("c g/inner"));
  EXPECT_EQ(directories[1].path, At("c g"));
}

TEST_F(CgroupTest, AGroupOutsideOfTheMountLeavesTheMountPoint) {
  const auto outside = CgroupDirectories(
      "memory", Source("0::/../other\n", "30 1 0:26 / " + At("cg") + " rw - cgroup2 c rw\n"));
  ASSERT_EQ(outside.size(), 1u);
  EXPECT_EQ(outside[0].path, At("cg"));
}

TEST_F(CgroupTest, BrokenKernelFilesMeanNoLimit) {
  EXPECT_TRUE(CgroupDirectories("cpu", Source("", "")).empty());
  EXPECT_TRUE(CgroupDirectories("cpu", Source("garbage\n0::\n:\n", "1 2 3\n - \n")).empty());
  EXPECT_TRUE(CgroupDirectories("cpu", {At("missing"), At("missing too")}).empty());
  const CgroupSource source = Source("0::/\n", "30 1 0:26 / " + At("cg") + " rw - cgroup2 c rw\n");
  for (const char* text : {"", "-5 100000\n", "5 0\n", "x y\n", "100000\n"}) {
    Write("cg/cpu.max", text);
    EXPECT_EQ(CgroupCpuQuota(source), std::nullopt) << text;
  }
}

TEST_F(CgroupTest, CountersAreWholeNumbersOnly) {
  Write("n", "42\n");
  EXPECT_EQ(ReadCounter(At("n")), 42u);
  for (const char* text : {"max\n", "-1\n", "", "12x\n", "99999999999999999999999\n"}) {
    Write("n", text);
    EXPECT_EQ(ReadCounter(At("n")), std::nullopt) << text;
  }
  EXPECT_EQ(ReadCounter(At("missing")), std::nullopt);
}

}  // namespace
}  // namespace granule
