// What tokenizer.json's `post_processor` does to the ids of one text: put special tokens around
// them.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "text/json.h"
#include "text/tokenizer.h"

namespace granule::text {

class PostProcessor {
 public:
  // Null, or a JSON null: the ids stay as they are.
  static Result<std::unique_ptr<const PostProcessor>> Parse(const JsonValue* value);

  void Apply(bool add_special_tokens, std::vector<TokenId>* ids) const;

 private:
  // A template: fixed ids, or the place of the text's own.
  struct Item {
    bool is_text = false;
    std::vector<TokenId> ids;
  };
  using Template = std::vector<Item>;

  static Status ParseInto(const JsonValue& value, const std::string& path,
                          std::vector<Template>* templates);
  static Status ParseTemplate(const JsonValue& value, const std::string& path, Template* out);
  static Status ParseFrame(const JsonValue& value, const std::string& path, Template* out);

  std::vector<Template> templates_;  // applied in order
};

}  // namespace granule::text
