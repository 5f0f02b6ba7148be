#include "engine/native/native_backend.h"

#include <algorithm>
#include <variant>

#include "engine/native/execute.h"
#include "engine/scratch.h"

namespace granule::engine {
namespace {

// Scratch is sized by the largest step so far: no allocation in a step of a size that ran before.
class NativeBackend final : public Backend {
 public:
  NativeBackend(DeviceContext& device, const Plan& plan) : device_(device), plan_(plan) {
    for (const PlanStep& step : plan_.steps) {
      const auto* attention = std::get_if<AttentionStep>(&step);
      if (attention == nullptr) continue;
      layers_ = std::max(layers_, attention->layer + 1);
      if (std::find(shapes_.begin(), shapes_.end(), attention->shape) == shapes_.end()) {
        shapes_.push_back(attention->shape);
      }
    }
  }

  const char* name() const override { return "native"; }

  Status Prepare(int64_t rows, int64_t wanted_rows) override {
    if (Status s =
            activations_.Reserve(FloatBytes(plan_.arena_floats_per_row, rows), "activations");
        !s.ok()) {
      return s;
    }
    if (Status s = logits_.Reserve(FloatBytes(plan_.vocab_size, wanted_rows), "logits"); !s.ok()) {
      return s;
    }
    uint64_t bytes = 0;
    for (const kernels::AttentionShape& shape : shapes_) {
      bytes = std::max<uint64_t>(bytes,
                                 kernels::AttentionWorkspaceBytes(shape, rows, device_.threads()));
    }
    return workspace_.Reserve(bytes, "attention");
  }

  Result<const float*> Run(const StepBatch& batch) override {
    views_.clear();
    for (int32_t layer = 0; layer < layers_; ++layer) {
      for (const kv::Sequence* sequence : batch.sequences) views_.push_back(sequence->View(layer));
    }
    Execution run;
    run.kernels = &device_.kernels();
    run.rows = static_cast<int64_t>(batch.token_ids.size());
    run.token_ids = batch.token_ids;
    run.positions = batch.positions;
    run.places = batch.places;
    run.wanted = batch.wanted;
    run.sequences = static_cast<int64_t>(batch.sequences.size());
    run.views = views_;
    run.arena = activations_.floats();
    run.logits = logits_.floats();
    run.workspace = workspace_.bytes();
    run.products = &products_;
    Execute(plan_, run);
    return static_cast<const float*>(logits_.floats());
  }

 private:
  DeviceContext& device_;
  const Plan& plan_;
  Scratch activations_;
  Scratch logits_;
  Scratch workspace_;
  int32_t layers_ = 0;
  std::vector<kernels::AttentionShape> shapes_;  // the different ones: mostly a single one
  std::vector<KvView> views_;
  std::vector<kernels::MatMulOutput> products_;
};

}  // namespace

std::unique_ptr<Backend> MakeNativeBackend(DeviceContext& device, const Plan& plan) {
  return std::make_unique<NativeBackend>(device, plan);
}

}  // namespace granule::engine
