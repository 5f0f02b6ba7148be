#include "package/synth_tokenizer.h"

#include <nlohmann/json.hpp>

namespace granule::package {
namespace {

using Json = nlohmann::ordered_json;

enum Special : int64_t {
  kEndOfText = kFirstSynthSpecial,
  kMessageStart,
  kMessageEnd,
  kPad,
};

constexpr const char* kSpecialTexts[kSynthSpecials] = {"<|endoftext|>", "<|im_start|>",
                                                       "<|im_end|>", "<|pad|>"};

// The character that stands for a byte in a byte-level vocabulary, in UTF-8: printable ones
// themselves, the others the characters from U+0100 on, in order.
std::string ByteCharacter(int byte) {
  const auto printable = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  };
  int point = byte;
  if (!printable(byte)) {
    point = 0x100;
    for (int b = 0; b < byte; ++b) point += printable(b) ? 0 : 1;
  }
  if (point < 0x80) return std::string(1, static_cast<char>(point));
  return {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))};
}

Json ByteLevel(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

}  // namespace

std::string SynthTokenizerJson(int64_t vocab) {
  Json entries = Json::object();
  // Appended at the end: inserting would search the ordered object each time, and the keys are
  // known to differ.
  Json::object_t& list = entries.get_ref<Json::object_t&>();
  list.reserve(static_cast<size_t>(vocab));
  for (int byte = 0; byte < 256; ++byte) list.emplace_back(ByteCharacter(byte), byte);
  Json added = Json::array();
  for (int64_t i = 0; i < kSynthSpecials; ++i) {
    const int64_t id = kFirstSynthSpecial + i;
    list.emplace_back(kSpecialTexts[i], id);
    added.push_back({{"id", id},
                     {"content", kSpecialTexts[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const std::string word = ByteCharacter(' ') + "t";
  for (int64_t id = kFirstSynthSpecial + kSynthSpecials; id < vocab; ++id)
    list.emplace_back(word + std::to_string(id), id);
  const Json file = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", std::move(added)},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", ByteLevel(true)},
                     {"post_processor", nullptr},
                     {"decoder", ByteLevel(true)},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false},
                       {"vocab", std::move(entries)},
                       {"merges", Json::array()}}}};
  return file.dump();
}

std::string SynthTokenizerConfigJson() {
  const Json config = {{"add_bos_token", false},
                       {"add_eos_token", false},
                       {"add_prefix_space", false},
                       {"eos_token", "<|im_end|>"},
                       {"pad_token", "<|pad|>"},
                       {"clean_up_tokenization_spaces", false},
                       {"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"chat_template", SynthChatTemplate()}};
  return config.dump(2);
}

std::string SynthSpecialTokensMapJson() {
  return Json{{"eos_token", "<|im_end|>"}, {"pad_token", "<|pad|>"}}.dump(2);
}

std::string SynthChatTemplate() {
  return "{% for message in messages %}"
         "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
         "{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
}

TokenRoles SynthTokenRoles() {
  return {.bos_id = std::nullopt, .pad_id = kPad, .eos_ids = {kMessageEnd, kEndOfText}};
}

}  // namespace granule::package
