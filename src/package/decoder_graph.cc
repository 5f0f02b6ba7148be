#include "package/decoder_graph.h"

#include <cmath>
#include <span>
#include <utility>

namespace granule::package {
namespace {

// TensorProto.DataType
constexpr int64_t kOnnxFloat = 1, kOnnxInt32 = 6, kOnnxFloat16 = 10;

constexpr const char* kSeqlens = "/model/attn_mask_reformat/attn_mask_subgraph/Sub/Cast/output_0";
constexpr const char* kTotal = "/model/attn_mask_reformat/attn_mask_subgraph/Gather/Cast/output_0";

class GraphWriter {
 public:
  GraphWriter(const DecoderShape& shape, DecoderWeights& weights, onnx::ModelWriter& writer)
      : shape_(shape), weights_(weights), out_(writer) {}

  Status Write() {
    AddPorts();
    if (Status s = AddMask(); !s.ok()) return s;
    if (Status s = AddRopeTables(); !s.ok()) return s;
    Result<std::string> embedding = weights_.AddEmbedding();
    if (!embedding.ok()) return embedding.status();

    // `hidden` is the residual stream, `normed` what the next block reads.
    std::string hidden = *embedding;
    std::string normed = "/model/layers.0/input_layernorm/output_0";
    const std::string gamma = "model.layers.0.input_layernorm.weight";
    if (Status s = weights_.AddNorm(Norm::kAttention, 0, gamma); !s.ok()) return s;
    out_.AddNode(
        "SimplifiedLayerNormalization", "", "/model/layers.0/input_layernorm/LayerNorm",
        {hidden, gamma}, {normed},
        {{"axis", int64_t{-1}}, {"epsilon", shape_.rms_epsilon}, {"stash_type", int64_t{1}}});
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      if (Status s = AddLayer(layer, &hidden, &normed); !s.ok()) return s;
    }
    return weights_.AddHead(normed);
  }

 private:
  void AddPorts() {
    const onnx::WriterDim batch = "batch_size", total = "total_sequence_length";
    out_.AddInput("input_ids", DType::kI64, {batch, "sequence_length"});
    out_.AddInput("attention_mask", DType::kI64, {batch, total});
    out_.AddOutput("logits", DType::kF32, {batch, "sequence_length", shape_.vocab});
    for (int64_t i = 0; i < shape_.layers; ++i) {
      for (const char* part : {"key", "value"}) {
        out_.AddInput(Format("past_key_values.{}.{}", i, part), shape_.kv,
                      {batch, shape_.kv_heads, "past_sequence_length", shape_.head_dim});
        out_.AddOutput(Format("present.{}.{}", i, part), shape_.kv,
                       {batch, shape_.kv_heads, total, shape_.head_dim});
      }
    }
  }

  Status AddInts(const std::string& name, const std::vector<int64_t>& values,
                 std::vector<int64_t> dims) {
    return out_.AddTensor(name, DType::kI64, std::move(dims), std::as_bytes(std::span(values)));
  }

  // attention_mask -> seqlens_k int32 [B] (valid tokens - 1) and total_sequence_length int32 (its
  // second dimension).
  Status AddMask() {
    if (Status s = AddInts("/model/constants/INT64/[1]", {1}, {1}); !s.ok()) return s;
    if (Status s = AddInts("/model/constants/INT64/1", {1}, {}); !s.ok()) return s;
    const std::string base = "/model/attn_mask_reformat/attn_mask_subgraph";
    out_.AddNode("ReduceSum", "", base + "/ReduceSum",
                 {"attention_mask", "/model/constants/INT64/[1]"}, {base + "/ReduceSum/output_0"},
                 {{"keepdims", int64_t{0}}});
    out_.AddNode("Sub", "", base + "/Sub",
                 {base + "/ReduceSum/output_0", "/model/constants/INT64/[1]"},
                 {base + "/Sub/output_0"}, {});
    out_.AddNode("Cast", "", base + "/Sub/Cast", {base + "/Sub/output_0"}, {kSeqlens},
                 {{"to", kOnnxInt32}});
    out_.AddNode("Shape", "", base + "/Shape", {"attention_mask"}, {base + "/Shape/output_0"}, {});
    out_.AddNode("Gather", "", base + "/Gather",
                 {base + "/Shape/output_0", "/model/constants/INT64/1"},
                 {base + "/Gather/output_0"}, {{"axis", int64_t{0}}});
    out_.AddNode("Cast", "", base + "/Gather/Cast", {base + "/Gather/output_0"}, {kTotal},
                 {{"to", kOnnxInt32}});
    return {};
  }

