#include "base/levers.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace granule {
namespace {

std::map<std::string, std::string>& FakeEnvironment() {
  static std::map<std::string, std::string> environment;
  return environment;
}

const char* Lookup(const char* name) {
  const auto it = FakeEnvironment().find(name);
  return it == FakeEnvironment().end() ? nullptr : it->second.c_str();
}

std::vector<LeverId> Everything() {
  std::vector<LeverId> ids;
  for (const Lever& lever : AllLevers()) ids.push_back(lever.id);
  return ids;
}

class LeversTest : public testing::Test {
 protected:
  void SetUp() override { FakeEnvironment().clear(); }

  static Result<LeverValues> Read(const FlagTexts& flags) {
    return ReadLevers(Everything(), flags, Lookup);
  }
  static void ExpectRefused(const FlagTexts& flags, const std::vector<std::string>& words) {
    const Result<LeverValues> values = Read(flags);
    ASSERT_FALSE(values.ok());
    EXPECT_EQ(values.status().code(), Code::kUsage);
    for (const std::string& word : words) {
      EXPECT_NE(values.status().message().find(word), std::string::npos)
          << values.status().message() << " lacks " << word;
    }
  }
};

TEST_F(LeversTest, EveryLeverHasItsOwnNamesAndADefaultThatIsAccepted) {
  std::set<std::string> names;
  for (const Lever& lever : AllLevers()) {
    EXPECT_TRUE(names.insert(lever.flag).second);
    EXPECT_TRUE(names.insert(lever.environment).second);
    // The twin is the flag in another spelling, so that one can be guessed from the other.
    std::string twin = "GRANULE_";
    for (const char* c = lever.flag + 2; *c != '\0'; ++c) {
      twin += *c == '-' ? '_' : static_cast<char>(std::toupper(*c));
    }
    EXPECT_EQ(twin, lever.environment);
    EXPECT_EQ(WhyFlagIsNotBuilt(lever.flag), nullptr);
    EXPECT_TRUE(Read({{lever.flag, lever.fallback}}).ok()) << lever.flag;
  }
}

TEST_F(LeversTest, Defaults) {
  const Result<LeverValues> values = Read({});
  ASSERT_TRUE(values.ok());
  EXPECT_EQ(values->threads.value, 0);
  EXPECT_FALSE(values->ctx_size.value.has_value());
  EXPECT_EQ(values->ubatch_size.value, 512);
  EXPECT_EQ(values->isa.value, BestIsa());
  EXPECT_EQ(values->kv_layout.value, "auto");
  EXPECT_EQ(values->kv_rounding.value, "granule");
  EXPECT_EQ(values->kv_min_bucket.value, 256u);
  EXPECT_EQ(values->kv_granule.value, 65536u);
  EXPECT_EQ(values->kv_granule.source, "default");
}

TEST_F(LeversTest, FlagWinsOverEnvironmentWinsOverDefault) {
  FakeEnvironment()["GRANULE_CTX_SIZE"] = "100";
  Result<LeverValues> values = Read({});
  ASSERT_TRUE(values.ok());
  EXPECT_EQ(values->ctx_size.value, 100u);
  EXPECT_EQ(values->ctx_size.source, "GRANULE_CTX_SIZE");
  values = Read({{"--ctx-size", "0"}});
  ASSERT_TRUE(values.ok());
  EXPECT_EQ(values->ctx_size.value, 0u);  // said, and it means the model's
  EXPECT_EQ(values->ctx_size.source, "--ctx-size");
}

TEST_F(LeversTest, SetToNothingIsNotSetAndOthersLeversAreNotRead) {
  FakeEnvironment()["GRANULE_THREADS"] = "";
  FakeEnvironment()["GRANULE_KV_LAYOUT"] = "nonsense";
  const LeverId wanted[] = {LeverId::kThreads};
  const Result<LeverValues> values = ReadLevers(wanted, {}, Lookup);
  ASSERT_TRUE(values.ok());
  EXPECT_EQ(values->threads.source, "default");
}

TEST_F(LeversTest, RefusesUnknownTextWithNameAndAcceptedValues) {
  ExpectRefused({{"--kv-layout", "foo"}}, {"--kv-layout", "\"foo\"", "head-major", "stripe:G"});
  for (const char* text : {"", "stripe:", "stripe:0", "stripe:-1", "stripe:2x", "Auto", "auto "}) {
    ExpectRefused({{"--kv-layout", text}}, {"--kv-layout", "accepted"});
  }
  for (const char* text : {"abc", "-1", "1.5", "1e3", " 5", "5 ", "+5", "99999999999999999999", "",
                           "0x10", "281474976710657"}) {
    ExpectRefused({{"--ctx-size", text}}, {"--ctx-size", "tokens"});
  }
  for (const char* text : {"0", "-2", "1025", "two"}) {
    ExpectRefused({{"--threads", text}}, {"--threads", "auto"});
  }
  for (const char* text : {"0", "-1", "1048577", "x"}) {
    ExpectRefused({{"--ubatch-size", text}}, {"--ubatch-size", "1 to 1048576"});
  }
  for (const char* text :
       {"0", "1", "4097", "64KB", "64kib", "KiB", "-4096", "2GiB", "64 KiB", "99999999999GiB"}) {
    ExpectRefused({{"--kv-granule", text}}, {"--kv-granule", "2MiB"});
  }
  ExpectRefused({{"--kv-min-bucket", "0"}}, {"--kv-min-bucket", "1 or more"});
  ExpectRefused({{"--isa", "sse9"}}, {"--isa", "avx2"});
  ExpectRefused({{"--kv-rounding", "page"}}, {"granule, bucket"});
}

TEST_F(LeversTest, ABadEnvironmentIsToldEvenWhereAFlagOverridesIt) {
  FakeEnvironment()["GRANULE_KV_LAYOUT"] = "foo";
  ExpectRefused({}, {"GRANULE_KV_LAYOUT", "\"foo\"", "token-major"});
  ExpectRefused({{"--kv-layout", "seq-major"}}, {"GRANULE_KV_LAYOUT"});
}

TEST_F(LeversTest, WhatIsNotBuiltIsRefusedByName) {
  ExpectRefused({{"--act", "int8"}}, {"int8", "not built yet", "exact"});
  FakeEnvironment()["GRANULE_KV_DTYPE"] = "fp16";
  ExpectRefused({}, {"GRANULE_KV_DTYPE", "not built yet"});
  EXPECT_STREQ(WhyFlagIsNotBuilt("--chat"), "chat templates are not built yet");
  EXPECT_EQ(WhyFlagIsNotBuilt("--nonsense"), nullptr);
}

TEST_F(LeversTest, DevicesAndWhatGoesWithThem) {
  Result<LeverValues> values = Read({});
  ASSERT_TRUE(values.ok());
  EXPECT_EQ(values->device.value, "cpu");
  EXPECT_FALSE(values->CudaIndex());
  values = Read({{"--device", "cuda"}});
  ASSERT_TRUE(values.ok());
  EXPECT_EQ(values->device.value, "cuda:0");
  EXPECT_EQ(values->CudaIndex(), 0);
  values = Read({{"--device", "cuda:3"}, {"--cuda-graph", "off"}});
  ASSERT_TRUE(values.ok());
  EXPECT_EQ(values->CudaIndex(), 3);
  EXPECT_EQ(values->cuda_graph.value, "off");
  for (const char* bad : {"cudax", "cuda:", "cuda:-1", "cuda:x", "cuda:99999", "gpu"})
    ExpectRefused({{"--device", bad}}, {"--device", "not accepted", "cuda:N"});
  ExpectRefused({{"--cuda-graph", "maybe"}}, {"--cuda-graph", "auto, on, off"});
  ExpectRefused({{"--device", "cuda"}, {"--kv-granule", "2MiB"}}, {"--kv-granule", "driver"});
  ExpectRefused({{"--device", "cuda"}, {"--backend", "ort"}}, {"--backend ort", "cuda:0"});
}

TEST_F(LeversTest, MinBucketImpliesBucketRounding) {
  Result<LeverValues> values = Read({{"--kv-min-bucket", "4"}});
  ASSERT_TRUE(values.ok());
  EXPECT_EQ(values->kv_rounding.value, "bucket");
  EXPECT_EQ(values->kv_rounding.source, "implied by --kv-min-bucket");
  EXPECT_EQ(values->kv_min_bucket.value, 4u);

  ExpectRefused({{"--kv-min-bucket", "4"}, {"--kv-rounding", "granule"}},
                {"--kv-min-bucket", "--kv-rounding"});

  // The flag overrides the environment, whichever of the two levers it is.
  FakeEnvironment()["GRANULE_KV_MIN_BUCKET"] = "8";
  values = Read({{"--kv-rounding", "granule"}});
  ASSERT_TRUE(values.ok());
  EXPECT_EQ(values->kv_rounding.value, "granule");
  FakeEnvironment().clear();
  FakeEnvironment()["GRANULE_KV_ROUNDING"] = "granule";
  values = Read({{"--kv-min-bucket", "8"}});
  ASSERT_TRUE(values.ok());
  EXPECT_EQ(values->kv_rounding.value, "bucket");
}

TEST_F(LeversTest, ByteSizes) {
  EXPECT_EQ(ParseByteSize("65536"), 65536u);
  EXPECT_EQ(ParseByteSize("64KiB"), 65536u);
  EXPECT_EQ(ParseByteSize("2MiB"), 2u << 20);
  EXPECT_EQ(ParseByteSize("17179869184GiB"), std::nullopt);  // 2^64
  EXPECT_EQ(Read({{"--kv-granule", "2MiB"}})->kv_granule.value, 2u << 20);
}

TEST_F(LeversTest, StrictNumbers) {
  EXPECT_EQ(ParseInteger("-1"), -1);
  EXPECT_EQ(ParseInteger("9223372036854775808"), std::nullopt);
  EXPECT_EQ(ParseUnsigned("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(ParseUnsigned("-1"), std::nullopt);
  EXPECT_EQ(ParseReal("0.7"), 0.7);
  EXPECT_EQ(ParseReal("1e-3"), 1e-3);
  for (const char* text : {"nan", "inf", "-inf", "1e999", "0,7", "0.7f", "", " 1", "infinity"}) {
    EXPECT_EQ(ParseReal(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace granule
