#include "package/gguf_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>

#include "package/pre_tokenizers.h"
#include "package/utf8.h"

namespace granule::package {
namespace {

using Json = nlohmann::ordered_json;

// Kinds of tokens, numbered as in tokenizer.ggml.token_type.
enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct Vocabulary {
  std::vector<std::string_view> tokens;
  std::vector<int64_t> types;                         // as many
  std::unordered_map<std::string_view, int64_t> ids;  // without unused tokens
};

Result<std::vector<std::string_view>> ReadStrings(const GgufFile& file, std::string_view key) {
  const GgufValue* entry = file.Find(key);
  if (entry == nullptr) return InvalidInput("metadata \"{}\" is missing", key);
  std::optional<std::vector<std::string_view>> strings = entry->AsStrings();
  if (!strings)
    return InvalidInput("metadata \"{}\" is {}; an array of string is expected", key,
                        entry->TypeText());
  for (size_t i = 0; i < strings->size(); ++i) {
    if (!IsUtf8((*strings)[i])) return InvalidInput("{}[{}] is not valid UTF-8", key, i);
  }
  return *std::move(strings);
}

Status ReadVocabulary(const GgufFile& file, int64_t logits, Vocabulary* vocabulary) {
  Result<std::vector<std::string_view>> tokens = ReadStrings(file, "tokenizer.ggml.tokens");
  if (!tokens.ok()) return tokens.status();
  vocabulary->tokens = *std::move(tokens);
  const auto count = static_cast<int64_t>(vocabulary->tokens.size());
  if (count == 0) return InvalidInput("tokenizer.ggml.tokens is empty");
  if (count > logits) {
    return InvalidInput("tokenizer.ggml.tokens has {} tokens, but token_embd.weight only {} rows",
                        count, logits);
  }
  vocabulary->types.assign(vocabulary->tokens.size(), kNormal);
  if (const GgufValue* entry = file.Find("tokenizer.ggml.token_type"); entry != nullptr) {
    std::optional<std::vector<int64_t>> types = entry->AsInts();
    if (!types || types->size() != vocabulary->tokens.size()) {
      return InvalidInput(
          "tokenizer.ggml.token_type is {} of {}; {} integers are expected, one per token",
          entry->TypeText(), entry->count, count);
    }
    vocabulary->types = *std::move(types);
  }
  for (int64_t id = 0; id < count; ++id) {
    const auto at = static_cast<size_t>(id);
    if (vocabulary->types[at] < kNormal || vocabulary->types[at] > kByte) {
      return InvalidInput("tokenizer.ggml.token_type[{}] is {}; 1 to 6 are expected", id,
                          vocabulary->types[at]);
    }
    if (vocabulary->types[at] == kUnused) continue;
    const auto [other, fresh] = vocabulary->ids.emplace(vocabulary->tokens[at], id);
    if (!fresh)
      return InvalidInput("tokenizer.ggml.tokens has the same token at {} and {}", other->second,
                          id);
  }
  return {};
}

bool IsAdded(int64_t type) { return type == kControl || type == kUserDefined || type == kUnknown; }

Json AddedTokens(const Vocabulary& vocabulary) {
  Json added = Json::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!IsAdded(vocabulary.types[id]) || vocabulary.tokens[id].empty()) continue;
    added.push_back({{"id", id},
                     {"content", vocabulary.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", vocabulary.types[id] != kUserDefined}});
  }
  return added;
}

// "a b" -> whether a, b and ab are tokens, which tokenizers demand of a merge. A token may begin
// with the separator.
bool IsMergeOfTokens(std::string_view merge, const Vocabulary& vocabulary) {
  const size_t space = merge.find(' ', 1);
  if (space == std::string_view::npos) return false;
  const std::string left(merge.substr(0, space)), right(merge.substr(space + 1));
  return vocabulary.ids.contains(left) && vocabulary.ids.contains(right) &&
         vocabulary.ids.contains(left + right);
}

Status ReadMerges(const GgufFile& file, const Vocabulary& vocabulary, Json* merges,
                  std::vector<std::string>* warnings) {
  Result<std::vector<std::string_view>> lines = ReadStrings(file, "tokenizer.ggml.merges");
  if (!lines.ok()) return lines.status();
  *merges = Json::array();
  size_t dropped = 0;
  for (std::string_view line : *lines) {
    if (IsMergeOfTokens(line, vocabulary)) {
      merges->push_back(line);
    } else {
      ++dropped;
    }
  }
  if (dropped > 0) {
    warnings->push_back(
        Format("{} of {} merges name tokens that the vocabulary lacks and were left out", dropped,
               lines->size()));
  }
  return {};
}

// An id of the vocabulary, empty when the key is absent.
Status ReadId(const GgufFile& file, const char* key, const Vocabulary& vocabulary,
              std::optional<int64_t>* id) {
  Result<std::optional<int64_t>> found = file.Int(key);
  if (!found.ok()) return found.status();
  if (!*found) return {};
  if (**found < 0 || **found >= static_cast<int64_t>(vocabulary.tokens.size())) {
    return InvalidInput("metadata \"{}\" is {}; the vocabulary has {} tokens", key, **found,
                        vocabulary.tokens.size());
  }
  *id = **found;
  return {};
}

// The end token that is stated, the ends of turn and message, and control tokens that are always
// such an end.
Status ReadEosIds(const GgufFile& file, const Vocabulary& vocabulary, std::vector<int64_t>* ids) {
  const auto add = [ids](int64_t id) {
    if (std::find(ids->begin(), ids->end(), id) == ids->end()) ids->push_back(id);
  };
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    std::optional<int64_t> id;
    if (Status s = ReadId(file, key, vocabulary, &id); !s.ok()) return s;
    if (id) add(*id);
  }
  for (std::string_view text : {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>"}) {
    const auto it = vocabulary.ids.find(text);
    if (it != vocabulary.ids.end() && vocabulary.types[static_cast<size_t>(it->second)] == kControl)
      add(it->second);
  }
  return {};
}

// Puts BOS before and EOS behind the text where the file asks for it; null where it asks for
// neither.
Json PostProcessor(const std::optional<std::pair<std::string, int64_t>>& bos,
                   const std::optional<std::pair<std::string, int64_t>>& eos) {
  if (!bos && !eos) return nullptr;
  const auto special = [](const std::string& token, int type_id) {
    return Json{{"SpecialToken", {{"id", token}, {"type_id", type_id}}}};
  };
  const auto sequence = [](const char* id, int type_id) {
    return Json{{"Sequence", {{"id", id}, {"type_id", type_id}}}};
  };
  Json single = Json::array(), pair = Json::array(), tokens = Json::object();
  for (const auto& [name, type_id] : {std::pair{"A", 0}, std::pair{"B", 1}}) {
    Json part = Json::array();
    if (bos) part.push_back(special(bos->first, type_id));
    part.push_back(sequence(name, type_id));
    if (eos) part.push_back(special(eos->first, type_id));
    if (type_id == 0) single = part;
    pair.insert(pair.end(), part.begin(), part.end());
  }
  for (const auto& token : {bos, eos}) {
    if (token)
      tokens[token->first] = {
          {"id", token->first}, {"ids", {token->second}}, {"tokens", {token->first}}};
  }
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", tokens}};
}

// The flag of the file, or the default of its kind of tokenizer; `id` must be known for it to hold.
Status ReadAddFlag(const GgufFile& file, const char* key, bool fallback,
                   const std::optional<int64_t>& id, bool* add) {
  Result<std::optional<bool>> flag = file.Bool(key);
  if (!flag.ok()) return flag.status();
  *add = flag->value_or(fallback) && id.has_value();
  return {};
}

Json TokenizerJson(const Vocabulary& vocabulary, const Json& pre_tokenizer, bool ignore_merges,
                   const Json& post_processor, Json merges) {
  Json vocab = Json::object();
  // Appended at the end: inserting would search the ordered object each time, and the keys are
  // known to differ.
  Json::object_t& entries = vocab.get_ref<Json::object_t&>();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.types[id] != kUnused)
      entries.emplace_back(std::string(vocabulary.tokens[id]), id);
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", AddedTokens(vocabulary)},
          {"normalizer", nullptr},
          {"pre_tokenizer", pre_tokenizer},
          {"post_processor", post_processor},
          {"decoder",
           {{"type", "ByteLevel"},
            {"add_prefix_space", true},
            {"trim_offsets", true},
            {"use_regex", true}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", ignore_merges},
            {"vocab", std::move(vocab)},
            {"merges", std::move(merges)}}}};
}

Status RequireByteLevelBpe(const GgufFile& file) {
  Result<std::optional<std::string>> model = file.String("tokenizer.ggml.model");
  if (!model.ok()) return model.status();
  if (!*model)
    return InvalidInput("metadata \"tokenizer.ggml.model\" is missing: the file has no tokenizer");
  if (**model != "gpt2") {
    return InvalidInput(
        "tokenizer.ggml.model \"{}\" is not supported by the import; only \"gpt2\" (byte-level "
        "BPE) is",
        **model);
  }
  return {};
}

}  // namespace

