// Two reasons not to leave all this to the library. Its driver sorts combining marks by insertion,
// which is quadratic in the length of a run of marks. And the reference normalizes with Unicode 9:
// characters that came later have combining class 0, no decomposition and take part in no
// composition, and a prompt must give the ids that the model was trained with.
#include "text/unicode_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "text/utf8.h"

namespace granule::text {
namespace {

// Decomposable in Unicode 14, unassigned in Unicode 9.
constexpr CharRange kDecomposableSince9[] = {
    {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xAB69, 0xAB69},
    {0x10781, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA},
    {0x11938, 0x11938}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

// The lowest character with a decomposition, a combining class or a part in a composition, ASCII
// letters as first parts aside.
constexpr char32_t kFirstAffected = 0xA0;
constexpr char32_t kFirstSecondPart = 0x300;  // of a composition

int CombiningClass(char32_t c) {
  if (c < kFirstSecondPart || IsMarkSinceUnicode9(c)) return 0;
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

void Decompose(char32_t c, bool compatible, std::vector<char32_t>* chars) {
  if (c < kFirstAffected || InRanges(kDecomposableSince9, c)) {
    chars->push_back(c);
    return;
  }
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  constexpr utf8proc_ssize_t kMost = 32;  // the longest decomposition has 18
  utf8proc_int32_t parts[kMost];
  int boundary = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, kMost, options, &boundary);
  if (count < 0 || count > kMost) {
    chars->push_back(c);
    return;
  }
  for (utf8proc_ssize_t i = 0; i < count; ++i) chars->push_back(static_cast<char32_t>(parts[i]));
}

void OrderMarks(std::vector<char32_t>* chars) {
  for (auto it = chars->begin(); it != chars->end();) {
    if (CombiningClass(*it) == 0) {
      ++it;
      continue;
    }
    const auto end =
        std::find_if(it, chars->end(), [](char32_t c) { return CombiningClass(c) == 0; });
    std::stable_sort(it, end,
                     [](char32_t a, char32_t b) { return CombiningClass(a) < CombiningClass(b); });
    it = end;
  }
}

// The primary composite of two characters, 0 when there is none.
char32_t ComposePair(char32_t first, char32_t second) {
  if (second < kFirstSecondPart) return 0;
  utf8proc_int32_t pair[3] = {static_cast<utf8proc_int32_t>(first),
                              static_cast<utf8proc_int32_t>(second), 0};
  const utf8proc_ssize_t count = utf8proc_normalize_utf32(
      pair, 2, static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  if (count != 1) return 0;
  const auto composite = static_cast<char32_t>(pair[0]);
  return InRanges(kDecomposableSince9, composite) ? 0 : composite;
}

// Joins starters with what follows them unless something of the same or a higher class stands
// between.
void Compose(std::vector<char32_t>* chars) {
  size_t kept = 0;
  size_t starter = SIZE_MAX;  // in the kept part
  int last_class = -1;        // of what was kept since the starter, -1 when nothing was
  for (const char32_t c : *chars) {
    const int mark_class = CombiningClass(c);
    if (starter != SIZE_MAX && last_class < mark_class) {
      if (const char32_t composite = ComposePair((*chars)[starter], c); composite != 0) {
        (*chars)[starter] = composite;
        continue;
      }
    }
    if (mark_class == 0) {
      starter = kept;
      last_class = -1;
    } else {
      last_class = mark_class;
    }
    (*chars)[kept++] = c;
  }
  chars->resize(kept);
}

}  // namespace

void Normalize(UnicodeForm form, std::string* text) {
  const bool compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  const bool compose = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  const auto is_ascii = [](char c) { return static_cast<uint8_t>(c) < 0x80; };
  if (std::all_of(text->begin(), text->end(), is_ascii)) return;

  std::vector<char32_t> chars;
  chars.reserve(text->size());
  for (size_t pos = 0; pos < text->size();) {
    Decompose(NextChar(*text, &pos), compatible, &chars);
  }
  OrderMarks(&chars);
  if (compose) Compose(&chars);
  text->clear();
  for (const char32_t c : chars) AppendUtf8(c, text);
}

}  // namespace granule::text
