// granule tokenize MODEL: text -> token ids, exactly as a run would read it.
#include <filesystem>
#include <memory>

#include "base/file.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "text/tokenizer.h"

namespace granule::cli {
namespace {

constexpr uint64_t kMaxLinesBytes = uint64_t{1} << 32;

VerbSyntax Syntax() {
  return {.name = "tokenize",
          .purpose = "shows the token ids of a text",
          .positionals = {"MODEL"},
          .usage = "MODEL -p TEXT | -f FILE | --lines FILE [--json]",
          .flags =
              {
                  {{"-m", "--model"},
                   "MODEL",
                   "Input",
                   "a model folder, or a tokenizer.json, instead of naming it as a word"},
                  {{"-p", "--prompt"}, "TEXT", "Input", "the text"},
                  {{"-f", "--file"},
                   "FILE",
                   "Input",
                   "the text is this file, byte for byte; - is standard input"},
                  {{"--lines"},
                   "FILE",
                   "Input",
                   "every line of this file is a text of its own; prints one JSON array per line"},
                  {{"--no-bos"},
                   "",
                   "Options",
                   "do not add the special tokens that the tokenizer puts around a text"},
                  {{"--no-parse-special"},
                   "",
                   "Options",
                   "special tokens written in the text are ordinary text"},
                  {{"--json"}, "", "Options", "one JSON array of ids"},
              },
          .examples = {{"granule tokenize models/smollm2 -p \"Hello, world\"",
                        "one line per token: its id and what it stands for"},
                       {"granule tokenize tokenizer.json --lines texts.txt",
                        "one JSON array of ids per line of the file"}},
          .exit_codes = UsualExitCodes()};
}

Result<std::unique_ptr<text::Tokenizer>> LoadTokenizer(const std::filesystem::path& model) {
  std::error_code error;
  if (!std::filesystem::is_directory(model, error)) return text::Tokenizer::Load(model);
  const std::filesystem::path file = model / "tokenizer.json";
  if (!std::filesystem::exists(file, error)) {
    return InvalidInput("{}: this folder has no tokenizer.json", model.native());
  }
  return text::Tokenizer::Load(file);
}

std::string JsonArray(const std::vector<text::TokenId>& ids) {
  std::string out = "[";
  for (const text::TokenId id : ids) {
    if (out.size() > 1) out += ',';
    out += std::to_string(id);
  }
  return out + "]\n";
}

// One line per token: the id, and its bytes as a quoted string.
std::string Listing(const text::Tokenizer& tokenizer, const std::vector<text::TokenId>& ids) {
  std::string out;
  for (const text::TokenId id : ids) {
    out += Format("{:>7}  ", id);
    out += '"';
    for (const char c : tokenizer.TokenBytes(id)) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        out += '\\';
        out += c;
      } else if (c == '\n') {
        out += "\\n";
      } else if (byte < 0x20 || byte >= 0x7f) {
        out += Format("\\x{:02x}", byte);
      } else {
        out += c;
      }
    }
    out += tokenizer.IsSpecial(id) ? "\"  special\n" : "\"\n";
  }
  return out;
}

Status TokenizeLines(const text::Tokenizer& tokenizer, const text::EncodeOptions& options,
                     const std::string& path) {
  Result<std::string> all = path == "-" ? ReadStandardInput() : ReadFile(path, kMaxLinesBytes);
  if (!all.ok()) return all.status();
  std::string_view rest = *all;
  for (int64_t number = 1; !rest.empty() && !StdoutClosed(); ++number) {
    const size_t end = rest.find('\n');
    Result<std::vector<text::TokenId>> ids = tokenizer.Encode(rest.substr(0, end), options);
    if (!ids.ok()) return ids.status().In(Format("{}, line {}", path, number));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (Status s = WriteStdout(JsonArray(*ids)); !s.ok()) return s;
  }
  return {};
}

Result<int> Tokenize(const Invocation& invocation) {
  const Arguments& arguments = invocation.arguments;
  const Result<std::string> model = ModelArgument(Syntax(), arguments);
  if (!model.ok()) return model.status();
  const std::optional<std::string> lines = arguments.Find("--lines");
  const bool one_text = arguments.Has("--prompt") || arguments.Has("--file");
  if (lines && one_text) {
    return Error(Code::kUsage, "--lines and -p or -f: give one of them");
  }
  if (!lines && !one_text) return Error(Code::kUsage, "no text: give -p, -f or --lines");
  std::string text;
  if (one_text) {
    Result<std::string> read = ReadPromptText(arguments);
    if (!read.ok()) return read.status();
    text = std::move(*read);
  }
  Result<std::unique_ptr<text::Tokenizer>> tokenizer = LoadTokenizer(*model);
  if (!tokenizer.ok()) return tokenizer.status();

  text::EncodeOptions options;
  options.add_special_tokens = !arguments.Has("--no-bos");
  options.parse_special_tokens = !arguments.Has("--no-parse-special");
  if (lines) {
    if (Status s = TokenizeLines(**tokenizer, options, *lines); !s.ok()) return s;
    return 0;
  }
  Result<std::vector<text::TokenId>> ids = (*tokenizer)->Encode(text, options);
  if (!ids.ok()) return ids.status().In("the text");
  const std::string out = arguments.Has("--json") ? JsonArray(*ids) : Listing(**tokenizer, *ids);
  if (Status s = WriteStdout(out); !s.ok()) return s;
  return 0;
}

}  // namespace

Verb TokenizeVerb() { return {Syntax(), Tokenize}; }

}  // namespace granule::cli
