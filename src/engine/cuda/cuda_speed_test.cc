// What growth costs a running model on a GPU: the same tokens with memory that follows them, and
// with all of it committed beforehand, in alternating pairs.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "base/cuda_for_test.h"
#include "engine/engine.h"

namespace granule::engine {
namespace {

using Clock = std::chrono::steady_clock;

class CudaSpeed : public cuda::GpuTest {
 protected:
  void SetUp() override {
    cuda::GpuTest::SetUp();
    device_.reset();  // the engine opens its own
  }
};

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

TEST_F(CudaSpeed, GrowthAgainstAllCommitted) {
  constexpr int kPairs = 24;
  constexpr size_t kPrompt = 64, kTokens = 256;
  auto device = DeviceContext::CreateCuda({}, 0);
  ASSERT_TRUE(device.ok()) << device.status().message();
  auto package = package::Open("synth:qwen2.5-7b", package::Weights::kOnDemand);
  ASSERT_TRUE(package.ok()) << package.status().message();
  auto model = Model::Load(**device, std::move(*package));
  ASSERT_TRUE(model.ok()) << model.status().message();
  Engine engine(**device, **model, KvOptions{});

  uint64_t growths = 0;
  std::vector<TokenId> reference;
  // Tokens per second of the decode steps.
  const auto run = [&](bool committed) {
    auto sequence = *engine.NewSequence();
    if (committed) {
      EXPECT_TRUE(sequence->Ensure(kPrompt + kTokens).ok());
    }
    const uint64_t before = sequence->counters().granules_mapped;
    std::vector<TokenId> next(kPrompt), ids;
    for (size_t i = 0; i < kPrompt; ++i) next[i] = static_cast<TokenId>(17 * i + 3);
    Clock::time_point start;
    while (ids.size() < kTokens) {
      const auto last = static_cast<int32_t>(next.size() - 1);
      const StepItem item{sequence.get(), next, {&last, 1}};
      const RowSampling greedy;
      auto picked = engine.StepAndSample({&item, 1}, {&greedy, 1});
      EXPECT_TRUE(picked.ok()) << picked.status().message();
      if (!picked.ok()) return 0.0;
      if (ids.empty()) start = Clock::now();
      ids.push_back(picked->front());
      next = {ids.back()};
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const uint64_t grown = sequence->counters().granules_mapped - before;
    EXPECT_EQ(grown > 0, !committed);
    if (!committed) growths = grown;
    if (reference.empty()) reference = ids;
    EXPECT_EQ(ids, reference);
    EXPECT_EQ(sequence->counters().invalidations, 0u);
    return static_cast<double>(kTokens - 1) / seconds;
  };
  run(false);
  run(true);
  std::vector<double> growing, whole, difference, twins;
  for (int pair = 0; pair < kPairs; ++pair) {
    // The order turns, so that what comes first has no favour; and each kind twice, for the spread
    // of the same with itself.
    const bool first = pair % 2 == 0;
    const double a = run(first), b = run(!first), c = run(first);
    growing.push_back(first ? b : a);
    whole.push_back(first ? a : b);
    difference.push_back(100 * (growing.back() / whole.back() - 1));
    twins.push_back(100 * (c / a - 1));
  }
  std::printf(
      "%d alternating pairs of %zu tokens, %llu granules mapped on the way: growing %.1f tokens/s, "
      "all committed %.1f; difference median %.2f %% (quartiles %.2f and %.2f); the same twice "
      "%.2f %% (quartiles %.2f and %.2f)\n",
      kPairs, kTokens, static_cast<unsigned long long>(growths), Quantile(growing, 0.5),
      Quantile(whole, 0.5), Quantile(difference, 0.5), Quantile(difference, 0.25),
      Quantile(difference, 0.75), Quantile(twins, 0.5), Quantile(twins, 0.25),
      Quantile(twins, 0.75));
  EXPECT_GT(Quantile(difference, 0.5), -3.0) << "growth is on the path";
}

}  // namespace
}  // namespace granule::engine
