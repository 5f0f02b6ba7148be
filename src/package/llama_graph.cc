#include "package/llama_graph.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "package/gguf_blocks.h"
#include "package/weight_stream.h"

namespace granule::package {
namespace {

constexpr const char* kMs = "com.microsoft";
constexpr int64_t kOnnxInt32 = 6;  // TensorProto.DataType

// llama.cpp's converter stores the rows of attn_q and attn_k so that RoPE turns neighbouring pairs
// (2i, 2i + 1) of a head. ONNX's default turns the halves (i, i + D/2). Output row j * D/2 + i of a
// head is its source row 2i + j.
RowOrder HalvesFromNeighbours(int64_t head_dim) {
  return [head_dim](int64_t r) {
    const int64_t head = r / head_dim, within = r % head_dim;
    const int64_t half = within / (head_dim / 2), pair = within % (head_dim / 2);
    return head * head_dim + 2 * pair + half;
  };
}

// The frequency of pair i as transformers computes it: fp32 all the way but the power, which is
// rounded once.
float InverseFrequency(const LlamaConfig& config, int64_t pair) {
  const float exponent = static_cast<float>(2 * pair) / static_cast<float>(config.head_dim);
  const float power = static_cast<float>(
      std::pow(static_cast<double>(config.rope_base), static_cast<double>(exponent)));
  float frequency = 1.0f / power;
  if (config.rope_factors != nullptr) {
    float factor;
    std::memcpy(&factor, config.rope_factors->bytes.data() + 4 * pair, sizeof factor);
    frequency /= factor;
  }
  return frequency / config.rope_linear_factor;
}

class GraphWriter {
 public:
  GraphWriter(const GgufFile& file, const LlamaConfig& config, onnx::ModelWriter& writer,
              const TensorWritten& written, std::vector<std::string>* warnings)
      : file_(file), config_(config), out_(writer), written_(written), warnings_(warnings) {}

  Status Write() {
    AddPorts();
    if (Status s = AddMask(); !s.ok()) return s;
    if (Status s = AddRopeTables(); !s.ok()) return s;
    std::string hidden;
    if (Status s = AddEmbedding(&hidden); !s.ok()) return s;

    // `hidden` is the residual stream, `normed` what the next block reads.
    std::string normed = "/model/layers.0/input_layernorm/output_0";
    if (Status s = AddVector(LayerTensor(0, "attn_norm"), "model.layers.0.input_layernorm.weight");
        !s.ok())
      return s;
    out_.AddNode(
        "SimplifiedLayerNormalization", "", "/model/layers.0/input_layernorm/LayerNorm",
        {hidden, "model.layers.0.input_layernorm.weight"}, {normed},
        {{"axis", int64_t{-1}}, {"epsilon", config_.rms_epsilon}, {"stash_type", int64_t{1}}});
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      if (Status s = AddLayer(layer, &hidden, &normed); !s.ok()) return s;
    }
    return AddHead(normed);
  }

 private:
  const GgufTensor& Tensor(const std::string& name) const {
    return *file_.FindTensor(name);
  }  // config checked them all

  Status Written(const GgufTensor& tensor) { return written_ ? written_(tensor) : Status(); }

