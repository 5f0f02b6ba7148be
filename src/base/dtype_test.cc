#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <string>

namespace granule {
namespace {

constexpr DType kAll[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI4,  DType::kU4,
                          DType::kI8,  DType::kU8,  DType::kI32,  DType::kI64, DType::kBool};

TEST(DType, SizesAndNames) {
  std::set<std::string_view> names;
  for (DType type : kAll) {
    names.insert(DTypeName(type));
    EXPECT_GT(BitsOf(type), 0);
  }
  EXPECT_EQ(names.size(), std::size(kAll));
  EXPECT_EQ(BitsOf(DType::kI4), 4);
  EXPECT_EQ(BitsOf(DType::kBF16), 16);
  EXPECT_EQ(BitsOf(DType::kI64), 64);
  EXPECT_EQ(DTypeName(DType::kF16), "float16");
  EXPECT_TRUE(IsFloat(DType::kBF16));
  EXPECT_FALSE(IsFloat(DType::kI8));
}

double HalfValue(uint16_t bits) {  // by the definition of the format, in double
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(DType, EveryHalfWidensExactlyAndComesBack) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float wide = F16ToF32(half);
    const double expected = HalfValue(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      const uint16_t back = F32ToF16(wide);
      ASSERT_EQ(back & 0x7c00, 0x7c00);
      ASSERT_NE(back & 0x3ff, 0);
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), expected) << bits;
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0);
    ASSERT_EQ(F32ToF16(wide), half) << bits;
  }
}

TEST(DType, HalfRoundsToNearestEven) {
  // Between each pair of neighbours: a little below the middle, the middle, a little above.
  for (uint16_t low = 0; low < 0x7bff; ++low) {
    const float a = F16ToF32(low);
    const float b = F16ToF32(static_cast<uint16_t>(low + 1));
    const float middle = (a + b) / 2;  // exact: fp32 has 13 more bits
    const uint16_t even = low % 2 == 0 ? low : static_cast<uint16_t>(low + 1);
    ASSERT_EQ(F32ToF16(middle), even) << low;
    ASSERT_EQ(F32ToF16(std::nextafterf(middle, 0.0f)), low);
    ASSERT_EQ(F32ToF16(std::nextafterf(middle, HUGE_VALF)), low + 1);
    ASSERT_EQ(F32ToF16(-middle), even | 0x8000);
  }
  EXPECT_EQ(F32ToF16(65519.996f), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(F32ToF16(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(F32ToF16(-HUGE_VALF), 0xfc00);
  EXPECT_EQ(F32ToF16(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(DType, Bfloat16RoundsToNearestEven) {
  for (uint32_t low = 0; low < 0x7f7f; ++low) {
    const auto middle = std::bit_cast<float>(low << 16 | 0x8000u);
    const uint32_t even = low % 2 == 0 ? low : low + 1;
    ASSERT_EQ(F32ToBF16(middle), even) << low;
    ASSERT_EQ(F32ToBF16(std::bit_cast<float>(low << 16 | 0x7fffu)), low);
    ASSERT_EQ(F32ToBF16(std::bit_cast<float>(low << 16 | 0x8001u)), low + 1);
    ASSERT_EQ(F32ToBF16(BF16ToF32(static_cast<uint16_t>(low))), low);
  }
  EXPECT_EQ(F32ToBF16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(F32ToBF16(-HUGE_VALF), 0xff80);
  EXPECT_TRUE(std::isnan(BF16ToF32(F32ToBF16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(BF16ToF32(F32ToBF16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace granule
