#include "text/vocabulary.h"

#include <algorithm>

namespace granule::text {

Result<std::unique_ptr<const Vocabulary>> Vocabulary::Parse(JsonValue* value,
                                                            const std::string& path) {
  int64_t end_id = 0;
  for (size_t i = 0; i < value->keys.size(); ++i) {
    const JsonValue& id = value->items[i];
    if (id.kind != JsonValue::Kind::kInteger || id.integer < 0 || id.integer > kMaxTokenId) {
      return InvalidInput("{} gives the token \"{}\" no id from 0 to {}", path, value->keys[i],
                          kMaxTokenId);
    }
    end_id = std::max(end_id, id.integer + 1);
  }
  auto vocabulary = std::make_unique<Vocabulary>();
  vocabulary->text_of_.resize(static_cast<size_t>(end_id));
  vocabulary->has_.resize(static_cast<size_t>(end_id));
  vocabulary->ids_.reserve(value->keys.size());
  // From the back, so that the first come is the last in the file, which is the one that counts.
  for (size_t i = value->keys.size(); i-- > 0;) {
    std::string& token = value->keys[i];
    const auto id = static_cast<TokenId>(value->items[i].integer);
    if (vocabulary->ids_.contains(token)) continue;
    if (vocabulary->has_[id]) {
      vocabulary->shadowed_.push_back(std::make_unique<std::string>(std::move(token)));
      vocabulary->ids_.emplace(*vocabulary->shadowed_.back(), id);
      continue;
    }
    vocabulary->has_[id] = true;
    vocabulary->text_of_[id] = std::move(token);
    vocabulary->ids_.emplace(vocabulary->text_of_[id], id);
  }
  return std::unique_ptr<const Vocabulary>(std::move(vocabulary));
}

TokenId Vocabulary::Find(std::string_view token) const {
  const auto it = ids_.find(token);
  return it != ids_.end() ? it->second : -1;
}

bool Vocabulary::Has(TokenId id) const { return id >= 0 && id < end_id() && has_[id]; }

std::string_view Vocabulary::TextOf(TokenId id) const {
  return Has(id) ? std::string_view(text_of_[id]) : std::string_view();
}

}  // namespace granule::text
