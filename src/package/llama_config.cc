#include "package/llama_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "package/gguf_blocks.h"

namespace granule::package {
namespace {

constexpr int64_t kMaxContext = int64_t{1}
                                << 24;  // bounds the cos and sin tables that follow from it
constexpr int64_t kMaxSize =
    int64_t{1} << 24;  // bounds each width, so that products of three stay far from 2^63

Status RequireArchitecture(const GgufFile& file) {
  Result<std::optional<std::string>> architecture = file.String("general.architecture");
  if (!architecture.ok()) return architecture.status();
  if (!*architecture) return InvalidInput("metadata \"general.architecture\" is missing");
  if (**architecture != "llama") {
    return InvalidInput("architecture \"{}\" is not supported by the import; only \"llama\" is",
                        **architecture);
  }
  return {};
}

// A whole number in [1, max].
Status ReadSize(const GgufFile& file, const char* key, int64_t max, int64_t* value) {
  Result<std::optional<int64_t>> found = file.Int(key);
  if (!found.ok()) return found.status();
  if (!*found) return InvalidInput("metadata \"{}\" is missing", key);
  if (**found < 1 || **found > max)
    return InvalidInput("metadata \"{}\" is {}; 1 to {} is expected", key, **found, max);
  *value = **found;
  return {};
}

// The same where the key may be absent: `value` keeps its default then.
Status ReadOptionalSize(const GgufFile& file, const char* key, int64_t max, int64_t* value) {
  return file.Find(key) == nullptr ? Status() : ReadSize(file, key, max, value);
}

Status ReadPositive(const GgufFile& file, const char* key, float* value) {
  Result<std::optional<double>> found = file.Float(key);
  if (!found.ok()) return found.status();
  if (!*found) return {};
  const float narrow = static_cast<float>(**found);
  if (!std::isfinite(narrow) || narrow <= 0) {
    return InvalidInput("metadata \"{}\" is {}; a number above 0 is expected", key, **found);
  }
  *value = narrow;
  return {};
}

// head_count_kv is one number, or one per layer where layers may differ (which ONNX's one geometry
// cannot say here).
Status ReadKvHeads(const GgufFile& file, LlamaConfig* config) {
  constexpr const char* kKey = "llama.attention.head_count_kv";
  config->kv_heads = config->heads;
  const GgufValue* entry = file.Find(kKey);
  if (entry != nullptr && entry->type == GgufValueType::kArray) {
    const std::optional<std::vector<int64_t>> counts = entry->AsInts();
    const bool equal = counts && !counts->empty() &&
                       std::all_of(counts->begin(), counts->end(),
                                   [&](int64_t n) { return n == counts->front(); });
    if (!equal)
      return InvalidInput("metadata \"{}\" differs from layer to layer, which is not supported",
                          kKey);
    config->kv_heads = counts->front();
  } else if (Status s = ReadOptionalSize(file, kKey, kMaxSize, &config->kv_heads); !s.ok()) {
    return s;
  }
  if (config->kv_heads < 1 || config->kv_heads > config->heads ||
      config->heads % config->kv_heads != 0) {
    return InvalidInput(
        "metadata \"{}\" is {}; a divisor of llama.attention.head_count = {} is expected", kKey,
        config->kv_heads, config->heads);
  }
  return {};
}

Status ReadHeads(const GgufFile& file, LlamaConfig* config) {
  if (Status s = ReadSize(file, "llama.attention.head_count", kMaxSize, &config->heads); !s.ok())
    return s;
  if (Status s = ReadKvHeads(file, config); !s.ok()) return s;
  const bool stated = file.Find("llama.attention.key_length") != nullptr;
  if (!stated && config->hidden % config->heads != 0) {
    return InvalidInput(
        "llama.embedding_length {} is no multiple of llama.attention.head_count {}, and no "
        "llama.attention.key_length is given",
        config->hidden, config->heads);
  }
  config->head_dim = stated ? 0 : config->hidden / config->heads;
  if (Status s = ReadOptionalSize(file, "llama.attention.key_length", kMaxSize, &config->head_dim);
      !s.ok())
    return s;
  int64_t value_length = config->head_dim;
  if (Status s = ReadOptionalSize(file, "llama.attention.value_length", kMaxSize, &value_length);
      !s.ok())
    return s;
  int64_t rotated = config->head_dim;
  if (Status s = ReadOptionalSize(file, "llama.rope.dimension_count", kMaxSize, &rotated); !s.ok())
    return s;
  if (value_length != config->head_dim) {
    return InvalidInput(
        "llama.attention.value_length {} differs from the key's {}, which is not supported",
        value_length, config->head_dim);
  }
  if (rotated != config->head_dim) {
    return InvalidInput(
        "llama.rope.dimension_count {} differs from the head size {}, which is not supported",
        rotated, config->head_dim);
  }
  if (config->head_dim % 2 != 0)
    return InvalidInput("the head size {} is odd; RoPE needs pairs", config->head_dim);
  if (config->heads > kMaxSize / config->head_dim) {
    return InvalidInput("{} heads of {} elements are more than {}", config->heads, config->head_dim,
                        kMaxSize);
  }
  return {};
}

Status ReadRope(const GgufFile& file, LlamaConfig* config) {
  if (Status s = ReadPositive(file, "llama.rope.freq_base", &config->rope_base); !s.ok()) return s;
  Result<std::optional<std::string>> type = file.String("llama.rope.scaling.type");
  if (!type.ok()) return type.status();
  const std::string scaling =
      type->value_or(file.Find("llama.rope.scale_linear") != nullptr ? "linear" : "none");
  if (scaling != "none" && scaling != "linear") {
    return InvalidInput(
        "llama.rope.scaling.type \"{}\" is not supported (\"none\" and \"linear\" are)", scaling);
  }
  if (scaling == "linear") {
    for (const char* key : {"llama.rope.scale_linear", "llama.rope.scaling.factor"}) {
      if (Status s = ReadPositive(file, key, &config->rope_linear_factor); !s.ok()) return s;
    }
  }
  config->rope_factors = file.FindTensor("rope_freqs.weight");
  if (config->rope_factors == nullptr) return {};
  const std::vector<int64_t> expected = {config->head_dim / 2};
  if (config->rope_factors->type != GgmlType::kF32 || config->rope_factors->dims != expected) {
    return InvalidInput("tensor \"rope_freqs.weight\" must be F32 with {} elements", expected[0]);
  }
  for (int64_t i = 0; i < expected[0]; ++i) {
    float factor;
    std::memcpy(&factor, config->rope_factors->bytes.data() + 4 * i, sizeof factor);
    if (!std::isfinite(factor) || factor <= 0) {
      return InvalidInput("tensor \"rope_freqs.weight\" has {} at {}; numbers above 0 are expected",
                          factor, i);
    }
  }
  return {};
}

std::string DimsText(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += Format("{}{}", i ? ", " : "", dims[i]);
  return text + "]";
}

// Every tensor type that the import cannot read, with how many tensors have it.
Status RequireSupportedTypes(const GgufFile& file) {
  std::map<std::string, int> counts;
  for (const GgufTensor& tensor : file.tensors) {
    if (!IsSupported(tensor.type)) ++counts[FindGgmlType(tensor.type)->name];
  }
  if (counts.empty()) return {};
  std::string list;
  for (const auto& [name, count] : counts)
    list += Format("{}{} ({} tensors)", list.empty() ? "" : ", ", name, count);
  return InvalidInput(
      "tensor types that the import does not read: {}. It reads F32, F16, BF16, Q8_0, Q4_0 and "
      "Q4_1",
      list);
}

// Checks each tensor that the architecture has and remembers it, so that what is left over can be
// named.
class TensorCheck {
 public:
  explicit TensorCheck(const GgufFile& file) {
    for (const GgufTensor& tensor : file.tensors) left_.emplace(tensor.name, &tensor);
  }

