// Tests that run twice: on the fake driver everywhere, and on a real GPU where there is one.
#pragma once

#include <memory>
#include <string>

#include "base/cuda_for_test.h"
#include "memory/cuda/fake_driver_for_test.h"

namespace granule::memory {

enum class Gpu { kFake, kReal };

inline std::string GpuName(const testing::TestParamInfo<Gpu>& info) {
  return info.param == Gpu::kFake ? "Fake" : "Gpu";
}

class FakeOrRealGpu : public cuda::GpuTest, public testing::WithParamInterface<Gpu> {
 protected:
  void SetUp() override {
    if (GetParam() == Gpu::kReal) return cuda::GpuTest::SetUp();
    Fake({});
  }
  void TearDown() override { device_.reset(); }

  // Another fake in the place of what SetUp opened.
  void Fake(const cuda::FakeGpu& gpu) {
    device_.reset();
    fake_.reset();
    fake_ = std::make_unique<cuda::FakeDriver>(gpu);
    device_ = *cuda::Device::Open(fake_->driver(), 0);
  }
  bool fake() const { return GetParam() == Gpu::kFake; }
  // Another context on the same GPU; null is a failure of the test.
  std::unique_ptr<cuda::Device> AnotherDevice() {
    auto device = cuda::Device::Open(fake() ? fake_->driver() : *cuda::OpenDriver(), 0);
    EXPECT_TRUE(device.ok()) << device.status().message();
    return device.ok() ? std::move(*device) : nullptr;
  }

  std::unique_ptr<cuda::FakeDriver> fake_;
};

}  // namespace granule::memory
