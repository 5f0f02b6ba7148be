#include "text/pattern.h"

#include "text/utf8.h"

namespace granule::text {

Result<std::shared_ptr<const Pattern>> Pattern::Parse(const JsonValue* value,
                                                      const std::string& path) {
  auto pattern = std::make_shared<Pattern>();
  const JsonValue* literal = value != nullptr ? value->Find("String") : nullptr;
  const JsonValue* regex = value != nullptr ? value->Find("Regex") : nullptr;
  if (literal != nullptr && literal->is_string()) {
    pattern->literal_ = literal->string;
  } else if (regex != nullptr && regex->is_string()) {
    Result<std::unique_ptr<Regex>> compiled = Regex::Compile(regex->string);
    if (!compiled.ok()) return compiled.status().In(path);
    pattern->regex_ = *std::move(compiled);
  } else {
    return InvalidInput("{} must be {{\"String\": ...}} or {{\"Regex\": ...}}", path);
  }
  return std::shared_ptr<const Pattern>(std::move(pattern));
}

Status Pattern::FindAll(std::string_view text, std::vector<Span>* matches) const {
  if (regex_ != nullptr) return regex_->FindAll(text, matches);
  if (literal_.empty()) {
    // Nothing is found before every character and at the end.
    for (size_t pos = 0; pos < text.size(); NextChar(text, &pos)) matches->push_back({pos, pos});
    matches->push_back({text.size(), text.size()});
    return {};
  }
  for (size_t pos = text.find(literal_); pos != text.npos;
       pos = text.find(literal_, pos + literal_.size())) {
    matches->push_back({pos, pos + literal_.size()});
  }
  return {};
}

Status ReplaceAll(const Pattern& pattern, std::string_view content, std::string_view text,
                  std::string* out) {
  std::vector<Span> matches;
  if (Status s = pattern.FindAll(text, &matches); !s.ok()) return s;
  size_t done = 0;
  for (const Span match : matches) {
    out->append(text.substr(done, match.begin - done));
    out->append(content);
    done = match.end;
  }
  out->append(text.substr(done));
  return {};
}

}  // namespace granule::text
