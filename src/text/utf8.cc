#include "text/utf8.h"

#include <utf8proc.h>

#include <cstdint>

namespace granule::text {
namespace {

uint8_t Byte(std::string_view text, size_t pos) { return static_cast<uint8_t>(text[pos]); }

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Punctuation in Unicode 14 and not in the reference's older tables, or the other way round
// (U+166D).
constexpr CharRange kPunctuationDiffers[] = {
    {0x61D, 0x61D},     {0x9FD, 0x9FD},     {0xA76, 0xA76},     {0xC77, 0xC77},
    {0xC84, 0xC84},     {0x166D, 0x166D},   {0x1B7D, 0x1B7E},   {0x2E43, 0x2E4F},
    {0x2E52, 0x2E5D},   {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59}, {0x10F86, 0x10F89},
    {0x111C9, 0x111C9}, {0x1144B, 0x1144F}, {0x1145A, 0x1145B}, {0x1145D, 0x1145D},
    {0x11660, 0x1166C}, {0x116B9, 0x116B9}, {0x1183B, 0x1183B}, {0x11944, 0x11946},
    {0x119E2, 0x119E2}, {0x11A3F, 0x11A46}, {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2},
    {0x11C41, 0x11C45}, {0x11C70, 0x11C71}, {0x11EF7, 0x11EF8}, {0x11FFF, 0x11FFF},
    {0x12FF1, 0x12FF2}, {0x16E97, 0x16E9A}, {0x16FE2, 0x16FE2}, {0x1E95E, 0x1E95F}};

// M* in Unicode 14, unassigned in Unicode 9.
constexpr CharRange kMarksSince9[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xAFA, 0xAFF},     {0xB55, 0xB55},     {0xC04, 0xC04},     {0xC3C, 0xC3C},
    {0xD00, 0xD00},     {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xEBA, 0xEBA},
    {0x1715, 0x1715},   {0x180F, 0x180F},   {0x1ABF, 0x1ACE},   {0x1CF7, 0x1CF7},
    {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0xA8FF, 0xA8FF},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x11073, 0x11074}, {0x110C2, 0x110C2}, {0x11145, 0x11146}, {0x111C9, 0x111C9},
    {0x111CE, 0x111CF}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x1182C, 0x1183A},
    {0x11930, 0x11935}, {0x11937, 0x11938}, {0x1193B, 0x1193E}, {0x11940, 0x11940},
    {0x11942, 0x11943}, {0x119D1, 0x119D7}, {0x119DA, 0x119E0}, {0x119E4, 0x119E4},
    {0x11A01, 0x11A0A}, {0x11A33, 0x11A39}, {0x11A3B, 0x11A3E}, {0x11A47, 0x11A47},
    {0x11A51, 0x11A5B}, {0x11A8A, 0x11A99}, {0x11D31, 0x11D36}, {0x11D3A, 0x11D3A},
    {0x11D3C, 0x11D3D}, {0x11D3F, 0x11D45}, {0x11D47, 0x11D47}, {0x11D8A, 0x11D8E},
    {0x11D90, 0x11D91}, {0x11D93, 0x11D97}, {0x11EF3, 0x11EF6}, {0x16F4F, 0x16F4F},
    {0x16F7F, 0x16F87}, {0x16FE4, 0x16FE4}, {0x16FF0, 0x16FF1}, {0x1CF00, 0x1CF2D},
    {0x1CF30, 0x1CF46}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}};

utf8proc_category_t CategoryOf(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

}  // namespace

Utf8Sequence SequenceAt(std::string_view text, size_t pos) {
  const uint8_t lead = Byte(text, pos);
  if (lead < 0x80) return {Utf8Sequence::kValid, 1};
  // The second byte has a narrower range after some leads: no overlong forms, no surrogates,
  // nothing above U+10FFFF (Unicode table 3-7).
  size_t length = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Sequence::kInvalid, 1};
  }
  for (size_t i = 1; i < length; ++i) {
    if (pos + i >= text.size()) return {Utf8Sequence::kCutShort, i};
    const uint8_t byte = Byte(text, pos + i);
    if (byte < low || byte > high) return {Utf8Sequence::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Sequence::kValid, length};
}

std::optional<size_t> FindInvalidUtf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Sequence sequence = SequenceAt(text, pos);
    if (sequence.kind != Utf8Sequence::kValid) return pos;
    pos += sequence.length;
  }
  return std::nullopt;
}

char32_t NextChar(std::string_view text, size_t* pos) {
  const uint8_t lead = Byte(text, (*pos)++);
  if (lead < 0x80) return lead;
  int more = 1;
  if (lead >= 0xE0) more = lead >= 0xF0 ? 3 : 2;
  char32_t c = lead & (0x3Fu >> more);
  for (; more > 0 && *pos < text.size(); --more) c = c << 6 | (Byte(text, (*pos)++) & 0x3Fu);
  return c;
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | c >> 12));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | c >> 18));
    out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

void Utf8Repair::Push(std::string_view bytes, std::string* out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = pending_;
    joined.append(bytes);
    bytes = joined;
    pending_.clear();
  }
  size_t good = 0;  // bytes[good, pos) is valid and not written yet
  size_t pos = 0;
  while (pos < bytes.size()) {
    const Utf8Sequence sequence = SequenceAt(bytes, pos);
    if (sequence.kind == Utf8Sequence::kCutShort) break;
    if (sequence.kind == Utf8Sequence::kInvalid) {
      out->append(bytes.substr(good, pos - good));
      out->append(kReplacement);
      good = pos + sequence.length;
    }
    pos += sequence.length;
  }
  out->append(bytes.substr(good, pos - good));
  pending_ = bytes.substr(pos);
}

void Utf8Repair::Finish(std::string* out) {
  if (!pending_.empty()) out->append(kReplacement);
  pending_.clear();
}

bool IsWhitespace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsNumeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const utf8proc_category_t category = CategoryOf(c);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  const utf8proc_category_t category = CategoryOf(c);
  const bool punctuation = category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
  return punctuation != InRanges(kPunctuationDiffers, c);
}

bool IsCombiningMark(char32_t c) {
  const utf8proc_category_t category = CategoryOf(c);
  if (c == 0x1CF2 || c == 0x1CF3) return true;  // letters only since Unicode 12
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME &&
         !IsMarkSinceUnicode9(c);
}

bool IsMarkSinceUnicode9(char32_t c) { return InRanges(kMarksSince9, c); }

bool IsWordChar(char32_t c) {
  if (c < 0x80) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  }
  if (c == 0x200C || c == 0x200D) return true;
  // Other_Alphabetic that is neither letter, mark nor number: the circled and squared letters.
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
      (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189)) {
    return true;
  }
  const utf8proc_category_t category = CategoryOf(c);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_ME) ||
         category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_PC;
}

}  // namespace granule::text
