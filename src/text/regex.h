// Regular expressions of tokenizer.json.
//
// The patterns are written for Oniguruma with Ruby's syntax, the engine of the reference tokenizer;
// the matcher here is PCRE2. The two read several constructs differently (`\s`, `\w`, `\h`, `\b`,
// `{n,m}+`,
// `(?m)`, sets with `&&`), so a pattern is translated construct by construct, and what has no
// translation is refused rather than read differently.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

struct pcre2_real_code_8;

namespace granule::text {

struct Span {
  size_t begin;
  size_t end;
};

// The same pattern in PCRE2's syntax. Errors name the construct and its offset in the pattern.
Result<std::string> TranslatePattern(std::string_view pattern);

// Immutable; any number of threads may match at once.
class Regex {
 public:
  static Result<std::unique_ptr<Regex>> Compile(std::string_view pattern);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // Appends all matches in valid UTF-8 text, left to right, without overlap. An empty match
  // directly behind the match before it does not count. A pattern that needs too many steps is an
  // error.
  Status FindAll(std::string_view text, std::vector<Span>* matches) const;

 private:
  explicit Regex(pcre2_real_code_8* code) : code_(code) {}
  pcre2_real_code_8* const code_;
};

}  // namespace granule::text
