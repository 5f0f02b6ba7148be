#include "text/decoder_steps.h"

#include <algorithm>
#include <cctype>

#include "text/byte_chars.h"
#include "text/utf8.h"

namespace granule::text {
namespace {

// All tokens' bytes in one run, repaired to UTF-8; one token comes out.
class ByteLevelStep : public TokenSink {
 public:
  explicit ByteLevelStep(TokenSink* next) : next_(next) {}
  void Text(std::string_view part) override { token_ += part; }
  void EndToken() override {
    bytes_.clear();
    AppendBytesOfChars(token_, &bytes_);
    token_.clear();
    text_.clear();
    repair_.Push(bytes_, &text_);
    if (!text_.empty()) next_->Text(text_);
  }
  void Finish() override {
    text_.clear();
    repair_.Finish(&text_);
    if (!text_.empty()) next_->Text(text_);
    next_->EndToken();
    next_->Finish();
  }

 private:
  TokenSink* const next_;
  std::string token_;
  std::string bytes_;
  std::string text_;
  Utf8Repair repair_;
};

// A short literal holds back only what could be the beginning of a match; other patterns need the
// whole token.
class ReplaceStep : public TokenSink {
 public:
  ReplaceStep(const DecoderStep& step, TokenSink* next)
      : pattern_(step.pattern), content_(step.content), next_(next) {}
  void Text(std::string_view part) override {
    token_ += part;
    const std::string& literal = pattern_->literal();
    if (!pattern_->is_literal() || literal.empty() || literal.size() > kMaxStreamedLiteral) return;
    size_t done = 0;
    for (size_t at = token_.find(literal); at != token_.npos; at = token_.find(literal, done)) {
      Emit(std::string_view(token_).substr(done, at - done));
      Emit(content_);
      done = at + literal.size();
    }
    size_t held = std::min(literal.size() - 1, token_.size() - done);
    while (!literal.starts_with(std::string_view(token_).substr(token_.size() - held))) --held;
    Emit(std::string_view(token_).substr(done, token_.size() - held - done));
    token_.erase(0, token_.size() - held);
  }
  void EndToken() override {
    std::string replaced;
    // Too costly a pattern leaves the token as it is: decoding has no way to fail.
    if (!ReplaceAll(*pattern_, content_, token_, &replaced).ok()) replaced = token_;
    token_.clear();
    Emit(replaced);
    next_->EndToken();
  }
  void Finish() override { next_->Finish(); }

 private:
  static constexpr size_t kMaxStreamedLiteral = 64;

  void Emit(std::string_view text) {
    if (!text.empty()) next_->Text(text);
  }
  const std::shared_ptr<const Pattern> pattern_;
  const std::string content_;
  TokenSink* const next_;
  std::string token_;
};

// A run of byte tokens becomes one token when its bytes are UTF-8, else one U+FFFD for each byte.
// So nothing of a run is final before its end: the reference would take whole characters back.
class ByteFallbackStep : public TokenSink {
 public:
  explicit ByteFallbackStep(TokenSink* next) : next_(next) {}
  void Text(std::string_view part) override {
    if (passing_) {
      if (!part.empty()) next_->Text(part);
      return;
    }
    token_ += part;
    if (token_.size() <= kByteTokenLength) return;
    FlushRun();
    passing_ = true;
    next_->Text(token_);
    token_.clear();
  }
  void EndToken() override {
    if (!passing_) {
      const int byte = ByteOfFallbackToken(token_);
      if (byte >= 0) {
        run_ += static_cast<char>(byte);
        token_.clear();
        return;
      }
      FlushRun();
      if (!token_.empty()) next_->Text(token_);
    }
    next_->EndToken();
    token_.clear();
    passing_ = false;
  }
  void Finish() override {
    FlushRun();
    next_->Finish();
  }

 private:
  static constexpr size_t kByteTokenLength = 6;

  void FlushRun() {
    if (run_.empty()) return;
    if (FindInvalidUtf8(run_).has_value()) {
      for (size_t i = 0; i < run_.size(); ++i) {
        next_->Text("\xEF\xBF\xBD");
        next_->EndToken();
      }
    } else {
      next_->Text(run_);
      next_->EndToken();
    }
    run_.clear();
  }

  TokenSink* const next_;
  std::string token_;     // of a token that is short enough to be a byte token yet
  bool passing_ = false;  // this token is too long to be one
  std::string run_;
};

class FuseStep : public TokenSink {
 public:
  explicit FuseStep(TokenSink* next) : next_(next) {}
  void Text(std::string_view part) override { next_->Text(part); }
  void EndToken() override {}
  void Finish() override {
    next_->EndToken();
    next_->Finish();
  }

