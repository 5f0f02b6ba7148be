#include "package/pre_tokenizers.h"

#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

namespace granule::package {
namespace {

using Json = nlohmann::ordered_json;

// GPT-2's own split, which ByteLevel with use_regex does.
Json ByteLevel(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json Digits() { return {{"type", "Digits"}, {"individual_digits", true}}; }

// Matches and what lies between them become pieces of their own.
Json Split(const char* pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json Sequence(std::vector<Json> parts) {
  return {{"type", "Sequence"}, {"pretokenizers", std::move(parts)}};
}

enum class Family { kDefault, kGpt2, kDigits, kLlama3, kQwen2, kTekken, kDeepseekCoder };

constexpr const char* kLlama3 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr const char* kQwen2 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr const char* kTekken =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr const char* kPunctuation = "[\\p{P}\\$\\+<=>\\^~\\|]+";

struct Known {
  const char* name;
  Family family;
  bool ignore_merges;
  bool adds_bos;
};

constexpr Known kKnown[] = {
    {"default", Family::kDefault, false, false},
    {"gpt-2", Family::kGpt2, false, false},
    {"phi-2", Family::kGpt2, false, false},
    {"olmo", Family::kGpt2, false, false},
    {"mpt", Family::kGpt2, false, false},
    {"jina-es", Family::kGpt2, false, false},
    {"jina-de", Family::kGpt2, false, false},
    {"smollm", Family::kDigits, false, false},
    {"starcoder", Family::kDigits, false, false},
    {"refact", Family::kDigits, false, false},
    {"command-r", Family::kDigits, false, false},
    {"codeshell", Family::kDigits, false, false},
    {"exaone", Family::kDigits, false, false},
    {"minerva-7b", Family::kDigits, false, false},
    {"llama-bpe", Family::kLlama3, true, true},
    {"llama3", Family::kLlama3, true, true},
    {"llama-v3", Family::kLlama3, true, true},
    {"falcon3", Family::kLlama3, true, true},
    {"dbrx", Family::kLlama3, false, false},
    {"smaug-bpe", Family::kLlama3, false, false},
    {"qwen2", Family::kQwen2, false, false},
    {"deepseek-r1-qwen", Family::kQwen2, false, false},
    {"megrez", Family::kQwen2, false, false},
    {"tekken", Family::kTekken, true, true},
    {"deepseek-coder", Family::kDeepseekCoder, false, false},
};

Json Build(Family family) {
  switch (family) {
    case Family::kGpt2:
      return ByteLevel(true);
    case Family::kDigits:
      return Sequence({Digits(), ByteLevel(true)});
    case Family::kLlama3:
      return Sequence({Split(kLlama3), ByteLevel(false)});
    case Family::kQwen2:
      return Sequence({Split(kQwen2), ByteLevel(false)});
    case Family::kTekken:
      return Sequence({Split(kTekken), ByteLevel(false)});
    case Family::kDeepseekCoder:
      return Sequence({Split("[\\r\\n]"), Split("\\s?\\p{L}+"), Split("\\s?\\p{P}+"),
                       Split("[一-龥ࠀ-一가-퟿]+"), Digits(), ByteLevel(false)});
    case Family::kDefault:
      // GPT-2's words cut further at punctuation, runs of digits and then their threes.
      return Sequence(
          {Split(kPunctuation),
           Split("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"),
           Split("\\p{N}+"), Split("[0-9][0-9][0-9]"), ByteLevel(false)});
  }
  return nullptr;
}

}  // namespace

PreTokenizer FindPreTokenizer(std::string_view name, nlohmann::ordered_json* json) {
  for (const Known& known : kKnown) {
    if (name != known.name) continue;
    *json = Build(known.family);
    return {.known = true, .ignore_merges = known.ignore_merges, .adds_bos = known.adds_bos};
  }
  return {};
}

std::string KnownPreTokenizers() {
  std::string names;
  for (const Known& known : kKnown) names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

}  // namespace granule::package
