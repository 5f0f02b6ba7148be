// Builds GGUF bytes for tests, right ones and wrong ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace granule::package::testing {

template <class T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

inline std::string Text(std::string_view text) {
  return Raw<uint64_t>(text.size()) + std::string(text);
}

inline std::string Head(uint64_t tensors, uint64_t entries, uint32_t version = 3) {
  return "GGUF" + Raw(version) + Raw(tensors) + Raw(entries);
}

inline std::string Entry(std::string_view key, uint32_t type, const std::string& payload) {
  return Text(key) + Raw(type) + payload;
}
inline std::string U32(std::string_view key, uint32_t value) { return Entry(key, 4, Raw(value)); }
inline std::string F32(std::string_view key, float value) { return Entry(key, 6, Raw(value)); }
inline std::string Str(std::string_view key, std::string_view value) {
  return Entry(key, 8, Text(value));
}
inline std::string Bool(std::string_view key, bool value) {
  return Entry(key, 7, Raw<uint8_t>(value));
}

inline std::string Strings(std::string_view key, const std::vector<std::string>& values) {
  std::string payload = Raw<uint32_t>(8) + Raw<uint64_t>(values.size());
  for (const std::string& value : values) payload += Text(value);
  return Entry(key, 9, payload);
}

inline std::string I32s(std::string_view key, const std::vector<int32_t>& values) {
  std::string payload = Raw<uint32_t>(5) + Raw<uint64_t>(values.size());
  for (int32_t value : values) payload += Raw(value);
  return Entry(key, 9, payload);
}

inline std::string TensorInfo(std::string_view name, const std::vector<uint64_t>& dims,
                              uint32_t type, uint64_t offset) {
  std::string info = Text(name) + Raw(static_cast<uint32_t>(dims.size()));
  for (uint64_t dim : dims) info += Raw(dim);
  return info + Raw(type) + Raw(offset);
}

inline std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// A whole file from entries and tensors, each tensor's data at the next multiple of 32.
class GgufBuilder {
 public:
  GgufBuilder& Add(const std::string& entry) {
    entries_.push_back(entry);
    return *this;
  }
  GgufBuilder& Tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                      std::string data) {
    infos_ += TensorInfo(name, dims, type, data_.size());
    data_ += data;
    data_.resize((data_.size() + 31) / 32 * 32);
    ++tensors_;
    return *this;
  }
  std::string Build() const {
    std::string file = Head(tensors_, entries_.size());
    for (const std::string& entry : entries_) file += entry;
    file += infos_;
    file.resize((file.size() + 31) / 32 * 32);
    return file + data_;
  }

 private:
  std::vector<std::string> entries_;
  std::string infos_, data_;
  uint64_t tensors_ = 0;
};

// n fp32 numbers of a fixed pattern.
inline std::string Floats(size_t n, float scale = 0.1f) {
  std::string data;
  for (size_t i = 0; i < n; ++i)
    data += Raw(scale * static_cast<float>(static_cast<int>(i * 7 % 31) - 15));
  return data;
}

// A llama model that imports: V 12, H 32, F 32, 2 heads, 1 KV head, D 16, one layer, everything
// F32. `skip` leaves out the entry or tensor with this name.
inline GgufBuilder TinyLlama(std::string_view skip = "") {
  GgufBuilder builder;
  const auto entry = [&](std::string_view key, const std::string& bytes) {
    if (key != skip) builder.Add(bytes);
  };
  entry("general.architecture", Str("general.architecture", "llama"));
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, uint32_t>>{{"llama.block_count", 1},
                                                     {"llama.context_length", 64},
                                                     {"llama.embedding_length", 32},
                                                     {"llama.feed_forward_length", 32},
                                                     {"llama.attention.head_count", 2},
                                                     {"llama.attention.head_count_kv", 1},
                                                     {"tokenizer.ggml.eos_token_id", 11}}) {
    entry(key, U32(key, value));
  }
  entry("tokenizer.ggml.model", Str("tokenizer.ggml.model", "gpt2"));
  entry("tokenizer.ggml.pre", Str("tokenizer.ggml.pre", "smollm"));
  entry("tokenizer.ggml.tokens",
        Strings("tokenizer.ggml.tokens",
                {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "ab", "<|end|>"}));
  entry("tokenizer.ggml.token_type",
        I32s("tokenizer.ggml.token_type", {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3}));
  entry("tokenizer.ggml.merges", Strings("tokenizer.ggml.merges", {"a b"}));
  const auto tensor = [&](std::string_view name, const std::vector<uint64_t>& dims) {
    uint64_t n = 1;
    for (uint64_t dim : dims) n *= dim;
    if (name != skip) builder.Tensor(name, dims, 0, Floats(n));
  };
  tensor("token_embd.weight", {32, 12});
  tensor("output_norm.weight", {32});
  tensor("blk.0.attn_norm.weight", {32});
  tensor("blk.0.ffn_norm.weight", {32});
  tensor("blk.0.attn_q.weight", {32, 32});
  tensor("blk.0.attn_k.weight", {32, 16});
  tensor("blk.0.attn_v.weight", {32, 16});
  tensor("blk.0.attn_output.weight", {32, 32});
  tensor("blk.0.ffn_gate.weight", {32, 32});
  tensor("blk.0.ffn_up.weight", {32, 32});
  tensor("blk.0.ffn_down.weight", {32, 32});
  return builder;
}

}  // namespace granule::package::testing