  bool Has(const std::string& name) const { return left_.contains(name); }

  // `dims` fastest first. A weight that is normalised with stays F32 in every GGUF; other types are
  // refused by the converter too.
  Status Take(const std::string& name, const std::vector<int64_t>& dims) {
    const auto it = left_.find(name);
    if (it == left_.end()) return InvalidInput("tensor \"{}\" is missing", name);
    const GgufTensor& tensor = *it->second;
    left_.erase(it);
    if (tensor.dims != dims) {
      return InvalidInput("tensor \"{}\" has dimensions {}, the metadata asks for {}", name,
                          DimsText(tensor.dims), DimsText(dims));
    }
    if (dims.size() == 1 && IsQuantized(tensor.type)) {
      return InvalidInput("tensor \"{}\" is {}; a vector must be F32, F16 or BF16", name,
                          FindGgmlType(tensor.type)->name);
    }
    return {};
  }

  Status RequireNoneLeft() const {
    if (left_.empty()) return {};
    constexpr size_t kShown = 8;
    std::string list;
    size_t shown = 0;
    for (const auto& [name, tensor] : left_) {
      if (shown++ == kShown) break;
      list += Format("{}\"{}\"", list.empty() ? "" : ", ", name);
    }
    if (left_.size() > kShown) list += Format(" and {} more", left_.size() - kShown);
    return InvalidInput("tensors that a llama model does not have here: {}", list);
  }

