// The configuration files that onnxruntime-genai reads beside the decoder of decoder_graph.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "package/decoder_graph.h"

namespace granule::package {

struct TokenRoles {
  std::optional<int64_t> bos_id, pad_id;
  std::vector<int64_t> eos_ids;  // first the one that is stated alone; may be empty
};

// genai_config.json as onnxruntime-genai's builder writes it for the CPU. `type`: "llama", "qwen2".
std::string GenaiConfigText(const std::string& type, const DecoderShape& shape, int64_t hidden,
                            const TokenRoles& tokens);

std::string GenerationConfigText(const TokenRoles& tokens);

}  // namespace granule::package
