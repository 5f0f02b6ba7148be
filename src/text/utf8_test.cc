#include "text/utf8.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "text/byte_chars.h"
#include "text/unicode_form.h"

namespace granule::text {
namespace {

std::string Repaired(const std::string& bytes) {
  std::string text;
  Utf8Repair repair;
  repair.Push(bytes, &text);
  repair.Finish(&text);
  return text;
}

const std::string kBad = "\xEF\xBF\xBD";

// The examples of the Unicode standard, tables 3-8 to 3-11.
TEST(Utf8Repair, OneReplacementForEachMaximalSubpart) {
  EXPECT_EQ(Repaired("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            kBad + kBad + kBad + kBad + kBad + kBad + kBad + kBad + "A");
  EXPECT_EQ(Repaired("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            kBad + kBad + kBad + kBad + kBad + kBad + kBad + kBad + "A");
  EXPECT_EQ(Repaired("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            kBad + kBad + kBad + kBad + kBad + "A" + kBad + kBad + "B");
  EXPECT_EQ(Repaired("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), kBad + kBad + kBad + kBad + "A");
}

RC_GTEST_PROP(Utf8Repair, DoesNotDependOnTheCuts, (const std::vector<std::string>& parts)) {
  std::string joined;
  std::string text;
  Utf8Repair repair;
  for (const std::string& part : parts) {
    joined += part;
    repair.Push(part, &text);
    RC_ASSERT(!FindInvalidUtf8(text).has_value());
  }
  repair.Finish(&text);
  RC_ASSERT(text == Repaired(joined));
}

TEST(Utf8, RoundTripOfEveryCharacter) {
  std::string text;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    text.clear();
    AppendUtf8(c, &text);
    ASSERT_FALSE(FindInvalidUtf8(text).has_value());
    size_t pos = 0;
    ASSERT_EQ(NextChar(text, &pos), c);
    ASSERT_EQ(pos, text.size());
  }
}

TEST(ByteChars, EveryByteHasItsCharacter) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<char>(byte));
  std::string chars;
  AppendByteChars(bytes, &chars);
  std::string back;
  AppendBytesOfChars(chars, &back);
  EXPECT_EQ(back, bytes);
  EXPECT_EQ(ByteOfChar(U'\u0120'), ' ');
  EXPECT_EQ(ByteOfChar(U'\u00AD'), -1);
  EXPECT_EQ(ByteOfChar(U'\u0144'), -1);
}

TEST(UnicodeForm, OrderCompositionAndAge) {
  const auto form = [](UnicodeForm which, std::string text) {
    Normalize(which, &text);
    return text;
  };
  EXPECT_EQ(form(UnicodeForm::kNfc, "o\u0308\u0323"), "\u1ECD\u0308");
  EXPECT_EQ(form(UnicodeForm::kNfd, "\u1ECD\u0308"), "o\u0323\u0308");
  EXPECT_EQ(form(UnicodeForm::kNfc, "\u1100\u1161\u11A8"), "각");
  EXPECT_EQ(form(UnicodeForm::kNfd, "각"), "\u1100\u1161\u11A8");
  EXPECT_EQ(form(UnicodeForm::kNfkc, "ﬁ①"), "fi1");
  EXPECT_EQ(form(UnicodeForm::kNfkd, "½"), "1\u20442");
  EXPECT_EQ(form(UnicodeForm::kNfc, "\u0958"), "\u0915\u093C");  // excluded from composition
  EXPECT_EQ(form(UnicodeForm::kNfkc, "\u32FF"), "\u32FF");  // newer than the reference's tables
}

}  // namespace
}  // namespace granule::text
