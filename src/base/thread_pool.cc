#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <system_error>

#include "base/arith.h"
#include "base/check.h"
#include "base/cpu.h"
#include "base/format.h"

namespace granule {
namespace {

// How long a worker without work spins before it sleeps: longer than the serial gaps inside a
// decode step, short enough that an idle process is idle.
constexpr std::chrono::microseconds kSpin{60};

// Pieces per thread when the grain allows: enough to even out a thread that was interrupted, few
// enough that claiming them costs nothing.
constexpr int64_t kPiecesPerThread = 16;

inline void Pause() { __builtin_ia32_pause(); }

// Spins first, then gives the core away: with more threads than cores the one waited for needs it.
class Backoff {
 public:
  void Wait() {
    if (++rounds_ < 256) {
      Pause();
    } else {
      sched_yield();
    }
  }

 private:
  int rounds_ = 0;
};

// The state word: generation of the loop << 17 | open << 16 | workers inside.
constexpr uint64_t kInside = 0xffff;
constexpr uint64_t kOpen = 0x10000;
constexpr int kGenerationShift = 17;

}  // namespace

// One loop at a time. The caller writes its description while the state is closed and nobody is
// inside, opens it, takes part, closes it when every piece is claimed, and waits for those inside
// only: a worker that was asleep or off its core when the loop was short never delays it.
//
// Order: opening is a release that entering acquires; leaving is a release that the caller's wait
// acquires. Entering and leaving are read-modify-writes, so they continue the release sequence.
struct ThreadPool::Loop {
  alignas(64) std::atomic<uint64_t> state{0};
  alignas(64) std::atomic<int64_t> next{0};
  // written while closed
  alignas(64) int64_t count = 0;
  int64_t piece = 0;
  Trampoline trampoline = nullptr;
  const void* body = nullptr;
  // sleeping
  alignas(64) std::atomic<int> sleepers{0};
  std::atomic<int> wakeups{0};  // the word that sleepers wait on
  std::atomic<bool> stop{false};
  std::chrono::microseconds spin{0};

  void WakeAll() {
    wakeups.fetch_add(1, std::memory_order_seq_cst);
    wakeups.notify_all();
  }
};

ThreadPool::ThreadPool(int threads) : threads_(threads), loop_(std::make_unique<Loop>()) {
  GRANULE_CHECK(threads >= 1 && static_cast<uint64_t>(threads) <= kInside);
  if (threads == 1) return;
  // A spinning worker without a core of its own would only hold up the others.
  if (threads <= UsableCpus().threads) loop_->spin = kSpin;
  // Signals belong to the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  workers_.reserve(static_cast<size_t>(threads) - 1);
  for (int thread = 1; thread < threads; ++thread) {
    try {
      workers_.emplace_back([this, thread] { Work(thread); });
    } catch (const std::system_error&) {
      break;  // the system's limit on threads: loops are complete with any number of workers
    }
    pthread_setname_np(workers_.back().native_handle(), Format("granule-{}", thread).c_str());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ThreadPool::~ThreadPool() {
  loop_->stop.store(true, std::memory_order_seq_cst);
  loop_->WakeAll();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunErased(int64_t count, int64_t grain, Trampoline trampoline, const void* body) {
  GRANULE_DCHECK(grain > 0);
  if (count <= 0) return;
  if (count <= grain || workers_.empty()) {
    trampoline(body, 0, count, 0);
    return;
  }
  Loop& loop = *loop_;
  const uint64_t before = loop.state.load(std::memory_order_relaxed);
  GRANULE_CHECK((before & (kOpen | kInside)) == 0);  // one caller at a time, not nested
  const int64_t grains = CeilDiv(count, grain);
  loop.count = count;
  loop.piece = grain * std::max<int64_t>(1, grains / (int64_t{threads_} * kPiecesPerThread));
  loop.trampoline = trampoline;
  loop.body = body;
  loop.next.store(0, std::memory_order_relaxed);
  const uint64_t generation = (before >> kGenerationShift) + 1;
  // Sequentially consistent together with the sleeper's side in Work: either it sees this loop or
  // we see it.
  loop.state.store(generation << kGenerationShift | kOpen, std::memory_order_seq_cst);
  if (loop.sleepers.load(std::memory_order_seq_cst) > 0) loop.WakeAll();

  Drain(0);

  loop.state.fetch_and(~kOpen, std::memory_order_acq_rel);
  Backoff backoff;
  while ((loop.state.load(std::memory_order_acquire) & kInside) != 0) backoff.Wait();
}

void ThreadPool::Drain(int thread) {
  Loop& loop = *loop_;
  const int64_t count = loop.count;
  const int64_t piece = loop.piece;
  for (;;) {
    const int64_t begin = loop.next.fetch_add(piece, std::memory_order_relaxed);
    if (begin >= count) return;
    loop.trampoline(loop.body, begin, piece < count - begin ? begin + piece : count, thread);
  }
}

void ThreadPool::Work(int thread) {
  using Clock = std::chrono::steady_clock;
  Loop& loop = *loop_;
  uint64_t seen = 0;  // generation of the last loop that this worker took part in or missed
  Clock::time_point idle_since = Clock::now();
  for (int round = 0;; ++round) {
    uint64_t state = loop.state.load(std::memory_order_acquire);
    if (state >> kGenerationShift != seen) {
      bool entered = false;
      while (!entered && (state & kOpen) != 0) {
        entered = loop.state.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel,
                                                   std::memory_order_acquire);
      }
      seen = state >> kGenerationShift;
      if (entered) {
        Drain(thread);
        loop.state.fetch_sub(1, std::memory_order_acq_rel);
      }
      idle_since = Clock::now();
      round = 0;
      continue;
    }
    if (loop.stop.load(std::memory_order_relaxed)) return;
    Pause();
    if (round % 16 != 15 || Clock::now() - idle_since < loop.spin) continue;

    loop.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const int wakeups = loop.wakeups.load(std::memory_order_seq_cst);
    const bool nothing_new = loop.state.load(std::memory_order_seq_cst) >> kGenerationShift == seen;
    if (nothing_new && !loop.stop.load(std::memory_order_seq_cst)) {
      loop.wakeups.wait(wakeups, std::memory_order_acquire);
    }
    loop.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    idle_since = Clock::now();
    round = 0;
  }
}

}  // namespace granule
