// Runs tokens of one sequence through ONNX Runtime: feeds by role, KV bound or copied.
#pragma once

#include <span>
#include <vector>

#include "base/kv_view.h"
#include "base/status.h"
#include "engine/ort/ort_model.h"
#include "engine/scratch.h"

namespace granule::engine {

// Keeps nothing of a sequence between runs: its KV is in its slots and nowhere else. So rewinding,
// another order of sequences, or a failed run need no care here.
class OrtDecoder {
 public:
  // The model outlives the decoder.
  explicit OrtDecoder(const OrtModel& model) : model_(model) {}

  // Tokens `ids` at slots [live, live + n): writes their K and V through the views (one per layer)
  // and returns the logits [rows, vocab_size] with rows n, or 1 where the graph gives the last row
  // alone. They are valid until the next Run. Slots below `live` stay as they are, also on error.
  struct Logits {
    const void* data = nullptr;
    OrtElementType type = OrtElementType::kFloat;
    int64_t rows = 0;
  };
  Result<Logits> Run(std::span<const KvView> views, int64_t live, std::span<const int64_t> ids);

 private:
  Status FeedNumbers(const std::string& name, OrtElementType type, int64_t count, Scratch& scratch);
  Status FeedTokens(int64_t live, std::span<const int64_t> ids);
  // Layers, K and V, in the order of the bindings.
  bool CanShare(std::span<const KvView> views) const;
  Status BindShared(std::span<const KvView> views);
  Status BindCopies(std::span<const KvView> views, int64_t live);
  Status CopyBack(std::span<const KvView> views, int64_t live, int64_t count) const;
  Result<Logits> ReadLogits(int64_t count) const;

  const OrtModel& model_;
  std::vector<OrtGraph::Feed> inputs_;
  std::vector<OrtGraph::Feed> outputs_;  // [0] = logits, then present key and value of each layer
  std::vector<OrtGraph::Alias> aliases_;
  std::vector<int64_t> numbers_;
  Scratch ids_, mask_, positions_, past_;
};

}  // namespace granule::engine
