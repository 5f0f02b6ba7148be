// Added tokens: strings that are recognised in the text before anything else cuts it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "text/json.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/vocabulary.h"

namespace granule::text {

struct AddedToken {
  bool operator==(const AddedToken&) const = default;

  std::string content;
  bool single_word = false;  // matches only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;
  bool normalized = true;  // is looked for in the normalized text, in its own normalized form
  bool special = false;    // decoding may skip it; text need not recognise it
};

// The longest of a set of strings that begins at a place.
class PrefixTree {
 public:
  // The first of equal strings keeps its value. Empty strings never match.
  void Add(std::string_view text, int32_t value);
  // The value of the longest string that text[pos...] begins with, and its length; -1 when none
  // does.
  int32_t Longest(std::string_view text, size_t pos, size_t* length) const;
  bool empty() const { return nodes_.empty(); }

 private:
  struct Node {
    int32_t value = -1;
    uint8_t byte = 0;
    int32_t child = -1;    // first
    int32_t sibling = -1;  // next
  };
  int32_t Child(int32_t node, uint8_t byte) const;
  std::vector<Node> nodes_;  // 0 is the root
  int32_t root_child_[256];
};

class AddedTokens {
 public:
  // `value` is the array `added_tokens`, or null. Ids follow the reference: the vocabulary's id of
  // the same string, else the next free one; a different id in the file has no effect.
  Status Parse(const JsonValue* value, const Vocabulary& vocabulary, const Normalizer& normalizer);

  // Cuts text (valid UTF-8) into recognised tokens and the normalized text between them. With
  // parse_special off, special tokens are ordinary text.
  Status Split(std::string_view text, const Normalizer& normalizer, bool parse_special,
               Pieces* pieces) const;

  const AddedToken* Find(TokenId id) const;  // null when it is no added token
  TokenId FindContent(std::string_view content) const;
  bool IsSpecial(TokenId id) const;  // of added tokens
  bool IsSpecialContent(std::string_view content) const;
  int64_t end_id() const { return end_id_; }
  const std::unordered_map<TokenId, AddedToken>& by_id() const { return by_id_; }

 private:
  struct Match {
    size_t begin;
    size_t end;
    TokenId token;  // -1 between tokens
  };
  // Appends tokens and the text between them, in order.
  void FindMatches(std::string_view text, const PrefixTree& tree, bool parse_special,
                   std::vector<Match>* matches) const;
  Status BuildTrees(const std::vector<AddedToken>& in_order, const Normalizer& normalizer);

  std::unordered_map<std::string, TokenId> by_content_;
  std::unordered_map<TokenId, AddedToken> by_id_;
  std::unordered_map<std::string, bool> special_;  // contents of special tokens
  int64_t end_id_ = 0;
  PrefixTree raw_;         // those looked for in the text as it came
  PrefixTree normalized_;  // those looked for after normalization
};

}  // namespace granule::text
