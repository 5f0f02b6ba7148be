#include "text/pre_tokenizer.h"

#include "text/byte_chars.h"
#include "text/pattern.h"
#include "text/split.h"
#include "text/utf8.h"

namespace granule::text {
namespace {

constexpr int kMaxParts = 256;  // of a Sequence, over all levels

// GPT-2's words: contractions, then letters, numbers and other signs with at most one space before
// them, then white space that leaves the last space to the next word.
constexpr std::string_view kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class SplitByChars : public PreTokenizerStep {
 public:
  SplitByChars(bool (*test)(char32_t), bool runs, Behavior behavior, bool invert)
      : test_(test), runs_(runs), behavior_(behavior), invert_(invert) {}
  Status Apply(Pieces* pieces) const override {
    return SplitPieces(
        [this](std::string_view text, std::vector<Span>* matches) {
          FindChars(text, test_, runs_, matches);
          return Status();
        },
        behavior_, invert_, pieces);
  }

 private:
  bool (*const test_)(char32_t);
  const bool runs_;
  const Behavior behavior_;
  const bool invert_;
};

class SplitByPattern : public PreTokenizerStep {
 public:
  SplitByPattern(std::shared_ptr<const Pattern> pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  Status Apply(Pieces* pieces) const override {
    return SplitPieces(
        [this](std::string_view text, std::vector<Span>* matches) {
          return pattern_->FindAll(text, matches);
        },
        behavior_, invert_, pieces);
  }

 private:
  const std::shared_ptr<const Pattern> pattern_;
  const Behavior behavior_;
  const bool invert_;
};

// Runs of word characters and runs of everything else that is not white space.
class Whitespace : public PreTokenizerStep {
 public:
  Status Apply(Pieces* pieces) const override {
    return SplitPieces(
        [](std::string_view text, std::vector<Span>* matches) {
          enum { kSpace, kWord, kOther } previous = kSpace;
          for (size_t pos = 0; pos < text.size();) {
            const size_t begin = pos;
            const char32_t c = NextChar(text, &pos);
            const auto now = IsWhitespace(c) ? kSpace : (IsWordChar(c) ? kWord : kOther);
            if (now != kSpace && now == previous) {
              matches->back().end = pos;
            } else if (now != kSpace) {
              matches->push_back({begin, pos});
            }
            previous = now;
          }
          return Status();
        },
        Behavior::kRemoved, /*invert=*/true, pieces);
  }
};

class ByteLevel : public PreTokenizerStep {
 public:
  ByteLevel(bool add_prefix_space, std::unique_ptr<Regex> words)
      : add_prefix_space_(add_prefix_space), words_(std::move(words)) {}

  Status Apply(Pieces* pieces) const override {
    if (add_prefix_space_) {
      RewritePieces(
          [](std::string_view text, const Piece&, std::string* out) {
            if (!text.starts_with(' ')) out->push_back(' ');
            out->append(text);
          },
          pieces);
    }
    if (words_ != nullptr) {
      const auto find = [this](std::string_view text, std::vector<Span>* matches) {
        return words_->FindAll(text, matches);
      };
      if (Status s = SplitPieces(find, Behavior::kIsolated, /*invert=*/false, pieces); !s.ok()) {
        return s;
      }
    }
    RewritePieces(
        [](std::string_view text, const Piece&, std::string* out) { AppendByteChars(text, out); },
        pieces);
    return {};
  }

 private:
  const bool add_prefix_space_;
  const std::unique_ptr<Regex> words_;  // null: the text stays whole
};

enum class PrependScheme { kAlways, kFirst, kNever };

class Metaspace : public PreTokenizerStep {
 public:
  Metaspace(char32_t replacement, PrependScheme scheme, bool split)
      : scheme_(scheme), split_(split) {
    AppendUtf8(replacement, &mark_);
  }

  Status Apply(Pieces* pieces) const override {
    RewritePieces(
        [this](std::string_view text, const Piece& piece, std::string* out) {
          const bool wanted = scheme_ == PrependScheme::kAlways ||
                              (scheme_ == PrependScheme::kFirst && piece.at_start);
          if (wanted && !text.starts_with(' ') && !text.starts_with(mark_)) out->append(mark_);
          for (const char c : text) {
            if (c == ' ') {
              out->append(mark_);
            } else {
              out->push_back(c);
            }
          }
        },
        pieces);
    if (!split_) return {};
    return SplitPieces(
        [this](std::string_view text, std::vector<Span>* matches) {
          for (size_t pos = text.find(mark_); pos != text.npos;
               pos = text.find(mark_, pos + mark_.size())) {
            matches->push_back({pos, pos + mark_.size()});
          }
          return Status();
        },
        Behavior::kMergedWithNext, /*invert=*/false, pieces);
  }

