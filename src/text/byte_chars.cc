#include "text/byte_chars.h"

#include <array>

#include "text/utf8.h"

namespace granule::text {
namespace {

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

struct Tables {
  std::array<uint16_t, 256> char_of{};
  std::array<int16_t, 256 + 68> byte_of{};
};

constexpr Tables MakeTables() {
  Tables tables;
  for (auto& byte : tables.byte_of) byte = -1;
  uint16_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const uint16_t c = StandsForItself(byte) ? static_cast<uint16_t>(byte) : next++;
    tables.char_of[byte] = c;
    tables.byte_of[c] = static_cast<int16_t>(byte);
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

void AppendByteChars(std::string_view bytes, std::string* out) {
  for (const char byte : bytes) AppendUtf8(kTables.char_of[static_cast<uint8_t>(byte)], out);
}

int ByteOfChar(char32_t c) { return c < kTables.byte_of.size() ? kTables.byte_of[c] : -1; }

void AppendBytesOfChars(std::string_view token, std::string* out) {
  const size_t begin = out->size();
  for (size_t pos = 0; pos < token.size();) {
    const int byte = ByteOfChar(NextChar(token, &pos));
    if (byte < 0) {
      out->resize(begin);
      out->append(token);
      return;
    }
    out->push_back(static_cast<char>(byte));
  }
}

}  // namespace granule::text
