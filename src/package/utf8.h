// Whether bytes are UTF-8, for text that goes into JSON files.
#pragma once

#include <string_view>

namespace granule::package {

// As the Unicode standard defines well-formed UTF-8 (table 3-7): no overlong forms, no surrogates,
// nothing past U+10FFFF.
bool IsUtf8(std::string_view text);

}  // namespace granule::package
