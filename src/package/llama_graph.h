// A llama model in GGUF tensors -> the decoder of decoder_graph.h, with fp32 KV.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "onnx/writer.h"
#include "package/decoder_graph.h"
#include "package/gguf.h"
#include "package/llama_config.h"

namespace granule::package {

DecoderShape ShapeOf(const LlamaConfig& config);

// Called when a source tensor is written; its pages are not needed again. An error stops the import
// and is handed on.
using TensorWritten = std::function<Status(const GgufTensor& tensor)>;

// Adds inputs, outputs, nodes and all weights to `writer`; the caller finishes it. Streams: the
// largest buffer is a few MiB. Errors: what the writer gives, and weights whose block scales are
// not finite (named).
Status WriteLlamaGraph(const GgufFile& file, const LlamaConfig& config, onnx::ModelWriter& writer,
                       const TensorWritten& written, std::vector<std::string>* warnings);

}  // namespace granule::package
