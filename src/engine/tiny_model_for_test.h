// Small decoder folders for tests, in shapes that real models do not have: odd widths, one KV head,
// head size 80.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/format.h"
#include "onnx/writer.h"

namespace granule::engine {

struct TinyShape {
  std::string name = "tiny";
  int64_t layers = 2, heads = 4, kv_heads = 2, head_dim = 16, hidden = 64, ffn = 96, vocab = 101;
  int64_t context = 512;      // rows of the rotary tables and genai_config's context_length
  bool state_context = true;  // false: nothing states a context length and there is no rotary table
  int bits = 4;               // 4, 8, or 32 (plain fp32 MatMul)
  int64_t block = 32;
  bool float_zero_points = false;
  bool packed_qkv = false;
  bool position_table = false;   // learned positions, looked up by an input position_ids
  bool past_detour = false;      // past passes through an Identity before attention
  bool last_row_logits = false;  // logits of the last token of a run alone, [1, 1, V]
  int64_t fixed_past = 0;        // > 0: past and attention_mask have this length in the graph
  int64_t fixed_rows = 0;        // > 0: so many tokens in every run
  DType kv = DType::kF32;
  uint32_t seed = 1;
};

// Writes model.onnx (+ .data) and genai_config.json into the folder. CHECKs on failure: tests only.
class TinyModelWriter {
 public:
  TinyModelWriter(const std::filesystem::path& folder, const TinyShape& shape)
      : s_(shape), random_(shape.seed) {
    std::filesystem::create_directories(folder);
    onnx::ModelWriter::Options options;
    options.external_threshold_bytes = 256;
    auto writer = onnx::ModelWriter::Create(folder / "model.onnx", options);
    GRANULE_CHECK(writer.ok());
    w_ = writer->get();
    Write();
    GRANULE_CHECK(w_->Finish().ok());
    GRANULE_CHECK(WriteFileAtomically(folder / "genai_config.json", Config()).ok());
  }

 private:
  using Attributes = std::vector<onnx::NamedAttribute>;

  void Node(const std::string& op, const std::string& domain, std::vector<std::string> in,
            std::vector<std::string> out, Attributes attributes = {}) {
    std::string name = out[0] + "_node";
    w_->AddNode(op, domain, std::move(name), std::move(in), std::move(out), std::move(attributes));
  }
  template <class T>
  void Constant(const std::string& name, DType dtype, std::vector<int64_t> dims,
                const std::vector<T>& data) {
    GRANULE_CHECK(w_->AddTensor(name, dtype, std::move(dims), std::as_bytes(std::span(data))).ok());
  }
  std::vector<float> Random(int64_t n, float scale) {
    std::vector<float> data(static_cast<size_t>(n));
    for (float& x : data) x = scale * (static_cast<float>(random_() % 20001) / 10000.0f - 1.0f);
    return data;
  }
  std::vector<uint8_t> RandomBytes(int64_t n) {
    std::vector<uint8_t> data(static_cast<size_t>(n));
    for (uint8_t& x : data) x = static_cast<uint8_t>(random_());
    return data;
  }

  // y = x * W: in the asked weight format, values of about 1/sqrt(k).
  void Product(const std::string& x, const std::string& y, int64_t n, int64_t k) {
    const float scale = 1.7f / std::sqrt(static_cast<float>(k));
    if (s_.bits == 32) {
      Constant(y + "_w", DType::kF32, {k, n}, Random(n * k, scale));
      Node("MatMul", "", {x, y + "_w"}, {y});
      return;
    }
    const int64_t blocks = (k + s_.block - 1) / s_.block;
    Constant(y + "_q", DType::kU8, {n, blocks, s_.block * s_.bits / 8},
             RandomBytes(n * blocks * s_.block * s_.bits / 8));
    Constant(y + "_s", DType::kF32, {n, blocks},
             Random(n * blocks, scale / static_cast<float>(1 << (s_.bits - 1))));
    std::vector<std::string> in = {x, y + "_q", y + "_s"};
    if (s_.float_zero_points) {
      std::vector<float> zero = Random(n * blocks, 1.0f);
      for (float& z : zero) z += static_cast<float>(1 << (s_.bits - 1));
      Constant(y + "_z", DType::kF32, {n, blocks}, zero);
      in.push_back(y + "_z");
    }
    Node("MatMulNBits", "com.microsoft", in, {y},
         {{"K", k}, {"N", n}, {"bits", int64_t{s_.bits}}, {"block_size", s_.block}});
  }

