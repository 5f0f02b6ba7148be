// The tokenizer of synthetic models: ids 0-255 are the bytes, four control tokens follow, and the
// rest of the vocabulary is padded with words that no text is cut into, so that every id a model
// writes can be read.
#pragma once

#include <cstdint>
#include <string>

#include "package/genai_config.h"

namespace granule::package {

inline constexpr int64_t kFirstSynthSpecial = 256;
inline constexpr int64_t kSynthSpecials = 4;

inline bool IsSynthSpecial(int64_t token) {
  return token >= kFirstSynthSpecial && token < kFirstSynthSpecial + kSynthSpecials;
}

// tokenizer.json with `vocab` tokens (at least 260). Padding token 1000 is the text " t1000".
std::string SynthTokenizerJson(int64_t vocab);
std::string SynthTokenizerConfigJson();
std::string SynthSpecialTokensMapJson();
std::string SynthChatTemplate();  // messages between <|im_start|> and <|im_end|>
TokenRoles SynthTokenRoles();

}  // namespace granule::package
