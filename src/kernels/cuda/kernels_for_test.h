// A GPU with this build's kernels loaded, for tests.
#pragma once

#include <memory>

#include "base/cuda_for_test.h"
#include "kernels/cuda/launcher.h"

namespace granule::kernels {

class CudaKernelTest : public cuda::GpuTest {
 protected:
  void SetUp() override {
    cuda::GpuTest::SetUp();
    if (device_ == nullptr) return;
    auto loaded = CudaKernels::Load(*device_);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    kernels_ = std::move(*loaded);
    launcher_ = std::make_unique<Launcher>(*device_, *kernels_);
  }
  void TearDown() override {
    launcher_.reset();
    kernels_.reset();
  }

  Launcher& launcher() { return *launcher_; }
  // What was launched ran without a failure.
  void ExpectRan() {
    EXPECT_TRUE(launcher_->status().ok()) << launcher_->status().message();
    const Status status = device_->Synchronize();
    EXPECT_TRUE(status.ok()) << status.message();
  }

  std::unique_ptr<CudaKernels> kernels_;
  std::unique_ptr<Launcher> launcher_;
};

}  // namespace granule::kernels
