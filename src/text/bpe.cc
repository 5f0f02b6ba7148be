#include "text/bpe.h"

#include <algorithm>
#include <bit>

#include "text/utf8.h"

namespace granule::text {
namespace {

constexpr uint64_t kEmptyKey = ~uint64_t{0};  // ids are below 2^22, so no pair has this key
constexpr uint32_t kMaxMerges = 1u << 24;

bool IsForbidden(const std::vector<bool>& forbidden, TokenId id) {
  return static_cast<size_t>(id) < forbidden.size() && forbidden[id];
}

// std::*_heap keep the largest on top; the smallest order must come first.
bool ComesLater(const BpeModel::Scratch::Candidate& a, const BpeModel::Scratch::Candidate& b) {
  return a.order > b.order;
}

}  // namespace

uint64_t MergeTable::Key(TokenId left, TokenId right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

size_t MergeTable::FirstSlot(uint64_t key) const {
  // Fibonacci hashing after a fold, so that both halves of the key reach the upper bits.
  return static_cast<size_t>(((key ^ key >> 29) * 0x9E3779B97F4A7C15u) >> shift_);
}

void MergeTable::Reserve(size_t pairs) {
  const size_t size = std::bit_ceil(std::max<size_t>(pairs * 2, 8));
  slots_.assign(size, Slot{kEmptyKey, {}});
  shift_ = 64 - std::countr_zero(size);
}

void MergeTable::Set(TokenId left, TokenId right, Merge merge) {
  const uint64_t key = Key(left, right);
  size_t slot = FirstSlot(key);
  while (slots_[slot].key != kEmptyKey && slots_[slot].key != key) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  slots_[slot] = {key, merge};
}

const MergeTable::Merge* MergeTable::Find(TokenId left, TokenId right) const {
  const uint64_t key = Key(left, right);
  for (size_t slot = FirstSlot(key); slots_[slot].key != kEmptyKey;
       slot = (slot + 1) & (slots_.size() - 1)) {
    if (slots_[slot].key == key) return &slots_[slot].merge;
  }
  return nullptr;
}

Result<std::unique_ptr<const BpeModel>> BpeModel::Parse(JsonValue* value) {
  Fields fields(*value, "model");
  fields.RequiredObject("vocab");
  const JsonValue* merges = fields.RequiredArray("merges");
  auto model = std::make_unique<BpeModel>();
  model->unk_token_ = fields.String("unk_token", "");
  model->continuing_subword_prefix_ = fields.String("continuing_subword_prefix", "");
  model->end_of_word_suffix_ = fields.String("end_of_word_suffix", "");
  model->fuse_unk_ = fields.Bool("fuse_unk", false);
  model->byte_fallback_ = fields.Bool("byte_fallback", false);
  model->ignore_merges_ = fields.Bool("ignore_merges", false);
  if (!fields.status().ok()) return fields.status();
  if (const JsonValue* dropout = value->Find("dropout");
      dropout != nullptr && !dropout->is_null()) {
    // Dropout makes encoding random; it is a device of training.
    const bool number =
        dropout->kind == JsonValue::Kind::kInteger || dropout->kind == JsonValue::Kind::kNumber;
    if (!number || dropout->number != 0) {
      return InvalidInput("model.dropout is set; only null and 0 are supported");
    }
  }

  Result<std::unique_ptr<const Vocabulary>> vocabulary =
      Vocabulary::Parse(value->Find("vocab"), "model.vocab");
  if (!vocabulary.ok()) return vocabulary.status();
  model->vocabulary_ = *std::move(vocabulary);
  model->unk_id_ = model->unk_token_.empty() ? -1 : model->vocabulary_->Find(model->unk_token_);
  if (Status s = model->ParseMerges(*merges); !s.ok()) return s;

  std::string text;
  for (char32_t c = 0; c < model->char_ids_.size(); ++c) {
    text.clear();
    AppendUtf8(c, &text);
    model->char_ids_[c] = model->vocabulary_->Find(text);
  }
  for (int byte = 0; byte < 256; ++byte) {
    model->byte_ids_[byte] = model->vocabulary_->Find(Format("<0x{:02X}>", byte));
  }
  return std::unique_ptr<const BpeModel>(std::move(model));
}

// A merge is "left right", or ["left", "right"] where a part may hold a space.
Status BpeModel::ParseMerges(const JsonValue& merges) {
  if (merges.items.size() > kMaxMerges) {
    return InvalidInput("model.merges has {} entries; at most {} are supported",
                        merges.items.size(), kMaxMerges);
  }
  merges_.Reserve(merges.items.size());
  size_t rank = 0;
  for (size_t i = 0; i < merges.items.size(); ++i) {
    const JsonValue& merge = merges.items[i];
    if (merge.is_array() && merge.items.size() == 2 && merge.items[0].is_string() &&
        merge.items[1].is_string()) {
      if (Status s = AddMerge(rank++, merge.items[0].string, merge.items[1].string); !s.ok()) {
        return s.In(Format("model.merges[{}]", i));
      }
      continue;
    }
    if (merge.is_string()) {
      const std::string_view text = merge.string;
      if (text.starts_with("#version")) continue;  // the first line of a merges.txt
      const size_t space = text.find(' ');
      if (space != text.npos && text.find(' ', space + 1) == text.npos) {
        if (Status s = AddMerge(rank++, text.substr(0, space), text.substr(space + 1)); !s.ok()) {
          return s.In(Format("model.merges[{}]", i));
        }
        continue;
      }
    }
    return InvalidInput("model.merges[{}] is neither \"left right\" nor [\"left\", \"right\"]", i);
  }
  return {};
}

Status BpeModel::AddMerge(size_t index, std::string_view left, std::string_view right) {
  const TokenId left_id = vocabulary_->Find(left);
  const TokenId right_id = vocabulary_->Find(right);
  if (left_id < 0 || right_id < 0) {
    return InvalidInput("\"{}\" is not in model.vocab", left_id < 0 ? left : right);
  }
  if (!right.starts_with(continuing_subword_prefix_)) {
    return InvalidInput("\"{}\" lacks model.continuing_subword_prefix \"{}\"", right,
                        continuing_subword_prefix_);
  }
  std::string joined(left);
  joined += right.substr(continuing_subword_prefix_.size());
  const TokenId result = vocabulary_->Find(joined);
  if (result < 0) return InvalidInput("its result \"{}\" is not in model.vocab", joined);
  merges_.Set(left_id, right_id, {static_cast<uint32_t>(index), result});
  return {};
}

Status BpeModel::Encode(std::string_view piece, const std::vector<bool>& forbidden,
                        Scratch* scratch, std::vector<TokenId>* ids) const {
  if (ignore_merges_) {
    const TokenId whole = vocabulary_->Find(piece);
    if (whole >= 0 && !IsForbidden(forbidden, whole)) {
      ids->push_back(whole);
      return {};
    }
  }
  scratch->symbols.clear();
  if (Status s = AppendSymbols(piece, scratch); !s.ok()) return s;
  MergeSymbols(forbidden, scratch);
  for (const Scratch::Symbol& symbol : scratch->symbols) {
    if (symbol.alive) ids->push_back(symbol.id);
  }
  return {};
}

TokenId BpeModel::FindSymbol(std::string_view text, char32_t c) const {
  return c < char_ids_.size() ? char_ids_[c] : vocabulary_->Find(text);
}

// One symbol per character: its token, else its bytes' tokens, else the unknown token. A pending
// unknown token is written when a known character or the end comes, but not before byte tokens; the
// reference does the same.
Status BpeModel::AppendSymbols(std::string_view piece, Scratch* scratch) const {
  const auto append = [scratch](TokenId id) {
    const auto position = static_cast<int32_t>(scratch->symbols.size());
    scratch->symbols.push_back({id, position - 1, position + 1, true});
  };
  const bool decorated = !continuing_subword_prefix_.empty() || !end_of_word_suffix_.empty();
  bool unknown_pending = false;
  for (size_t pos = 0; pos < piece.size();) {
    const size_t begin = pos;
    const char32_t c = NextChar(piece, &pos);
    std::string_view text = piece.substr(begin, pos - begin);
    if (decorated) {
      scratch->symbol_text.clear();
      if (begin > 0) scratch->symbol_text = continuing_subword_prefix_;
      scratch->symbol_text += text;
      if (pos == piece.size()) scratch->symbol_text += end_of_word_suffix_;
      text = scratch->symbol_text;
    }
    const TokenId id = decorated ? vocabulary_->Find(text) : FindSymbol(text, c);
    if (id >= 0) {
      if (unknown_pending) append(unk_id_);
      unknown_pending = false;
      append(id);
      continue;
    }
    if (byte_fallback_ && std::all_of(text.begin(), text.end(), [this](char byte) {
          return byte_ids_[static_cast<uint8_t>(byte)] >= 0;
        })) {
      for (const char byte : text) append(byte_ids_[static_cast<uint8_t>(byte)]);
      continue;
    }
    if (unk_token_.empty()) continue;  // nothing stands for it
    if (unk_id_ < 0) {
      return InvalidInput(
          "the text has a character that the vocabulary lacks, and model.unk_token "
          "\"{}\" is not in the vocabulary either",
          unk_token_);
    }
    if (unknown_pending && !fuse_unk_) append(unk_id_);
    unknown_pending = true;
  }
  if (unknown_pending) append(unk_id_);
  if (!scratch->symbols.empty()) scratch->symbols.back().next = -1;
  return {};
}

// A queue of possible joins, lowest rank first, leftmost first among equals: n log n in the length
// of the piece. Entries go stale when a neighbour was joined meanwhile; they are recognised by the
// pair that stands there now, which must still give the same result.
void BpeModel::MergeSymbols(const std::vector<bool>& forbidden, Scratch* scratch) const {
  auto& symbols = scratch->symbols;
  auto& queue = scratch->queue;
  queue.clear();
  const auto candidate_at = [&](int32_t left) {
    const int32_t right = symbols[left].next;
    if (right < 0) return false;
    const MergeTable::Merge* merge = merges_.Find(symbols[left].id, symbols[right].id);
    if (merge == nullptr || IsForbidden(forbidden, merge->result)) return false;
    queue.push_back({uint64_t{merge->rank} << 32 | static_cast<uint32_t>(left), merge->result});
    return true;
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) candidate_at(static_cast<int32_t>(i));
  std::make_heap(queue.begin(), queue.end(), ComesLater);

  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), ComesLater);
    const Scratch::Candidate top = queue.back();
    queue.pop_back();
    const auto left = static_cast<int32_t>(top.order & 0xFFFFFFFF);
    if (!symbols[left].alive || symbols[left].next < 0) continue;
    const int32_t right = symbols[left].next;
    const MergeTable::Merge* merge = merges_.Find(symbols[left].id, symbols[right].id);
    if (merge == nullptr || merge->result != top.result) continue;

    symbols[left].id = top.result;
    symbols[left].next = symbols[right].next;
    symbols[right].alive = false;
    if (symbols[left].next >= 0) symbols[symbols[left].next].previous = left;
    if (symbols[left].previous >= 0 && candidate_at(symbols[left].previous)) {
      std::push_heap(queue.begin(), queue.end(), ComesLater);
    }
    if (candidate_at(left)) std::push_heap(queue.begin(), queue.end(), ComesLater);
  }
}

}  // namespace granule::text