 private:
  TokenSink* const next_;
};

// Removes up to `start` characters from the front of every token and up to `stop` from its back, as
// long as they are the one character.
class StripStep : public TokenSink {
 public:
  StripStep(const DecoderStep& step, TokenSink* next) : step_(step), next_(next) {}
  void Text(std::string_view part) override {
    // Parts end at character borders, so the character is not cut.
    while (at_front_ && stripped_ < step_.start && part.starts_with(step_.content)) {
      part.remove_prefix(step_.content.size());
      ++stripped_;
    }
    if (part.empty()) return;
    at_front_ = false;
    size_t tail = part.size();
    while (std::string_view(part).substr(0, tail).ends_with(step_.content)) {
      tail -= step_.content.size();
    }
    if (tail > 0) {
      EmitHeld(held_);
      next_->Text(part.substr(0, tail));
    }
    held_ += static_cast<int64_t>((part.size() - tail) / step_.content.size());
    // More than `stop` of them: the surplus in front stays.
    if (held_ > step_.stop) EmitHeld(held_ - step_.stop);
  }
  void EndToken() override {
    EmitHeld(std::max<int64_t>(held_ - step_.stop, 0));
    held_ = 0;
    stripped_ = 0;
    at_front_ = true;
    next_->EndToken();
  }
  void Finish() override { next_->Finish(); }

 private:
  void EmitHeld(int64_t count) {
    std::string text;
    for (int64_t i = 0; i < count; ++i) text += step_.content;
    held_ -= count;
    if (!text.empty()) next_->Text(text);
  }

  const DecoderStep step_;
  TokenSink* const next_;
  bool at_front_ = true;
  int64_t stripped_ = 0;
  int64_t held_ = 0;  // characters at the end so far that may have to go
};

// The mark becomes a space; the first token may lose its marks instead.
class MetaspaceStep : public TokenSink {
 public:
  MetaspaceStep(const DecoderStep& step, TokenSink* next) : step_(step), next_(next) {}
  void Text(std::string_view part) override {
    std::string text;
    size_t done = 0;
    for (size_t at = part.find(step_.content); at != part.npos;
         at = part.find(step_.content, done)) {
      text += part.substr(done, at - done);
      if (!(first_ && step_.drop_in_first)) text += ' ';
      done = at + step_.content.size();
    }
    text += part.substr(done);
    if (!text.empty()) next_->Text(text);
  }
  void EndToken() override {
    first_ = false;
    next_->EndToken();
  }
  void Finish() override { next_->Finish(); }

 private:
  const DecoderStep step_;
  TokenSink* const next_;
  bool first_ = true;
};

class JoinWithSpacesStep : public TokenSink {
 public:
  explicit JoinWithSpacesStep(TokenSink* next) : next_(next) {}
  void Text(std::string_view part) override {
    if (separate_) next_->Text(" ");
    separate_ = false;
    next_->Text(part);
  }
  void EndToken() override { separate_ = true; }
  void Finish() override { next_->Finish(); }

 private:
  TokenSink* const next_;
  bool separate_ = false;
};

}  // namespace

std::unique_ptr<TokenSink> MakeDecoderStep(const DecoderStep& step, TokenSink* next) {
  switch (step.kind) {
    case DecoderStep::Kind::kByteLevel:
      return std::make_unique<ByteLevelStep>(next);
    case DecoderStep::Kind::kReplace:
      return std::make_unique<ReplaceStep>(step, next);
    case DecoderStep::Kind::kByteFallback:
      return std::make_unique<ByteFallbackStep>(next);
    case DecoderStep::Kind::kFuse:
      return std::make_unique<FuseStep>(next);
    case DecoderStep::Kind::kStrip:
      return std::make_unique<StripStep>(step, next);
    case DecoderStep::Kind::kMetaspace:
      return std::make_unique<MetaspaceStep>(step, next);
    case DecoderStep::Kind::kJoinWithSpaces:
      break;
  }
  return std::make_unique<JoinWithSpacesStep>(next);
}

int ByteOfFallbackToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    if (!std::isxdigit(static_cast<unsigned char>(c))) return -1;
    value = value * 16 + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return value;
}

namespace {

class StringSink : public TokenSink {
 public:
  void Text(std::string_view part) override { text += part; }
  void EndToken() override {}
  void Finish() override {}
  std::string text;
};

}  // namespace

std::string StripChars(std::string_view text, const DecoderStep& step) {
  StringSink sink;
  StripStep strip(step, &sink);
  strip.Text(text);
  strip.EndToken();
  return std::move(sink.text);
}

}  // namespace granule::text
