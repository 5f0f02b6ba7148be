// The BPE model: one piece of text -> token ids, by joining neighbours in the order of the merge
// list.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/json.h"
#include "text/vocabulary.h"

namespace granule::text {

// Pair of ids -> rank and result, open addressing; lookups are the inner loop of encoding.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    TokenId result;
  };
  void Reserve(size_t pairs);
  void Set(TokenId left, TokenId right, Merge merge);  // overwrites
  const Merge* Find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  size_t FirstSlot(uint64_t key) const;
  static uint64_t Key(TokenId left, TokenId right);

  std::vector<Slot> slots_;  // a power of two, at most half full
  int shift_ = 64;
};

class BpeModel {
 public:
  // The `model` object. Takes the strings out of the tree.
  static Result<std::unique_ptr<const BpeModel>> Parse(JsonValue* value);

  // Memory that one thread reuses from piece to piece.
  struct Scratch {
    struct Symbol {
      TokenId id;
      int32_t previous;
      int32_t next;
      bool alive;
    };
    struct Candidate {
      uint64_t order;  // rank, then position
      TokenId result;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> queue;
    std::string symbol_text;
  };

  // Appends the ids of a piece (valid UTF-8, below 1 GiB). Joins whose result is marked in
  // `forbidden` (indexed by id, may be short or empty) are not made.
  Status Encode(std::string_view piece, const std::vector<bool>& forbidden, Scratch* scratch,
                std::vector<TokenId>* ids) const;

  const Vocabulary& vocabulary() const { return *vocabulary_; }

 private:
  Status ParseMerges(const JsonValue& merges);
  Status AddMerge(size_t index, std::string_view left, std::string_view right);
  Status AppendSymbols(std::string_view piece, Scratch* scratch) const;
  TokenId FindSymbol(std::string_view text, char32_t c) const;
  void MergeSymbols(const std::vector<bool>& forbidden, Scratch* scratch) const;

  std::unique_ptr<const Vocabulary> vocabulary_;
  MergeTable merges_;
  std::string unk_token_;
  TokenId unk_id_ = -1;
  std::string continuing_subword_prefix_;
  std::string end_of_word_suffix_;
  bool fuse_unk_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  std::array<TokenId, 0x3000> char_ids_{};  // of single characters; others are looked up
  std::array<TokenId, 256> byte_ids_{};     // of <0x00> ... <0xFF>
};

}  // namespace granule::text
