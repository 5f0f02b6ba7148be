#include "text/added_tokens.h"

#include <algorithm>

#include "text/utf8.h"

namespace granule::text {
namespace {

// Bounds the work per byte of text.
constexpr size_t kMaxContentBytes = 1024;
constexpr size_t kMaxAddedTokens = 1 << 20;

// Where the character before text[pos] begins; pos > 0.
size_t PreviousChar(std::string_view text, size_t pos) {
  do {
    --pos;
  } while (pos > 0 && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80);
  return pos;
}

bool WordBefore(std::string_view text, size_t pos) {
  if (pos == 0) return false;
  size_t at = PreviousChar(text, pos);
  return IsWordChar(NextChar(text, &at));
}

bool WordAfter(std::string_view text, size_t pos) {
  return pos < text.size() && IsWordChar(NextChar(text, &pos));
}

}  // namespace

int32_t PrefixTree::Child(int32_t node, uint8_t byte) const {
  if (node == 0) return root_child_[byte];
  int32_t child = nodes_[node].child;
  while (child >= 0 && nodes_[child].byte != byte) child = nodes_[child].sibling;
  return child;
}

void PrefixTree::Add(std::string_view text, int32_t value) {
  if (text.empty()) return;
  if (nodes_.empty()) {
    nodes_.emplace_back();
    std::fill(std::begin(root_child_), std::end(root_child_), -1);
  }
  int32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    int32_t child = Child(node, byte);
    if (child < 0) {
      child = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({.value = -1, .byte = byte, .child = -1, .sibling = nodes_[node].child});
      nodes_[node].child = child;
      if (node == 0) root_child_[byte] = child;
    }
    node = child;
  }
  if (nodes_[node].value < 0) nodes_[node].value = value;
}

int32_t PrefixTree::Longest(std::string_view text, size_t pos, size_t* length) const {
  int32_t best = -1;
  int32_t node = 0;
  for (size_t i = pos; i < text.size(); ++i) {
    node = Child(node, static_cast<uint8_t>(text[i]));
    if (node < 0) break;
    if (nodes_[node].value >= 0) {
      best = nodes_[node].value;
      *length = i + 1 - pos;
    }
  }
  return best;
}

Status AddedTokens::Parse(const JsonValue* value, const Vocabulary& vocabulary,
                          const Normalizer& normalizer) {
  if (value == nullptr || value->is_null()) return {};
  if (!value->is_array()) {
    return InvalidInput("added_tokens must be an array, not {}", KindName(value->kind));
  }
  if (value->items.size() > kMaxAddedTokens) {
    return InvalidInput("added_tokens has {} entries; at most {} are supported",
                        value->items.size(), kMaxAddedTokens);
  }
  std::vector<AddedToken> tokens;
  for (size_t i = 0; i < value->items.size(); ++i) {
    Fields fields(value->items[i], Format("added_tokens[{}]", i));
    AddedToken token;
    token.content = fields.RequiredString("content");
    token.single_word = fields.Bool("single_word", false);
    token.lstrip = fields.Bool("lstrip", false);
    token.rstrip = fields.Bool("rstrip", false);
    token.special = fields.Bool("special", false);
    token.normalized = fields.Bool("normalized", !token.special);
    fields.Integer("id", 0, 0, kMaxTokenId);
    if (token.content.size() > kMaxContentBytes) {
      fields.Fail(InvalidInput("{} has {} bytes; at most {} are supported",
                               fields.PathOf("content"), token.content.size(), kMaxContentBytes));
    }
    if (!fields.status().ok()) return fields.status();
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }

  // Special tokens are looked for first, so they win where contents are equal.
  std::vector<AddedToken> specials;
  std::vector<AddedToken> others;
  for (const AddedToken& token : tokens) {
    if (token.special && special_.emplace(token.content, true).second) specials.push_back(token);
  }
  int64_t next_id = vocabulary.entries();
  for (const AddedToken& token : tokens) {
    TokenId id = FindContent(token.content);
    if (const AddedToken* known = Find(id); known != nullptr && *known == token) continue;
    if (id < 0) id = vocabulary.Find(token.content);
    if (id < 0) {
      if (next_id > kMaxTokenId) return InvalidInput("added_tokens need ids above {}", kMaxTokenId);
      id = static_cast<TokenId>(next_id);
    }
    by_content_[token.content] = id;
    by_id_[id] = token;
    next_id = std::max(next_id, int64_t{id} + 1);
    end_id_ = std::max(end_id_, int64_t{id} + 1);
    if (!special_.contains(token.content)) others.push_back(token);
  }
  specials.insert(specials.end(), others.begin(), others.end());
  return BuildTrees(specials, normalizer);
}

