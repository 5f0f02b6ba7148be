// Where the sampling parameters of a run come from: a flag, the model's own files, or greedy.
#pragma once

#include <optional>

#include "base/levers.h"
#include "base/sample_params.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "package/package.h"

namespace granule::cli {

// What the flags say; unset where they are silent.
struct SamplingFlags {
  std::optional<float> temperature;
  std::optional<int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<uint64_t> seed;
};

// Reads --temp, --top-k, --top-p, --min-p and --seed strictly; kUsage with the accepted values.
Result<SamplingFlags> ReadSamplingFlags(const Arguments& arguments);
std::vector<Flag> SamplingFlagList(const std::string& group);

// The parameters in force, each with its source: "--temp", "genai_config.json search", "implied by
// --top-p", "default", "random".
struct Sampling {
  Setting<float> temperature;
  Setting<int32_t> top_k;
  Setting<float> top_p;
  Setting<float> min_p;
  Setting<uint64_t> seed;

  SampleParams Params() const {
    return {temperature.value, top_k.value, top_p.value, min_p.value, seed.value};
  }
  bool greedy() const { return temperature.value == 0.0f; }
};

// flag -> the model's defaults -> greedy. A model whose files say do_sample = false, or nothing, is
// greedy whatever temperature they state. A flag that only means something when sampling (--top-k,
// --top-p, --min-p) turns it on where no temperature was given. `random_seed` is used for sampling
// without --seed.
Sampling ResolveSampling(const SamplingFlags& flags, const package::GenerationDefaults& model,
                         uint64_t random_seed);

}  // namespace granule::cli
