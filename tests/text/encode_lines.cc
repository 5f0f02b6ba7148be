// Test program: what src/text does, line by line, for comparison with another implementation.
//
//   encode_lines TOKENIZER_JSON encode [no-special] [add-special]   stdin: a JSON string per line
//   encode_lines TOKENIZER_JSON decode|stream [skip-special]        stdin: a JSON array of ids per
//   line
//
// Answers one JSON value per line; an error is an object {"error": "..."}. Exit 3 when the file is
// refused.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "text/tokenizer.h"

namespace {

using granule::text::TokenId;
using Json = nlohmann::json;

Json EncodeLine(const granule::text::Tokenizer& tokenizer, const std::string& text,
                const granule::text::EncodeOptions& options) {
  auto ids = tokenizer.Encode(text, options);
  if (!ids.ok()) return {{"error", ids.status().message()}};
  return *ids;
}

std::string StreamLine(const granule::text::Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                       bool skip_special) {
  granule::text::StreamDecoder decoder(tokenizer, skip_special);
  std::string text;
  for (const TokenId id : ids) text += decoder.Push(id);
  return text + decoder.Finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  auto tokenizer = granule::text::Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str());
    return 3;
  }
  const std::string mode = argv[2];
  granule::text::EncodeOptions options;
  bool skip_special = false;
  for (int i = 3; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "no-special") options.parse_special_tokens = false;
    if (flag == "add-special") options.add_special_tokens = true;
    if (flag == "skip-special") skip_special = true;
  }
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json input = Json::parse(line);
    if (mode == "encode") {
      std::cout << EncodeLine(**tokenizer, input.get<std::string>(), options).dump() << '\n';
      continue;
    }
    const auto ids = input.get<std::vector<TokenId>>();
    const std::string text = mode == "stream" ? StreamLine(**tokenizer, ids, skip_special)
                                              : (*tokenizer)->Decode(ids, skip_special);
    std::cout << Json(text).dump() << '\n';
  }
  return 0;
}