Status AddedTokens::BuildTrees(const std::vector<AddedToken>& in_order,
                               const Normalizer& normalizer) {
  for (const AddedToken& token : in_order) {
    const TokenId id = FindContent(token.content);
    if (!token.normalized) {
      raw_.Add(token.content, id);
      continue;
    }
    std::string form;
    bool moved_start = false;
    if (Status s = normalizer.Append(token.content, &form, &moved_start); !s.ok()) return s;
    if (form.size() > 16 * kMaxContentBytes) {
      return InvalidInput("the added token \"{}\" is too long once it is normalized",
                          token.content);
    }
    normalized_.Add(form, id);
  }
  return {};
}

const AddedToken* AddedTokens::Find(TokenId id) const {
  const auto it = by_id_.find(id);
  return it != by_id_.end() ? &it->second : nullptr;
}

TokenId AddedTokens::FindContent(std::string_view content) const {
  const auto it = by_content_.find(std::string(content));
  return it != by_content_.end() ? it->second : -1;
}

bool AddedTokens::IsSpecialContent(std::string_view content) const {
  return special_.contains(std::string(content));
}

bool AddedTokens::IsSpecial(TokenId id) const {
  const AddedToken* token = Find(id);
  return token != nullptr && IsSpecialContent(token->content);
}

void AddedTokens::FindMatches(std::string_view text, const PrefixTree& tree, bool parse_special,
                              std::vector<Match>* matches) const {
  size_t done = 0;  // up to here the text is handed out
  for (size_t pos = 0; pos < text.size() && !tree.empty();) {
    size_t length = 0;
    const TokenId id = tree.Longest(text, pos, &length);
    if (id < 0) {
      ++pos;
      continue;
    }
    size_t begin = pos;
    size_t end = pos + length;
    pos = end;  // a match that is turned down still hides others that begin inside it
    const AddedToken& token = by_id_.at(id);
    if (!parse_special && IsSpecialContent(token.content)) continue;
    if (token.single_word && (WordBefore(text, begin) || WordAfter(text, end))) continue;
    if (token.lstrip) {
      while (begin > done) {
        size_t before = PreviousChar(text, begin);
        const size_t at = before;
        if (!IsWhitespace(NextChar(text, &before))) break;
        begin = at;
      }
    }
    if (token.rstrip) {
      for (size_t after = end; after < text.size() && IsWhitespace(NextChar(text, &after));) {
        end = after;
      }
    }
    if (begin > done) matches->push_back({done, begin, -1});
    matches->push_back({begin, end, id});
    // This may lie before what an earlier token took along on its right: then that white space is
    // text once more, as in the reference.
    done = end;
  }
  if (done < text.size()) matches->push_back({done, text.size(), -1});
}

Status AddedTokens::Split(std::string_view text, const Normalizer& normalizer, bool parse_special,
                          Pieces* pieces) const {
  std::vector<Match> outer;
  FindMatches(text, raw_, parse_special, &outer);
  pieces->text.reserve(text.size());
  std::vector<Match> inner;
  for (const Match& part : outer) {
    const size_t base = pieces->text.size();
    if (part.token >= 0) {
      pieces->list.push_back({base, base, part.token, false});
      continue;
    }
    bool moved_start = false;
    const std::string_view raw = text.substr(part.begin, part.end - part.begin);
    if (Status s = normalizer.Append(raw, &pieces->text, &moved_start); !s.ok()) return s;
    const std::string_view form = std::string_view(pieces->text).substr(base);
    inner.clear();
    FindMatches(form, normalized_, parse_special, &inner);
    for (const Match& match : inner) {
      const bool at_start = part.begin == 0 && match.begin == 0 && match.token < 0 && !moved_start;
      pieces->list.push_back({base + match.begin, base + match.end, match.token, at_start});
    }
  }
  return {};
}

}  // namespace granule::text
