#include "cli/sampling.h"

#include <limits>

namespace granule::cli {
namespace {

constexpr double kMaxTemperature = 1000;

Status NotAccepted(const char* flag, const std::string& text, const char* accepted) {
  return Error(Code::kUsage, "{}: \"{}\" is not accepted; accepted: {}", flag, text, accepted);
}

struct RealRange {
  double least = 0;
  double most = 1;
  const char* words = "0 to 1";
};

Status ReadReal(const Arguments& arguments, const char* flag, const RealRange& range,
                std::optional<float>& out) {
  const std::optional<std::string> text = arguments.Find(flag);
  if (!text) return {};
  const std::optional<double> value = ParseReal(*text);
  if (!value || *value < range.least || *value > range.most) {
    return NotAccepted(flag, *text, range.words);
  }
  out = static_cast<float>(*value);
  return {};
}

template <class T>
Setting<T> Pick(const std::optional<T>& flag, const char* flag_name, const std::optional<T>& model,
                const std::string& model_source, T fallback) {
  if (flag) return {*flag, {}, flag_name};
  if (model) return {*model, {}, model_source};
  return {fallback, {}, "default"};
}

}  // namespace

std::vector<Flag> SamplingFlagList(const std::string& group) {
  return {
      {{"--temp"},
       "T",
       group,
       "temperature; 0 is greedy (the most likely token). Accepted: 0 to 1000. Default: the "
       "model's, "
       "else 0"},
      {{"--top-k"},
       "K",
       group,
       "sample from the K most likely tokens; 0 = all. Accepted: 0 or more. Default: the model's, "
       "else 0"},
      {{"--top-p"},
       "P",
       group,
       "sample from the most likely tokens that make up P; 1 = all. Accepted: above 0, up to 1. "
       "Default: the model's, else 1"},
      {{"--min-p"},
       "P",
       group,
       "drop tokens less likely than P times the likeliest; 0 = none. Accepted: 0 to 1. Default: "
       "the "
       "model's, else 0"},
      {{"-s", "--seed"},
       "N",
       group,
       "start of the random numbers; -1 = another one each time. Accepted: -1, or 0 to 2^64 - 1. "
       "Default: -1"},
  };
}

Result<SamplingFlags> ReadSamplingFlags(const Arguments& arguments) {
  SamplingFlags flags;
  // The least mass that is still above 0 as a float.
  constexpr double kLeast = std::numeric_limits<float>::min();
  const RealRange temperature{0, kMaxTemperature, "0 to 1000"};
  const RealRange mass{kLeast, 1, "above 0, up to 1"};
  for (const Status& s : {ReadReal(arguments, "--temp", temperature, flags.temperature),
                          ReadReal(arguments, "--top-p", mass, flags.top_p),
                          ReadReal(arguments, "--min-p", {}, flags.min_p)}) {
    if (!s.ok()) return s;
  }
  if (const std::optional<std::string> text = arguments.Find("--top-k")) {
    const std::optional<int64_t> k = ParseInteger(*text);
    if (!k || *k < 0 || *k > std::numeric_limits<int32_t>::max()) {
      return NotAccepted("--top-k", *text, "0 to 2147483647");
    }
    flags.top_k = static_cast<int32_t>(*k);
  }
  if (const std::optional<std::string> text = arguments.Find("--seed"); text && *text != "-1") {
    flags.seed = ParseUnsigned(*text);
    if (!flags.seed) return NotAccepted("--seed", *text, "-1, or 0 to 18446744073709551615");
  }
  return flags;
}

Sampling ResolveSampling(const SamplingFlags& flags, const package::GenerationDefaults& model,
                         uint64_t random_seed) {
  const bool model_samples = model.do_sample.value_or(false);
  const package::GenerationDefaults silent;
  const package::GenerationDefaults& stated = model_samples ? model : silent;

  Sampling sampling;
  sampling.top_k = Pick(flags.top_k, "--top-k", stated.top_k, model.source, int32_t{0});
  sampling.top_p = Pick(flags.top_p, "--top-p", stated.top_p, model.source, 1.0f);
  sampling.min_p = Pick(flags.min_p, "--min-p", stated.min_p, model.source, 0.0f);
  sampling.temperature = Pick(flags.temperature, "--temp", stated.temperature, model.source, 0.0f);
  if (sampling.temperature.is_default()) {
    const char* implying = flags.top_k   ? "--top-k"
                           : flags.top_p ? "--top-p"
                           : flags.min_p ? "--min-p"
                                         : nullptr;
    if (model_samples) {
      // do_sample without a temperature: 1, as transformers and onnxruntime-genai take it.
      sampling.temperature = {1.0f, {}, model.source + " do_sample"};
    } else if (implying != nullptr) {
      sampling.temperature = {
          model.temperature.value_or(1.0f), {}, std::string("implied by ") + implying};
    }
  }
  if (flags.seed) {
    sampling.seed = {*flags.seed, {}, "--seed"};
  } else if (!sampling.greedy()) {
    sampling.seed = {random_seed, {}, "random"};
  }
  return sampling;
}

}  // namespace granule::cli
