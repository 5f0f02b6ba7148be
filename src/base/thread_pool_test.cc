#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <set>
#include <vector>

namespace granule {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

double ProcessCpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

class ThreadPoolSizes : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolSizes, EveryIndexRunsOnceInPiecesOfTheGrain) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (const int64_t count : {0, 1, 2, 7, 63, 64, 65, 1000, 4099}) {
    for (const int64_t grain : {1, 3, 64, 5000}) {
      std::vector<int> seen(static_cast<size_t>(count), 0);  // plain ints: pieces must be disjoint
      std::atomic<int> bad{0};
      pool.Run(count, grain, [&](int64_t begin, int64_t end, int thread) {
        if (thread < 0 || thread >= pool.threads() || begin < 0 || begin >= end || end > count)
          ++bad;
        if (begin % grain != 0 || (end % grain != 0 && end != count)) ++bad;
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      EXPECT_EQ(bad, 0);
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(seen[static_cast<size_t>(i)], 1) << i;
    }
  }
}

TEST_P(ThreadPoolSizes, WritesBeforeAreSeenInsideAndWritesInsideAfter) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(1000, 0);
  int64_t expected = 0;
  for (int64_t round = 1; round <= 2000; ++round) {
    for (int64_t& v : values) v += round;  // by the caller alone
    pool.Run(1000, 10, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += i;
    });
    expected += 1000 * round + 999 * 1000 / 2;
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), expected) << round;
  }
}

TEST_P(ThreadPoolSizes, AHundredThousandTinyLoops) {
  ThreadPool pool(GetParam());
  std::atomic<int64_t> sum{0};
  const auto start = steady_clock::now();
  constexpr int kLoops = 100000;
  for (int loop = 0; loop < kLoops; ++loop) {
    pool.Run(4, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) sum.fetch_add(i + 1, std::memory_order_relaxed);
    });
  }
  const std::chrono::duration<double, std::micro> us = steady_clock::now() - start;
  EXPECT_EQ(sum, int64_t{10} * kLoops);
  std::printf("%d threads: %.2f us per loop of 4 pieces\n", GetParam(), us.count() / kLoops);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolSizes, testing::Values(1, 2, 3, 8));

TEST(ThreadPool, LoopsOfOneGrainStayWithTheCaller) {
  ThreadPool pool(4);
  const auto self = std::this_thread::get_id();
  for (int i = 0; i < 1000; ++i) {
    pool.Run(16, 16, [&](int64_t begin, int64_t end, int thread) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      EXPECT_EQ(begin, 0);
      EXPECT_EQ(end, 16);
      EXPECT_EQ(thread, 0);
    });
  }
}

// Every thread holds its piece until all are there: only true parallelism ends this loop.
TEST(ThreadPool, AllThreadsTakePart) {
  constexpr int kThreads = 4;
  ThreadPool pool(kThreads);
  std::atomic<int> arrived{0};
  std::atomic<int> mask{0};
  const auto deadline = steady_clock::now() + std::chrono::seconds(60);
  pool.Run(kThreads, 1, [&](int64_t, int64_t, int thread) {
    mask.fetch_or(1 << thread);
    ++arrived;
    while (arrived < kThreads && steady_clock::now() < deadline) sched_yield();
  });
  EXPECT_EQ(arrived, kThreads);
  EXPECT_EQ(mask, (1 << kThreads) - 1);
}

// Found through the deadline of the loop above if a wake-up is ever lost; here with random pauses
// around the time at which workers fall asleep.
TEST(ThreadPool, NoWakeUpIsLost) {
  ThreadPool pool(2);
  for (int round = 0; round < 300; ++round) {
    const auto until = steady_clock::now() + std::chrono::microseconds(40 + round % 60);
    while (steady_clock::now() < until) {
    }
    std::atomic<int> arrived{0};
    const auto deadline = steady_clock::now() + std::chrono::seconds(20);
    pool.Run(2, 1, [&](int64_t, int64_t, int) {
      ++arrived;
      while (arrived < 2 && steady_clock::now() < deadline) sched_yield();
    });
    ASSERT_EQ(arrived, 2) << "round " << round;
  }
}

TEST(ThreadPool, AnIdlePoolUsesNoCpu) {
  ThreadPool pool(4);
  pool.Run(1000, 1, [](int64_t, int64_t, int) {});
  std::this_thread::sleep_for(milliseconds(50));  // longer than any spinning
  const double before = ProcessCpuSeconds();
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_LT(ProcessCpuSeconds() - before, 0.010);
}

TEST(ThreadPool, TwoThreadsOnOneCoreMakeProgress) {
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
  {
    ThreadPool pool(2);  // its worker inherits the mask
    const auto start = steady_clock::now();
    std::atomic<int64_t> sum{0};
    for (int loop = 0; loop < 20000; ++loop) {
      pool.Run(8, 1, [&](int64_t begin, int64_t end, int) { sum += end - begin; });
    }
    EXPECT_EQ(sum, 160000);
    EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(20));
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(ThreadPool, ManyPoolsComeAndGo) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(3);
    if (i % 2 == 0) pool.Run(100, 1, [](int64_t, int64_t, int) {});
  }
}

TEST(ThreadPool, SignalsStayWithTheProgramsThreads) {
  ThreadPool pool(2);
  std::atomic<int> arrived{0};
  std::atomic<int> blocked{-1};
  pool.Run(2, 1, [&](int64_t, int64_t, int thread) {
    if (thread == 1) {
      sigset_t mask;
      pthread_sigmask(SIG_SETMASK, nullptr, &mask);
      blocked = sigismember(&mask, SIGINT);
    }
    ++arrived;
    while (arrived < 2) sched_yield();
  });
  EXPECT_EQ(blocked, 1);
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGINT), 0);
}

#ifndef NDEBUG
TEST(ThreadPoolDeathTest, NestedRunsTripACheck) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.Run(8, 1,
                 [&](int64_t, int64_t, int) { pool.Run(8, 1, [](int64_t, int64_t, int) {}); });
      },
      "this must hold");
}
#endif

}  // namespace
}  // namespace granule
