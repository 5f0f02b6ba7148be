#include "generate/generate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <atomic>
#include <filesystem>
#include <memory>

#include "engine/tiny_model_for_test.h"

namespace granule::generate {
namespace {

constexpr int64_t kContext = 64;

// One small model for all tests; sequences and engines are made anew.
class GenerateTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ =
        std::filesystem::temp_directory_path() / ("granule-generate-" + std::to_string(getpid()));
    engine::TinyShape shape;
    shape.context = kContext;
    engine::TinyModelWriter(folder_, shape);
    engine::DeviceOptions options;
    options.threads = 2;
    auto device = engine::DeviceContext::CreateCpu(options);
    ASSERT_TRUE(device.ok()) << device.status().message();
    device_ = std::move(*device);
    auto package = package::Open(folder_);
    ASSERT_TRUE(package.ok()) << package.status().message();
    auto model = engine::Model::Load(*device_, std::move(*package));
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(*model);
  }
  static void TearDownTestSuite() {
    model_.reset();
    device_.reset();
    std::filesystem::remove_all(folder_);
  }

  void SetUp() override { Renew({}); }
  // An engine with this limit, and an empty sequence of it.
  void Renew(std::optional<uint64_t> limit) {
    sequence_.reset();
    engine::KvOptions kv;
    if (limit) kv.explicit_limit = kv::Limit{*limit, "--ctx-size"};
    engine_ = std::make_unique<engine::Engine>(*device_, *model_, kv);
    auto sequence = engine_->NewSequence();
    ASSERT_TRUE(sequence.ok()) << sequence.status().message();
    sequence_ = std::move(*sequence);
  }

  static Request Ask(int64_t prompt_tokens, int64_t new_tokens) {
    Request request;
    for (int64_t i = 0; i < prompt_tokens; ++i) {
      request.prompt.push_back(static_cast<TokenId>((7 * i + 3) % 101));
    }
    request.max_new_tokens = new_tokens;
    return request;
  }
  Outcome Must(const Request& request) {
    Result<Outcome> outcome = Generate(*engine_, *sequence_, request);
    EXPECT_TRUE(outcome.ok()) << outcome.status().message();
    return outcome.ok() ? std::move(*outcome) : Outcome();
  }
  Code Fails(const Request& request) {
    const Result<Outcome> outcome = Generate(*engine_, *sequence_, request);
    EXPECT_FALSE(outcome.ok());
    return outcome.ok() ? Code::kOk : outcome.status().code();
  }

  static inline std::filesystem::path folder_;
  static inline std::unique_ptr<engine::DeviceContext> device_;
  static inline std::unique_ptr<engine::Model> model_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<kv::Sequence> sequence_;
};

TEST_F(GenerateTest, ChunksOfAnySizeGiveTheSameRows) {
  const Outcome whole = Must(Ask(23, 12));
  ASSERT_EQ(whole.ids.size(), 12u);
  EXPECT_EQ(engine_->largest_step_rows(), 23);
  for (const int64_t chunk : {1, 7, 22, 23, 64}) {
    Renew({});
    Request request = Ask(23, 12);
    request.prefill_chunk = chunk;
    std::vector<int64_t> progress;
    request.on_prefill = [&](int64_t done, int64_t total) {
      EXPECT_EQ(total, 23);
      progress.push_back(done);
    };
    const Outcome outcome = Must(request);
    EXPECT_EQ(outcome.ids, whole.ids) << chunk;
    EXPECT_EQ(outcome.logits_hash, whole.logits_hash) << chunk;
    // The chunks that were asked for are the ones that ran.
    EXPECT_EQ(engine_->largest_step_rows(), std::min<int64_t>(chunk, 23));
    EXPECT_EQ(static_cast<int64_t>(progress.size()), (23 + chunk - 1) / chunk);
    EXPECT_EQ(progress.back(), 23);
    EXPECT_EQ(engine_->steps(), progress.size() + 11);
  }
}

TEST_F(GenerateTest, TheHashIsThatOfTheRowsThatWereSampledFrom) {
  Request request = Ask(5, 9);
  std::vector<float> rows;
  std::vector<TokenId> reported;
  request.on_logits = [&](std::span<const float> row) {
    EXPECT_EQ(row.size(), 101u);
    rows.insert(rows.end(), row.begin(), row.end());
  };
  request.on_token = [&](TokenId id) {
    // Greedy: the row that was shown last has its largest element here.
    const auto last = rows.end() - 101;
    EXPECT_EQ(std::max_element(last, rows.end()) - last, id);
    reported.push_back(id);
  };
  const Outcome outcome = Must(request);
  EXPECT_EQ(reported, outcome.ids);
  EXPECT_EQ(rows.size(), 9u * 101u);
  EXPECT_EQ(outcome.logits_hash, XXH64(rows.data(), rows.size() * sizeof(float), 0));
  EXPECT_EQ(outcome.timings.prompt_tokens, 5);
  EXPECT_EQ(outcome.timings.decode_steps, 8);
  // Step i reads the KV of 5 + i tokens.
  EXPECT_EQ(outcome.timings.decode_kv_bytes, (6 + 13) * 8 / 2 * sequence_->bytes_per_token());
  EXPECT_GT(outcome.timings.PredictedPerSecond(), 0);
}

TEST_F(GenerateTest, NoNewTokensIsPrefillOnly) {
  Request request = Ask(kContext, 0);  // fills the context, which is fine here
  request.on_logits = [](std::span<const float>) { FAIL() << "nothing is sampled"; };
  const Outcome outcome = Must(request);
  EXPECT_TRUE(outcome.ids.empty());
  EXPECT_EQ(outcome.finish_reason, FinishReason::kLength);
  EXPECT_EQ(outcome.logits_hash, XXH64(nullptr, 0, 0));
  EXPECT_EQ(sequence_->live_length(), static_cast<uint64_t>(kContext));
  EXPECT_GT(outcome.timings.ttft_ms, 0);
}

