// The splits that byte-level BPE models do before merging, as tokenizer.json writes them, by
// llama.cpp's names.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace granule::package {

// What follows from a tokenizer.ggml.pre besides the split itself.
struct PreTokenizer {
  bool known = false;
  bool ignore_merges = false;  // a piece that is a token as it stands is not merged
  bool adds_bos = false;       // where the file does not say
};

// Fills `json` with the "pre_tokenizer" object of tokenizer.json. known == false where the name is
// none of KnownPreTokenizers.
PreTokenizer FindPreTokenizer(std::string_view name, nlohmann::ordered_json* json);
std::string KnownPreTokenizers();  // "default, gpt-2, ..."

}  // namespace granule::package
