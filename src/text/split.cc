#include "text/split.h"

#include <algorithm>

#include "text/utf8.h"

namespace granule::text {
namespace {

struct Part {
  size_t begin;
  size_t end;
  bool matched;
};

// Matches and what lies between them, in order. Empty matches stay: they hold merges apart.
void CoverWithParts(size_t size, const std::vector<Span>& matches, bool invert,
                    std::vector<Part>* parts) {
  parts->clear();
  size_t done = 0;
  for (const Span match : matches) {
    if (match.begin > done) parts->push_back({done, match.begin, invert});
    parts->push_back({match.begin, match.end, !invert});
    done = match.end;
  }
  if (done < size) parts->push_back({done, size, invert});
}

// Joins neighbours in place; merge(previous_matched, part) says whether a part joins the one before
// it.
template <class Merge>
void JoinForward(std::vector<Part>* parts, const Merge& merge) {
  bool previous_matched = false;
  size_t kept = 0;
  for (size_t i = 0; i < parts->size(); ++i) {
    const Part part = (*parts)[i];
    if (kept > 0 && merge(previous_matched, part.matched)) {
      (*parts)[kept - 1].end = part.end;
    } else {
      (*parts)[kept++] = part;
    }
    previous_matched = part.matched;
  }
  parts->resize(kept);
}

void ApplyBehavior(Behavior behavior, std::vector<Part>* parts) {
  switch (behavior) {
    case Behavior::kRemoved:
      std::erase_if(*parts, [](const Part& part) { return part.matched; });
      return;
    case Behavior::kIsolated:
      return;
    case Behavior::kMergedWithPrevious:
      JoinForward(parts, [](bool previous, bool matched) { return matched && !previous; });
      return;
    case Behavior::kContiguous:
      JoinForward(parts, [](bool previous, bool matched) { return matched == previous; });
      return;
    case Behavior::kMergedWithNext: {
      // The mirror image: walk from the end, a matched part joins the part behind it.
      std::vector<Part> reversed;
      bool previous_matched = false;
      for (auto it = parts->rbegin(); it != parts->rend(); ++it) {
        if (it->matched && !previous_matched && !reversed.empty()) {
          reversed.back().begin = it->begin;
        } else {
          reversed.push_back(*it);
        }
        previous_matched = it->matched;
      }
      parts->assign(reversed.rbegin(), reversed.rend());
      return;
    }
  }
}

}  // namespace

Result<Behavior> ParseBehavior(const std::string& name, const std::string& path) {
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return InvalidInput(
      "{} is \"{}\"; it must be Removed, Isolated, MergedWithPrevious, MergedWithNext or "
      "Contiguous",
      path, name);
}

Status SplitPieces(const FindMatches& find, Behavior behavior, bool invert, Pieces* pieces) {
  std::vector<Piece> result;
  result.reserve(pieces->list.size());
  std::vector<Span> matches;
  std::vector<Part> parts;
  for (const Piece& piece : pieces->list) {
    if (piece.token >= 0) {
      result.push_back(piece);
      continue;
    }
    const std::string_view text = pieces->View(piece);
    matches.clear();
    if (Status s = find(text, &matches); !s.ok()) return s;
    CoverWithParts(text.size(), matches, invert, &parts);
    ApplyBehavior(behavior, &parts);
    for (const Part& part : parts) {
      if (part.begin == part.end) continue;
      result.push_back({piece.begin + part.begin, piece.begin + part.end, -1,
                        piece.at_start && part.begin == 0});
    }
  }
  pieces->list = std::move(result);
  return {};
}

void FindChars(std::string_view text, bool (*test)(char32_t), bool runs,
               std::vector<Span>* matches) {
  bool in_run = false;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const bool hit = test(NextChar(text, &pos));
    if (hit && in_run && runs) {
      matches->back().end = pos;
    } else if (hit) {
      matches->push_back({begin, pos});
    }
    in_run = hit;
  }
}

void RewritePieces(const std::function<void(std::string_view, const Piece&, std::string*)>& rewrite,
                   Pieces* pieces) {
  std::string text;
  text.reserve(pieces->text.size() + pieces->text.size() / 2);
  for (Piece& piece : pieces->list) {
    const size_t begin = text.size();
    if (piece.token < 0) rewrite(pieces->View(piece), piece, &text);
    piece.begin = begin;
    piece.end = text.size();
  }
  pieces->text = std::move(text);
}

}  // namespace granule::text
