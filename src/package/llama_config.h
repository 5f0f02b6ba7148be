// What a GGUF file of the llama architecture says about its model, checked against its own tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "package/gguf.h"

namespace granule::package {

struct LlamaConfig {
  int64_t layers = 0;
  int64_t context_length = 0;
  int64_t hidden = 0;        // H
  int64_t feed_forward = 0;  // F
  int64_t heads = 0;         // Hq
  int64_t kv_heads = 0;      // Hk
  int64_t head_dim = 0;      // D
  int64_t vocab = 0;         // V, rows of the embedding table
  float rms_epsilon = 1e-5f;
  float rope_base = 10000.0f;
  float rope_linear_factor = 1.0f;  // positions are divided by it
  const GgufTensor* rope_factors =
      nullptr;        // F32 [D/2], divides the frequencies (Llama 3.1 and newer); may be absent
  bool tied = false;  // no output.weight: the embedding table is used
};

// Refuses, by name and with expected and found: other architectures, missing or malformed keys,
// tensors of unsupported types (all of them, counted), missing tensors, tensors of other shapes,
// tensors that the architecture does not have, RoPE scaling other than linear, experts. Keys that
// are not understood are added to `warnings`.
Result<LlamaConfig> ReadLlamaConfig(const GgufFile& file, std::vector<std::string>* warnings);

// A weight of layer i: LayerTensor(3, "attn_q") is "blk.3.attn_q.weight".
std::string LayerTensor(int64_t layer, const char* part);

}  // namespace granule::package
