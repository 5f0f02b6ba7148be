#include "package/genai_config.h"

#include <nlohmann/json.hpp>

namespace granule::package {
namespace {

using Json = nlohmann::ordered_json;

// One id as a number, several as a list.
Json Ids(const std::vector<int64_t>& ids) { return ids.size() == 1 ? Json(ids[0]) : Json(ids); }

}  // namespace

std::string GenaiConfigText(const std::string& type, const DecoderShape& shape, int64_t hidden,
                            const TokenRoles& tokens) {
  Json model = {{"context_length", shape.context}};
  if (tokens.bos_id) model["bos_token_id"] = *tokens.bos_id;
  if (!tokens.eos_ids.empty()) model["eos_token_id"] = Ids(tokens.eos_ids);
  if (tokens.pad_id) {
    model["pad_token_id"] = *tokens.pad_id;
  } else if (!tokens.eos_ids.empty()) {
    model["pad_token_id"] = tokens.eos_ids[0];
  }
  model["type"] = type;
  model["vocab_size"] = shape.vocab;
  model["decoder"] = {
      {"session_options", {{"log_id", "onnxruntime-genai"}, {"provider_options", Json::array()}}},
      {"filename", "model.onnx"},
      {"head_size", shape.head_dim},
      {"hidden_size", hidden},
      {"inputs",
       {{"input_ids", "input_ids"},
        {"attention_mask", "attention_mask"},
        {"past_key_names", "past_key_values.%d.key"},
        {"past_value_names", "past_key_values.%d.value"}}},
      {"outputs",
       {{"logits", "logits"},
        {"present_key_names", "present.%d.key"},
        {"present_value_names", "present.%d.value"}}},
      {"num_attention_heads", shape.heads},
      {"num_hidden_layers", shape.layers},
      {"num_key_value_heads", shape.kv_heads}};
  const Json file = {{"model", model},
                     {"search",
                      {{"do_sample", false},
                       {"early_stopping", true},
                       {"length_penalty", 1.0},
                       {"max_length", shape.context},
                       {"min_length", 0},
                       {"num_beams", 1},
                       {"num_return_sequences", 1},
                       {"past_present_share_buffer", true},
                       {"repetition_penalty", 1.0},
                       {"temperature", 1.0},
                       {"top_k", 50},
                       {"top_p", 1.0}}}};
  return file.dump(4);
}

std::string GenerationConfigText(const TokenRoles& tokens) {
  Json config = Json::object();
  if (tokens.bos_id) config["bos_token_id"] = *tokens.bos_id;
  if (!tokens.eos_ids.empty()) config["eos_token_id"] = Ids(tokens.eos_ids);
  if (tokens.pad_id) config["pad_token_id"] = *tokens.pad_id;
  return config.dump(2);
}

}  // namespace granule::package