  // cos_cache and sin_cache [context, D/2] of KV's type.
  Status AddRopeTables() {
    const auto pairs = static_cast<int64_t>(shape_.rope_frequencies.size());
    for (const bool cosine : {true, false}) {
      Status s =
          out_.BeginTensor(cosine ? "cos_cache" : "sin_cache", shape_.kv, {shape_.context, pairs});
      if (!s.ok()) return s;
      if (!shape_.fill_tables) continue;
      constexpr size_t kPieceNumbers = size_t{1} << 18;
      std::vector<float> piece;
      for (int64_t position = 0; position < shape_.context; ++position) {
        for (const float f : shape_.rope_frequencies) {
          const float angle = static_cast<float>(position) * f;
          piece.push_back(cosine ? std::cos(angle) : std::sin(angle));
        }
        if (piece.size() < kPieceNumbers && position + 1 < shape_.context) continue;
        if (s = AppendAsKv(piece); !s.ok()) return s;
        piece.clear();
      }
    }
    return {};
  }

  Status AppendAsKv(const std::vector<float>& numbers) {
    if (shape_.kv == DType::kF32) return out_.Append(std::as_bytes(std::span(numbers)));
    std::vector<uint16_t> halves(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) halves[i] = F32ToF16(numbers[i]);
    return out_.Append(std::as_bytes(std::span(halves)));
  }

  Result<std::string> AddProduct(Projection projection, int64_t layer, const std::string& place,
                                 const std::string& input) {
    Product product{.projection = projection,
                    .layer = layer,
                    .weight = Format("model.layers.{}.{}.MatMul.weight", layer, place),
                    .node = Format("/model/layers.{}/{}/MatMul", layer, place),
                    .input = input};
    for (char& c : product.weight) c = c == '/' ? '.' : c;
    return weights_.AddProduct(product);
  }

  // Adds `branch` to the residual stream and normalises it for the next block.
  Status AddSkipNorm(Norm norm, int64_t layer, const std::string& base, const std::string& branch,
                     std::string* hidden, std::string* normed) {
    std::string gamma = base.substr(1) + ".weight";
    for (char& c : gamma) c = c == '/' ? '.' : c;
    if (Status s = weights_.AddNorm(norm, layer, gamma); !s.ok()) return s;
    *normed = base + "/output_0";
    std::vector<std::string> outputs = {*normed};
    if (norm != Norm::kFinal) outputs.insert(outputs.end(), {"", "", base + "/output_3"});
    out_.AddNode("SkipSimplifiedLayerNormalization", kMsDomain, base + "/SkipLayerNorm",
                 {*hidden, branch, gamma}, outputs, {{"epsilon", shape_.rms_epsilon}});
    *hidden = base + "/output_3";
    return {};
  }

  std::string AddCast(const std::string& value, int64_t to) {
    const std::string cast = value + "/Cast";
    out_.AddNode("Cast", "", cast, {value}, {cast + "/output_0"}, {{"to", to}});
    return cast + "/output_0";
  }

