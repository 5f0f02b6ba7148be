// Text <-> token ids, exactly as Hugging Face tokenizers does it for tokenizer.json files of
// byte-level and character-level BPE models.
//
// Text -> pieces between added tokens (added_tokens.h) -> normalized (normalizer.h) -> cut
// (pre_tokenizer.h)
// -> ids (bpe.h) -> special tokens around (post_processor.h). Ids -> token strings -> text
// (decoder.h).
//
// Known differences from the reference:
// - `truncation` and `padding` of the file have no effect: a prompt is never cut silently.
// - Characters assigned after Unicode 14 are of no class (letter, number, ...), and have no lower
// case or
//   composed form.
// - With parse_special_tokens off, the model cannot build a special token from its parts either.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace granule::text {

using TokenId = int32_t;

struct EncodeOptions {
  bool add_special_tokens = false;  // what the post-processor adds (BOS, ...)
  // Recognise special added tokens in the text. false: they are ordinary text, as with the
  // reference's encode_special_tokens; added tokens that are not special are recognised all the
  // same.
  bool parse_special_tokens = true;
};

// Turns ids into text while they arrive.
class Detokenizer {
 public:
  virtual ~Detokenizer() = default;
  virtual std::string Push(TokenId id) = 0;  // text that is final now, maybe empty
  virtual std::string Finish() = 0;          // what is left; incomplete bytes as U+FFFD
};

class Tokenizer {
 public:
  // Refuses what is not a tokenizer.json, or uses a part that is not built, naming the part and its
  // place in the file (kInvalidInput).
  static Result<std::unique_ptr<Tokenizer>> Load(const std::filesystem::path& tokenizer_json);
  static Result<std::unique_ptr<Tokenizer>> Parse(std::string_view json,
                                                  const std::string& name_for_errors);
  virtual ~Tokenizer() = default;

  // The text must be UTF-8; otherwise the error (kInvalidInput) gives the byte offset. At most 256
  // MiB. Const and thread-safe.
  virtual Result<std::vector<TokenId>> Encode(std::string_view text,
                                              const EncodeOptions& options) const = 0;

  // Ids outside the vocabulary decode to nothing. Bytes that are no UTF-8 become U+FFFD as Hugging
  // Face does it.
  virtual std::string Decode(std::span<const TokenId> ids, bool skip_special_tokens) const = 0;

  // Decode in instalments; must not outlive the tokenizer.
  virtual std::unique_ptr<Detokenizer> NewDetokenizer(bool skip_special_tokens) const = 0;

  // The raw bytes of one token: what it contributes before UTF-8 repair, where it stands neither
  // first nor last. Empty for ids outside the vocabulary. Views into the tokenizer.
  virtual std::string_view TokenBytes(TokenId id) const = 0;
  virtual bool IsSpecial(TokenId id) const = 0;
  virtual TokenId FindToken(std::string_view content) const = 0;  // -1 when absent
  virtual int64_t vocab_size() const = 0;                         // one more than the largest id
};

// Feeds text out as it becomes final: never half a character, never something that must be taken
// back. The joined pieces (with Finish) equal the Decode of all ids. Not thread-safe; must not
// outlive the tokenizer.
//
// How late text comes depends on the decoder. ByteLevel waits for the rest of a character.
// ByteFallback waits for the end of a run of byte tokens, because one bad byte turns the whole run
// into U+FFFD.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
      : detokenizer_(tokenizer.NewDetokenizer(skip_special_tokens)) {}

  std::string Push(TokenId id) { return detokenizer_->Push(id); }
  std::string Finish() { return detokenizer_->Finish(); }  // last; nothing may be pushed afterwards

 private:
  const std::unique_ptr<Detokenizer> detokenizer_;
};

}  // namespace granule::text