  void Norm(const std::string& x, const std::string& skip, const std::string& y,
            const std::string& sum) {
    std::vector<float> gamma = Random(s_.hidden, 0.2f);
    for (float& g : gamma) g += 1.0f;
    Constant(y + "_g", DType::kF32, {s_.hidden}, gamma);
    if (skip.empty()) {
      Node("SimplifiedLayerNormalization", "", {x, y + "_g"}, {y},
           {{"axis", int64_t{-1}}, {"epsilon", 1e-5f}});
    } else {
      Node("SkipSimplifiedLayerNormalization", "com.microsoft", {x, skip, y + "_g"},
           {y, "", "", sum}, {{"epsilon", 1e-5f}});
    }
  }

  void Write() {
    const DType kv = s_.kv;
    const auto dim = [](int64_t fixed, const char* symbol) {
      return fixed > 0 ? onnx::WriterDim(fixed) : onnx::WriterDim(symbol);
    };
    const onnx::WriterDim rows = dim(s_.fixed_rows, "seq");
    const onnx::WriterDim past = dim(s_.fixed_past, "past");
    const onnx::WriterDim total = dim(s_.fixed_past, "total");
    w_->AddInput("input_ids", DType::kI64, {"batch", rows});
    w_->AddInput("attention_mask", DType::kI64, {"batch", total});
    Constant<int64_t>("one", DType::kI64, {1}, {1});
    Constant<int64_t>("axis1", DType::kI64, {1}, {1});
    Constant<int64_t>("index1", DType::kI64, {}, {1});
    Node("ReduceSum", "", {"attention_mask", "axis1"}, {"mask_sum"}, {{"keepdims", int64_t{1}}});
    Node("Sub", "", {"mask_sum", "one"}, {"mask_last"});
    Node("Cast", "", {"mask_last"}, {"seqlens_k"}, {{"to", int64_t{6}}});
    Node("Shape", "", {"attention_mask"}, {"mask_shape"});
    Node("Gather", "", {"mask_shape", "index1"}, {"total64"});
    Node("Cast", "", {"total64"}, {"total"}, {{"to", int64_t{6}}});

    const int64_t half = s_.head_dim / 2;
    if (s_.state_context) {
      std::vector<float> cos, sin;
      for (int64_t t = 0; t < s_.context; ++t) {
        for (int64_t i = 0; i < half; ++i) {
          const double angle =
              static_cast<double>(t) /
              std::pow(10000.0, 2.0 * static_cast<double>(i) / static_cast<double>(s_.head_dim));
          cos.push_back(static_cast<float>(std::cos(angle)));
          sin.push_back(static_cast<float>(std::sin(angle)));
        }
      }
      Constant("cos", DType::kF32, {s_.context, half}, cos);
      Constant("sin", DType::kF32, {s_.context, half}, sin);
    }
    Constant("embed", DType::kF32, {s_.vocab, s_.hidden}, Random(s_.vocab * s_.hidden, 1.0f));
    Node("Gather", "", {"embed", "input_ids"}, {"x0"});
    std::string residual = "x0", branch;
    if (s_.position_table) {
      w_->AddInput("position_ids", DType::kI64, {"batch", rows});
      Constant("places", DType::kF32, {s_.context, s_.hidden},
               Random(s_.context * s_.hidden, 1.0f));
      Node("Gather", "", {"places", "position_ids"}, {"place"});
      Node("Add", "", {"x0", "place"}, {"x1"});
      residual = "x1";
    }
    for (int64_t l = 0; l < s_.layers; ++l) {
      const std::string p = "l" + std::to_string(l) + "_";
      Norm(residual, branch, p + "n1", p + "r1");
      if (!branch.empty()) residual = p + "r1";
      Product(p + "n1", p + "q", s_.heads * s_.head_dim, s_.hidden);
      Product(p + "n1", p + "k", s_.kv_heads * s_.head_dim, s_.hidden);
      Product(p + "n1", p + "v", s_.kv_heads * s_.head_dim, s_.hidden);
      const std::string pk = Format("past_key_values.{}.key", l),
                        pv = Format("past_key_values.{}.value", l);
      const std::string nk = Format("present.{}.key", l), nv = Format("present.{}.value", l);
      w_->AddInput(pk, kv, {"batch", s_.kv_heads, past, s_.head_dim});
      w_->AddInput(pv, kv, {"batch", s_.kv_heads, past, s_.head_dim});
      std::vector<std::string> in = {p + "q", p + "k", p + "v", pk, pv, "seqlens_k", "total"};
      if (s_.packed_qkv) {
        Node("Concat", "", {p + "q", p + "k", p + "v"}, {p + "qkv"}, {{"axis", int64_t{-1}}});
        in = {p + "qkv", "", "", pk, pv, "seqlens_k", "total"};
      }
      if (s_.past_detour) {
        Node("Identity", "", {pk}, {p + "past_k"});
        Node("Identity", "", {pv}, {p + "past_v"});
        in[3] = p + "past_k";
        in[4] = p + "past_v";
      }
      if (s_.state_context) {
        in.push_back("cos");
        in.push_back("sin");
      }
      Node("GroupQueryAttention", "com.microsoft", in, {p + "a", nk, nv},
           {{"num_heads", s_.heads},
            {"kv_num_heads", s_.kv_heads},
            {"do_rotary", int64_t{s_.state_context ? 1 : 0}}});
      w_->AddOutput(nk, kv, {"batch", s_.kv_heads, total, s_.head_dim});
      w_->AddOutput(nv, kv, {"batch", s_.kv_heads, total, s_.head_dim});
      Product(p + "a", p + "o", s_.hidden, s_.heads * s_.head_dim);
      Norm(residual, p + "o", p + "n2", p + "r2");
      residual = p + "r2";
      Product(p + "n2", p + "gate", s_.ffn, s_.hidden);
      Product(p + "n2", p + "up", s_.ffn, s_.hidden);
      Node("Sigmoid", "", {p + "gate"}, {p + "sig"});
      Node("Mul", "", {p + "gate", p + "sig"}, {p + "silu"});
      Node("Mul", "", {p + "silu", p + "up"}, {p + "act"});
      Product(p + "act", p + "down", s_.hidden, s_.ffn);
      branch = p + "down";
    }
    Norm(residual, branch, "final", "");
    if (s_.last_row_logits) {
      Constant<int64_t>("last", DType::kI64, {1}, {-1});
      Node("Gather", "", {"final", "last"}, {"final_row"}, {{"axis", int64_t{1}}});
      w_->AddOutput("logits", DType::kF32, {"batch", int64_t{1}, s_.vocab});
      Product("final_row", "logits", s_.vocab, s_.hidden);
      return;
    }
    w_->AddOutput("logits", DType::kF32, {"batch", rows, s_.vocab});
    Product("final", "logits", s_.vocab, s_.hidden);
  }

