// The transducers behind decoder.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/decoder.h"

namespace granule::text {

// A step that feeds `next`, which must outlive it.
std::unique_ptr<TokenSink> MakeDecoderStep(const DecoderStep& step, TokenSink* next);

// 0..255 for "<0x00>".."<0xFF>", else -1.
int ByteOfFallbackToken(std::string_view token);

// A whole string as kStrip leaves it.
std::string StripChars(std::string_view text, const DecoderStep& step);

}  // namespace granule::text
