#include "cli/sampling.h"

#include <gtest/gtest.h>

namespace granule::cli {
namespace {

Arguments With(FlagTexts flags) {
  Arguments arguments;
  arguments.flags = std::move(flags);
  return arguments;
}

package::GenerationDefaults Model() {
  package::GenerationDefaults model;
  model.do_sample = true;
  model.temperature = 0.6f;
  model.top_k = 20;
  model.top_p = 0.95f;
  model.source = "genai_config.json search";
  return model;
}

TEST(Sampling, SilenceIsGreedyAndNeedsNoSeed) {
  const Sampling s = ResolveSampling({}, {}, 99);
  EXPECT_TRUE(s.greedy());
  EXPECT_EQ(s.temperature.source, "default");
  EXPECT_EQ(s.seed.value, 0u);
  EXPECT_EQ(s.seed.source, "default");
}

TEST(Sampling, TheModelsDefaultsHoldWhereItSamples) {
  const Sampling s = ResolveSampling({}, Model(), 99);
  EXPECT_EQ(s.temperature.value, 0.6f);
  EXPECT_EQ(s.top_k.value, 20);
  EXPECT_EQ(s.top_p.value, 0.95f);
  EXPECT_EQ(s.min_p.value, 0.0f);
  EXPECT_EQ(s.top_k.source, "genai_config.json search");
  EXPECT_EQ(s.min_p.source, "default");
  EXPECT_EQ(s.seed.value, 99u);
  EXPECT_EQ(s.seed.source, "random");
}

TEST(Sampling, AModelThatDoesNotSampleIsGreedyWhateverItStates) {
  package::GenerationDefaults model = Model();
  model.do_sample = false;
  EXPECT_TRUE(ResolveSampling({}, model, 1).greedy());
  EXPECT_EQ(ResolveSampling({}, model, 1).top_k.value, 0);
  model.do_sample.reset();
  EXPECT_TRUE(ResolveSampling({}, model, 1).greedy());
}

TEST(Sampling, AModelThatSamplesWithoutATemperatureUsesOne) {
  package::GenerationDefaults model = Model();
  model.temperature.reset();
  EXPECT_EQ(ResolveSampling({}, model, 1).temperature.value, 1.0f);
}

TEST(Sampling, FlagsWinAndZeroTemperatureIsGreedy) {
  const Result<SamplingFlags> flags =
      ReadSamplingFlags(With({{"--temp", "0"}, {"--seed", "18446744073709551615"}}));
  ASSERT_TRUE(flags.ok());
  const Sampling s = ResolveSampling(*flags, Model(), 1);
  EXPECT_TRUE(s.greedy());
  EXPECT_EQ(s.temperature.source, "--temp");
  EXPECT_EQ(s.seed.value, UINT64_MAX);
  EXPECT_EQ(s.seed.source, "--seed");
}

TEST(Sampling, AFlagThatOnlySamplingHasTurnsItOn) {
  const Result<SamplingFlags> flags = ReadSamplingFlags(With({{"--top-p", "0.5"}}));
  ASSERT_TRUE(flags.ok());
  const Sampling s = ResolveSampling(*flags, {}, 7);
  EXPECT_EQ(s.temperature.value, 1.0f);
  EXPECT_EQ(s.temperature.source, "implied by --top-p");
  EXPECT_EQ(s.seed.value, 7u);
}

TEST(Sampling, RefusesWhatIsNoNumberOrOutOfRange) {
  const auto refused = [](const char* flag, const char* text, const char* accepted) {
    const Result<SamplingFlags> flags = ReadSamplingFlags(With({{flag, text}}));
    ASSERT_FALSE(flags.ok()) << flag << " " << text;
    EXPECT_EQ(flags.status().code(), Code::kUsage);
    EXPECT_NE(flags.status().message().find(flag), std::string::npos);
    EXPECT_NE(flags.status().message().find(accepted), std::string::npos);
  };
  for (const char* text : {"-1", "nan", "inf", "0.5x", "", "1001", "1e400", "0,5"}) {
    refused("--temp", text, "0 to 1000");
  }
  for (const char* text : {"-0.1", "1.1", "nan", "half"}) {
    refused("--top-p", text, "up to 1");
    refused("--min-p", text, "0 to 1");
  }
  refused("--top-p", "0", "above 0");
  for (const char* text : {"-1", "2147483648", "4.0", "many"}) refused("--top-k", text, "0 to");
  for (const char* text : {"-2", "18446744073709551616", "1.0"}) refused("--seed", text, "-1");
  const Result<SamplingFlags> any = ReadSamplingFlags(With({{"--seed", "-1"}}));
  ASSERT_TRUE(any.ok());
  EXPECT_FALSE(any->seed.has_value());
}

}  // namespace
}  // namespace granule::cli
