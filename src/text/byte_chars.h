// Byte-level BPE writes every byte as one printable character, so that a vocabulary of strings can
// hold any bytes. Bytes that are printable in Latin-1 stand for themselves, the 68 others for
// U+0100, U+0101, ... in order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace granule::text {

// Appends the characters that stand for the bytes.
void AppendByteChars(std::string_view bytes, std::string* out);

// The byte that a character stands for, -1 when it is none of the 256.
int ByteOfChar(char32_t c);

// The bytes behind a token's characters; a token with any other character is taken as it is.
void AppendBytesOfChars(std::string_view token, std::string* out);

}  // namespace granule::text
