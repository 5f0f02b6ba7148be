// What `run` says about itself: the JSON object, the closing line, and the lines of -v.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/levers.h"
#include "cli/ceilings.h"
#include "cli/sampling.h"
#include "engine/engine.h"
#include "generate/generate.h"
#include "kv/sequence.h"

namespace granule::cli {

struct RunReport {
  std::optional<std::string> text;  // none: the model has no tokenizer
  std::vector<engine::TokenId> prompt_ids;
  generate::Outcome outcome;
  Sampling sampling;
  LeverValues levers;
  int threads = 1;
  std::string threads_reason;
  Isa isa = Isa::kPortable;
  double load_ms = 0;
  uint64_t device_bytes = 0;             // of a GPU's memory that this process holds
  std::optional<double> first_token_ms;  // from the start of the process; none: no token came
  std::optional<Ceiling> ceiling;  // of this CPU, thread count and level, where doctor measured it
  const engine::Engine* engine = nullptr;
  const kv::Sequence* sequence = nullptr;

  // Bytes that the decode steps had to read (weights as counted in the source file, live KV) per
  // second, in units of 1e9; none where there was no such step.
  std::optional<double> GigabytesPerSecond() const;
  std::optional<double> CeilingShare() const;
};

// One object on one line, ending with a line feed; valid UTF-8 whatever the model wrote.
std::string RunReportJson(const RunReport& report);

// "31.4 tokens/s (prompt 250.1), 3.03 GB/s = 9.2 % of 33.0; KV live / committed / reserved ..."
std::string ClosingLine(const RunReport& report);

// Every effective lever with its source, and what was reserved; before the run.
std::vector<std::string> VerboseLines(const engine::Engine& engine, const kv::Sequence& sequence,
                                      const LeverValues& levers, const Sampling& sampling,
                                      const std::string& threads, const std::string& isa);

}  // namespace granule::cli
