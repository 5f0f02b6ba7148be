// Real weights on a GPU: the ids of transformers and ONNX Runtime, under every kind of growth,
// launched and replayed, and logits against the CPU and, where they were made beforehand, against
// ONNX Runtime (scripts/reference_logits.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/cuda_for_test.h"
#include "base/file.h"
#include "engine/engine.h"
#include "engine/real_model_for_test.h"

namespace granule::engine {
namespace {

constexpr double kSureMargin = 0.1;  // of goldens: larger than what a GPU's rounding decides

int64_t Best(std::span<const float> row) {
  return std::max_element(row.begin(), row.end()) - row.begin();
}

struct Session {
  std::unique_ptr<DeviceContext> device;
  std::unique_ptr<Model> model;
  std::unique_ptr<Engine> engine;

  static Session Open(const std::string& path, bool cuda, const KvOptions& kv) {
    Session session;
    auto device = cuda ? DeviceContext::CreateCuda({}, 0) : DeviceContext::CreateCpu({});
    EXPECT_TRUE(device.ok()) << device.status().message();
    session.device = std::move(*device);
    auto package = package::Open(path);
    EXPECT_TRUE(package.ok()) << package.status().message();
    auto model = Model::Load(*session.device, std::move(*package));
    EXPECT_TRUE(model.ok()) << model.status().message();
    session.model = std::move(*model);
    session.engine = std::make_unique<Engine>(*session.device, *session.model, kv);
    return session;
  }

  std::vector<TokenId> Greedy(kv::Sequence& sequence, const std::vector<TokenId>& prompt,
                              size_t count) {
    std::vector<TokenId> ids, next = prompt;
    while (ids.size() < count) {
      const auto last = static_cast<int32_t>(next.size() - 1);
      const StepItem item{&sequence, next, {&last, 1}};
      auto output = engine->Step({&item, 1});
      EXPECT_TRUE(output.ok()) << output.status().message();
      if (!output.ok()) break;
      ids.push_back(static_cast<TokenId>(Best(output->Row(0))));
      next = {ids.back()};
    }
    return ids;
  }

