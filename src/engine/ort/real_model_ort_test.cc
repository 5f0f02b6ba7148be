// The default model through ONNX Runtime: against the native backend, and under growth.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "engine/engine.h"
#include "engine/ort/ort_for_test.h"
#include "engine/real_model_for_test.h"

namespace granule::engine {
namespace {

constexpr kv::LayoutChoice kHeadMajor{kv::LayoutKind::kHeadMajor, 0};

struct Loaded {
  Loaded(const std::filesystem::path& folder, BackendKind backend) {
    device = std::move(*DeviceContext::CreateCpu({}));
    auto package = package::Open(folder);
    EXPECT_TRUE(package.ok()) << package.status().message();
    auto loaded = Model::Load(*device, std::move(*package), backend);
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    model = std::move(*loaded);
  }
  std::unique_ptr<DeviceContext> device;
  std::unique_ptr<Model> model;
};

// The two largest logits of a row.
struct Top {
  size_t best = 0;
  float margin = 0;

  explicit Top(std::span<const float> row) {
    best = static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
    float second = -INFINITY;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i != best) second = std::max(second, row[i]);
    }
    margin = row[best] - second;
  }
};

class RealModelOrt : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = RealModelFolderOrEmpty();
    if (folder_.empty()) GTEST_SKIP() << kNoRealModel;
    const std::string library = UsualOrtForTest();
    if (library.empty()) GTEST_SKIP() << "no ONNX Runtime: make setup, or set GRANULE_ORT_LIB";
    setenv("GRANULE_ORT_LIB", library.c_str(), 1);
  }

  std::filesystem::path folder_;
};

// Texts of the goldens, 64 positions or more each where they are that long, in one step each.
std::vector<std::vector<TokenId>> Texts() {
  std::vector<std::vector<TokenId>> texts;
  for (const char* file : {"smollm2-long.json", "smollm2-greedy.json"}) {
    for (const Golden& golden : ReadGoldens(file)) {
      std::vector<TokenId> text = golden.prompt;
      text.insert(text.end(), golden.ids.begin(), golden.ids.end());
      text.resize(std::min<size_t>(text.size(), 64));
      texts.push_back(std::move(text));
    }
  }
  return texts;
}

TEST_F(RealModelOrt, LogitsOfTheNativeBackendAgree) {
  Loaded native(folder_, BackendKind::kNative), ort(folder_, BackendKind::kOrt);
  Engine native_engine(*native.device, *native.model, {});
  Engine ort_engine(*ort.device, *ort.model, {kHeadMajor, {}, {}});
  int64_t positions = 0, agree = 0, sure = 0, sure_agree = 0;
  double largest = 0;
  for (const std::vector<TokenId>& text : Texts()) {
    std::vector<int32_t> wanted(text.size());
    std::iota(wanted.begin(), wanted.end(), 0);
    auto a = *native_engine.NewSequence(), b = *ort_engine.NewSequence();
    const StepItem ours{a.get(), text, wanted}, theirs{b.get(), text, wanted};
    const auto x = native_engine.Step({&ours, 1});
    const auto y = ort_engine.Step({&theirs, 1});
    ASSERT_TRUE(x.ok()) << x.status().message();
    ASSERT_TRUE(y.ok()) << y.status().message();
    for (int64_t r = 0; r < x->rows; ++r) {
      const std::span<const float> p = x->Row(r), q = y->Row(r);
      for (size_t i = 0; i < p.size(); ++i) {
        const double difference = std::abs(static_cast<double>(p[i]) - q[i]);
        largest = std::isfinite(difference) ? std::max(largest, difference) : INFINITY;
      }
      const Top top(q);
      const bool same = Top(p).best == top.best;
      ++positions;
      agree += same;
      sure += top.margin > 0.1f;
      sure_agree += same && top.margin > 0.1f;
    }
  }
  std::printf(
      "native against ONNX Runtime, %lld positions: top-1 the same at %lld, at %lld of the %lld "
      "whose margin exceeds 0.1; largest difference of a logit %.3g\n",
      static_cast<long long>(positions), static_cast<long long>(agree),
      static_cast<long long>(sure_agree), static_cast<long long>(sure), largest);
  ASSERT_GE(positions, 64);
  EXPECT_GE(static_cast<double>(agree), 0.995 * static_cast<double>(positions));
  EXPECT_EQ(sure_agree, sure);
  EXPECT_GT(sure, positions / 2);
  // Measured 2e-4: fp32 in another order of additions, through 30 layers; logits reach 20.
  EXPECT_LT(largest, 0.01);
}

// Greedy ids after the prompt, which is read in two parts.
std::vector<TokenId> Greedy(Engine& engine, kv::Sequence& sequence,
                            const std::vector<TokenId>& prompt, size_t count) {
  std::vector<TokenId> ids;
  const std::span<const TokenId> all(prompt);
  std::vector<std::span<const TokenId>> parts = {all.first(3), all.subspan(3)};
  TokenId next = 0;
  while (ids.size() < count) {
    const std::span<const TokenId> part =
        parts.empty() ? std::span<const TokenId>(&next, 1) : parts.front();
    if (!parts.empty()) parts.erase(parts.begin());
    const auto last = static_cast<int32_t>(part.size() - 1);
    const StepItem item{&sequence, part, {&last, parts.empty() ? size_t{1} : size_t{0}}};
    const auto output = engine.Step({&item, 1});
    EXPECT_TRUE(output.ok()) << output.status().message();
    if (!output.ok()) break;
    if (!parts.empty()) continue;
    next = static_cast<TokenId>(Top(output->Row(0)).best);
    ids.push_back(next);
  }
  return ids;
}

TEST_F(RealModelOrt, ForcedGrowthOfEveryKindWritesTheSame) {
  Loaded ort(folder_, BackendKind::kOrt);
  const Golden golden = ReadGoldens("smollm2-greedy.json")[0];
  ASSERT_EQ(golden.prompt.size(), 5u);
  constexpr size_t kNew = 12;  // the last of 16 slots is written: 4 -> 8 -> 16
  Engine plain(*ort.device, *ort.model, {kHeadMajor, {}, {}});
  auto ungrown = *plain.NewSequence();
  const std::vector<TokenId> expected = Greedy(plain, *ungrown, golden.prompt, kNew);
  EXPECT_EQ(ungrown->counters().growth_events, 0u);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), golden.ids.begin()));
  for (const kv::GrowthKind growth :
       {kv::GrowthKind::kCommit, kv::GrowthKind::kRestride, kv::GrowthKind::kRealloc}) {
    SCOPED_TRACE(kv::GrowthName(growth));
    KvOptions options{kHeadMajor, {kv::Rounding::kBucket, 4}, {}};
    options.growth = growth;
    Engine engine(*ort.device, *ort.model, options);
    auto sequence = *engine.NewSequence();
    EXPECT_EQ(Greedy(engine, *sequence, golden.prompt, kNew), expected);
    const kv::Counters counters = sequence->counters();
    EXPECT_EQ(sequence->committed_length(), 16u);
    EXPECT_EQ(counters.growth_events, 2u);
    // Nominal: 3 and 8 live tokens at the growths, KV and 8 bytes of mask each.
    const uint64_t moved = (3 + 8) * (ort.model->info().kv_bytes_per_token + 8);
    EXPECT_EQ(counters.kv_bytes_moved, growth == kv::GrowthKind::kCommit ? 0 : moved);
  }
}

}  // namespace
}  // namespace granule::engine
