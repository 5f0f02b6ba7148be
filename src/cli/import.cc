// granule import SRC DST: a GGUF file becomes a folder that granule, and others, run.
#include <filesystem>

#include "cli/terminal.h"
#include "cli/verbs.h"
#include "package/import_gguf.h"

namespace granule::cli {
namespace {

VerbSyntax Syntax() {
  return {.name = "import",
          .purpose = "turns a GGUF file into an ONNX folder",
          .positionals = {"SRC", "DST"},
          .usage = "SRC DST [--force]",
          .flags =
              {{{"--force"},
                "",
                "Options",
                "replace the model folder DST if there is one (anything else of that name is never "
                "touched)"}},
          .examples = {{"granule import SmolLM2-135M-Instruct.Q4_1.gguf models/smollm2",
                        "writes model.onnx, genai_config.json, tokenizer.json and the rest into "
                        "models/smollm2"},
                       {"granule run models/smollm2 -p \"The capital of France is\"", "runs it"}},
          .exit_codes = UsualExitCodes()};
}

Result<int> Import(const Invocation& invocation) {
  const std::vector<std::string>& words = invocation.arguments.positionals;
  if (words.size() < 2 || words[0].empty() || words[1].empty()) {
    return Error(Code::kUsage, "expected a GGUF file and the folder to make: {}", Syntax().usage);
  }
  InstallInterruptHandler();
  Progress progress("importing");
  package::ImportOptions options;
  options.overwrite = invocation.arguments.Has("--force");
  options.progress = [&](uint64_t done, uint64_t total) {
    progress.Update(done, total, FormatBytes(done) + " of " + FormatBytes(total));
  };
  options.interrupted = [] { return InterruptFlag().load(); };
  Result<package::ImportReport> report = package::ImportGguf(words[0], words[1], options);
  progress.Clear();
  if (!report.ok()) return report.status();
  for (const std::string& warning : report->warnings) Warn("import", warning);
  Say("import", Format("{}: {} tensors, {} in the source, {} written", words[1], report->tensors,
                       FormatBytes(report->source_bytes), FormatBytes(report->written_bytes)));
  return 0;
}

}  // namespace

Verb ImportVerb() { return {Syntax(), Import}; }

}  // namespace granule::cli