Result<ImportedTokenizer> ImportTokenizer(const GgufFile& file, int64_t logits,
                                          std::vector<std::string>* warnings) {
  if (Status s = RequireByteLevelBpe(file); !s.ok()) return s;
  Result<std::optional<std::string>> pre = file.String("tokenizer.ggml.pre");
  if (!pre.ok()) return pre.status();
  const std::string pre_name = pre->value_or("default");
  Json pre_tokenizer;
  const PreTokenizer split = FindPreTokenizer(pre_name, &pre_tokenizer);
  if (!split.known) {
    return InvalidInput("tokenizer.ggml.pre \"{}\" is not known; the import knows {}", pre_name,
                        KnownPreTokenizers());
  }

  Vocabulary vocabulary;
  if (Status s = ReadVocabulary(file, logits, &vocabulary); !s.ok()) return s;
  Json merges;
  if (Status s = ReadMerges(file, vocabulary, &merges, warnings); !s.ok()) return s;

  ImportedTokenizer result;
  if (Status s = ReadId(file, "tokenizer.ggml.bos_token_id", vocabulary, &result.bos_id); !s.ok())
    return s;
  if (Status s = ReadId(file, "tokenizer.ggml.padding_token_id", vocabulary, &result.pad_id);
      !s.ok())
    return s;
  if (Status s = ReadEosIds(file, vocabulary, &result.eos_ids); !s.ok()) return s;
  std::optional<int64_t> unk_id, eos_id;
  if (Status s = ReadId(file, "tokenizer.ggml.unknown_token_id", vocabulary, &unk_id); !s.ok())
    return s;
  if (Status s = ReadId(file, "tokenizer.ggml.eos_token_id", vocabulary, &eos_id); !s.ok())
    return s;
  bool add_bos = false, add_eos = false;
  if (Status s = ReadAddFlag(file, "tokenizer.ggml.add_bos_token", split.adds_bos, result.bos_id,
                             &add_bos);
      !s.ok())
    return s;
  if (Status s = ReadAddFlag(file, "tokenizer.ggml.add_eos_token", false, eos_id, &add_eos);
      !s.ok())
    return s;

  const auto text_of = [&](int64_t id) {
    return std::string(vocabulary.tokens[static_cast<size_t>(id)]);
  };
  std::optional<std::pair<std::string, int64_t>> bos, eos;
  if (add_bos) bos = {text_of(*result.bos_id), *result.bos_id};
  if (add_eos) eos = {text_of(*eos_id), *eos_id};
  result.tokenizer_json = TokenizerJson(vocabulary, pre_tokenizer, split.ignore_merges,
                                        PostProcessor(bos, eos), std::move(merges))
                              .dump(1);

  Result<std::optional<std::string>> chat = file.String("tokenizer.chat_template");
  if (!chat.ok()) return chat.status();
  if (*chat && !IsUtf8(**chat))
    return InvalidInput("metadata \"tokenizer.chat_template\" is not valid UTF-8");
  result.chat_template = *chat;

  Json config = {
      {"add_bos_token", add_bos}, {"add_eos_token", add_eos}, {"add_prefix_space", false}};
  Json map = Json::object();
  const std::pair<const char*, std::optional<int64_t>> specials[] = {{"bos_token", result.bos_id},
                                                                     {"eos_token", eos_id},
                                                                     {"pad_token", result.pad_id},
                                                                     {"unk_token", unk_id}};
  for (const auto& [key, id] : specials) {
    if (id) config[key] = map[key] = text_of(*id);
  }
  config["clean_up_tokenization_spaces"] = false;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (result.chat_template) config["chat_template"] = *result.chat_template;
  result.tokenizer_config_json = config.dump(2);
  result.special_tokens_map_json = map.dump(2);
  return result;
}

}  // namespace granule::package
