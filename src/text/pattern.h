// The pattern of Split and Replace: a literal string or a regular expression.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/json.h"
#include "text/regex.h"

namespace granule::text {

class Pattern {
 public:
  // {"String": "..."} or {"Regex": "..."}, at `path` of the file.
  static Result<std::shared_ptr<const Pattern>> Parse(const JsonValue* value,
                                                      const std::string& path);

  Status FindAll(std::string_view text, std::vector<Span>* matches) const;

  bool is_literal() const { return regex_ == nullptr; }
  const std::string& literal() const { return literal_; }

 private:
  std::string literal_;
  std::unique_ptr<Regex> regex_;
};

// text with every match replaced by `content`, which is literal.
Status ReplaceAll(const Pattern& pattern, std::string_view content, std::string_view text,
                  std::string* out);

}  // namespace granule::text
