#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>

#include "text/byte_chars.h"
#include "text/pattern.h"
#include "text/unicode_form.h"
#include "text/utf8.h"

namespace granule::text {
namespace {

constexpr int kMaxParts = 256;  // of a Sequence, over all levels

class Unicode : public NormalizerStep {
 public:
  explicit Unicode(UnicodeForm form) : form_(form) {}
  Status Apply(std::string* text, bool*) const override {
    Normalize(form_, text);
    return {};
  }

 private:
  const UnicodeForm form_;
};

class Replace : public NormalizerStep {
 public:
  Replace(std::shared_ptr<const Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  Status Apply(std::string* text, bool*) const override {
    std::string out;
    out.reserve(text->size());
    if (Status s = ReplaceAll(*pattern_, content_, *text, &out); !s.ok()) return s;
    *text = std::move(out);
    return {};
  }

 private:
  const std::shared_ptr<const Pattern> pattern_;
  const std::string content_;
};

class Prepend : public NormalizerStep {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  Status Apply(std::string* text, bool*) const override {
    if (!text->empty()) text->insert(0, prefix_);
    return {};
  }

 private:
  const std::string prefix_;
};

// Character by character, so the Greek final sigma has no special case (as in the reference).
class Lowercase : public NormalizerStep {
 public:
  Status Apply(std::string* text, bool*) const override {
    std::string out;
    out.reserve(text->size());
    for (size_t pos = 0; pos < text->size();) {
      const char32_t c = NextChar(*text, &pos);
      if (c == 0x130) {
        out += "i\xCC\x87";  // the one character whose lower case is two
      } else {
        AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), &out);
      }
    }
    *text = std::move(out);
    return {};
  }
};

class Strip : public NormalizerStep {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  Status Apply(std::string* text, bool* moved_start) const override {
    size_t begin = 0;
    size_t end = 0;  // behind the last character that stays
    bool leading = left_;
    for (size_t pos = 0; pos < text->size();) {
      const bool space = IsWhitespace(NextChar(*text, &pos));
      if (leading && space) begin = pos;
      leading = leading && space;
      if (!space) end = pos;
    }
    if (!right_) end = text->size();
    end = std::max(begin, end);
    if (begin > 0) *moved_start = true;
    *text = text->substr(begin, end - begin);
    return {};
  }

 private:
  const bool left_;
  const bool right_;
};

class StripAccents : public NormalizerStep {
 public:
  Status Apply(std::string* text, bool*) const override {
    std::string out;
    for (size_t pos = 0; pos < text->size();) {
      const char32_t c = NextChar(*text, &pos);
      if (!IsCombiningMark(c)) AppendUtf8(c, &out);
    }
    *text = std::move(out);
    return {};
  }
};

class ByteLevel : public NormalizerStep {
 public:
  Status Apply(std::string* text, bool*) const override {
    std::string out;
    AppendByteChars(*text, &out);
    *text = std::move(out);
    return {};
  }
};

Status ParseInto(const JsonValue& value, const std::string& path,
                 std::vector<std::unique_ptr<NormalizerStep>>* steps) {
  Fields fields(value, path);
  const std::string type = fields.RequiredString("type");
  if (!fields.status().ok()) return fields.status();
  if (steps->size() >= kMaxParts)
    return InvalidInput("{} is one of more than {} parts", path, kMaxParts);

  if (type == "Sequence") {
    const JsonValue* parts = fields.RequiredArray("normalizers");
    for (size_t i = 0; i < parts->items.size() && fields.status().ok(); ++i) {
      fields.Fail(ParseInto(parts->items[i], Format("{}.normalizers[{}]", path, i), steps));
    }
  } else if (type == "NFC") {
    steps->push_back(std::make_unique<Unicode>(UnicodeForm::kNfc));
  } else if (type == "NFD") {
    steps->push_back(std::make_unique<Unicode>(UnicodeForm::kNfd));
  } else if (type == "NFKC") {
    steps->push_back(std::make_unique<Unicode>(UnicodeForm::kNfkc));
  } else if (type == "NFKD") {
    steps->push_back(std::make_unique<Unicode>(UnicodeForm::kNfkd));
  } else if (type == "Replace") {
    Result<std::shared_ptr<const Pattern>> pattern =
        Pattern::Parse(value.Find("pattern"), path + ".pattern");
    std::string content = fields.RequiredString("content");
    if (!pattern.ok()) return pattern.status();
    steps->push_back(std::make_unique<Replace>(*std::move(pattern), std::move(content)));
  } else if (type == "Prepend") {
    steps->push_back(std::make_unique<Prepend>(fields.RequiredString("prepend")));
  } else if (type == "Lowercase") {
    steps->push_back(std::make_unique<Lowercase>());
  } else if (type == "Strip") {
    const bool left = fields.Bool("strip_left", true);
    steps->push_back(std::make_unique<Strip>(left, fields.Bool("strip_right", true)));
  } else if (type == "StripAccents") {
    steps->push_back(std::make_unique<StripAccents>());
  } else if (type == "ByteLevel") {
    steps->push_back(std::make_unique<ByteLevel>());
  } else {
    return InvalidInput(
        "{} is a normalizer of type \"{}\", which is not supported (supported: Sequence, NFC, NFD, "
        "NFKC, "
        "NFKD, Replace, Prepend, Lowercase, Strip, StripAccents, ByteLevel)",
        path, type);
  }
  return fields.status();
}

}  // namespace

Result<std::unique_ptr<const Normalizer>> Normalizer::Parse(const JsonValue* value) {
  auto normalizer = std::make_unique<Normalizer>();
  if (value != nullptr && !value->is_null()) {
    if (Status s = ParseInto(*value, "normalizer", &normalizer->steps_); !s.ok()) return s;
  }
  return std::unique_ptr<const Normalizer>(std::move(normalizer));
}

Status Normalizer::Append(std::string_view text, std::string* out, bool* moved_start) const {
  *moved_start = false;
  std::string work(text);
  for (const auto& step : steps_) {
    if (Status s = step->Apply(&work, moved_start); !s.ok()) return s;
  }
  out->append(work);
  return {};
}

}  // namespace granule::text
