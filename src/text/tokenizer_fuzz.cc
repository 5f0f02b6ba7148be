// libFuzzer target. Input: a tokenizer.json, a zero byte, and a tail that serves as text and as
// ids.
//
// parser: src/text/[a-z_0-9]+[.]cc
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using granule::text::EncodeOptions;
using granule::text::StreamDecoder;
using granule::text::TokenId;
using granule::text::Tokenizer;

// A hostile pattern may cost its whole step budget at every place, so texts stay short.
constexpr size_t kMaxTailBytes = 256;

void Require(bool condition) {
  if (!condition) std::abort();
}

std::string StreamedText(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip) {
  StreamDecoder stream(tokenizer, skip);
  std::string text;
  for (const TokenId id : ids) {
    const std::string part = stream.Push(id);
    Require(!granule::text::FindInvalidUtf8(part).has_value());
    text += part;
  }
  return text + stream.Finish();
}

void CheckDecode(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  for (const bool skip : {false, true}) {
    Require(StreamedText(tokenizer, ids, skip) == tokenizer.Decode(ids, skip));
  }
  for (const TokenId id : ids) {
    (void)tokenizer.TokenBytes(id);
    (void)tokenizer.IsSpecial(id);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.rfind('\0');
  const std::string_view json = input.substr(0, zero);
  std::string_view tail = zero == input.npos ? std::string_view() : input.substr(zero + 1);
  tail = tail.substr(0, kMaxTailBytes);

  auto tokenizer = Tokenizer::Parse(json, "fuzz");
  if (!tokenizer.ok()) {
    Require(!tokenizer.status().message().empty());
    return 0;
  }
  for (const bool parse_special : {true, false}) {
    EncodeOptions options;
    options.parse_special_tokens = parse_special;
    options.add_special_tokens = parse_special;
    const auto ids = (*tokenizer)->Encode(tail, options);
    if (ids.ok()) CheckDecode(**tokenizer, *ids);
  }
  // The tail once more, as ids that need not exist.
  std::vector<TokenId> ids;
  for (size_t i = 0; i + 1 < tail.size(); i += 2) {
    ids.push_back(static_cast<int16_t>(static_cast<uint8_t>(tail[i]) |
                                       static_cast<uint8_t>(tail[i + 1]) << 8));
  }
  CheckDecode(**tokenizer, ids);
  (void)(*tokenizer)->FindToken(tail);
  return 0;
}
