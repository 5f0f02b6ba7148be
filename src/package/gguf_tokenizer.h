// The tokenizer inside a GGUF file -> the files that Hugging Face tokenizers and onnxruntime-genai
// read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "package/gguf.h"

namespace granule::package {

// File contents, ready to be written, and the ids that the model's configuration wants.
struct ImportedTokenizer {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
  std::string special_tokens_map_json;
  std::optional<std::string> chat_template;
  std::optional<int64_t> bos_id, pad_id;
  std::vector<int64_t> eos_ids;  // first the stated one; may be empty
};

// Byte-level BPE only (tokenizer.ggml.model = "gpt2"); other kinds, unknown splits, texts that are
// no UTF-8 and ids outside the vocabulary are refused by name. `logits` is the width of the model's
// output: a tokenizer with more tokens is refused.
Result<ImportedTokenizer> ImportTokenizer(const GgufFile& file, int64_t logits,
                                          std::vector<std::string>* warnings);

}  // namespace granule::package
