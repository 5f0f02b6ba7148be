// Tests that need a GPU: skipped, and counted as skipped, where there is none. GRANULE_TEST_GPU=1
// (make test-gpu) makes its absence a failure.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/cuda_device.h"

namespace granule::cuda {

// A device of its own for each test, so that a fault in one does not reach the next.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto driver = OpenDriver();
    auto device =
        driver.ok() ? Device::Open(*driver, 0) : Result<std::unique_ptr<Device>>(driver.status());
    if (device.ok()) {
      device_ = std::move(*device);
      return;
    }
    const char* wanted = std::getenv("GRANULE_TEST_GPU");
    if (wanted != nullptr && std::strcmp(wanted, "1") == 0) FAIL() << device.status().message();
    GTEST_SKIP() << device.status().message();
  }

  Device& device() { return *device_; }

  // Device memory with this content / the content of device memory.
  template <class T>
  Buffer Put(const std::vector<T>& values) {
    auto buffer = Buffer::Allocate(*device_, values.size() * sizeof(T), "a test");
    EXPECT_TRUE(buffer.ok()) << buffer.status().message();
    EXPECT_TRUE(
        device_->UploadAsync(buffer->address(), values.data(), values.size() * sizeof(T)).ok());
    EXPECT_TRUE(device_->Synchronize().ok());
    return std::move(*buffer);
  }
  template <class T>
  std::vector<T> Get(DevicePtr from, size_t count) {
    std::vector<T> values(count);
    Status status = device_->DownloadAsync(values.data(), from, count * sizeof(T));
    EXPECT_TRUE(status.ok()) << status.message();
    status = device_->Synchronize();
    EXPECT_TRUE(status.ok()) << status.message();
    return values;
  }

  std::unique_ptr<Device> device_;
};

}  // namespace granule::cuda
