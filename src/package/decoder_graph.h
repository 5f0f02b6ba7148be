// The ONNX graph of a llama-shaped decoder as the builder of onnxruntime-genai writes it for the
// CPU, with weights from anywhere: a GGUF file (llama_graph.h) or a generator (synth_graph.h).
//
//   input_ids [B, S] int64, attention_mask [B, T] int64,
//   past_key_values.N.key/value [B, Hk, past, D]
//   -> logits [B, S, V] fp32, present.N.key/value [B, Hk, T, D]
//
// Rows are fp32. RoPE is fused into GroupQueryAttention through the cos and sin tables, so there is
// no position_ids input. Where KV is fp16, query, key and value are cast before the attention and
// its output after it, and the tables are fp16 too, as the operator asks for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "onnx/writer.h"

namespace granule::package {

struct DecoderShape {
  int64_t layers = 0;
  int64_t context = 0;   // rows of the cos and sin tables
  int64_t heads = 0;     // Hq
  int64_t kv_heads = 0;  // Hk
  int64_t head_dim = 0;  // D, even
  int64_t vocab = 0;     // V
  float rms_epsilon = 1e-5f;
  DType kv = DType::kF32;               // or kF16
  std::vector<float> rope_frequencies;  // [D/2], radians per position
  // false: the tables are announced and not filled, for writers that allow it (synth_memory.h).
  bool fill_tables = true;
};

enum class Projection { kQuery, kKey, kValue, kOutput, kGate, kUp, kDown };
enum class Norm { kAttention, kFeedForward, kFinal };

// Domains and names that both the graph and its weights write.
inline constexpr const char* kMsDomain = "com.microsoft";
inline constexpr const char* kHeadWeight = "lm_head.MatMul.weight";
inline constexpr const char* kTableWeight = "model.embed_tokens.weight";

// One product of a layer: where its initializers and nodes go by name.
struct Product {
  Projection projection = Projection::kQuery;
  int64_t layer = 0;
  std::string weight;  // "model.layers.3.attn.q_proj.MatMul.weight"
  std::string node;    // "/model/layers.3/attn/q_proj/MatMul"; a quantised one adds "NBits"
  std::string input;   // value that is multiplied
};

// What the graph is filled with. Each call adds initializers and the nodes that use them; errors
// stop the writing and are handed on.
class DecoderWeights {
 public:
  virtual ~DecoderWeights() = default;
  // input_ids -> fp32 [B, S, H]; gives the name of that value.
  virtual Result<std::string> AddEmbedding() = 0;
  // fp32 [H] under `name`. `layer` counts for kAttention and kFeedForward.
  virtual Status AddNorm(Norm norm, int64_t layer, const std::string& name) = 0;
  // Gives the name of the product (with its bias, where the model has one).
  virtual Result<std::string> AddProduct(const Product& product) = 0;
  // rows [B, S, H] -> the value "logits".
  virtual Status AddHead(const std::string& rows) = 0;
};

// Adds inputs, outputs, nodes and everything from `weights` to `writer`; the caller finishes it.
Status WriteDecoderGraph(const DecoderShape& shape, DecoderWeights& weights,
                         onnx::ModelWriter& writer);

// The frequency of pair i as transformers computes it: fp32 all the way but the power, which is
// rounded once.
float RopeFrequency(float base, int64_t head_dim, int64_t pair);

}  // namespace granule::package
