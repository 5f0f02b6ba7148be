// Random use over handles of several granules, and over CUDA's seam on a driver of our own: a GPU's
// memory without a GPU.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/cuda_device.h"
#include "kv/cuda_buffers.h"
#include "kv/random_use_for_test.h"
#include "memory/cuda/cuda_vmm.h"
#include "memory/cuda/fake_driver_for_test.h"

namespace granule::kv {
namespace {

unsigned Cases() { return std::getenv("GRANULE_NIGHTLY") != nullptr ? 1000 : 25; }

TEST(DeviceStress, LargeHandlesKeepContentAndBooks) {
  HostBytes access;
  for (unsigned seed = 0; seed < 2 * Cases() && !HasFailure(); ++seed) {
    Fixture f(seed % 2 * (1 << 20), (size_t{1} << (1 + seed % 3)) * kGranule);
    RandomUse(f, access, {.seed = seed}).Run();
  }
}

TEST(DeviceStress, CudaOnAFakeDriverKeepsContentAndBooks) {
  HostBytes access;  // the fake's memory is the host's
  cuda::FakeDriver fake({.granule_bytes = kGranule});
  for (unsigned seed = 0; seed < Cases() && !HasFailure(); ++seed) {
    auto device = *cuda::Device::Open(fake.driver(), 0);
    const auto buffers = MakeCudaBuffers(*device);
    {
      auto vmm =
          memory::CudaVmm::Open(*device, {.max_handle_bytes = (seed % 2 ? 1 : 8) * kGranule});
      ASSERT_TRUE(vmm.ok());
      Fixture f(std::move(*vmm), *buffers, seed % 3 * (1 << 18));
      RandomUse(f, access, {.seed = seed}).Run();
    }
    EXPECT_TRUE(device->lost().ok());
  }
  EXPECT_EQ(fake.live_handles(), 0u);
  EXPECT_EQ(fake.live_reservations(), 0u);
  EXPECT_EQ(fake.live_buffers(), 0u);
  EXPECT_EQ(fake.live_contexts(), 0u);
  EXPECT_EQ(fake.used_bytes(), 0u);
  EXPECT_GT(fake.largest_handle(), kGranule);
}

}  // namespace
}  // namespace granule::kv