TEST_F(GenerateTest, TheHardMaximumEndsItWithLength) {
  const Outcome outcome = Must(Ask(10, -1));
  EXPECT_EQ(outcome.ids.size(), kContext - 10u);
  EXPECT_EQ(outcome.finish_reason, FinishReason::kLength);
  EXPECT_EQ(sequence_->live_length(), kContext - 1u);  // nobody asked what follows the last id
  Renew(20);
  EXPECT_EQ(Must(Ask(10, 1000)).ids.size(), 10u);
  Renew(11);
  EXPECT_EQ(Must(Ask(10, -1)).ids.size(), 1u);
}

TEST_F(GenerateTest, APromptThatDoesNotFitIsRefusedBeforeAnyWork) {
  EXPECT_EQ(Fails(Ask(kContext + 1, 1)), Code::kCapacityExceeded);
  EXPECT_EQ(Fails(Ask(kContext + 1, 0)), Code::kCapacityExceeded);
  EXPECT_EQ(engine_->steps(), 0u);
  EXPECT_EQ(sequence_->live_length(), 0u);
  EXPECT_EQ(sequence_->committed_length(), 0u);
  // It fits, and leaves no room for an answer.
  const Result<Outcome> full = Generate(*engine_, *sequence_, Ask(kContext, -1));
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.status().code(), Code::kCapacityExceeded);
  EXPECT_NE(full.status().message().find("64 of 64"), std::string::npos);
  EXPECT_EQ(engine_->steps(), 0u);
  EXPECT_EQ(Must(Ask(10, 3)).ids.size(), 3u);  // and the sequence is usable
}

TEST_F(GenerateTest, EveryEndTokenStopsAndIsNotAmongTheIds) {
  const Outcome free = Must(Ask(10, 20));
  // The first id that did not come before: ending there leaves exactly what came before it.
  size_t at = 1;
  while (std::find(free.ids.begin(), free.ids.begin() + at, free.ids[at]) !=
         free.ids.begin() + at) {
    ASSERT_LT(++at, free.ids.size());
  }
  for (const std::vector<TokenId>& eos :
       {std::vector<TokenId>{free.ids[at]}, std::vector<TokenId>{99999, free.ids[at]}}) {
    Renew({});
    Request request = Ask(10, 20);
    request.eos_ids = eos;
    int64_t rows = 0;
    request.on_logits = [&](std::span<const float>) { ++rows; };
    const Outcome stopped = Must(request);
    EXPECT_EQ(stopped.finish_reason, FinishReason::kStop);
    EXPECT_EQ(stopped.ids, std::vector<TokenId>(free.ids.begin(), free.ids.begin() + at));
    EXPECT_EQ(rows, static_cast<int64_t>(at) + 1);  // the row that chose the end token counts
    Renew({});
    request.ignore_eos = true;
    EXPECT_EQ(Must(request).ids, free.ids);
  }
}

TEST_F(GenerateTest, CancellingStopsBetweenStepsAndKeepsWhatThereIs) {
  const Outcome free = Must(Ask(10, 20));
  Renew({});
  std::atomic<bool> cancel{false};
  Request request = Ask(10, 20);
  request.cancel = &cancel;
  int tokens = 0;
  request.on_token = [&](TokenId) { cancel = ++tokens == 3; };
  const Outcome stopped = Must(request);
  EXPECT_EQ(stopped.finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(stopped.ids, std::vector<TokenId>(free.ids.begin(), free.ids.begin() + 3));

  // In the middle of the prompt.
  Renew({});
  cancel = false;
  request.prefill_chunk = 4;
  request.on_prefill = [&](int64_t done, int64_t) { cancel = done >= 8; };
  const Outcome early = Must(request);
  EXPECT_EQ(early.finish_reason, FinishReason::kCancelled);
  EXPECT_TRUE(early.ids.empty());
  EXPECT_EQ(sequence_->live_length(), 8u);
}

TEST_F(GenerateTest, RequestsThatMakeNoSenseAreRefused) {
  EXPECT_EQ(Fails(Ask(0, 1)), Code::kInvalidInput);
  EXPECT_EQ(Fails(Ask(1, -2)), Code::kInvalidInput);
  Request request = Ask(1, 1);
  request.prefill_chunk = 0;
  EXPECT_EQ(Fails(request), Code::kInvalidInput);
  request = Ask(1, 1);
  request.sampling.top_p = 0;
  EXPECT_EQ(Fails(request), Code::kUsage);
  request = Ask(3, 1);
  request.prompt[1] = 101;  // outside the vocabulary
  EXPECT_EQ(Fails(request), Code::kInvalidInput);
  EXPECT_EQ(sequence_->live_length(), 0u);
}

TEST_F(GenerateTest, ASecondCallContinuesTheSequence) {
  const Outcome once = Must(Ask(10, 12));
  Renew({});
  const Outcome first = Must(Ask(10, 5));
  Request rest;
  rest.prompt = {first.ids.back()};  // the last id was not fed back
  rest.max_new_tokens = 7;
  const Outcome second = Must(rest);
  std::vector<TokenId> joined = first.ids;
  joined.insert(joined.end(), second.ids.begin(), second.ids.end());
  EXPECT_EQ(joined, once.ids);
}

TEST(FinishReasonName, Names) {
  EXPECT_STREQ(FinishReasonName(FinishReason::kStop), "stop");
  EXPECT_STREQ(FinishReasonName(FinishReason::kLength), "length");
  EXPECT_STREQ(FinishReasonName(FinishReason::kCancelled), "cancelled");
}

}  // namespace
}  // namespace granule::generate
