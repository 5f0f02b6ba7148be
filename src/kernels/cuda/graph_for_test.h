// Launches recorded into a graph and run from it, and how long that takes, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/cuda/launcher.h"

namespace granule::kernels {

class RecordedGraph {
 public:
  RecordedGraph(Launcher& launcher, const std::function<void()>& launches)
      : device_(launcher.device()) {
    device_.MakeCurrent();
    EXPECT_EQ(driver().GraphCreate(&graph_, 0), cuda::kSuccess);
    launcher.RecordInto(graph_);
    launches();
    launcher.RecordInto(nullptr);
    EXPECT_TRUE(launcher.status().ok()) << launcher.status().message();
    EXPECT_EQ(driver().GraphInstantiate(&exec_, graph_, 0), cuda::kSuccess);
  }
  ~RecordedGraph() {
    device_.MakeCurrent();
    if (exec_ != nullptr) driver().GraphExecDestroy(exec_);
    if (graph_ != nullptr) driver().GraphDestroy(graph_);
  }
  RecordedGraph(const RecordedGraph&) = delete;
  RecordedGraph& operator=(const RecordedGraph&) = delete;

  void Run() {
    device_.MakeCurrent();
    EXPECT_EQ(driver().GraphLaunch(exec_, device_.stream()), cuda::kSuccess);
  }

  // Median of 20 runs after two, in seconds.
  double Seconds() {
    cuda::EventHandle start = nullptr, stop = nullptr;
    device_.MakeCurrent();
    EXPECT_EQ(driver().EventCreate(&start, 0), cuda::kSuccess);
    EXPECT_EQ(driver().EventCreate(&stop, 0), cuda::kSuccess);
    std::vector<float> times;
    for (int run = 0; run < 22; ++run) {
      driver().EventRecord(start, device_.stream());
      Run();
      driver().EventRecord(stop, device_.stream());
      const cuda::DriverResult result = driver().EventSynchronize(stop);
      EXPECT_EQ(result, cuda::kSuccess) << driver().Describe(result);
      float milliseconds = 0.0f;
      driver().EventElapsedTime(&milliseconds, start, stop);
      if (run >= 2) times.push_back(milliseconds);
    }
    driver().EventDestroy(start);
    driver().EventDestroy(stop);
    std::nth_element(times.begin(), times.begin() + 10, times.end());
    return static_cast<double>(times[10]) * 1e-3;
  }

 private:
  const cuda::Driver& driver() const { return device_.driver(); }

  cuda::Device& device_;
  cuda::GraphHandle graph_ = nullptr;
  cuda::GraphExecHandle exec_ = nullptr;
};

}  // namespace granule::kernels
