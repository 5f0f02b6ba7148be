// A synthetic model -> the decoder of decoder_graph.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "base/status.h"
#include "onnx/writer.h"
#include "package/decoder_graph.h"
#include "package/synth.h"
#include "package/synth_content.h"

namespace granule::package {

struct SynthGraphOptions {
  // false: tensors are announced and not filled, for writers that allow it (synth_memory.h).
  bool values = true;
  // Where given, the large tensors of matrices are announced and not filled, and come here by their
  // names. Small ones are filled: whoever simplifies a graph may read those.
  std::map<std::string, SynthTensor>* left_out = nullptr;
  // Called with the bytes of each piece of a weight; an error stops the writing and is handed on.
  std::function<Status(uint64_t piece_bytes)> written;
};

struct SynthGraphBytes {
  uint64_t weights = 0;  // of all tensors but the tables of positions
  uint64_t read = 0;     // of those that every token reads whole: all but the embedding
};

DecoderShape ShapeOf(const SynthModel& model);

// Adds everything to `writer`; the caller finishes it. Streams: the largest buffer is a few MiB.
Result<SynthGraphBytes> WriteSynthGraph(const SynthModel& model, onnx::ModelWriter& writer,
                                        const SynthGraphOptions& options);

}  // namespace granule::package
