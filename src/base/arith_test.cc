#include "base/arith.h"

#include <gtest/gtest.h>

namespace granule {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

TEST(Arith, CheckedOperationsRefuseToWrap) {
  EXPECT_EQ(CheckedAdd<uint64_t>(kMax - 1, 1), kMax);
  EXPECT_EQ(CheckedAdd<uint64_t>(kMax, 1), std::nullopt);
  EXPECT_EQ(CheckedAdd<int64_t>(kMin, -1), std::nullopt);
  EXPECT_EQ(CheckedMul<uint64_t>(uint64_t{1} << 32, uint64_t{1} << 31), uint64_t{1} << 63);
  EXPECT_EQ(CheckedMul<uint64_t>(uint64_t{1} << 32, uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(CheckedMul<int64_t>(kMin, -1), std::nullopt);
  EXPECT_EQ(CheckedMul<uint8_t>(16, 16), std::nullopt);
}

TEST(Arith, SaturatingOperationsStopAtTheTop) {
  EXPECT_EQ(SaturatingAdd(kMax, 5), kMax);
  EXPECT_EQ(SaturatingAdd(2, 3), 5u);
  EXPECT_EQ(SaturatingMul(kMax, 2), kMax);
  EXPECT_EQ(SaturatingMul(kMax, 0), 0u);
  EXPECT_EQ(SaturatingMul(6, 7), 42u);
}

TEST(Arith, Rounding) {
  EXPECT_EQ(CeilDiv<uint64_t>(0, 4), 0u);
  EXPECT_EQ(CeilDiv<uint64_t>(1, 4), 1u);
  EXPECT_EQ(CeilDiv<uint64_t>(8, 4), 2u);
  EXPECT_EQ(CeilDiv(kMax, uint64_t{2}), uint64_t{1} << 63);
  EXPECT_EQ(RoundUp<uint64_t>(9, 4), 12u);
  EXPECT_EQ(RoundUp<uint64_t>(12, 4), 12u);
  EXPECT_EQ(RoundDown<uint64_t>(11, 4), 8u);
}

}  // namespace
}  // namespace granule
