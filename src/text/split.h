// Cutting pieces where something matches, in the five ways of tokenizer.json.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/pre_tokenizer.h"
#include "text/regex.h"

namespace granule::text {

// What becomes of the matched parts.
enum class Behavior {
  kRemoved,
  kIsolated,            // each is a piece
  kMergedWithPrevious,  // each joins the part before it; of several in a row, the first does
  kMergedWithNext,
  kContiguous,  // neighbouring ones are one piece
};

// "Removed", "Isolated", ... An unknown name is an error that lists the names.
Result<Behavior> ParseBehavior(const std::string& name, const std::string& path);

// Appends matches in order, without overlap.
using FindMatches = std::function<Status(std::string_view text, std::vector<Span>* matches)>;

// Cuts every text piece. `invert` swaps matched and unmatched parts.
Status SplitPieces(const FindMatches& find, Behavior behavior, bool invert, Pieces* pieces);

// Appends the maximal runs of characters that satisfy the test, or each such character alone.
void FindChars(std::string_view text, bool (*test)(char32_t), bool runs,
               std::vector<Span>* matches);

// Replaces the text of every text piece; the callback appends the new text.
void RewritePieces(const std::function<void(std::string_view, const Piece&, std::string*)>& rewrite,
                   Pieces* pieces);

}  // namespace granule::text