  // Logits of all positions, in one step or one by one.
  std::vector<float> Logits(const std::vector<TokenId>& ids, bool one_by_one) {
    auto sequence = *engine->NewSequence();
    std::vector<float> logits;
    const size_t chunk = one_by_one ? 1 : ids.size();
    std::vector<int32_t> wanted(chunk);
    std::iota(wanted.begin(), wanted.end(), 0);
    for (size_t at = 0; at < ids.size(); at += chunk) {
      const StepItem item{sequence.get(), std::span(ids).subspan(at, chunk), wanted};
      auto output = engine->Step({&item, 1});
      EXPECT_TRUE(output.ok()) << output.status().message();
      if (!output.ok()) return logits;
      logits.insert(logits.end(), output->logits,
                    output->logits + output->rows * output->vocab_size);
    }
    return logits;
  }
};

// What is said of two sets of logits [rows, vocab]; the first is the reference.
void ExpectAgreement(const std::string& name, const std::vector<float>& expected,
                     const std::vector<float>& found, size_t vocab, double least_share) {
  ASSERT_EQ(expected.size(), found.size());
  double most = 0;
  size_t agree = 0, sure = 0, sure_agree = 0;
  const size_t rows = expected.size() / vocab;
  for (size_t r = 0; r < rows; ++r) {
    const std::span<const float> a(&expected[r * vocab], vocab), b(&found[r * vocab], vocab);
    float first = -INFINITY, second = -INFINITY;
    for (size_t i = 0; i < vocab; ++i) {
      const double difference = std::abs(double{a[i]} - double{b[i]});
      most = std::isnan(difference) ? INFINITY : std::max(most, difference);
      if (a[i] > first) {
        second = first;
        first = a[i];
      } else {
        second = std::max(second, a[i]);
      }
    }
    const bool same = Best(a) == Best(b);
    agree += same;
    sure += first - second > 0.1f;
    sure_agree += same && first - second > 0.1f;
  }
  std::printf("%s: max difference %.3g, top-1 %zu of %zu, with a margin above 0.1: %zu of %zu\n",
              name.c_str(), most, agree, rows, sure_agree, sure);
  EXPECT_EQ(sure_agree, sure) << name;
  EXPECT_GE(static_cast<double>(agree), least_share * static_cast<double>(rows)) << name;
}

class RealModelCuda : public cuda::GpuTest {
 protected:
  void SetUp() override {
    cuda::GpuTest::SetUp();
    if (device_ == nullptr) return;
    device_.reset();
    folder_ = RealModelFolderOrEmpty();
    if (folder_.empty()) GTEST_SKIP() << kNoRealModel;
  }
  std::string folder_;
};

TEST_F(RealModelCuda, WritesWhatTransformersAndOnnxRuntimeWrite) {
  Session gpu = Session::Open(folder_, true, {});
  for (const char* file : {"smollm2-greedy.json", "smollm2-long.json"}) {
    for (const Golden& golden : ReadGoldens(file, kSureMargin)) {
      auto sequence = *gpu.engine->NewSequence();
      EXPECT_EQ(gpu.Greedy(*sequence, golden.prompt, golden.ids.size()), golden.ids);
    }
  }
}

TEST_F(RealModelCuda, ForcedGrowthOfEveryKindWritesTheIdsOfTheUngrownRun) {
  const Golden golden = ReadGoldens("smollm2-greedy.json", kSureMargin)[0];
  constexpr size_t kCount = 48;
  std::vector<TokenId> ungrown;
  {
    Session gpu = Session::Open(folder_, true, {});
    auto sequence = *gpu.engine->NewSequence();
    ASSERT_TRUE(sequence->Ensure(64).ok());
    ungrown = gpu.Greedy(*sequence, golden.prompt, kCount);
    EXPECT_EQ(sequence->counters().growth_events, 0u);
  }
  const struct {
    kv::GrowthKind growth;
    kv::LayoutKind layout;
  } cases[] = {{kv::GrowthKind::kCommit, kv::LayoutKind::kHeadMajor},
               {kv::GrowthKind::kCommit, kv::LayoutKind::kSeqMajor},
               {kv::GrowthKind::kCommit, kv::LayoutKind::kTokenMajor},
               {kv::GrowthKind::kRestride, kv::LayoutKind::kHeadMajor},
               {kv::GrowthKind::kRealloc, kv::LayoutKind::kHeadMajor},
               {kv::GrowthKind::kRealloc, kv::LayoutKind::kSeqMajor},
               {kv::GrowthKind::kRealloc, kv::LayoutKind::kTokenMajor}};
  for (const auto& c : cases) {
    for (const kv::CaptureMode capture : {kv::CaptureMode::kOff, kv::CaptureMode::kOn}) {
      KvOptions options;
      options.layout = {c.layout, 0};
      options.growth = c.growth;
      options.policy = {kv::Rounding::kBucket, 4};
      options.capture = capture;
      Session gpu = Session::Open(folder_, true, options);
      auto sequence = *gpu.engine->NewSequence();
      EXPECT_EQ(gpu.Greedy(*sequence, golden.prompt, kCount), ungrown) << kv::GrowthName(c.growth);
      EXPECT_GE(sequence->counters().growth_events, 2u);
      EXPECT_EQ(sequence->counters().graph_existed, capture == kv::CaptureMode::kOn);
    }
  }
}

TEST_F(RealModelCuda, LogitsOf64PositionsAgreeWithTheCpu) {
  const Golden golden = ReadGoldens("smollm2-greedy.json", kSureMargin)[4];
  std::vector<TokenId> ids = golden.prompt;
  ids.insert(ids.end(), golden.ids.begin(), golden.ids.end());
  ids.resize(std::min<size_t>(ids.size(), 64));
  Session cpu = Session::Open(folder_, false, {});
  const std::vector<float> expected = cpu.Logits(ids, false);
  Session gpu = Session::Open(folder_, true, {});
  const auto vocab = static_cast<size_t>(gpu.model->info().vocab_size);
  ExpectAgreement("one by one (fp32 products)", expected, gpu.Logits(ids, true), vocab, 0.99);
  ExpectAgreement("in one step (fp16 products)", expected, gpu.Logits(ids, false), vocab, 0.99);
}

// Folder GRANULE_REFERENCE_LOGITS: NAME.json {"model", "ids"} and NAME.bin, fp32 [ids, vocab].
TEST_F(RealModelCuda, LogitsAgreeWithOnnxRuntimes) {
  const char* folder = std::getenv("GRANULE_REFERENCE_LOGITS");
  if (folder == nullptr || *folder == '\0')
    GTEST_SKIP()
        << "GRANULE_REFERENCE_LOGITS names no folder (scripts/reference_logits.py makes it)";
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    const auto text = ReadFile(entry.path(), 1 << 20);
    ASSERT_TRUE(text.ok()) << text.status().message();
    const auto json = nlohmann::json::parse(*text);
    const std::vector<TokenId> ids = json["ids"];
    std::string model = json["model"];
    if (!model.starts_with("synth:")) model = folder_;
    const auto bytes =
        ReadFile(std::filesystem::path(entry.path()).replace_extension(".bin"), 256 << 20);
    ASSERT_TRUE(bytes.ok()) << bytes.status().message();
    std::vector<float> expected(bytes->size() / sizeof(float));
    std::memcpy(expected.data(), bytes->data(), bytes->size());
    Session gpu = Session::Open(model, true, {});
    const auto vocab = static_cast<size_t>(gpu.model->info().vocab_size);
    ExpectAgreement(model + " against ONNX Runtime, one by one", expected, gpu.Logits(ids, true),
                    vocab, 0.99);
    ExpectAgreement(model + " against ONNX Runtime, in one step", expected, gpu.Logits(ids, false),
                    vocab, 0.99);
    ++found;
  }
  EXPECT_GT(found, 0) << folder;
}

}  // namespace
}  // namespace granule::engine
