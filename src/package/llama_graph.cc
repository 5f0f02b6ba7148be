#include "package/llama_graph.h"

#include <cstring>
#include <utility>

#include "package/gguf_blocks.h"
#include "package/weight_stream.h"

namespace granule::package {
namespace {

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

float InverseFrequency(const LlamaConfig& config, int64_t pair) {
  float frequency = RopeFrequency(config.rope_base, config.head_dim, pair);
  if (config.rope_factors != nullptr) {
    float factor;
    std::memcpy(&factor, config.rope_factors->bytes.data() + 4 * pair, sizeof factor);
    frequency /= factor;
  }
  return frequency / config.rope_linear_factor;
}

const char* PartOf(Projection projection) {
  switch (projection) {
    case Projection::kQuery:
      return "attn_q";
    case Projection::kKey:
      return "attn_k";
    case Projection::kValue:
      return "attn_v";
    case Projection::kOutput:
      return "attn_output";
    case Projection::kGate:
      return "ffn_gate";
    case Projection::kUp:
      return "ffn_up";
    case Projection::kDown:
      return "ffn_down";
  }
  return "";
}

class GgufWeights final : public DecoderWeights {
 public:
  GgufWeights(const GgufFile& file, const LlamaConfig& config, onnx::ModelWriter& writer,
              const TensorWritten& written, std::vector<std::string>* warnings)
      : file_(file), config_(config), out_(writer), written_(written), warnings_(warnings) {}

  Status Written(const GgufTensor& tensor) { return written_ ? written_(tensor) : Status(); }

  Result<std::string> AddEmbedding() override;
  Status AddNorm(Norm norm, int64_t layer, const std::string& name) override;
  Result<std::string> AddProduct(const Product& product) override;
  Status AddHead(const std::string& rows) override;

 private:
  const GgufTensor& Tensor(const std::string& name) const {
    return *file_.FindTensor(name);
  }  // config checked them all

  Status AddInts(const std::string& name, const std::vector<int64_t>& values) {
    return out_.AddTensor(name, DType::kI64, {static_cast<int64_t>(values.size())},
                          std::as_bytes(std::span(values)));
  }
  void AddQuantizedProduct(const GgufTensor& tensor, const std::string& weight,
                           const std::string& node, const std::string& input,
                           const std::string& output);

