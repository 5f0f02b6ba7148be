// What the text files of a model folder state about the model, before the graph is asked.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "package/folder.h"
#include "package/package.h"

namespace granule::package {

struct Stated {
  std::string model_type;
  std::optional<std::string> filename;  // genai_config.json model.decoder.filename
  std::optional<Sourced> context_length;
  std::optional<Sourced> vocab_size;
  std::optional<Sourced> head_size;
  std::optional<Sourced> kv_heads;
  std::optional<Sourced> layers;
  std::optional<Sourced> kv_dtype;  // of transformers.js: value is a DType
  std::vector<int32_t> eos_ids;     // in order of appearance, may repeat
  std::optional<int32_t> bos_id, pad_id;
  // Names of graph inputs and outputs by role: "input_ids", "past_key_names"
  // ("past_key_values.%d.key"), ...
  std::map<std::string, std::string> names;
  GenerationDefaults generation;
  std::filesystem::path tokenizer_json;
  std::optional<std::string> chat_template;
  std::optional<uint64_t> source_weight_bytes;  // granule.json
};

// Reads genai_config.json, config.json, generation_config.json, tokenizer_config.json,
// tokenizer.json (its added tokens), chat_template.jinja and granule.json, each where it is there.
// Unknown keys are ignored; a key with a value of the wrong kind, or a file that is broken, is an
// error that names both.
Result<Stated> ReadStated(const ModelFolder& folder, std::vector<std::string>* warnings);

}  // namespace granule::package
