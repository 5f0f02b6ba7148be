// What the flags and the environment of `run` ask for: everything that can be refused before a file
// of the model is opened.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/levers.h"
#include "base/status.h"
#include "cli/command_line.h"
#include "cli/sampling.h"
#include "engine/engine.h"
#include "kv/growth.h"
#include "kv/layout.h"
#include "text/tokenizer.h"

namespace granule::cli {

VerbSyntax RunSyntax();

struct RunOptions {
  std::string model;
  std::optional<std::string> prompt;
  std::vector<text::TokenId> prompt_ids;  // where --prompt-ids was given
  std::optional<int64_t> new_tokens;      // none: -n was left out
  bool ignore_eos = false;
  bool show_special = false;
  bool json = false;
  bool verbose = false;
  std::optional<std::string> dump_logits;
  SamplingFlags sampling;
  LeverValues levers;
  kv::LayoutChoice layout;
  kv::GrowthKind growth = kv::GrowthKind::kCommit;
  engine::BackendKind backend = engine::BackendKind::kNative;
};

// kUsage in words; kInvalidInput where the prompt's file cannot be read.
Result<RunOptions> ReadRunOptions(const Arguments& arguments);

}  // namespace granule::cli
