#include "sample/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace granule::sample {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SampleParams Params(float temperature, int32_t top_k = 0, float top_p = 1, float min_p = 0,
                    uint64_t seed = 1) {
  return {.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p, .seed = seed};
}

std::vector<int64_t> Counts(const SampleParams& params, const std::vector<float>& logits,
                            int draws) {
  Sampler sampler(params);
  std::vector<int64_t> counts(logits.size());
  for (int i = 0; i < draws; ++i) ++counts.at(sampler.Sample(logits));
  return counts;
}

// Probabilities of the tokens in `kept`, at a temperature.
std::vector<double> Expected(const std::vector<float>& logits, double temperature,
                             const std::set<size_t>& kept) {
  std::vector<double> p(logits.size());
  double total = 0;
  for (const size_t i : kept) total += p[i] = std::exp(logits[i] / temperature);
  for (double& value : p) value /= total;
  return p;
}

// Chi-square of the counts; nothing may be drawn where nothing is expected. The bound is the 99.99
// % quantile for up to 5 degrees of freedom (25.7), and the seeds are fixed.
void ExpectDistribution(const std::vector<int64_t>& counts, const std::vector<double>& expected) {
  double draws = 0;
  for (const int64_t count : counts) draws += static_cast<double>(count);
  double chi_square = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(counts[i], 0) << i;
      continue;
    }
    const double difference = static_cast<double>(counts[i]) - draws * expected[i];
    chi_square += difference * difference / (draws * expected[i]);
  }
  EXPECT_LT(chi_square, 25.7);
}

// Probabilities at temperature 1: 0.45, 0.25, 0.15, 0.1, 0.04, 0.01, not in that order.
const std::vector<float> kRow = {std::log(0.15f), std::log(0.45f), std::log(0.01f),
                                 std::log(0.1f),  std::log(0.04f), std::log(0.25f)};
constexpr int kDraws = 100'000;

TEST(Greedy, LowestIdAmongTheLargest) {
  Sampler sampler(Params(0));
  EXPECT_EQ(sampler.Sample(std::vector<float>{1, 3, 2, 3}), 1);
  EXPECT_EQ(sampler.Sample(std::vector<float>{kNan, -5, kNan, 7, kNan}), 3);
  EXPECT_EQ(sampler.Sample(std::vector<float>{1, kInf, kInf}), 1);
  EXPECT_EQ(sampler.Sample(std::vector<float>{-0.0f, 0.0f}), 0);
  EXPECT_EQ(sampler.Sample(std::vector<float>{kNan, -kInf, -kInf}), 1);
  EXPECT_EQ(sampler.Sample(std::vector<float>{kNan, kNan}), 0);
  EXPECT_EQ(sampler.Sample({}), 0);
  EXPECT_EQ(sampler.draws(), 0u);
}

TEST(Greedy, LooksAtNothingElse) {
  Sampler sampler({.temperature = 0, .top_k = 1, .top_p = 0.1f, .min_p = 1, .seed = 5});
  EXPECT_EQ(sampler.Sample(kRow), 1);
}

TEST(Distribution, TemperatureOne) {
  ExpectDistribution(Counts(Params(1), kRow, kDraws), Expected(kRow, 1, {0, 1, 2, 3, 4, 5}));
}

TEST(Distribution, OtherTemperatures) {
  for (const float t : {0.5f, 2.0f}) {
    ExpectDistribution(Counts(Params(t), kRow, kDraws), Expected(kRow, t, {0, 1, 2, 3, 4, 5}));
  }
}

TEST(Distribution, TopK) {
  ExpectDistribution(Counts(Params(1, 3), kRow, kDraws), Expected(kRow, 1, {1, 5, 0}));
  ExpectDistribution(Counts(Params(1, 1), kRow, 100), Expected(kRow, 1, {1}));
  ExpectDistribution(Counts(Params(1, 99), kRow, kDraws), Expected(kRow, 1, {0, 1, 2, 3, 4, 5}));
}

TEST(Distribution, TopPKeepsTheOneThatCrosses) {
  ExpectDistribution(Counts(Params(1, 0, 0.8f), kRow, kDraws), Expected(kRow, 1, {1, 5, 0}));
  ExpectDistribution(Counts(Params(1, 0, 0.44f), kRow, 100), Expected(kRow, 1, {1}));
  ExpectDistribution(Counts(Params(1, 0, 1e-9f), kRow, 100), Expected(kRow, 1, {1}));
}

TEST(Distribution, MinP) {
  // 0.45 * 0.2 = 0.09
  ExpectDistribution(Counts(Params(1, 0, 1, 0.2f), kRow, kDraws), Expected(kRow, 1, {1, 5, 0, 3}));
  ExpectDistribution(Counts(Params(1, 0, 1, 1), kRow, 100), Expected(kRow, 1, {1}));
}

TEST(Order, TruncationSeesTemperatureOne) {
  // At temperature 10 the row is nearly flat; applied first, it would let everything through.
  ExpectDistribution(Counts(Params(10, 0, 0.8f), kRow, kDraws), Expected(kRow, 10, {1, 5, 0}));
  ExpectDistribution(Counts(Params(10, 0, 1, 0.2f), kRow, kDraws),
                     Expected(kRow, 10, {1, 5, 0, 3}));
}

TEST(Order, TopPCountsWhatTopKLeft) {
  // Of 0.45 + 0.25 the first is 0.64: top-p 0.6 is satisfied by it. Of the whole row it would not
  // be.
  ExpectDistribution(Counts(Params(1, 2, 0.6f), kRow, 100), Expected(kRow, 1, {1}));
}

