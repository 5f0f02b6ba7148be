// The driver alone: order of the stages, and what each failure leaves behind.
#include "kv/growth.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kv/errors.h"

namespace granule::kv {
namespace {

// A backend that records its calls and fails where told. bytes/token 32, as in the errors' worked
// example.
class FakeBackend : public GrowthBackend {
 public:
  std::vector<std::string> calls;
  std::string fail_at;
  bool moves = false;  // a growth that changes pointers
  bool abandon_fails = false;
  Lengths state{123, 256, 4096};
  uint64_t buffer_id = 7;
  uint64_t staged_id = 0;
  bool capture_valid = true;

  Lengths lengths() const override { return state; }
  uint64_t Limit() const override { return 4096; }
  uint64_t Target(uint64_t required) const override { return Bucket(required, 4096, 256); }
  CaptureSignature Signature() const override {
    return {{moves && staged_id != 0 ? staged_id : buffer_id, 4096}};
  }
  Status Build(const GrowthStep&) override {
    if (Status s = Call("build"); !s.ok()) return s;
    staged_id = buffer_id + 1;
    return {};
  }
  Status BuildMask(const GrowthStep&) override { return Call("mask"); }
  Status InvalidateCapture(const std::string& reason) override {
    EXPECT_EQ(reason.rfind("invalidated", 0), 0u);
    if (Status s = Call("invalidate"); !s.ok()) return s;
    capture_valid = false;
    return {};
  }
  void Publish(const GrowthStep& step, bool kept, const std::string& reason) override {
    calls.push_back(kept ? "publish kept" : "publish");
    EXPECT_EQ(reason.rfind(kept ? "kept" : "invalidated", 0), 0u);
    buffer_id = staged_id;
    staged_id = 0;
    state.committed = step.new_committed;
  }
  Status Abandon(const GrowthStep&) override {
    calls.push_back("abandon");
    if (abandon_fails) return Error(Code::kPoisoned, "cannot be undone");
    staged_id = 0;
    return {};
  }
  Status CapacityExceeded(uint64_t required) const override {
    return CapacityExceededError({required, 4096, "genai_config.json model.context_length", 4096,
                                  32, memory::MemoryInfo{"host", 20000, 40000}});
  }
  Status GrowthFailed(const GrowthStep& step, const Status& cause) const override {
    return GrowthFailedError(
        {step.old_committed, step.new_committed, step.new_committed * 32,
         (step.old_committed + step.new_committed) * 32, "old and new buffers are alive together",
         32, memory::MemoryInfo{"host", 20000, 40000}},
        cause);
  }

