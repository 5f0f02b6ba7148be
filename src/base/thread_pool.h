// A fixed set of threads that run one parallel loop at a time, for loops of microseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace granule {

// threads - 1 workers plus the calling thread. Workers spin briefly between loops (decode runs
// hundreds of loops per token), then sleep; an idle pool uses no CPU time.
//
// Thread rules: Run may be called by one thread at a time (the engine's); it must not be nested.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls body(begin, end, thread) over disjoint pieces of [0, count) whose sizes are multiples of
  // `grain` (but the last), handed out dynamically; thread is in [0, threads()). Returns when all
  // are done. Work done before the call is seen by body, and what body wrote is seen afterwards.
  // With count <= grain the caller runs it alone.
  template <class Body>
  void Run(int64_t count, int64_t grain, const Body& body) {
    RunErased(
        count, grain,
        [](const void* b, int64_t begin, int64_t end, int thread) {
          (*static_cast<const Body*>(b))(begin, end, thread);
        },
        &body);
  }

 private:
  using Trampoline = void (*)(const void* body, int64_t begin, int64_t end, int thread);
  struct Loop;

  void RunErased(int64_t count, int64_t grain, Trampoline trampoline, const void* body);
  void Work(int thread);
  void Drain(int thread);

  const int threads_;
  std::unique_ptr<Loop> loop_;
  std::vector<std::thread> workers_;
};

}  // namespace granule