 private:
  std::string mark_;
  const PrependScheme scheme_;
  const bool split_;
};

using StepResult = Result<std::unique_ptr<PreTokenizerStep>>;

template <class Step, class... Args>
StepResult Make(Args&&... args) {
  return std::unique_ptr<PreTokenizerStep>(std::make_unique<Step>(std::forward<Args>(args)...));
}

StepResult ParseByteLevel(Fields* fields) {
  const bool add_prefix_space = fields->Bool("add_prefix_space", true);
  std::unique_ptr<Regex> words;
  if (fields->Bool("use_regex", true)) {
    Result<std::unique_ptr<Regex>> compiled = Regex::Compile(kGpt2Words);
    if (!compiled.ok()) return compiled.status();
    words = *std::move(compiled);
  }
  return Make<ByteLevel>(add_prefix_space, std::move(words));
}

StepResult ParseSplit(const JsonValue& value, const std::string& path, Fields* fields) {
  Result<std::shared_ptr<const Pattern>> pattern =
      Pattern::Parse(value.Find("pattern"), path + ".pattern");
  if (!pattern.ok()) return pattern.status();
  Result<Behavior> behavior = ParseBehavior(fields->RequiredString("behavior"), path + ".behavior");
  const bool invert = fields->Bool("invert", false);
  if (!fields->status().ok()) return fields->status();
  if (!behavior.ok()) return behavior.status();
  return Make<SplitByPattern>(*std::move(pattern), *behavior, invert);
}

StepResult ParseMetaspace(const JsonValue& value, Fields* fields) {
  const char32_t mark = fields->Char("replacement", U'\u2581');
  const bool split = fields->Bool("split", true);
  // Files from before prepend_scheme say add_prefix_space alone.
  const bool add_prefix_space = fields->Bool("add_prefix_space", true);
  const std::string name = fields->String("prepend_scheme", add_prefix_space ? "always" : "never");
  PrependScheme scheme = PrependScheme::kAlways;
  if (name == "first") {
    scheme = PrependScheme::kFirst;
  } else if (name == "never") {
    scheme = PrependScheme::kNever;
  } else if (name != "always") {
    fields->Fail(InvalidInput("{} is \"{}\"; it must be always, first or never",
                              fields->PathOf("prepend_scheme"), name));
  }
  if (value.Find("add_prefix_space") != nullptr && !add_prefix_space &&
      scheme != PrependScheme::kNever) {
    fields->Fail(InvalidInput("{} is false but prepend_scheme is \"{}\"; one of them is wrong",
                              fields->PathOf("add_prefix_space"), name));
  }
  return Make<Metaspace>(mark, scheme, split);
}

Status ParseInto(const JsonValue& value, const std::string& path,
                 std::vector<std::unique_ptr<PreTokenizerStep>>* steps) {
  Fields fields(value, path);
  const std::string type = fields.RequiredString("type");
  if (!fields.status().ok()) return fields.status();
  if (steps->size() >= kMaxParts)
    return InvalidInput("{} is one of more than {} parts", path, kMaxParts);

  if (type == "Sequence") {
    const JsonValue* parts = fields.RequiredArray("pretokenizers");
    for (size_t i = 0; i < parts->items.size() && fields.status().ok(); ++i) {
      fields.Fail(ParseInto(parts->items[i], Format("{}.pretokenizers[{}]", path, i), steps));
    }
    return fields.status();
  }
  StepResult step = std::unique_ptr<PreTokenizerStep>();
  if (type == "ByteLevel") {
    step = ParseByteLevel(&fields);
  } else if (type == "Split") {
    step = ParseSplit(value, path, &fields);
  } else if (type == "Metaspace") {
    step = ParseMetaspace(value, &fields);
  } else if (type == "Digits") {
    const bool each = fields.Bool("individual_digits", false);
    step = Make<SplitByChars>(&IsNumeric, /*runs=*/!each, Behavior::kIsolated, false);
  } else if (type == "Punctuation") {
    Result<Behavior> behavior =
        ParseBehavior(fields.String("behavior", "Isolated"), fields.PathOf("behavior"));
    if (!behavior.ok()) return behavior.status();
    step = Make<SplitByChars>(&IsPunctuation, /*runs=*/false, *behavior, false);
  } else if (type == "WhitespaceSplit") {
    step = Make<SplitByChars>(&IsWhitespace, /*runs=*/false, Behavior::kRemoved, false);
  } else if (type == "Whitespace") {
    step = Make<Whitespace>();
  } else {
    return InvalidInput(
        "{} is a pre-tokenizer of type \"{}\", which is not supported (supported: Sequence, "
        "ByteLevel, "
        "Split, Digits, Metaspace, Whitespace, WhitespaceSplit, Punctuation)",
        path, type);
  }
  if (!step.ok()) return step.status();
  steps->push_back(*std::move(step));
  return fields.status();
}

}  // namespace

Result<std::unique_ptr<const PreTokenizer>> PreTokenizer::Parse(const JsonValue* value) {
  auto pre_tokenizer = std::make_unique<PreTokenizer>();
  if (value != nullptr && !value->is_null()) {
    if (Status s = ParseInto(*value, "pre_tokenizer", &pre_tokenizer->steps_); !s.ok()) return s;
  }
  return std::unique_ptr<const PreTokenizer>(std::move(pre_tokenizer));
}

Status PreTokenizer::Apply(Pieces* pieces) const {
  for (const auto& step : steps_) {
    if (Status s = step->Apply(pieces); !s.ok()) return s;
  }
  return {};
}

}  // namespace granule::text
