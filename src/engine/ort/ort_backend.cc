#include "engine/ort/ort_backend.h"

#include <algorithm>
#include <cstring>

#include "engine/ort/ort_decoder.h"
#include "engine/scratch.h"

namespace granule::engine {
namespace {

// One row of logits as fp32.
void CopyLogits(const OrtDecoder::Logits& logits, int64_t row, int64_t width, float* out) {
  const auto count = static_cast<size_t>(width);
  const size_t first = static_cast<size_t>(row) * count;
  if (logits.type == OrtElementType::kFloat) {
    std::memcpy(out, static_cast<const float*>(logits.data) + first, count * sizeof(float));
    return;
  }
  const auto* halves = static_cast<const uint16_t*>(logits.data) + first;
  const bool brain = logits.type == OrtElementType::kBFloat16;
  for (size_t i = 0; i < count; ++i) out[i] = brain ? BF16ToF32(halves[i]) : F16ToF32(halves[i]);
}

class OrtBackend final : public Backend {
 public:
  explicit OrtBackend(const OrtModel& model) : model_(model), decoder_(model) {}

  const char* name() const override { return "ort"; }

  Status CheckLayout(const kv::LayoutChoice& layout) const override {
    if (model_.kv_mode == OrtKvMode::kCopied || layout.kind == kv::LayoutKind::kHeadMajor) {
      return {};
    }
    return Error(
        Code::kUsage,
        "--kv-layout {} does not go with --backend ort: ONNX Runtime reads the KV of this "
        "model in place, as [1, KV heads, capacity, head size]. Use --kv-layout head-major",
        kv::LayoutName(layout));
  }

  Status Prepare(int64_t, int64_t wanted_rows) override {
    return logits_.Reserve(FloatBytes(model_.vocab_size, wanted_rows), "logits");
  }

  Result<const float*> Run(const StepBatch& batch) override {
    const auto rows = static_cast<int64_t>(batch.token_ids.size());
    next_wanted_ = 0;
    for (int64_t first = 0; first < rows;) {
      const int32_t sequence = batch.places[static_cast<size_t>(first)].sequence;
      int64_t end = first;
      while (end < rows && batch.places[static_cast<size_t>(end)].sequence == sequence) ++end;
      if (Status s = RunSequence(batch, sequence, first, end); !s.ok()) return s;
      first = end;
    }
    return static_cast<const float*>(logits_.floats());
  }

 private:
  // Rows [first, end) of the batch, in as many runs as the graph's form asks for.
  Status RunSequence(const StepBatch& batch, int32_t sequence, int64_t first, int64_t end) {
    views_.clear();
    for (size_t layer = 0; layer < model_.layers.size(); ++layer) {
      views_.push_back(
          batch.sequences[static_cast<size_t>(sequence)]->View(static_cast<int32_t>(layer)));
    }
    while (first < end) {
      int64_t stop = end;
      if (model_.one_row) {
        stop = first + 1;
      } else if (model_.last_row_logits && next_wanted_ < batch.wanted.size()) {
        stop = std::min(end, batch.wanted[next_wanted_] + 1);
      }
      const auto at = static_cast<size_t>(first);
      auto logits = decoder_.Run(views_, batch.positions[at],
                                 batch.token_ids.subspan(at, static_cast<size_t>(stop - first)));
      if (!logits.ok()) return logits.status();
      if (Status s = TakeWanted(batch, *logits, first, stop); !s.ok()) return s;
      first = stop;
    }
    return {};
  }

  // The wanted ones of rows [first, end), which a run gave logits for.
  Status TakeWanted(const StepBatch& batch, const OrtDecoder::Logits& logits, int64_t first,
                    int64_t end) {
    for (; next_wanted_ < batch.wanted.size() && batch.wanted[next_wanted_] < end; ++next_wanted_) {
      const int64_t row = batch.wanted[next_wanted_] - (end - logits.rows);
      if (row < 0) {
        return InvalidInput("output \"{}\" holds {} of the {} rows of a run, without row {}",
                            model_.logits, logits.rows, end - first,
                            batch.wanted[next_wanted_] - first);
      }
      CopyLogits(logits, row, model_.vocab_size,
                 logits_.floats() + static_cast<int64_t>(next_wanted_) * model_.vocab_size);
    }
    return {};
  }

  const OrtModel& model_;
  OrtDecoder decoder_;
  Scratch logits_;
  size_t next_wanted_ = 0;  // index into the batch's wanted rows
  std::vector<KvView> views_;
};

}  // namespace

std::unique_ptr<Backend> MakeOrtBackend(const OrtModel& model) {
  return std::make_unique<OrtBackend>(model);
}

}  // namespace granule::engine
