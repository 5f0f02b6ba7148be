// What tokenizer.json's `pre_tokenizer` does: cut text into pieces over which no token reaches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/json.h"

namespace granule::text {

// One piece of the text that is being encoded.
struct Piece {
  size_t begin;  // bytes of Pieces::text
  size_t end;
  int32_t token;  // the added token that was recognised here, -1 for text
  bool at_start;  // begins where the whole input begins
};

// The pieces in order. They need not cover the text (a splitter may remove parts), and none is
// empty except recognised tokens.
struct Pieces {
  std::string_view View(const Piece& piece) const {
    return std::string_view(text).substr(piece.begin, piece.end - piece.begin);
  }
  std::string text;
  std::vector<Piece> list;
};

class PreTokenizerStep {
 public:
  virtual ~PreTokenizerStep() = default;
  virtual Status Apply(Pieces* pieces) const = 0;
};

class PreTokenizer {
 public:
  // Null, or a JSON null: the text stays whole.
  static Result<std::unique_ptr<const PreTokenizer>> Parse(const JsonValue* value);

  // Splits and rewrites the pieces that are text; recognised tokens stay as they are.
  Status Apply(Pieces* pieces) const;

 private:
  std::vector<std::unique_ptr<PreTokenizerStep>> steps_;
};

}  // namespace granule::text
