#include "base/cpu.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>

#include <fstream>
#include <sstream>
#include <string>

namespace granule {
namespace {

TEST(Cpu, LevelsThatThisCpuHasAreAccepted) {
  EXPECT_EQ(*ParseIsa("auto"), BestIsa());
  EXPECT_EQ(*ParseIsa("portable"), Isa::kPortable);
  EXPECT_EQ(*ParseIsa(IsaName(BestIsa())), BestIsa());
}

TEST(Cpu, LevelsThatThisCpuLacksAreRefusedByName) {
  if (BestIsa() == Isa::kAvx512) GTEST_SKIP() << "this CPU has every level";
  const Result<Isa> isa = ParseIsa("avx512");
  ASSERT_FALSE(isa.ok());
  EXPECT_EQ(isa.status().code(), Code::kUsage);
  EXPECT_NE(isa.status().message().find("accepted here: auto, portable"), std::string::npos);
}

TEST(Cpu, UnknownLevelsAreRefusedWithTheAcceptedValues) {
  for (const char* text : {"", "AVX2", "avx 2", "sse", " auto"}) {
    const Result<Isa> isa = ParseIsa(text);
    ASSERT_FALSE(isa.ok()) << text;
    EXPECT_EQ(isa.status().code(), Code::kUsage);
    EXPECT_NE(isa.status().message().find(std::string("\"") + text + "\""), std::string::npos);
    EXPECT_NE(isa.status().message().find("auto, portable"), std::string::npos);
  }
}

// A second opinion: the kernel lists only features that it has enabled.
TEST(Cpu, AgreesWithTheKernelsList) {
  std::ifstream file("/proc/cpuinfo");
  std::string flags;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("flags")) {
      flags = line.substr(line.find(':') + 1) + " ";
      break;
    }
  }
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo has no flags";
  const auto has = [&](const char* list) {
    std::istringstream words(list);
    for (std::string word; words >> word;) {
      if (flags.find(" " + word + " ") == std::string::npos) return false;
    }
    return true;
  };
  const bool avx2 = has("avx avx2 fma f16c bmi1 bmi2");
  const bool avx512 = avx2 && has("avx512f avx512bw avx512dq avx512vl avx512cd");
  EXPECT_EQ(BestIsa(), avx512 ? Isa::kAvx512 : avx2 ? Isa::kAvx2 : Isa::kPortable);
}

TEST(Cpu, HasAName) { EXPECT_FALSE(CpuModelName().empty()); }

class CpuBudgetTest : public testing::Test {
 protected:
  void SetUp() override { unsetenv("OMP_NUM_THREADS"); }
  void TearDown() override { unsetenv("OMP_NUM_THREADS"); }
};

TEST_F(CpuBudgetTest, IsPositiveAndSaysWhy) {
  const CpuBudget budget = UsableCpus();
  EXPECT_GE(budget.threads, 1);
  EXPECT_FALSE(budget.reason.empty());
}

TEST_F(CpuBudgetTest, FollowsTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const CpuBudget budget = UsableCpus();
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(budget.threads, 1);
  EXPECT_EQ(budget.reason, "1 CPU in the affinity mask");
}

TEST_F(CpuBudgetTest, OmpNumThreadsLowersButNeverRaises) {
  const CpuBudget without = UsableCpus();
  setenv("OMP_NUM_THREADS", "100000", 1);
  EXPECT_EQ(UsableCpus().threads, without.threads);
  for (const char* text : {"0", "-3", "two", "", "1x"}) {
    setenv("OMP_NUM_THREADS", text, 1);
    EXPECT_EQ(UsableCpus().threads, without.threads) << text;
  }
  if (without.threads < 2) GTEST_SKIP() << "one CPU: nothing to lower";
  for (const char* text : {"1", "1,4"}) {
    setenv("OMP_NUM_THREADS", text, 1);
    EXPECT_EQ(UsableCpus().threads, 1) << text;
    EXPECT_EQ(UsableCpus().reason, "OMP_NUM_THREADS=1");
  }
}

}  // namespace
}  // namespace granule
