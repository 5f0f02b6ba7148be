#include "cli/run_options.h"

#include "cli/prompt.h"
#include "cli/verbs.h"

namespace granule::cli {
namespace {

constexpr LeverId kLeversOfRun[] = {
    LeverId::kThreads,  LeverId::kUbatchSize, LeverId::kDevice,      LeverId::kBackend,
    LeverId::kIsa,      LeverId::kAct,        LeverId::kCtxSize,     LeverId::kKvLayout,
    LeverId::kKvGrowth, LeverId::kKvRounding, LeverId::kKvMinBucket, LeverId::kKvGranule,
    LeverId::kCudaGraph};

bool IsMemoryLever(LeverId id) {
  switch (id) {
    case LeverId::kCtxSize:
    case LeverId::kKvLayout:
    case LeverId::kKvGrowth:
    case LeverId::kKvRounding:
    case LeverId::kKvMinBucket:
    case LeverId::kKvGranule:
      return true;
    default:
      return false;
  }
}

}  // namespace

VerbSyntax RunSyntax() {
  VerbSyntax syntax{
      .name = "run",
      .purpose = "continues a prompt",
      .positionals = {"MODEL"},
      .usage = "MODEL -p TEXT | -f FILE | --prompt-ids IDS [options]",
      .flags =
          {
              ModelFlag(),
              {{"-p", "--prompt"},
               "TEXT",
               "Input",
               "the model's raw input: special tokens in it are recognised"},
              {{"-f", "--file"},
               "FILE",
               "Input",
               "the prompt is this file, byte for byte; - is standard input"},
              {{"--prompt-ids"}, "IDS", "Input", "the prompt as token ids: 1,2,3"},
              {{"-n", "--n-predict"},
               "N",
               "Output",
               "new tokens; -1 = to the limit, 0 = only read the prompt. Default: the remaining "
               "context, or 512 where no limit is known"},
              {{"--ignore-eos"}, "", "Output", "go on after an end token"},
              {{"--special"}, "", "Output", "show special tokens in the text"},
              {{"--json"}, "", "Output", "one JSON object instead of the text"},
              {{"--dump-logits"},
               "FILE",
               "Output",
               "write the logits that were sampled from: little-endian fp32, row after row"},
              {{"-v", "--verbose"}, "", "Output", "every setting in force and where it comes from"},
          },
      .examples = {{"granule run models/smollm2 -p \"The capital of France is\" -n 20",
                    "the text goes to standard output, a line of figures to standard error"},
                   {"granule run models/smollm2 -f prompt.txt --temp 0.8 --seed 1 --json",
                    "ids, hash, timings and memory for scripts"},
                   {"granule run models/smollm2 -p hi -c 65536 --kv-layout token-major -v",
                    "memory follows the tokens, whatever -c is"}},
      .exit_codes = UsualExitCodes()};
  for (Flag& flag : SamplingFlagList("Sampling")) syntax.flags.push_back(std::move(flag));
  for (const LeverId id : kLeversOfRun) {
    syntax.flags.push_back(LeverFlag(id, IsMemoryLever(id) ? "Memory" : "Speed"));
  }
  return syntax;
}

Result<RunOptions> ReadRunOptions(const Arguments& arguments) {
  RunOptions options;
  Result<std::string> model = ModelArgument(RunSyntax(), arguments);
  if (!model.ok()) return model.status();
  options.model = std::move(*model);
  Result<LeverValues> levers = ReadLevers(kLeversOfRun, arguments.flags, ProcessEnvironment);
  if (!levers.ok()) return levers.status();
  options.levers = std::move(*levers);
  const Result<kv::LayoutChoice> layout = kv::ParseLayout(options.levers.kv_layout.value);
  if (!layout.ok()) return layout.status().In(options.levers.kv_layout.source);
  options.layout = *layout;
  const Result<kv::GrowthKind> growth = kv::ParseGrowth(options.levers.kv_growth.value);
  if (!growth.ok()) return growth.status().In(options.levers.kv_growth.source);
  options.growth = *growth;
  if (options.levers.backend.value == "ort") options.backend = engine::BackendKind::kOrt;
  // ONNX Runtime reads head-major only, and only head-major has strides to spread.
  const bool needs_head_major =
      options.backend == engine::BackendKind::kOrt || options.growth == kv::GrowthKind::kRestride;
  if (needs_head_major && options.levers.kv_layout.value == "auto") {
    options.layout = {kv::LayoutKind::kHeadMajor, 0};
  }
  Result<SamplingFlags> sampling = ReadSamplingFlags(arguments);
  if (!sampling.ok()) return sampling.status();
  options.sampling = *sampling;
  if (const std::optional<std::string> text = arguments.Find("--n-predict")) {
    const std::optional<int64_t> n = ParseInteger(*text);
    if (!n || *n < -1) {
      return Error(Code::kUsage,
                   "-n: \"{}\" is not accepted; accepted: -1 (to the limit), 0 (only read the "
                   "prompt), or a number of tokens",
                   *text);
    }
    options.new_tokens = *n;
  }
  options.ignore_eos = arguments.Has("--ignore-eos");
  options.show_special = arguments.Has("--special");
  options.json = arguments.Has("--json");
  options.verbose = arguments.Has("--verbose");
  options.dump_logits = arguments.Find("--dump-logits");
  if (options.dump_logits && options.dump_logits->empty()) {
    return Error(Code::kUsage, "--dump-logits: the name of the file is empty");
  }
  const bool has_text = arguments.Has("--prompt") || arguments.Has("--file");
  if (const std::optional<std::string> ids = arguments.Find("--prompt-ids")) {
    if (has_text) {
      return Error(Code::kUsage, "--prompt-ids and -p or -f: give one of them");
    }
    Result<std::vector<text::TokenId>> parsed = ParsePromptIds(*ids);
    if (!parsed.ok()) return parsed.status();
    options.prompt_ids = std::move(*parsed);
    return options;
  }
  if (!has_text) {
    return Error(Code::kUsage, "no prompt: give -p TEXT, -f FILE or --prompt-ids 1,2,3");
  }
  Result<std::string> text = ReadPromptText(arguments);
  if (!text.ok()) return text.status();
  options.prompt = std::move(*text);
  return options;
}

}  // namespace granule::cli
