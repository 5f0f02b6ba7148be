#include "base/cuda_driver.h"

#include <gtest/gtest.h>

namespace granule::cuda {
namespace {

TEST(CudaDriver, ALibraryThatIsNotThereIsSaidWithTheWayOut) {
  const auto driver = OpenDriver("libgranule-no-such-driver.so.1");
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.status().code(), Code::kUnavailable);
  for (const char* word : {"libgranule-no-such-driver.so.1", "580", "13.0", "--device cpu"})
    EXPECT_NE(driver.status().message().find(word), std::string::npos) << word;
}

TEST(CudaDriver, ALibraryThatIsNoDriverIsToldByWhatItLacks) {
  const auto driver = OpenDriver("libm.so.6");
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.status().code(), Code::kUnavailable);
  for (const char* word : {"libm.so.6", "cuInit", "cuMemMap", "cuGraphLaunch"})
    EXPECT_NE(driver.status().message().find(word), std::string::npos) << word;
}

TEST(CudaDriver, VersionsAndResultsAsText) {
  EXPECT_EQ(DriverVersionText(13000), "13.0");
  EXPECT_EQ(DriverVersionText(12080), "12.8");
  Driver driver;
  EXPECT_EQ(driver.Describe(700), "CUDA error 700");  // a table without entries still speaks
  driver.GetErrorName = [](DriverResult, const char** text) { return *text = "NAME", kSuccess; };
  driver.GetErrorString = [](DriverResult, const char**) { return kOutOfMemory; };
  EXPECT_EQ(driver.Describe(2), "NAME (2): no description");
}

}  // namespace
}  // namespace granule::cuda
