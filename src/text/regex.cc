#include "text/regex.h"

#include <pcre2.h>

#include "text/utf8.h"

namespace granule::text {
namespace {

// Bounds of one match attempt. A tokenizer's own patterns need a few steps per character; a run of
// a million spaces before a word takes a few million.
constexpr uint32_t kMatchLimit = 20'000'000;
constexpr uint32_t kDepthLimit = 5'000'000;
constexpr uint32_t kHeapLimitKiB = 256 * 1024;

constexpr uint32_t kCompileOptions =
    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_UTF_CHECK;

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

struct CompileContext {
  CompileContext() : context(pcre2_compile_context_create(nullptr)) {
    if (context != nullptr) {
      pcre2_set_newline(context, PCRE2_NEWLINE_LF);
      pcre2_set_parens_nest_limit(context, 100);
      pcre2_set_max_pattern_length(context, 64 * 1024);
    }
  }
  ~CompileContext() { pcre2_compile_context_free(context); }
  CompileContext(const CompileContext&) = delete;
  CompileContext& operator=(const CompileContext&) = delete;
  pcre2_compile_context* const context;
};

struct MatchState {
  explicit MatchState(const pcre2_code* code)
      : data(pcre2_match_data_create_from_pattern(code, nullptr)),
        context(pcre2_match_context_create(nullptr)) {
    if (context != nullptr) {
      pcre2_set_match_limit(context, kMatchLimit);
      pcre2_set_depth_limit(context, kDepthLimit);
      pcre2_set_heap_limit(context, kHeapLimitKiB);
    }
  }
  ~MatchState() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;
  pcre2_match_data* const data;
  pcre2_match_context* const context;
};

}  // namespace

Result<std::unique_ptr<Regex>> Regex::Compile(std::string_view pattern) {
  Result<std::string> translated = TranslatePattern(pattern);
  if (!translated.ok()) return translated.status();
  const CompileContext compile;
  if (compile.context == nullptr) return Error(Code::kExhausted, "no memory to compile a pattern");
  int error = 0;
  size_t offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                    kCompileOptions, &error, &offset, compile.context);
  if (code == nullptr) {
    return InvalidInput("the pattern \"{}\" is refused: {} (at offset {} of its PCRE2 form \"{}\")",
                        pattern, ErrorText(error), offset, *translated);
  }
  // Where the system forbids executable memory this fails and the interpreter serves instead.
  (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return std::unique_ptr<Regex>(new Regex(code));
}

Regex::~Regex() { pcre2_code_free(code_); }

Status Regex::FindAll(std::string_view text, std::vector<Span>* matches) const {
  const MatchState state(code_);
  if (state.data == nullptr || state.context == nullptr) {
    return Error(Code::kExhausted, "no memory to match a pattern");
  }
  // PCRE2 wants a readable subject even when it is empty.
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.empty() ? "" : text.data());
  const size_t* const bounds = pcre2_get_ovector_pointer(state.data);
  size_t start = 0;
  size_t last_end = SIZE_MAX;
  while (start <= text.size()) {
    int rc = pcre2_match(code_, subject, text.size(), start, PCRE2_NO_UTF_CHECK, state.data,
                         state.context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(code_, subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       state.data, state.context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return InvalidInput(
          "a pattern of the tokenizer gave up at byte {} of a piece of {} bytes: {}", start,
          text.size(), ErrorText(rc));
    }
    const Span match{bounds[0], bounds[1]};
    // \K inside a lookaround can report a match that ends before it begins or before the last one.
    if (match.begin > match.end || match.begin < start) {
      return InvalidInput("a pattern of the tokenizer matches backwards");
    }
    const bool skip = match.begin == match.end && match.end == last_end;
    if (!skip) matches->push_back(match);
    last_end = match.end;
    start = match.end;
    if (skip) {
      if (start >= text.size()) break;
      NextChar(text, &start);
    }
  }
  return {};
}

}  // namespace granule::text
