// What a run starts from: text given in one of several ways, or token ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/command_line.h"
#include "text/tokenizer.h"

namespace granule::cli {

// All of standard input.
Result<std::string> ReadStandardInput();

// -p TEXT or -f FILE ("-" = standard input), bytes exactly as given. Both, or neither: kUsage.
Result<std::string> ReadPromptText(const Arguments& arguments);

// "1,2,3" -> ids; blanks are not allowed. kUsage with the position of what is no id.
Result<std::vector<text::TokenId>> ParsePromptIds(const std::string& text);

// Text as the model's raw input: special tokens in it are recognised, and those that the tokenizer
// adds are added, as transformers does it. kInvalidInput for bytes that are no UTF-8, and for a
// text that comes to no token at all.
Result<std::vector<text::TokenId>> EncodePrompt(const text::Tokenizer& tokenizer,
                                                const std::string& text);

// Ids outside [0, vocab_size) are kInvalidInput, named with their place.
Status CheckPromptIds(const std::vector<text::TokenId>& ids, int64_t vocab_size);

}  // namespace granule::cli
