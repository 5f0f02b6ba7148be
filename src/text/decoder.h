// What tokenizer.json's `decoder` does: token strings -> text.
//
// Every step is a transducer that works while tokens arrive, so decoding at once and decoding as a
// stream are the same code and give the same text. A step holds back only what a later token may
// still change.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/json.h"
#include "text/pattern.h"

namespace granule::text {

// Receives tokens in parts: Text any number of times, then EndToken; Finish once at the very end.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void Text(std::string_view part) = 0;
  virtual void EndToken() = 0;
  virtual void Finish() = 0;
};

// One parsed step; which members count depends on the kind.
struct DecoderStep {
  enum class Kind {
    kByteLevel,
    kReplace,
    kByteFallback,
    kFuse,
    kStrip,
    kMetaspace,
    kJoinWithSpaces
  };

  Kind kind;
  std::shared_ptr<const Pattern> pattern;  // kReplace
  std::string content;                     // kReplace; the character of kStrip and kMetaspace
  int64_t start = 0;                       // kStrip: how many characters at most
  int64_t stop = 0;
  bool drop_in_first = false;  // kMetaspace: the first token loses the character
};

class Decoder {
 public:
  // Null, or a JSON null: the tokens are joined by spaces, as the reference does without a decoder.
  static Result<std::unique_ptr<const Decoder>> Parse(const JsonValue* value);

  // The steps at work. Feed tokens with Text + EndToken, then Finish. Text that is final is
  // appended to *out, which must outlive the chain.
  class Chain {
   public:
    Chain(const Decoder& decoder, std::string* out);
    ~Chain();
    void Token(std::string_view token);
    void Finish();

   private:
    std::vector<std::unique_ptr<TokenSink>> sinks_;  // the last one is the first to be fed
  };

  // The bytes that a token contributes wherever it does not stand first or last.
  std::string BytesOf(std::string_view token) const;

 private:
  std::vector<DecoderStep> steps_;
};

}  // namespace granule::text
