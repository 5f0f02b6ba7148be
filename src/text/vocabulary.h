// The strings of a vocabulary and their ids, both ways.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "text/json.h"
#include "text/tokenizer.h"

namespace granule::text {

// Ids index tables, so a file may not make them as large as it likes. The largest public
// vocabularies have a quarter of a million entries.
inline constexpr int64_t kMaxTokenId = (int64_t{1} << 22) - 1;

class Vocabulary {
 public:
  // {"token": id, ...} at `path` of the file. Takes the strings out of the tree.
  static Result<std::unique_ptr<const Vocabulary>> Parse(JsonValue* value, const std::string& path);

  TokenId Find(std::string_view token) const;  // -1 when absent
  std::string_view TextOf(TokenId id) const;   // empty when absent
  bool Has(TokenId id) const;
  int64_t entries() const { return static_cast<int64_t>(ids_.size()); }
  int64_t end_id() const { return static_cast<int64_t>(text_of_.size()); }  // largest id + 1

 private:
  // Views point into text_of_ or, where two tokens share an id, into shadowed_.
  std::unordered_map<std::string_view, TokenId> ids_;
  std::vector<std::string> text_of_;
  std::vector<bool> has_;
  std::vector<std::unique_ptr<std::string>> shadowed_;
};

}  // namespace granule::text