  std::string Config() const {
    const std::string context =
        s_.state_context ? Format("\"context_length\": {},", s_.context) : "";
    return Format(
        R"({{"model": {{"type": "llama", {} "vocab_size": {}, "eos_token_id": 0, "decoder": {{"filename": "model.onnx",
"head_size": {}, "num_attention_heads": {}, "num_key_value_heads": {}, "num_hidden_layers": {}, "hidden_size": {},
"inputs": {{"input_ids": "input_ids", "attention_mask": "attention_mask", "past_key_names": "past_key_values.%d.key",
"past_value_names": "past_key_values.%d.value"}}, "outputs": {{"logits": "logits", "present_key_names": "present.%d.key",
"present_value_names": "present.%d.value"}}}}}}, "search": {{"do_sample": false}}}})",
        context, s_.vocab, s_.head_dim, s_.heads, s_.kv_heads, s_.layers, s_.hidden);
  }

  TinyShape s_;
  std::mt19937 random_;
  onnx::ModelWriter* w_ = nullptr;
};

inline std::vector<TinyShape> TinyShapes() {
  TinyShape odd{.name = "odd_widths_one_kv_head",
                .layers = 3,
                .heads = 3,
                .kv_heads = 1,
                .head_dim = 14,
                .hidden = 75,
                .ffn = 107,
                .vocab = 131,
                .bits = 4,
                .block = 16,
                .seed = 2};
  TinyShape eighty{.name = "head_size_80_fp16_kv",
                   .layers = 2,
                   .heads = 4,
                   .kv_heads = 2,
                   .head_dim = 80,
                   .hidden = 96,
                   .ffn = 160,
                   .vocab = 97,
                   .bits = 8,
                   .block = 32,
                   .float_zero_points = true,
                   .kv = DType::kF16,
                   .seed = 3};
  TinyShape dense{.name = "dense_packed_qkv",
                  .layers = 2,
                  .heads = 6,
                  .kv_heads = 3,
                  .head_dim = 8,
                  .hidden = 40,
                  .ffn = 72,
                  .vocab = 113,
                  .bits = 32,
                  .packed_qkv = true,
                  .seed = 4};
  return {odd, eighty, dense};
}

}  // namespace granule::engine