  Result<std::string> AddAttention(int64_t layer, const std::string& input) {
    const std::pair<Projection, const char*> parts[] = {{Projection::kQuery, "attn/q_proj"},
                                                        {Projection::kKey, "attn/k_proj"},
                                                        {Projection::kValue, "attn/v_proj"}};
    const bool half = shape_.kv == DType::kF16;
    std::vector<std::string> inputs;
    for (const auto& [projection, place] : parts) {
      Result<std::string> rows = AddProduct(projection, layer, place, input);
      if (!rows.ok()) return rows;
      inputs.push_back(half ? AddCast(*rows, kOnnxFloat16) : *rows);
    }
    inputs.insert(inputs.end(), {Format("past_key_values.{}.key", layer),
                                 Format("past_key_values.{}.value", layer), kSeqlens, kTotal,
                                 "cos_cache", "sin_cache"});
    const std::string base = Format("/model/layers.{}/attn/GroupQueryAttention", layer);
    std::string output = base + "/output_0";
    out_.AddNode("GroupQueryAttention", kMsDomain, base, std::move(inputs),
                 {output, Format("present.{}.key", layer), Format("present.{}.value", layer)},
                 {{"num_heads", shape_.heads},
                  {"kv_num_heads", shape_.kv_heads},
                  {"scale", 1.0f / std::sqrt(static_cast<float>(shape_.head_dim))},
                  {"local_window_size", int64_t{-1}},
                  {"do_rotary", int64_t{1}},
                  {"rotary_interleaved", int64_t{0}}});
    if (half) output = AddCast(output, kOnnxFloat);
    return AddProduct(Projection::kOutput, layer, "attn/o_proj", output);
  }

  Result<std::string> AddFeedForward(int64_t layer, const std::string& input) {
    Result<std::string> gate = AddProduct(Projection::kGate, layer, "mlp/gate_proj", input);
    if (!gate.ok()) return gate;
    Result<std::string> up = AddProduct(Projection::kUp, layer, "mlp/up_proj", input);
    if (!up.ok()) return up;
    const std::string base = Format("/model/layers.{}/mlp", layer);
    out_.AddNode("Sigmoid", "", base + "/act_fn/Sigmoid", {*gate},
                 {base + "/act_fn/Sigmoid/output_0"}, {});
    out_.AddNode("Mul", "", base + "/act_fn/Mul", {*gate, base + "/act_fn/Sigmoid/output_0"},
                 {base + "/act_fn/Mul/output_0"}, {});
    out_.AddNode("Mul", "", base + "/Mul", {base + "/act_fn/Mul/output_0", *up},
                 {base + "/Mul/output_0"}, {});
    return AddProduct(Projection::kDown, layer, "mlp/down_proj", base + "/Mul/output_0");
  }

  Status AddLayer(int64_t layer, std::string* hidden, std::string* normed) {
    Result<std::string> branch = AddAttention(layer, *normed);
    if (!branch.ok()) return branch.status();
    Status s = AddSkipNorm(Norm::kFeedForward, layer,
                           Format("/model/layers.{}/post_attention_layernorm", layer), *branch,
                           hidden, normed);
    if (!s.ok()) return s;
    branch = AddFeedForward(layer, *normed);
    if (!branch.ok()) return branch.status();
    const int64_t next = layer + 1;
    const bool last = next == shape_.layers;
    return AddSkipNorm(last ? Norm::kFinal : Norm::kAttention, next,
                       last ? "/model/norm" : Format("/model/layers.{}/input_layernorm", next),
                       *branch, hidden, normed);
  }

  const DecoderShape& shape_;
  DecoderWeights& weights_;
  onnx::ModelWriter& out_;
};

}  // namespace

Status WriteDecoderGraph(const DecoderShape& shape, DecoderWeights& weights,
                         onnx::ModelWriter& writer) {
  return GraphWriter(shape, weights, writer).Write();
}

float RopeFrequency(float base, int64_t head_dim, int64_t pair) {
  const float exponent = static_cast<float>(2 * pair) / static_cast<float>(head_dim);
  const float power =
      static_cast<float>(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  return 1.0f / power;
}

}  // namespace granule::package
