#include "cli/prompt.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/file.h"
#include "base/levers.h"

namespace granule::cli {
namespace {

constexpr uint64_t kMaxPromptBytes = uint64_t{1} << 30;

}  // namespace

Result<std::string> ReadStandardInput() {
  std::string text;
  std::array<char, 1 << 16> buffer;
  for (;;) {
    const ssize_t n = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (n == 0) return text;
    if (n < 0) {
      if (errno == EINTR) continue;
      return InvalidInput("standard input: {}", std::strerror(errno));
    }
    text.append(buffer.data(), static_cast<size_t>(n));
    if (text.size() > kMaxPromptBytes) {
      return InvalidInput("standard input: more than {} bytes", kMaxPromptBytes);
    }
  }
}

Result<std::string> ReadPromptText(const Arguments& arguments) {
  const std::optional<std::string> text = arguments.Find("--prompt");
  const std::optional<std::string> file = arguments.Find("--file");
  if (text && file) return Error(Code::kUsage, "-p and -f are both given; leave one out");
  if (text) return *text;
  if (!file) return Error(Code::kUsage, "no text: give -p TEXT or -f FILE");
  return *file == "-" ? ReadStandardInput() : ReadFile(*file, kMaxPromptBytes);
}

Result<std::vector<text::TokenId>> ParsePromptIds(const std::string& text) {
  std::vector<text::TokenId> ids;
  std::string_view rest = text;
  for (;;) {
    const size_t comma = rest.find(',');
    const std::string item(rest.substr(0, comma));
    const std::optional<int64_t> id = ParseInteger(item);
    if (!id || *id < 0 || *id > std::numeric_limits<text::TokenId>::max()) {
      return Error(Code::kUsage,
                   "--prompt-ids: item {} is \"{}\"; accepted: token ids with commas between them, "
                   "as 1,2,3",
                   ids.size() + 1, item);
    }
    ids.push_back(static_cast<text::TokenId>(*id));
    if (comma == std::string_view::npos) return ids;
    rest.remove_prefix(comma + 1);
  }
}

Result<std::vector<text::TokenId>> EncodePrompt(const text::Tokenizer& tokenizer,
                                                const std::string& text) {
  const text::EncodeOptions options{.add_special_tokens = true, .parse_special_tokens = true};
  Result<std::vector<text::TokenId>> ids = tokenizer.Encode(text, options);
  if (!ids.ok()) return ids.status().In("the prompt");
  if (ids->empty()) {
    return InvalidInput(
        "the prompt is empty, and this model's tokenizer adds no token of its own; there is "
        "nothing "
        "to continue");
  }
  return ids;
}

Status CheckPromptIds(const std::vector<text::TokenId>& ids, int64_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return InvalidInput("prompt id {} (item {}) is outside the vocabulary of {} tokens", ids[i],
                          i + 1, vocab_size);
    }
  }
  return {};
}

}  // namespace granule::cli
