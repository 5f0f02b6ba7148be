// The default model: what outside engines write, at every length and in any company.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "engine/engine.h"
#include "engine/real_model_for_test.h"
#include "kernels/rowwise.h"

namespace granule::engine {
namespace {

class RealModel : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = RealModelFolderOrEmpty();
    if (folder_.empty()) GTEST_SKIP() << kNoRealModel;
    Load(0, {});
  }

  void Load(int threads, const KvOptions& kv) {
    engine_.reset();
    model_.reset();
    device_.reset();
    DeviceOptions options;
    options.threads = threads;
    auto device = DeviceContext::CreateCpu(options);
    ASSERT_TRUE(device.ok());
    device_ = std::move(*device);
    auto package = package::Open(folder_);
    ASSERT_TRUE(package.ok()) << package.status().message();
    auto model = Model::Load(*device_, std::move(*package));
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(*model);
    engine_ = std::make_unique<Engine>(*device_, *model_, kv);
  }

  TokenId Best(std::span<const float> row) const {
    return kernels::ArgMax(device_->kernels(), row.data(), static_cast<int64_t>(row.size()));
  }

  // Greedy ids after the prompt, read in chunks.
  std::vector<TokenId> Greedy(kv::Sequence& sequence, const std::vector<TokenId>& prompt,
                              size_t count, size_t chunk) {
    std::vector<TokenId> ids;
    for (size_t at = 0; at < prompt.size(); at += chunk) {
      const auto part = std::span(prompt).subspan(at, std::min(chunk, prompt.size() - at));
      const auto last = static_cast<int32_t>(part.size() - 1);
      const bool final = at + part.size() == prompt.size();
      const StepItem item{&sequence, part, {&last, final ? size_t{1} : size_t{0}}};
      auto output = engine_->Step({&item, 1});
      EXPECT_TRUE(output.ok()) << output.status().message();
      if (final) ids.push_back(Best(output->Row(0)));
    }
    while (ids.size() < count) {
      const int32_t row = 0;
      const TokenId id = ids.back();
      const StepItem item{&sequence, {&id, 1}, {&row, 1}};
      auto output = engine_->Step({&item, 1});
      EXPECT_TRUE(output.ok()) << output.status().message();
      ids.push_back(Best(output->Row(0)));
    }
    return ids;
  }

  std::filesystem::path folder_;
  std::unique_ptr<DeviceContext> device_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(RealModel, WritesWhatTransformersWrites) {
  for (const Golden& golden : ReadGoldens("smollm2-greedy.json")) {
    auto sequence = *engine_->NewSequence();
    EXPECT_EQ(Greedy(*sequence, golden.prompt, golden.ids.size(), 512), golden.ids);
  }
}

TEST_F(RealModel, WritesWhatOnnxRuntimeWritesPastEveryGrowthAndAfterALongPrompt) {
  const auto goldens = ReadGoldens("smollm2-long.json");
  ASSERT_EQ(goldens.size(), 2u);
  EXPECT_EQ(goldens[0].prompt.size(), 5u);
  EXPECT_EQ(goldens[1].prompt.size(), 3700u);
  for (const Golden& golden : goldens) {
    auto sequence = *engine_->NewSequence();
    EXPECT_EQ(Greedy(*sequence, golden.prompt, golden.ids.size(), 512), golden.ids);
    // The memory file holds this sequence's granules and nothing else.
    const kv::Counters counters = sequence->counters();
    const uint64_t granule = device_->vmm().capabilities().granule_bytes;
    EXPECT_EQ(counters.unique_physical_bytes,
              kv::TouchedGranules(
                  kv::LiveRanges(sequence->layout(), 0, sequence->committed_length()), granule) *
                  granule);
    EXPECT_EQ(*device_->vmm().ResidentBytes(),
              counters.unique_physical_bytes + counters.parked_bytes + counters.pooled_bytes);
  }
}

TEST_F(RealModel, ForcedGrowthOfEveryKindWritesTheSame) {
  const Golden golden = ReadGoldens("smollm2-greedy.json")[0];
  const struct {
    kv::GrowthKind growth;
    kv::LayoutKind layout;
  } cases[] = {{kv::GrowthKind::kCommit, kv::LayoutKind::kHeadMajor},
               {kv::GrowthKind::kCommit, kv::LayoutKind::kTokenMajor},
               {kv::GrowthKind::kRestride, kv::LayoutKind::kHeadMajor},
               {kv::GrowthKind::kRealloc, kv::LayoutKind::kSeqMajor}};
  for (const auto& c : cases) {
    KvOptions options;
    options.layout = {c.layout, 0};
    options.growth = c.growth;
    options.policy = {kv::Rounding::kBucket, 4};
    Load(1, options);
    auto sequence = *engine_->NewSequence();
    EXPECT_EQ(Greedy(*sequence, golden.prompt, golden.ids.size(), 3), golden.ids)
        << kv::GrowthName(c.growth);
    EXPECT_GE(sequence->counters().growth_events, 2u);  // 4 -> 8 -> 16 -> ...
  }
}

// All prompts at once: prefill of one beside decode of the others, and the bits of every row as
// alone.
TEST_F(RealModel, SameBitsInARaggedBatch) {
  const auto goldens = ReadGoldens("smollm2-greedy.json");
  std::vector<std::vector<std::vector<float>>> alone(goldens.size());
  constexpr size_t kSteps = 6;
  for (size_t g = 0; g < goldens.size(); ++g) {
    auto sequence = *engine_->NewSequence();
    std::vector<TokenId> next = goldens[g].prompt;
    for (size_t step = 0; step < kSteps; ++step) {
      const auto last = static_cast<int32_t>(next.size() - 1);
      const StepItem item{sequence.get(), next, {&last, 1}};
      auto output = engine_->Step({&item, 1});
      ASSERT_TRUE(output.ok());
      alone[g].emplace_back(output->Row(0).begin(), output->Row(0).end());
      next = {goldens[g].ids[step]};
    }
  }
  // Sequence g joins at step g.
  std::vector<std::unique_ptr<kv::Sequence>> sequences;
  for (size_t step = 0; step < goldens.size() + kSteps; ++step) {
    if (step < goldens.size()) sequences.push_back(*engine_->NewSequence());
    std::vector<StepItem> items;
    std::vector<size_t> members;
    std::vector<int32_t> last(sequences.size());
    for (size_t g = 0; g < sequences.size(); ++g) {
      const size_t own_step = step - g;
      if (own_step >= kSteps) continue;
      const std::span<const TokenId> tokens =
          own_step == 0 ? std::span<const TokenId>(goldens[g].prompt)
                        : std::span(goldens[g].ids).subspan(own_step - 1, 1);
      last[g] = static_cast<int32_t>(tokens.size() - 1);
      items.push_back({sequences[g].get(), tokens, {&last[g], 1}});
      members.push_back(g);
    }
    if (items.empty()) break;
    auto output = engine_->Step(items);
    ASSERT_TRUE(output.ok()) << output.status().message();
    for (size_t i = 0; i < members.size(); ++i) {
      const auto row = output->Row(static_cast<int64_t>(i));
      const auto& expected = alone[members[i]][step - members[i]];
      EXPECT_EQ(std::memcmp(row.data(), expected.data(), row.size_bytes()), 0)
          << "sequence " << members[i] << " step " << step;
    }
  }
}

}  // namespace
}  // namespace granule::engine
