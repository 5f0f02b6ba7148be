#include "kv/capacity.h"

#include <gtest/gtest.h>

namespace granule::kv {
namespace {

constexpr uint64_t kMax = UINT64_MAX;

TEST(Bucket, RoundsToPowersOfTwoWithAFloor) {
  for (const uint64_t n : {0, 1, 128, 256}) EXPECT_EQ(Bucket(n, 32768, 256), 256u) << n;
  EXPECT_EQ(Bucket(257, 32768, 256), 512u);
  EXPECT_EQ(Bucket(5000, 32768, 256), 8192u);
  EXPECT_EQ(Bucket(20000, 32768, 256), 32768u);
  EXPECT_EQ(Bucket(32768, 32768, 256), 32768u);
}

TEST(Bucket, ClampsToTheHardMaximum) {
  EXPECT_EQ(Bucket(40000, 32768, 256), 32768u);
  EXPECT_EQ(Bucket(100, 128, 256), 128u);
  EXPECT_EQ(Bucket(100, 0, 256), 0u);
  EXPECT_EQ(Bucket(2049, 3000, 256), 3000u);
}

TEST(Bucket, TakesAnyFloor) {
  EXPECT_EQ(Bucket(10, 32768, 300), 300u);
  EXPECT_EQ(Bucket(301, 32768, 300), 512u);
  EXPECT_EQ(Bucket(5, 512, 4), 8u);
}

TEST(Bucket, SaturatesWhereThePowerOfTwoWouldNotFit) {
  const uint64_t half = uint64_t{1} << 63;
  EXPECT_EQ(Bucket(half, kMax, 256), half);
  EXPECT_EQ(Bucket(half + 1, kMax, 256), kMax);
  EXPECT_EQ(Bucket(kMax, kMax, 256), kMax);
}

TEST(Bucket, IsMonotonicAndBounded) {
  uint64_t previous = 0;
  for (uint64_t n = 0; n < 8192; ++n) {
    const uint64_t bucket = Bucket(n, 4096, 256);
    EXPECT_GE(bucket, previous);
    EXPECT_LE(bucket, 4096u);
    previous = bucket;
  }
}

const Limit kStated{8192, "genai_config.json model.context_length"};
const Limit kRows{4096, "cos_cache rows"};

TEST(HardMax, ExplicitWins) {
  const HardMax h = ResolveHardMax(Limit{512, "--ctx-size"}, kStated, std::nullopt);
  EXPECT_EQ(h.tokens, 512u);
  EXPECT_EQ(h.source, "--ctx-size");
  EXPECT_EQ(h.warning, "");
}

TEST(HardMax, ExplicitAboveTheModelIsLoweredWithAWarning) {
  const HardMax h = ResolveHardMax(Limit{9000, "GRANULE_CTX_SIZE"}, kStated, std::nullopt);
  EXPECT_EQ(h.tokens, 8192u);
  EXPECT_EQ(h.source, "GRANULE_CTX_SIZE clamped by genai_config.json model.context_length (8192)");
  EXPECT_NE(h.warning.find("9000"), std::string::npos);
}

TEST(HardMax, TheSmallerOfStatedContextAndTableRowsLimitsTheModel) {
  const HardMax h = ResolveHardMax(std::nullopt, kStated, kRows);
  EXPECT_EQ(h.tokens, 4096u);
  EXPECT_EQ(h.source, "cos_cache rows");
  EXPECT_EQ(ResolveHardMax(std::nullopt, kStated, Limit{9999, "cos_cache rows"}).tokens, 8192u);
  EXPECT_EQ(ResolveHardMax(Limit{0, "--ctx-size"}, kStated, kRows).tokens, 4096u);
}

TEST(HardMax, NobodyStatesItThenItIsUnbounded) {
  const HardMax h = ResolveHardMax(std::nullopt, std::nullopt, std::nullopt);
  EXPECT_FALSE(h.tokens.has_value());
  EXPECT_EQ(h.or_unbounded(), kMax);
  EXPECT_EQ(h.source, "unbounded (the model states no context length)");
}

}  // namespace
}  // namespace granule::kv
