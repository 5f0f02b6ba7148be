// UTF-8 and the few character classes that tokenizers ask for.
//
// Character data is utf8proc's (Unicode 14 with the pinned version): a character assigned later
// counts as unassigned.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace granule::text {

// What starts at text[pos] (pos < text.size()).
struct Utf8Sequence {
  enum Kind { kValid, kInvalid, kCutShort };
  Kind kind;
  // kValid: bytes of the character. kInvalid: bytes of the maximal ill-formed part, which one
  // U+FFFD replaces (Unicode 3.9, "substitution of maximal subparts"; Rust's and Python's rule).
  // kCutShort: all that is left of the text, the beginning of a character that more bytes could
  // complete.
  size_t length;
};
Utf8Sequence SequenceAt(std::string_view text, size_t pos);

// Offset of the first byte that is not part of valid UTF-8; nothing when all is.
std::optional<size_t> FindInvalidUtf8(std::string_view text);

// The character at *pos of valid UTF-8; moves *pos behind it.
char32_t NextChar(std::string_view text, size_t* pos);
void AppendUtf8(char32_t c, std::string* out);

// Repairs a stream of bytes: whole characters come out, broken parts as U+FFFD, and the beginning
// of a character waits for its rest. The joined output does not depend on how the bytes were cut.
class Utf8Repair {
 public:
  void Push(std::string_view bytes, std::string* out);
  void Finish(std::string* out);

 private:
  std::string pending_;  // at most 3 bytes: the beginning of one character
};

bool IsWhitespace(char32_t c);     // White_Space
bool IsNumeric(char32_t c);        // Nd, Nl, No
bool IsPunctuation(char32_t c);    // P* of the reference's tables, and all ASCII symbols
bool IsWordChar(char32_t c);       // Alphabetic, M*, Nd, Pc, joiners: what \w means in UTS 18
bool IsCombiningMark(char32_t c);  // M* of Unicode 9, which the reference uses for this
bool IsMarkSinceUnicode9(char32_t c);

struct CharRange {
  char32_t first;
  char32_t last;
};
template <size_t N>
bool InRanges(const CharRange (&ranges)[N], char32_t c) {  // ranges ascending
  size_t low = 0;
  for (size_t high = N; low < high;) {
    const size_t middle = (low + high) / 2;
    if (ranges[middle].last < c) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < N && ranges[low].first <= c;
}

}  // namespace granule::text
