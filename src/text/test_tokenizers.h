// Small tokenizer.json files for the tests of this layer.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/byte_chars.h"

namespace granule::text {

using Json = nlohmann::ordered_json;

inline Json AddedTokenJson(int id, const std::string& content, const Json& flags = Json::object()) {
  Json token = {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  token.update(flags);
  return token;
}

inline Json ByteLevelJson(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

inline Json TokenizerJson(const Json& vocab, const Json& merges = Json::array()) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", ByteLevelJson(false, false)},
          {"post_processor", nullptr},
          {"decoder", ByteLevelJson(true, true)},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocab},
            {"merges", merges}}}};
}

inline std::string CharsOf(const std::string& bytes) {
  std::string chars;
  AppendByteChars(bytes, &chars);
  return chars;
}

// The public trials' model: ids 0-255 are the bytes, 256-261 six control tokens, then `words`.
inline Json TrialTokenizerJson(const std::vector<std::string>& words) {
  const char* const specials[] = {"<|end|>",    "<|user|>", "<|assistant|>",
                                  "<|system|>", "<|eos2|>", "<|pad|>"};
  Json vocab = Json::object();
  Json added = Json::array();
  for (int byte = 0; byte < 256; ++byte)
    vocab[CharsOf(std::string(1, static_cast<char>(byte)))] = byte;
  int id = 256;
  for (const char* special : specials) {
    vocab[special] = id;
    added.push_back(AddedTokenJson(id++, special));
  }
  for (const std::string& word : words) vocab[CharsOf(word)] = id++;
  Json file = TokenizerJson(vocab);
  file["added_tokens"] = added;
  return file;
}

}  // namespace granule::text