 private:
  Status Call(const char* name) {
    calls.emplace_back(name);
    return fail_at == name ? Error(Code::kExhausted, "injected at {}", name) : Status();
  }
};

using Calls = std::vector<std::string>;

TEST(GrowthDriver, StagesRunInOrder) {
  FakeBackend backend;
  backend.moves = true;
  backend.state.live = 200;
  const auto outcome = EnsureCapacity(backend, 4096, 300);
  ASSERT_TRUE(outcome.ok());
  EXPECT_TRUE(outcome->grew);
  EXPECT_EQ(outcome->step.old_committed, 256u);
  EXPECT_EQ(outcome->step.new_committed, 512u);
  EXPECT_EQ(outcome->step.live, 200u);
  EXPECT_EQ(backend.calls, (Calls{"build", "mask", "invalidate", "publish"}));
}

TEST(GrowthDriver, AnUnchangedSignatureKeepsTheGraph) {
  FakeBackend backend;
  const auto outcome = EnsureCapacity(backend, 4096, 300);
  ASSERT_TRUE(outcome.ok());
  EXPECT_TRUE(outcome->kept);
  EXPECT_TRUE(backend.capture_valid);
  EXPECT_EQ(backend.calls, (Calls{"build", "mask", "publish kept"}));
}

TEST(GrowthDriver, EnoughCommittedMeansNothingHappens) {
  FakeBackend backend;
  const auto outcome = EnsureCapacity(backend, 4096, 256);
  ASSERT_TRUE(outcome.ok());
  EXPECT_FALSE(outcome->grew);
  EXPECT_TRUE(backend.calls.empty());
}

TEST(GrowthDriver, AboveTheHardMaximumNothingElseIsCalled) {
  FakeBackend backend;
  const auto outcome = EnsureCapacity(backend, 4096, 4097);
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.status().code(), Code::kCapacityExceeded);
  EXPECT_TRUE(backend.calls.empty());
  const std::string& m = outcome.status().message();
  for (const char* part :
       {"requested context length 4097", "hard maximum 4096",
        "source: genai_config.json model.context_length", "model context length: 4096",
        "host memory: free=20000 bytes", "KV bytes/token: 32", "--ctx-size", "GRANULE_CTX_SIZE"}) {
    EXPECT_NE(m.find(part), std::string::npos) << part << " in " << m;
  }
  // Checked even where the length would fit what is committed.
  EXPECT_EQ(EnsureCapacity(backend, 100, 200).status().code(), Code::kCapacityExceeded);
}

TEST(GrowthDriver, EveryFailureLeavesTheOldStateAndTheRetrySucceeds) {
  for (const char* stage : {"build", "mask", "invalidate"}) {
    SCOPED_TRACE(stage);
    FakeBackend backend;
    backend.moves = true;
    backend.fail_at = stage;
    const auto outcome = EnsureCapacity(backend, 4096, 300);
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.status().code(), Code::kExhausted);
    const std::string& m = outcome.status().message();
    for (const char* part :
         {"growing from 256 to 512 tokens", "injected at",
          "transient peak is approximately 24576 bytes", "KV bytes/token: 32",
          "session is unchanged", "--ctx-size", "host memory: free=20000 bytes"}) {
      EXPECT_NE(m.find(part), std::string::npos) << part << " in " << m;
    }
    EXPECT_EQ(backend.state.committed, 256u);
    EXPECT_EQ(backend.state.live, 123u);
    EXPECT_EQ(backend.buffer_id, 7u);
    EXPECT_EQ(backend.staged_id, 0u);
    EXPECT_TRUE(backend.capture_valid);
    EXPECT_EQ(std::count(backend.calls.begin(), backend.calls.end(), "publish"), 0);
    EXPECT_EQ(std::count(backend.calls.begin(), backend.calls.end(), "abandon"),
              stage == std::string("build") ? 0 : 1);

    backend.fail_at.clear();
    ASSERT_TRUE(EnsureCapacity(backend, 4096, 300).ok());
    EXPECT_EQ(backend.state.committed, 512u);
    EXPECT_EQ(backend.buffer_id, 8u);
    EXPECT_FALSE(backend.capture_valid);
  }
}

TEST(GrowthDriver, WhatCannotBeUndoneIsSaidAsItIs) {
  FakeBackend backend;
  backend.moves = true;
  backend.fail_at = "mask";
  backend.abandon_fails = true;
  const auto outcome = EnsureCapacity(backend, 4096, 300);
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.status().code(), Code::kPoisoned);
}

TEST(GrowthKinds, NamesAreReadAsTheyAreWritten) {
  for (const GrowthKind kind : {GrowthKind::kCommit, GrowthKind::kRestride, GrowthKind::kRealloc}) {
    const auto parsed = ParseGrowth(GrowthName(kind));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, kind);
  }
  for (const char* text : {"", "Commit", "commit ", "move"}) {
    const auto parsed = ParseGrowth(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), Code::kUsage);
    EXPECT_NE(parsed.status().message().find("expected commit, restride or realloc"),
              std::string::npos);
  }
}

TEST(GrowthErrors, MemoryThatCannotBeQueriedIsSaid) {
  const Status s = CapacityExceededError({10, 5, "--ctx-size", std::nullopt, 32, std::nullopt});
  EXPECT_NE(s.message().find("query unavailable"), std::string::npos);
  EXPECT_NE(s.message().find("model context length: unavailable"), std::string::npos);
}

}  // namespace
}  // namespace granule::kv
