// Unicode normal forms (UAX 15), as the reference tokenizer computes them.
#pragma once

#include <string>

namespace granule::text {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// Normalizes valid UTF-8 in place, in time n log n whatever the text.
void Normalize(UnicodeForm form, std::string* text);

}  // namespace granule::text
