// A llama model in GGUF tensors -> an ONNX decoder as the builder of onnxruntime-genai writes them
// for the CPU.
//
//   input_ids [B, S] int64, attention_mask [B, T] int64, past_key_values.N.key/value [B, Hk, past,
//   D] fp32
//   -> logits [B, S, V] fp32, present.N.key/value [B, Hk, T, D] fp32
//
// RoPE is fused into GroupQueryAttention through the cos and sin tables, so there is no
// position_ids input.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "onnx/writer.h"
#include "package/gguf.h"
#include "package/llama_config.h"

namespace granule::package {

// Called when a source tensor is written; its pages are not needed again. An error stops the import
// and is handed on.
using TensorWritten = std::function<Status(const GgufTensor& tensor)>;

// Adds inputs, outputs, nodes and all weights to `writer`; the caller finishes it. Streams: the
// largest buffer is a few MiB. Errors: what the writer gives, and weights whose block scales are
// not finite (named).
Status WriteLlamaGraph(const GgufFile& file, const LlamaConfig& config, onnx::ModelWriter& writer,
                       const TensorWritten& written, std::vector<std::string>* warnings);

}  // namespace granule::package
