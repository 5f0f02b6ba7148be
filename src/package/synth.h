// Models that nobody trained: seeded weights in the geometry of a real model, or in any geometry,
// for tests and measurements that need the shape of a model and none of its knowledge.
//
//   synth:NAME[,KEY=VALUE...][:int4|int8|fp16|fp32]        synth:qwen2.5-0.5b,kv=fp32:int8
//   synth:KEY=VALUE,...[:...] synth:layers=1,heads=8,head_dim=128,kv=fp16
//
// What they write is no language, but it is decided by everything that a real model's text is
// decided by: each next token depends on the keys and values of all layers, and repeats nothing
// (synth_values.h says how and with which margins). Weights are small whole numbers times exact
// scales, the same in all four formats, so a format changes bytes and speed and not one value.
//
// Differences from the models that lend their names: embedding and head are two matrices, RoPE is
// not scaled, the context is 131,072 positions, end tokens are never produced.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace granule::package {

// How the weights of the products and of the table are stored. kInt4 and kInt8: MatMulNBits and
// GatherBlockQuantized with blocks of 32 and fp32 scales. kFp16: fp16 initializers behind a Cast,
// multiplied in fp32.
enum class SynthFormat { kInt4, kInt8, kFp16, kFp32 };
const char* SynthFormatName(SynthFormat format);

struct SynthModel {
  std::string name;        // what was asked for, without "synth:"
  std::string model_type;  // "qwen2" or "llama"
  int64_t layers = 0;
  int64_t hidden = 0;        // H, a multiple of 32
  int64_t feed_forward = 0;  // F, a multiple of 32
  int64_t heads = 0;         // Hq
  int64_t kv_heads = 0;      // Hk, divides Hq
  int64_t head_dim = 0;      // D, a multiple of 8; Hq * D is a multiple of 32
  int64_t vocab = 0;         // V, at least 1,024
  int64_t context = 131072;  // positions
  float rope_base = 10000.0f;
  bool qkv_bias = false;
  DType kv = DType::kF32;  // or kF16
  SynthFormat format = SynthFormat::kInt4;
  uint64_t seed = 1;
};

inline constexpr std::string_view kSynthPrefix = "synth:";

// The text with or without "synth:". kInvalidInput in words: unknown names and keys with those that
// there are, values with what is accepted.
Result<SynthModel> ParseSynth(std::string_view text);

// Bytes of all tensors but the tables of positions.
Result<uint64_t> SynthWeightBytes(const SynthModel& model);

struct SynthOptions {
  // Replace a model folder that is there already. Anything else under the name is never touched.
  bool overwrite = false;
  // Called with bytes of weights done and total; may be empty.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress;
  // Asked between tensors; true stops with Code::kInterrupted and leaves nothing. May be empty.
  std::function<bool()> interrupted;
};

struct SynthReport {
  uint64_t weight_bytes = 0;  // of all tensors but the tables of positions
  uint64_t written_bytes = 0;
};

// Writes an ORT-GenAI folder: model.onnx, model.onnx.data, genai_config.json,
// generation_config.json, a byte-level tokenizer, a chat template and granule.json. It appears
// complete or not at all, as with ImportGguf. Streams: memory does not depend on the model's size.
Result<SynthReport> WriteSynth(const SynthModel& model, const std::filesystem::path& destination,
                               const SynthOptions& options);

}  // namespace granule::package
