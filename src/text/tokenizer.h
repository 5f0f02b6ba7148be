// Text <-> token ids, exactly as Hugging Face tokenizers does it for tokenizer.json files of byte-level BPE models.
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
  bool add_special_tokens = false;    // what the post-processor adds (BOS, ...)
  bool parse_special_tokens = true;   // recognise special added tokens in the text; false: they are ordinary text
};

class Tokenizer {
 public:
  // Refuses what is not a tokenizer.json, or uses a part that is not built, naming the part and its place in the file.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::filesystem::path& tokenizer_json);
  static Result<std::unique_ptr<Tokenizer>> Parse(std::string_view json, const std::string& name_for_errors);
  virtual ~Tokenizer() = default;

  // The text must be UTF-8; otherwise the error gives the byte offset. Const and thread-safe.
  virtual Result<std::vector<TokenId>> Encode(std::string_view text, const EncodeOptions& options) const = 0;

  // Ids outside the vocabulary decode to nothing. Bytes that are no UTF-8 become U+FFFD as Hugging Face does it.
  virtual std::string Decode(std::span<const TokenId> ids, bool skip_special_tokens) const = 0;

  // The raw bytes of one token: what it contributes before UTF-8 repair. Empty for ids outside the vocabulary. Views into the tokenizer.
  virtual std::string_view TokenBytes(TokenId id) const = 0;
  virtual bool IsSpecial(TokenId id) const = 0;
  virtual TokenId FindToken(std::string_view content) const = 0;  // -1 when absent
  virtual int64_t vocab_size() const = 0;  // one more than the largest id
};

// Feeds text out as it becomes final: never half a character, never something that must be taken back. The joined pieces
// (with Finish) equal the Decode of all ids.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  std::string Push(TokenId id);  // text that is final now, maybe empty
  std::string Finish();          // what is left; incomplete bytes as U+FFFD

 private:
  const Tokenizer& tokenizer_;
  const bool skip_special_tokens_;
  std::string pending_;  // bytes of a character that is not complete yet
};

}  // namespace granule::text