TEST(Ties, LowerIdsFirst) {
  const std::vector<float> row(10, 0.5f);
  const auto counts = Counts(Params(1, 3), row, 1000);
  for (size_t i = 0; i < row.size(); ++i) EXPECT_EQ(counts[i] > 0, i < 3) << i;
}

TEST(Draws, SameSeedSameTokens) {
  Sampler a(Params(1, 4, 0.95f, 0.01f, 42));
  Sampler b(Params(1, 4, 0.95f, 0.01f, 42));
  Sampler c(Params(1, 4, 0.95f, 0.01f, 43));
  int differs = 0;
  for (int i = 0; i < 1000; ++i) {
    const int32_t token = a.Sample(kRow);
    EXPECT_EQ(token, b.Sample(kRow));
    differs += token != c.Sample(kRow);
  }
  EXPECT_GT(differs, 400);
  EXPECT_EQ(a.draws(), 1000u);
}

// Computed by hand from the definition of the generator, in another language: a change of
// generator, order or arithmetic would change everybody's seeded output.
TEST(Draws, KnownSequence) {
  Sampler sampler(Params(1, 0, 1, 0, 2024));
  std::vector<int32_t> tokens;
  for (int i = 0; i < 16; ++i) tokens.push_back(sampler.Sample(kRow));
  EXPECT_EQ(tokens, (std::vector<int32_t>{4, 5, 1, 5, 0, 1, 1, 0, 5, 5, 1, 1, 3, 5, 1, 1}));
}

TEST(Draws, NeighbouringSeedsAreIndependent) {
  // The first draw of consecutive seeds is as uniform as the draws of one seed.
  std::vector<int64_t> counts(kRow.size());
  for (uint64_t seed = 0; seed < 50'000; ++seed)
    ++counts[Sampler(Params(1, 0, 1, 0, seed)).Sample(kRow)];
  ExpectDistribution(counts, Expected(kRow, 1, {0, 1, 2, 3, 4, 5}));
}

TEST(Edges, NothingToChooseFrom) {
  Sampler sampler(Params(1, 5, 0.9f, 0.1f));
  EXPECT_EQ(sampler.Sample(std::vector<float>{-kInf, -kInf}), 0);
  EXPECT_EQ(sampler.Sample(std::vector<float>{kNan, -kInf}), 1);
  EXPECT_EQ(sampler.Sample(std::vector<float>{kNan, kNan}), 0);
  EXPECT_EQ(sampler.Sample({}), 0);
}

TEST(Edges, NanAndMinusInfinityAreNeverChosen) {
  for (const SampleParams& params :
       {Params(1), Params(1, 3), Params(1, 0, 0.99f), Params(5, 0, 1, 0.001f)}) {
    Sampler sampler(params);
    const std::vector<float> row = {kNan, 0, -kInf, 0.5f, kNan, -kInf};
    for (int i = 0; i < 1000; ++i) {
      const int32_t token = sampler.Sample(row);
      EXPECT_TRUE(token == 1 || token == 3) << token;
    }
  }
}

TEST(Edges, ExtremeLogitsAndTemperatures) {
  const std::vector<float> huge = {-3e38f, 3e38f, kInf, 1};
  for (const float t : {1e-38f, 1e-3f, 1.0f, 1e30f}) {
    Sampler sampler(Params(t, 3, 0.9f, 0.5f));
    for (int i = 0; i < 100; ++i) EXPECT_EQ(sampler.Sample(huge), 2);
  }
  const auto counts = Counts(Params(3e38f), kRow, 6000);
  for (const int64_t count : counts) EXPECT_NEAR(static_cast<double>(count), 1000, 200);
  EXPECT_EQ(Sampler(Params(1)).Sample(std::vector<float>{5}), 0);
}

TEST(Edges, LargeVocabulary) {
  std::vector<float> row(150'000);
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>((i * 7919) % 150'000) * 1e-6f;
  row[77'777] = 14;  // seven eighths of the mass; the rest is flat
  Sampler sampler(Params(1, 0, 0.95f));
  std::map<int32_t, int> seen;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) ++seen[sampler.Sample(row)];
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_GT(seen[77'777], 35);
  Sampler narrow(Params(1, 40));
  for (int i = 0; i < 50; ++i) EXPECT_GE(row[narrow.Sample(row)], row[77'777] > 1 ? 0.14f : 0);
}

TEST(Validate, Ranges) {
  EXPECT_TRUE(Validate({}).ok());
  EXPECT_TRUE(Validate(Params(0.8f, 40, 0.95f, 0.05f)).ok());
  const struct {
    SampleParams params;
    const char* name;
  } kBad[] = {
      {Params(-1), "temperature is -1"},    {Params(kNan), "temperature"},
      {Params(kInf), "temperature is inf"}, {Params(1, -2), "top-k is -2"},
      {Params(1, 0, 0), "top-p is 0"},      {Params(1, 0, 1.5f), "top-p is 1.5"},
      {Params(1, 0, kNan), "top-p"},        {Params(1, 0, 1, -0.1f), "min-p is -0.1"},
      {Params(1, 0, 1, 1.1f), "min-p"},     {Params(1, 0, 1, kNan), "min-p"},
  };
  for (const auto& bad : kBad) {
    const Status status = Validate(bad.params);
    ASSERT_FALSE(status.ok()) << bad.name;
    EXPECT_EQ(status.code(), Code::kUsage);
    EXPECT_NE(status.message().find(bad.name), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace granule::sample
