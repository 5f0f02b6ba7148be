// Synthetic models through the engine: the promises of package/synth_values.h. (Here, because the
// engine lies above the package layer.)
#include "package/synth.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>

#include "engine/engine.h"
#include "generate/generate.h"
#include "package/package.h"

namespace granule::cli {
namespace {

namespace fs = std::filesystem;
using engine::TokenId;

constexpr int64_t kNewTokens = 48;

struct Greedy {
  std::vector<TokenId> ids;
  uint64_t logits_hash = 0;
  float smallest_margin = 0;  // between the two largest logits, over all steps
};

// The prompt of the growth table, within the vocabulary.
std::vector<TokenId> Prompt(int64_t vocab) {
  std::vector<TokenId> prompt = {785, 6722, 315, 9625, 374};
  for (TokenId& id : prompt) id = static_cast<TokenId>(id % vocab);
  return prompt;
}

class Session {
 public:
  explicit Session(const std::string& model) {
    auto package = package::Open(model);
    EXPECT_TRUE(package.ok()) << package.status().message();
    device_ = std::move(*engine::DeviceContext::CreateCpu({.threads = 2}));
    auto loaded = engine::Model::Load(*device_, std::move(*package));
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    model_ = std::move(*loaded);
    engine::KvOptions options;
    options.layout = *kv::ParseLayout("auto");
    engine_ = std::make_unique<engine::Engine>(*device_, *model_, options);
    sequence_ = std::move(*engine_->NewSequence());
  }

  int64_t vocab() const { return model_->info().vocab_size; }
  kv::Sequence& sequence() { return *sequence_; }

  Greedy Run(const std::vector<TokenId>& prompt, int64_t tokens = kNewTokens) {
    Greedy result;
    result.smallest_margin = INFINITY;
    generate::Request request;
    request.prompt = prompt;
    request.max_new_tokens = tokens;
    request.on_logits = [&](std::span<const float> logits) {
      float first = -INFINITY, second = -INFINITY;
      for (const float logit : logits) {
        second = std::max(second, std::min(first, logit));
        first = std::max(first, logit);
      }
      result.smallest_margin = std::min(result.smallest_margin, first - second);
    };
    request.eos_ids = model_->package().eos_ids;
    auto outcome = generate::Generate(*engine_, *sequence_, request);
    EXPECT_TRUE(outcome.ok()) << outcome.status().message();
    EXPECT_EQ(outcome->finish_reason, generate::FinishReason::kLength);
    result.ids = outcome->ids;
    result.logits_hash = outcome->logits_hash;
    return result;
  }
  Greedy Run() { return Run(Prompt(vocab())); }

 private:
  std::unique_ptr<engine::DeviceContext> device_;
  std::unique_ptr<engine::Model> model_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<kv::Sequence> sequence_;
};

class SynthWalk : public ::testing::TestWithParam<std::string> {};

TEST_P(SynthWalk, IsSureAndRepeatsNothing) {
  const Greedy walk = Session("synth:" + GetParam()).Run();
  ASSERT_EQ(walk.ids.size(), static_cast<size_t>(kNewTokens));
  const std::set<TokenId> distinct(walk.ids.begin(), walk.ids.end());
  EXPECT_EQ(distinct.size(), walk.ids.size());
  EXPECT_GE(walk.smallest_margin, 0.1f);
  RecordProperty("smallest_margin", std::to_string(walk.smallest_margin));
}

// Depth is what the margins depend on; fewer positions only make the test faster.
INSTANTIATE_TEST_SUITE_P(Geometries, SynthWalk,
                         ::testing::Values("tiny", "tiny,kv=fp16", "smollm2-135m,context=512",
                                           "qwen2.5-0.5b,context=512"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

TEST(SynthModel, FormatsHoldTheSameValues) {
  const Greedy int4 = Session("synth:tiny").Run();
  for (const char* format : {"int8", "fp16", "fp32"}) {
    const Greedy other = Session(std::string("synth:tiny:") + format).Run();
    EXPECT_EQ(other.ids, int4.ids) << format;
    EXPECT_EQ(other.logits_hash, int4.logits_hash) << format;
  }
}

TEST(SynthModel, FolderAndMemoryGiveTheSameLogits) {
  std::string dir = (fs::temp_directory_path() / "granule-synth-XXXXXX").native();
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  const auto model = package::ParseSynth("tiny,kv=fp16,seed=5");
  ASSERT_TRUE(model.ok());
  ASSERT_TRUE(package::WriteSynth(*model, fs::path(dir) / "m", {}).ok());
  const Greedy folder = Session(dir + "/m").Run();
  const Greedy memory = Session("synth:tiny,kv=fp16,seed=5").Run();
  EXPECT_EQ(folder.ids, memory.ids);
  EXPECT_EQ(folder.logits_hash, memory.logits_hash);
  EXPECT_NE(Session("synth:tiny,kv=fp16,seed=6").Run().ids, memory.ids);
  fs::remove_all(dir);
}

// Each of these is what some defect of a cache would do. All must show in the ids.
TEST(SynthModel, WrongKvShowsInTheIds) {
  Session whole("synth:tiny");
  const std::vector<TokenId> prompt = Prompt(whole.vocab());
  const Greedy expected = whole.Run(prompt);

  for (size_t changed = 0; changed + 1 < prompt.size(); ++changed) {
    std::vector<TokenId> other = prompt;
    other[changed] += 1;
    EXPECT_NE(Session("synth:tiny").Run(other).ids, expected.ids) << "token " << changed;
  }
  Session swapped("synth:tiny");
  EXPECT_NE(swapped.Run({prompt[1], prompt[0], prompt[2], prompt[3], prompt[4]}).ids, expected.ids);

  for (int32_t layer = 0; layer < 2; ++layer) {
    Session damaged("synth:tiny");
    damaged.Run(std::vector<TokenId>(prompt.begin(), prompt.end() - 1), 0);
    const KvView view = damaged.sequence().View(layer);
    for (uint64_t slot = 0; slot + 1 < prompt.size(); ++slot) {
      for (int64_t head = 0; head < 2; ++head) {
        std::memset(view.v + slot * view.v_token_stride + head * view.v_head_stride, 0, 32 * 4);
      }
    }
    EXPECT_NE(damaged.Run({prompt.back()}).ids, expected.ids) << "values of layer " << layer;
  }
}

}  // namespace
}  // namespace granule::cli
