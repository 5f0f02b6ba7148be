#include "text/regex.h"

#include <gtest/gtest.h>

namespace granule::text {
namespace {

std::vector<std::string> Matches(const char* pattern, const std::string& text) {
  const auto regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status().message();
  if (!regex.ok()) return {};
  std::vector<Span> spans;
  EXPECT_TRUE((*regex)->FindAll(text, &spans).ok());
  std::vector<std::string> found;
  for (const Span span : spans) found.push_back(text.substr(span.begin, span.end - span.begin));
  return found;
}

using Strings = std::vector<std::string>;

// Each of these means something else to PCRE2 as it stands.
TEST(Regex, RubysReadings) {
  EXPECT_EQ(Matches(R"(\s)", "a\u180e\x1c b"), Strings{" "});
  EXPECT_EQ(Matches(R"(\w+)", "a\u0301-b\u203f"), (Strings{"a\u0301", "b\u203f"}));
  EXPECT_EQ(Matches(R"(\h+)", "x09aFg"), Strings{"09aF"});
  EXPECT_EQ(Matches(R"(\v)", "\n\x0b"), Strings{"\x0b"});
  EXPECT_EQ(Matches(R"(\p{N}{1,3}+)", "1234567"), Strings{"1234567"});
  EXPECT_EQ(Matches(R"(x(?:ab){2}?)", "xababab"), Strings{"xabab"});
  EXPECT_EQ(Matches(R"(x(?:ab){2}?)", "xab"), Strings{"x"});
  EXPECT_EQ(Matches(R"((?m:a.))", "a\n"), Strings{"a\n"});
  EXPECT_EQ(Matches(R"(a.)", "a\n"), Strings{});
  EXPECT_EQ(Matches(R"(^a)", "aa\na"), (Strings{"a", "a"}));
  EXPECT_EQ(Matches(R"([a-z&&[^b]]+)", "abc"), (Strings{"a", "c"}));
  EXPECT_EQ(Matches(R"([^a-z&&[^b]])", "abC"), (Strings{"b", "C"}));
  EXPECT_EQ(Matches(R"([[ab][0-9]x]+)", "a1xz"), Strings{"a1x"});
  EXPECT_EQ(Matches(R"(\bab\B)", "ab aba"), Strings{"ab"});
  EXPECT_EQ(Matches(R"(a{,2}b)", "aaab"), Strings{"aab"});
  EXPECT_EQ(Matches(R"(a{x})", "a{x}"), Strings{"a{x}"});
  EXPECT_EQ(Matches(R"(\u4e16|\x{754c}|\x61)", "世界a"), (Strings{"世", "界", "a"}));
  EXPECT_EQ(Matches(R"([[:space:]])", "a b"), Strings{" "});
  EXPECT_EQ(Matches(R"([^\]a])", "]ab"), Strings{"b"});
  EXPECT_EQ(Matches(R"(\世)", "世"), Strings{"世"});
}

TEST(Regex, EmptyMatches) {
  EXPECT_EQ(Matches("x*", "axbc"), (Strings{"", "x", "", ""}));
  EXPECT_EQ(Matches("x*", ""), Strings{""});
  EXPECT_EQ(Matches("(?=世)", "世世"), (Strings{"", ""}));
}

TEST(Regex, RefusesWhatItWouldReadDifferently) {
  for (const char* pattern :
       {"\\",   "[a",    "(?x)a", "(?#c)", "(*FAIL)", "\\Q",         "\\p",       "\\pL",
        "\\x{", "\\u12", "[\\W]", "[\\b]", "[\\A]",   "[[:alpha:]]", "[[:odd:]]", "[:space:]",
        "\\y",  "a)",    "(",     "\\K",   "\\G",     "\\1",         "[\\R]",     "\\C"}) {
    const auto regex = Regex::Compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_NE(regex.status().message().find(pattern), std::string::npos)
        << regex.status().message();
  }
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "[";
  EXPECT_FALSE(Regex::Compile(deep).ok());
  EXPECT_FALSE(Regex::Compile(std::string(5000, '(') + std::string(5000, ')')).ok());
}

TEST(Regex, GivesUpOnCostlyPatterns) {
  const auto regex = Regex::Compile("(?:a|aa)+c");
  ASSERT_TRUE(regex.ok());
  std::vector<Span> spans;
  const Status status = (*regex)->FindAll(std::string(200, 'a') + "bc", &spans);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Code::kInvalidInput);
  EXPECT_NE(status.message().find("gave up"), std::string::npos) << status.message();
}

// More than the just-in-time compiler's stack holds: the interpreter takes over.
TEST(Regex, LongGroupedRuns) {
  const auto regex = Regex::Compile("(?:a|b)+");
  ASSERT_TRUE(regex.ok());
  std::vector<Span> spans;
  const std::string text(100'000, 'a');
  ASSERT_TRUE((*regex)->FindAll(text, &spans).ok());
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].end, text.size());
}

}  // namespace
}  // namespace granule::text