 private:
  std::map<std::string, const GgufTensor*, std::less<>> left_;
};

Status CheckTensors(const GgufFile& file, LlamaConfig* config) {
  const GgufTensor* table = file.FindTensor("token_embd.weight");
  if (table == nullptr) return InvalidInput("tensor \"token_embd.weight\" is missing");
  if (table->dims.size() != 2 || table->dims[1] > kMaxSize) {
    return InvalidInput(
        "tensor \"token_embd.weight\" has dimensions {}; [{}, vocabulary] is expected",
        DimsText(table->dims), config->hidden);
  }
  config->vocab = table->dims[1];

  TensorCheck check(file);
  const int64_t h = config->hidden, f = config->feed_forward, v = config->vocab;
  const int64_t q = config->heads * config->head_dim, kv = config->kv_heads * config->head_dim;
  if (Status s = check.Take("token_embd.weight", {h, v}); !s.ok()) return s;
  if (Status s = check.Take("output_norm.weight", {h}); !s.ok()) return s;
  config->tied = !check.Has("output.weight");
  if (!config->tied) {
    if (Status s = check.Take("output.weight", {h, v}); !s.ok()) return s;
  }
  if (config->rope_factors != nullptr) {
    if (Status s = check.Take("rope_freqs.weight", {config->head_dim / 2}); !s.ok()) return s;
  }
  const std::array<std::pair<const char*, std::vector<int64_t>>, 9> parts = {
      {{"attn_norm", {h}},
       {"attn_q", {h, q}},
       {"attn_k", {h, kv}},
       {"attn_v", {h, kv}},
       {"attn_output", {q, h}},
       {"ffn_norm", {h}},
       {"ffn_gate", {h, f}},
       {"ffn_up", {h, f}},
       {"ffn_down", {f, h}}}};
  for (int64_t layer = 0; layer < config->layers; ++layer) {
    for (const auto& [part, dims] : parts) {
      if (Status s = check.Take(LayerTensor(layer, part), dims); !s.ok()) return s;
    }
  }
  return check.RequireNoneLeft();
}

void WarnAboutUnknownKeys(const GgufFile& file, std::vector<std::string>* warnings) {
  static const std::set<std::string_view> kKnown = {
      "llama.block_count",
      "llama.context_length",
      "llama.embedding_length",
      "llama.feed_forward_length",
      "llama.attention.head_count",
      "llama.attention.head_count_kv",
      "llama.attention.key_length",
      "llama.attention.value_length",
      "llama.attention.layer_norm_rms_epsilon",
      "llama.rope.freq_base",
      "llama.rope.dimension_count",
      "llama.rope.scaling.type",
      "llama.rope.scaling.factor",
      "llama.rope.scale_linear",
      "llama.rope.scaling.original_context_length",
      "llama.rope.scaling.finetuned",
      "llama.vocab_size",
      "llama.expert_count",
      "llama.expert_used_count",
      "llama.attention.causal",
      "llama.tensor_data_layout",
  };
  for (const GgufValue& value : file.metadata) {
    if (value.key.starts_with("llama.") && !kKnown.contains(value.key)) {
      warnings->push_back(Format("metadata \"{}\" is not understood and was ignored", value.key));
    }
  }
}

}  // namespace

std::string LayerTensor(int64_t layer, const char* part) {
  return Format("blk.{}.{}.weight", layer, part);
}

Result<LlamaConfig> ReadLlamaConfig(const GgufFile& file, std::vector<std::string>* warnings) {
  LlamaConfig config;
  if (Status s = RequireArchitecture(file); !s.ok()) return s;
  if (Status s = RequireSupportedTypes(file); !s.ok()) return s;

  // A layer has at least one tensor, so their number bounds the layers.
  const int64_t most_layers = static_cast<int64_t>(file.tensors.size());
  if (Status s = ReadSize(file, "llama.block_count", most_layers, &config.layers); !s.ok())
    return s;
  if (Status s = ReadSize(file, "llama.context_length", kMaxContext, &config.context_length);
      !s.ok())
    return s;
  if (Status s = ReadSize(file, "llama.embedding_length", kMaxSize, &config.hidden); !s.ok())
    return s;
  if (Status s = ReadSize(file, "llama.feed_forward_length", kMaxSize, &config.feed_forward);
      !s.ok())
    return s;
  if (Status s = ReadHeads(file, &config); !s.ok()) return s;
  if (Status s = ReadPositive(file, "llama.attention.layer_norm_rms_epsilon", &config.rms_epsilon);
      !s.ok())
    return s;
  if (Status s = ReadRope(file, &config); !s.ok()) return s;

  Result<std::optional<int64_t>> experts = file.Int("llama.expert_count");
  if (!experts.ok()) return experts.status();
  if (experts->value_or(0) != 0)
    return InvalidInput("llama.expert_count is {}: mixtures of experts are not supported",
                        **experts);
  Result<std::optional<bool>> causal = file.Bool("llama.attention.causal");
  if (!causal.ok()) return causal.status();
  if (!causal->value_or(true))
    return InvalidInput("llama.attention.causal is false: only causal models are supported");

  if (Status s = CheckTensors(file, &config); !s.ok()) return s;
  Result<std::optional<int64_t>> vocab = file.Int("llama.vocab_size");
  if (!vocab.ok()) return vocab.status();
  if (*vocab && **vocab != config.vocab) {
    warnings->push_back(
        Format("llama.vocab_size is {}, but token_embd.weight has {} rows; the tensor counts",
               **vocab, config.vocab));
  }
  WarnAboutUnknownKeys(file, warnings);
  return config;
}

}  // namespace granule::package
