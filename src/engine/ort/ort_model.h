// A package's graph in ONNX Runtime, with its ports by role and the way its KV is bound.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/ort/ort_graph.h"
#include "engine/ort/ort_library.h"
#include "kv/layout.h"
#include "package/package.h"

namespace granule::engine {

// The KV of one layer as the graph names it.
struct OrtKvPort {
  std::string past_key, past_value, present_key, present_value;
  kv::LayerGeometry geometry;

  size_t RowBytes() const {  // of one head of one token
    return static_cast<size_t>(geometry.BindingBytesPerToken()) /
           static_cast<size_t>(geometry.kv_heads);
  }
};

// How the graph gets at a sequence's KV.
//   shared  past and present of a layer are the same memory, inside the sequence's reservation:
//           [1, Hk, capacity, D]. New rows are written in place and nothing is copied. Needs
//           GroupQueryAttention, a head-major layout, and a library that touches live rows only.
//   copied  the live rows are laid out densely for the run, [1, Hk, live, D] or the graph's fixed
//           capacity, and the new rows of present are copied back to their slots. Any layout.
enum class OrtKvMode { kShared, kCopied };

// Const after Load.
struct OrtModel {
  // kUsage for a model that is no file; kUnavailable without the library; kInvalidInput for a model
  // that ONNX Runtime refuses or whose ports are of a form that steps cannot feed (each by name).
  static Result<std::unique_ptr<OrtModel>> Load(const OrtPlaces& places,
                                                const package::Package& package, int threads);

  std::unique_ptr<OrtGraph> graph;
  std::string input_ids, attention_mask, position_ids, logits;  // names; empty: the graph has none
  OrtElementType input_ids_type = OrtElementType::kInt64;
  OrtElementType attention_mask_type = OrtElementType::kInt64;
  OrtElementType position_ids_type = OrtElementType::kInt64;
  int64_t vocab_size = 0;
  std::vector<OrtKvPort> layers;

  OrtKvMode kv_mode = OrtKvMode::kCopied;
  std::string kv_reason;  // why this mode: a sentence without a full stop
  // Sizes that the graph fixes; -1 where it leaves them open.
  int64_t fixed_capacity = -1;   // of past
  int64_t fixed_mask = -1;       // width of attention_mask
  bool one_row = false;          // runs take one token
  bool last_row_logits = false;  // logits are [1, 1, V], of the last token of a run

  // Tokens that fit the sizes above, or -1 for no such limit.
  int64_t fixed_tokens() const;
};

}  // namespace granule::engine
