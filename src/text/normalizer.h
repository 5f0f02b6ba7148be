// What tokenizer.json's `normalizer` does to a piece of text before it is cut.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/json.h"

namespace granule::text {

class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  // In place, on valid UTF-8. Sets *moved_start when characters vanished from the front.
  virtual Status Apply(std::string* text, bool* moved_start) const = 0;
};

class Normalizer {
 public:
  // Null, or a JSON null: nothing is changed.
  static Result<std::unique_ptr<const Normalizer>> Parse(const JsonValue* value);

  bool empty() const { return steps_.empty(); }

  // Appends the normalized form of text. *moved_start: the first character of the text is gone, so
  // the result does not begin where the text did (Metaspace's "first" asks).
  Status Append(std::string_view text, std::string* out, bool* moved_start) const;

 private:
  std::vector<std::unique_ptr<NormalizerStep>> steps_;
};

}  // namespace granule::text