  const GgufFile& file_;
  const LlamaConfig& config_;
  onnx::ModelWriter& out_;
  const TensorWritten& written_;
  std::vector<std::string>* warnings_;
};

// A tied table is written here once and read again by AddHead.
Result<std::string> GgufWeights::AddEmbedding() {
  const GgufTensor& table = Tensor("token_embd.weight");
  const std::string base = "/model/embed_tokens";
  if (IsQuantized(table.type) && !HasFloatZeroPoints(table.type)) {
    std::string hidden = base + "/GatherBlockQuantized/output_0";
    const int64_t bits = BitsOfCodes(table.type);
    std::string codes = std::string(kTableWeight) + "_quant",
                scales = std::string(kTableWeight) + "_scales";
    if (config_.tied) {
      // Shared with the product of AddHead, which wants [V, H/32, bytes]; the gather sees it as
      // [V, H * bits / 8].
      if (Status s = StreamQuantized(table, {}, kHeadWeight, out_); !s.ok()) return s;
      const std::string shape =
          Format("/model/constants/INT64/[{}, {}]", config_.vocab, config_.hidden * bits / 8);
      if (Status s = AddInts(shape, {config_.vocab, config_.hidden * bits / 8}); !s.ok()) return s;
      out_.AddNode("Reshape", "", base + "/Reshape", {std::string(kHeadWeight) + "_quant", shape},
                   {base + "/Reshape/output_0"}, {});
      codes = base + "/Reshape/output_0";
      scales = std::string(kHeadWeight) + "_scales";
    } else if (Status s = StreamQuantizedTable(table, kTableWeight, out_); !s.ok()) {
      return s;
    }
    out_.AddNode("GatherBlockQuantized", kMsDomain, base + "/GatherBlockQuantized",
                 {codes, "input_ids", scales}, {hidden},
                 {{"bits", bits},
                  {"block_size", kBlock},
                  {"gather_axis", int64_t{0}},
                  {"quantize_axis", int64_t{1}}});
    if (Status s = Written(table); !s.ok()) return s;
    return hidden;
  }
  if (IsQuantized(table.type)) {
    warnings_->push_back(
        "token_embd.weight is Q4_1: its lookup table is written as float32, because "
        "GatherBlockQuantized "
        "takes no float zero points");
  }
  std::string hidden = base + "/Gather/output_0";
  if (Status s = StreamRows(table, kTableWeight, out_); !s.ok()) return s;
  out_.AddNode("Gather", "", base + "/Gather", {kTableWeight, "input_ids"}, {hidden}, {});
  if (Status s = Written(table); !s.ok()) return s;
  return hidden;
}

Status GgufWeights::AddNorm(Norm norm, int64_t layer, const std::string& name) {
  const GgufTensor& tensor =
      Tensor(norm == Norm::kFinal
                 ? "output_norm.weight"
                 : LayerTensor(layer, norm == Norm::kAttention ? "attn_norm" : "ffn_norm"));
  if (Status s = StreamRows(tensor, name, out_); !s.ok()) return s;
  return Written(tensor);
}

// MatMulNBits over initializers NAME_quant, NAME_scales, NAME_zero_points that are there already.
void GgufWeights::AddQuantizedProduct(const GgufTensor& tensor, const std::string& weight,
                                      const std::string& node, const std::string& input,
                                      const std::string& output) {
  std::vector<std::string> inputs = {input, weight + "_quant", weight + "_scales"};
  if (HasFloatZeroPoints(tensor.type)) inputs.push_back(weight + "_zero_points");
  out_.AddNode("MatMulNBits", kMsDomain, node, std::move(inputs), {output},
               {{"K", tensor.row()},
                {"N", tensor.rows()},
                {"bits", int64_t{BitsOfCodes(tensor.type)}},
                {"block_size", kBlock}});
}

Result<std::string> GgufWeights::AddProduct(const Product& product) {
  const GgufTensor& tensor = Tensor(LayerTensor(product.layer, PartOf(product.projection)));
  const bool turned =
      product.projection == Projection::kQuery || product.projection == Projection::kKey;
  const RowOrder order = turned ? HalvesFromNeighbours(config_.head_dim) : RowOrder();
  const std::string node = product.node + (IsQuantized(tensor.type) ? "NBits" : "");
  std::string output = node + "/output_0";
  if (IsQuantized(tensor.type)) {
    if (Status s = StreamQuantized(tensor, order, product.weight, out_); !s.ok()) return s;
    AddQuantizedProduct(tensor, product.weight, node, product.input, output);
  } else {
    if (Status s = StreamTransposed(tensor, order, product.weight, out_); !s.ok()) return s;
    out_.AddNode("MatMul", "", node, {product.input, product.weight}, {output}, {});
  }
  if (Status s = Written(tensor); !s.ok()) return s;
  return output;
}

Status GgufWeights::AddHead(const std::string& rows) {
  const GgufTensor& tensor = Tensor(config_.tied ? "token_embd.weight" : "output.weight");
  if (IsQuantized(tensor.type)) {
    const bool shared = config_.tied && !HasFloatZeroPoints(tensor.type);
    if (!shared) {
      if (Status s = StreamQuantized(tensor, {}, kHeadWeight, out_); !s.ok()) return s;
    }
    AddQuantizedProduct(tensor, kHeadWeight, "/lm_head/MatMulNBits", rows, "logits");
  } else if (config_.tied) {
    out_.AddNode("Transpose", "", "/lm_head/Transpose", {kTableWeight},
                 {"/lm_head/Transpose/output_0"}, {{"perm", std::vector<int64_t>{1, 0}}});
    out_.AddNode("MatMul", "", "/lm_head/MatMul", {rows, "/lm_head/Transpose/output_0"}, {"logits"},
                 {});
  } else {
    if (Status s = StreamTransposed(tensor, {}, kHeadWeight, out_); !s.ok()) return s;
    out_.AddNode("MatMul", "", "/lm_head/MatMul", {rows, kHeadWeight}, {"logits"}, {});
  }
  return config_.tied ? Status() : Written(tensor);
}

}  // namespace

DecoderShape ShapeOf(const LlamaConfig& config) {
  DecoderShape shape{.layers = config.layers,
                     .context = config.context_length,
                     .heads = config.heads,
                     .kv_heads = config.kv_heads,
                     .head_dim = config.head_dim,
                     .vocab = config.vocab,
                     .rms_epsilon = config.rms_epsilon,
                     .rope_frequencies = {}};
  for (int64_t i = 0; i < config.head_dim / 2; ++i)
    shape.rope_frequencies.push_back(InverseFrequency(config, i));
  return shape;
}

Status WriteLlamaGraph(const GgufFile& file, const LlamaConfig& config, onnx::ModelWriter& writer,
                       const TensorWritten& written, std::vector<std::string>* warnings) {
  GgufWeights weights(file, config, writer, written, warnings);
  if (config.rope_factors != nullptr) {  // they go into the shape here, and into the tables later
    if (Status s = weights.Written(*config.rope_factors); !s.ok()) return s;
  }
  return WriteDecoderGraph(ShapeOf(config), weights, writer);
}

}  // namespace granule::package