  void AddPorts() {
    const onnx::WriterDim batch = "batch_size", total = "total_sequence_length";
    out_.AddInput("input_ids", DType::kI64, {batch, "sequence_length"});
    out_.AddInput("attention_mask", DType::kI64, {batch, total});
    out_.AddOutput("logits", DType::kF32, {batch, "sequence_length", config_.vocab});
    for (int64_t i = 0; i < config_.layers; ++i) {
      for (const char* part : {"key", "value"}) {
        out_.AddInput(Format("past_key_values.{}.{}", i, part), DType::kF32,
                      {batch, config_.kv_heads, "past_sequence_length", config_.head_dim});
        out_.AddOutput(Format("present.{}.{}", i, part), DType::kF32,
                       {batch, config_.kv_heads, total, config_.head_dim});
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

  // cos_cache and sin_cache fp32 [context_length, D/2].
  Status AddRopeTables() {
    const int64_t pairs = config_.head_dim / 2;
    std::vector<float> frequency(static_cast<size_t>(pairs));
    for (int64_t i = 0; i < pairs; ++i)
      frequency[static_cast<size_t>(i)] = InverseFrequency(config_, i);
    for (const bool cosine : {true, false}) {
      Status s = out_.BeginTensor(cosine ? "cos_cache" : "sin_cache", DType::kF32,
                                  {config_.context_length, pairs});
      if (!s.ok()) return s;
      constexpr size_t kPieceFloats = size_t{1} << 18;
      std::vector<float> piece;
      for (int64_t position = 0; position < config_.context_length; ++position) {
        for (float f : frequency) {
          const float angle = static_cast<float>(position) * f;
          piece.push_back(cosine ? std::cos(angle) : std::sin(angle));
        }
        if (piece.size() < kPieceFloats && position + 1 < config_.context_length) continue;
        if (s = out_.Append(std::as_bytes(std::span(piece))); !s.ok()) return s;
        piece.clear();
      }
    }
    return config_.rope_factors != nullptr ? Written(*config_.rope_factors) : Status();
  }

  Status AddVector(const std::string& tensor, const std::string& name) {
    if (Status s = StreamRows(Tensor(tensor), name, out_); !s.ok()) return s;
    return Written(Tensor(tensor));
  }

  // input_ids -> the rows of the table, fp32 [B, S, H]. A tied table is written here once and read
  // again by AddHead.
  Status AddEmbedding(std::string* hidden) {
    const GgufTensor& table = Tensor("token_embd.weight");
    const std::string base = "/model/embed_tokens";
    if (IsQuantized(table.type) && !HasFloatZeroPoints(table.type)) {
      *hidden = base + "/GatherBlockQuantized/output_0";
      const int64_t bits = BitsOfCodes(table.type);
      std::string codes = "model.embed_tokens.weight_quant",
                  scales = "model.embed_tokens.weight_scales";
      if (config_.tied) {
        // Shared with the product of AddHead, which wants [V, H/32, bytes]; the gather sees it as
        // [V, H * bits / 8].
        if (Status s = StreamQuantized(table, {}, "lm_head.MatMul.weight", out_); !s.ok()) return s;
        const std::string shape =
            Format("/model/constants/INT64/[{}, {}]", config_.vocab, config_.hidden * bits / 8);
        if (Status s = AddInts(shape, {config_.vocab, config_.hidden * bits / 8}, {2}); !s.ok())
          return s;
        out_.AddNode("Reshape", "", base + "/Reshape", {"lm_head.MatMul.weight_quant", shape},
                     {base + "/Reshape/output_0"}, {});
        codes = base + "/Reshape/output_0";
        scales = "lm_head.MatMul.weight_scales";
      } else if (Status s = StreamQuantizedTable(table, "model.embed_tokens.weight", out_);
                 !s.ok()) {
        return s;
      }
      out_.AddNode("GatherBlockQuantized", kMs, base + "/GatherBlockQuantized",
                   {codes, "input_ids", scales}, {*hidden},
                   {{"bits", bits},
                    {"block_size", kBlock},
                    {"gather_axis", int64_t{0}},
                    {"quantize_axis", int64_t{1}}});
      return Written(table);
    }
    if (IsQuantized(table.type)) {
      warnings_->push_back(
          "token_embd.weight is Q4_1: its lookup table is written as float32, because "
          "GatherBlockQuantized "
          "takes no float zero points");
    }
    *hidden = base + "/Gather/output_0";
    if (Status s = StreamRows(table, "model.embed_tokens.weight", out_); !s.ok()) return s;
    out_.AddNode("Gather", "", base + "/Gather", {"model.embed_tokens.weight", "input_ids"},
                 {*hidden}, {});
    return Written(table);
  }

  // MatMulNBits over initializers NAME_quant, NAME_scales, NAME_zero_points that are there already.
  std::string AddQuantizedProduct(const GgufTensor& tensor, const std::string& weight,
                                  const std::string& node, const std::string& input,
                                  std::string output) {
    std::vector<std::string> inputs = {input, weight + "_quant", weight + "_scales"};
    if (HasFloatZeroPoints(tensor.type)) inputs.push_back(weight + "_zero_points");
    out_.AddNode("MatMulNBits", kMs, node, std::move(inputs), {output},
                 {{"K", tensor.row()},
                  {"N", tensor.rows()},
                  {"bits", int64_t{BitsOfCodes(tensor.type)}},
                  {"block_size", kBlock}});
    return output;
  }

  // y = x W^T with a weight of layer `layer`.
  Status AddProduct(int64_t layer, const char* part, const std::string& place,
                    const std::string& input, const RowOrder& order, std::string* output) {
    const GgufTensor& tensor = Tensor(LayerTensor(layer, part));
    std::string weight = Format("model.layers.{}.{}.MatMul.weight", layer, place);
    for (char& c : weight) c = c == '/' ? '.' : c;
    const std::string node = Format("/model/layers.{}/{}/MatMul{}", layer, place,
                                    IsQuantized(tensor.type) ? "NBits" : "");
    *output = node + "/output_0";
    if (IsQuantized(tensor.type)) {
      if (Status s = StreamQuantized(tensor, order, weight, out_); !s.ok()) return s;
      AddQuantizedProduct(tensor, weight, node, input, *output);
    } else {
      if (Status s = StreamTransposed(tensor, order, weight, out_); !s.ok()) return s;
      out_.AddNode("MatMul", "", node, {input, weight}, {*output}, {});
    }
    return Written(tensor);
  }

  // Adds `branch` to the residual stream and normalises it for the next block.
  Status AddSkipNorm(const std::string& tensor, const std::string& weight, const std::string& base,
                     const std::string& branch, bool last, std::string* hidden,
                     std::string* normed) {
    if (Status s = AddVector(tensor, weight); !s.ok()) return s;
    *normed = base + "/output_0";
    std::vector<std::string> outputs = {*normed};
    if (!last) outputs.insert(outputs.end(), {"", "", base + "/output_3"});
    out_.AddNode("SkipSimplifiedLayerNormalization", kMs, base + "/SkipLayerNorm",
                 {*hidden, branch, weight}, outputs, {{"epsilon", config_.rms_epsilon}});
    *hidden = base + "/output_3";
    return {};
  }

  Status AddAttention(int64_t layer, const std::string& input, std::string* output) {
    const RowOrder halves = HalvesFromNeighbours(config_.head_dim);
    std::string q, k, v;
    if (Status s = AddProduct(layer, "attn_q", "attn/q_proj", input, halves, &q); !s.ok()) return s;
    if (Status s = AddProduct(layer, "attn_k", "attn/k_proj", input, halves, &k); !s.ok()) return s;
    if (Status s = AddProduct(layer, "attn_v", "attn/v_proj", input, {}, &v); !s.ok()) return s;
    const std::string base = Format("/model/layers.{}/attn/GroupQueryAttention", layer);
    out_.AddNode(
        "GroupQueryAttention", kMs, base,
        {q, k, v, Format("past_key_values.{}.key", layer),
         Format("past_key_values.{}.value", layer), kSeqlens, kTotal, "cos_cache", "sin_cache"},
        {base + "/output_0", Format("present.{}.key", layer), Format("present.{}.value", layer)},
        {{"num_heads", config_.heads},
         {"kv_num_heads", config_.kv_heads},
         {"scale", 1.0f / std::sqrt(static_cast<float>(config_.head_dim))},
         {"local_window_size", int64_t{-1}},
         {"do_rotary", int64_t{1}},
         {"rotary_interleaved", int64_t{0}}});
    return AddProduct(layer, "attn_output", "attn/o_proj", base + "/output_0", {}, output);
  }

  Status AddFeedForward(int64_t layer, const std::string& input, std::string* output) {
    std::string gate, up;
    if (Status s = AddProduct(layer, "ffn_gate", "mlp/gate_proj", input, {}, &gate); !s.ok())
      return s;
    if (Status s = AddProduct(layer, "ffn_up", "mlp/up_proj", input, {}, &up); !s.ok()) return s;
    const std::string base = Format("/model/layers.{}/mlp", layer);
    out_.AddNode("Sigmoid", "", base + "/act_fn/Sigmoid", {gate},
                 {base + "/act_fn/Sigmoid/output_0"}, {});
    out_.AddNode("Mul", "", base + "/act_fn/Mul", {gate, base + "/act_fn/Sigmoid/output_0"},
                 {base + "/act_fn/Mul/output_0"}, {});
    out_.AddNode("Mul", "", base + "/Mul", {base + "/act_fn/Mul/output_0", up},
                 {base + "/Mul/output_0"}, {});
    return AddProduct(layer, "ffn_down", "mlp/down_proj", base + "/Mul/output_0", {}, output);
  }

  Status AddLayer(int64_t layer, std::string* hidden, std::string* normed) {
    std::string branch;
    if (Status s = AddAttention(layer, *normed, &branch); !s.ok()) return s;
    Status s = AddSkipNorm(LayerTensor(layer, "ffn_norm"),
                           Format("model.layers.{}.post_attention_layernorm.weight", layer),
                           Format("/model/layers.{}/post_attention_layernorm", layer), branch,
                           /*last=*/false, hidden, normed);
    if (!s.ok()) return s;
    if (s = AddFeedForward(layer, *normed, &branch); !s.ok()) return s;
    const int64_t next = layer + 1;
    if (next == config_.layers) {
      return AddSkipNorm("output_norm.weight", "model.norm.weight", "/model/norm", branch,
                         /*last=*/true, hidden, normed);
    }
    return AddSkipNorm(
        LayerTensor(next, "attn_norm"), Format("model.layers.{}.input_layernorm.weight", next),
        Format("/model/layers.{}/input_layernorm", next), branch, /*last=*/false, hidden, normed);
  }

  Status AddHead(const std::string& normed) {
    const std::string weight = "lm_head.MatMul.weight";
    const GgufTensor& tensor = Tensor(config_.tied ? "token_embd.weight" : "output.weight");
    if (IsQuantized(tensor.type)) {
      const bool shared = config_.tied && !HasFloatZeroPoints(tensor.type);
      if (!shared) {
        if (Status s = StreamQuantized(tensor, {}, weight, out_); !s.ok()) return s;
      }
      AddQuantizedProduct(tensor, weight, "/lm_head/MatMulNBits", normed, "logits");
    } else if (config_.tied) {
      out_.AddNode("Transpose", "", "/lm_head/Transpose", {"model.embed_tokens.weight"},
                   {"/lm_head/Transpose/output_0"}, {{"perm", std::vector<int64_t>{1, 0}}});
      out_.AddNode("MatMul", "", "/lm_head/MatMul", {normed, "/lm_head/Transpose/output_0"},
                   {"logits"}, {});
    } else {
      if (Status s = StreamTransposed(tensor, {}, weight, out_); !s.ok()) return s;
      out_.AddNode("MatMul", "", "/lm_head/MatMul", {normed, weight}, {"logits"}, {});
    }
    return config_.tied ? Status() : Written(tensor);
  }

  static constexpr const char* kSeqlens =
      "/model/attn_mask_reformat/attn_mask_subgraph/Sub/Cast/output_0";
  static constexpr const char* kTotal =
      "/model/attn_mask_reformat/attn_mask_subgraph/Gather/Cast/output_0";

  const GgufFile& file_;
  const LlamaConfig& config_;
  onnx::ModelWriter& out_;
  const TensorWritten& written_;
  std::vector<std::string>* warnings_;
};

}  // namespace

Status WriteLlamaGraph(const GgufFile& file, const LlamaConfig& config, onnx::ModelWriter& writer,
                       const TensorWritten& written, std::vector<std::string>* warnings) {
  return GraphWriter(file, config, writer, written, warnings).Write();
}

}  // namespace granule::package
