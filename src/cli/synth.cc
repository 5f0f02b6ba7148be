// granule synth NAME DST: random weights in a named geometry, as a folder that granule, and others,
// run.
#include "package/synth.h"

#include <filesystem>

#include "cli/terminal.h"
#include "cli/verbs.h"

namespace granule::cli {
namespace {

VerbSyntax Syntax() {
  return {.name = "synth",
          .purpose = "writes a model with random weights in a real model's geometry",
          .positionals = {"NAME", "DST"},
          .usage = "NAME[:int4|int8|fp16|fp32] DST [--seed N] [--force]",
          .flags = {{{"-s", "--seed"},
                     "N",
                     "Options",
                     "which random weights; default: the geometry's own"},
                    {{"--force"},
                     "",
                     "Options",
                     "replace the model folder DST if there is one (anything else of that name is "
                     "never touched)"}},
          .examples = {{"granule synth qwen2.5-0.5b models/random",
                        "also qwen2.5-7b, qwen2.5-14b, llama-3.1-8b, llama-3.2-1b, smollm2-135m, "
                        "tiny; int4 weights, 131,072 positions"},
                       {"granule synth layers=1,heads=8,head_dim=128,kv=fp16:fp32 models/one",
                        "a geometry of one's own; keys: layers, heads, kv_heads, head_dim, hidden, "
                        "ffn, vocab, context, kv, seed. They may follow a name too"},
                       {"granule run synth:tiny --prompt-ids 1,2,3 -n 8",
                        "the same weights made in memory, without a folder"}},
          .exit_codes = UsualExitCodes()};
}

Result<int> Synth(const Invocation& invocation) {
  const std::vector<std::string>& words = invocation.arguments.positionals;
  if (words.size() < 2 || words[0].empty() || words[1].empty()) {
    return Error(Code::kUsage, "expected a geometry and the folder to make: {}", Syntax().usage);
  }
  Result<package::SynthModel> model = package::ParseSynth(words[0]);
  if (!model.ok()) return model.status();
  if (const std::optional<std::string> text = invocation.arguments.Find("--seed")) {
    const std::optional<uint64_t> seed = ParseUnsigned(*text);
    if (!seed) {
      return Error(Code::kUsage, "--seed: \"{}\" is not accepted; accepted: 0 to 2^64 - 1", *text);
    }
    model->seed = *seed;
  }
  InstallInterruptHandler();
  Progress progress("writing");
  package::SynthOptions options;
  options.overwrite = invocation.arguments.Has("--force");
  options.progress = [&](uint64_t done, uint64_t total) {
    progress.Update(done, total, FormatBytes(done) + " of " + FormatBytes(total));
  };
  options.interrupted = [] { return InterruptFlag().load(); };
  Result<package::SynthReport> report = package::WriteSynth(*model, words[1], options);
  progress.Clear();
  if (!report.ok()) return report.status();
  Say("synth", Format("{}: {} of weights, {} written", words[1], FormatBytes(report->weight_bytes),
                      FormatBytes(report->written_bytes)));
  return 0;
}

}  // namespace

Verb SynthVerb() { return {Syntax(), Synth}; }

}  // namespace granule::cli
