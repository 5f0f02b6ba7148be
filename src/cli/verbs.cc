#include "cli/verbs.h"

#include <array>

#include "cli/terminal.h"

namespace granule::cli {
namespace {

// Verbs that the documentation names and this build lacks.
constexpr auto kUnbuiltVerbs = std::to_array<std::string_view>(
    {"chat", "serve", "check", "detokenize", "template", "embed", "perplexity"});

std::vector<Verb> AllVerbs() {
  return {RunVerb(),   ImportVerb(),   SynthVerb(),  InspectVerb(), PlanVerb(),
          BenchVerb(), TokenizeVerb(), DoctorVerb(), VersionVerb()};
}

std::string Overview() {
  std::string out =
      "granule runs ONNX language models; their KV memory follows the tokens.\n"
      "\n"
      "Usage: granule VERB ...        granule VERB --help explains a verb\n"
      "\n"
      "Verbs:\n";
  for (const Verb& verb : AllVerbs()) {
    std::string line = "  " + verb.syntax.name;
    line.resize(12, ' ');
    out += line + Wrap(verb.syntax.purpose, 80, 12) + "\n";
  }
  out +=
      "\n"
      "Examples:\n"
      "  granule import model.gguf models/mine     GGUF -> a folder that granule runs\n"
      "  granule run models/mine -p \"Once upon\"    continues the text\n"
      "  granule doctor                            what this machine can do\n"
      "\n"
      "Exit codes:\n" +
      UsualExitCodes();
  return out;
}

int Fail(const std::string& verb, const Status& status) {
  if (!status.message().empty()) Say(verb, "error: " + status.message());
  return ExitCode(status.code());
}

int FailAtTheTop(const std::string& message) {
  SayRaw("granule: error: " + Printable(message) + "\n");
  return ExitCode(Code::kUsage);
}

int PrintHelp(const std::string& verb, const std::string& text) {
  const Status s = WriteStdout(text);
  return s.ok() ? 0 : Fail(verb, s);
}

int UnknownVerb(const std::string& word) {
  for (const std::string_view unbuilt : kUnbuiltVerbs) {
    if (word == unbuilt) return Fail(word, Error(Code::kUsage, "this verb is not built yet"));
  }
  std::vector<std::string> names;
  std::string list;
  for (const Verb& verb : AllVerbs()) {
    names.push_back(verb.syntax.name);
    list += (list.empty() ? "" : ", ") + verb.syntax.name;
  }
  const std::string closest = Closest(word, names);
  return FailAtTheTop("unknown verb \"" + word + "\"; " +
                      (closest.empty() ? "there are: " + list : "did you mean " + closest + "?"));
}

int RunOne(const Verb& verb, std::span<const std::string> words,
           std::chrono::steady_clock::time_point process_start) {
  const std::string& name = verb.syntax.name;
  Result<Arguments> arguments = ParseArguments(verb.syntax, words);
  if (!arguments.ok()) return Fail(name, arguments.status());
  if (arguments->help) return PrintHelp(name, HelpText(verb.syntax));
  const Result<int> code = verb.run({std::move(*arguments), process_start});
  return code.ok() ? *code : Fail(name, code.status());
}

}  // namespace

int Dispatch(std::span<const std::string> words,
             std::chrono::steady_clock::time_point process_start) {
  if (words.empty()) {
    SayRaw(Overview());
    return ExitCode(Code::kUsage);
  }
  std::string first = words[0];
  std::span<const std::string> rest = words.subspan(1);
  if (first == "--help" || first == "-h" || first == "help") {
    if (rest.empty()) return PrintHelp("help", Overview());
    static const std::string kHelp[] = {"--help"};
    first = rest[0];
    rest = kHelp;
  }
  if (first == "--version") first = "version";
  for (const Verb& verb : AllVerbs()) {
    if (verb.syntax.name == first) return RunOne(verb, rest, process_start);
  }
  if (first.starts_with("-")) {
    return FailAtTheTop("expected a verb first, found " + first + "; `granule --help` lists them");
  }
  return UnknownVerb(first);
}

std::string UsualExitCodes() {
  return "  0    done\n"
         "  1    a bug of granule\n"
         "  2    usage: a flag, a GRANULE_ variable, or something this build lacks\n"
         "  3    the input is bad: the model, a file, the prompt\n"
         "  4    out of a resource: memory, addresses, disk\n"
         "  130  interrupted\n";
}

Flag ModelFlag() {
  return {{"-m", "--model"}, "MODEL", "Input", "the model, instead of naming it as a word"};
}

Result<std::string> ModelArgument(const VerbSyntax& syntax, const Arguments& arguments) {
  const std::optional<std::string> flag = arguments.Find("--model");
  if (flag && !arguments.positionals.empty()) {
    return Error(Code::kUsage, "two models: \"{}\" and --model \"{}\"; leave one out",
                 arguments.positionals[0], *flag);
  }
  if (!flag && arguments.positionals.empty()) {
    return Error(Code::kUsage, "no MODEL; usage is `granule {} {}`", syntax.name, syntax.usage);
  }
  std::string model = flag ? *flag : arguments.positionals[0];
  if (model.empty()) return Error(Code::kUsage, "the name of the model is empty");
  return model;
}

}  // namespace granule::cli
