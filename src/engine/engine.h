// Runs a model over ragged batches of sequences.
//
//   Model::Load   package -> packed weights and a plan (a flat list of steps); const afterwards
//   Engine::Step  rows of tokens in, logits of the wanted rows out; KV grows as needed
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/sample_params.h"
#include "base/status.h"
#include "engine/device.h"
#include "kv/sequence.h"
#include "package/package.h"

namespace granule::engine {

using TokenId = int32_t;

class Backend;       // backend.h
struct Plan;         // native/plan.h
struct CudaWeights;  // cuda/cuda_weights.h
struct OrtModel;     // ort/ort_model.h

// What runs the graph: granule's own kernels, or ONNX Runtime opened at run time.
enum class BackendKind { kNative, kOrt };

// What the model is, for reports.
struct ModelInfo {
  std::string name;
  std::string model_type;
  int64_t layers = 0;  // with attention
  int64_t vocab_size = 0;
  uint64_t kv_bytes_per_token = 0;
  uint64_t source_weight_bytes = 0;  // read per token, counted in the source file's tensors
  uint64_t packed_weight_bytes = 0;  // what the kernels read; 0 = not known (ONNX Runtime)
  uint64_t macs_per_token = 0;  // multiply-adds in weight products for one token with logits; 0 =
                                // not known
  std::string backend;          // "native", "ONNX Runtime 1.32.0"
};

class Model {
 public:
  // kNative: recognises the graph, packs the weights on the device's threads, and drops the
  // source's pages. What has no native operator is refused: all such nodes with node name,
  // operator, domain and count. kOrt: ONNX Runtime loads the file; kUnavailable where the library
  // is missing or too old.
  // On a GPU the weights are uploaded: kExhausted with the bill where they do not fit. `progress`
  // is called with bytes loaded and in all where that takes long; may be empty.
  static Result<std::unique_ptr<Model>> Load(
      DeviceContext& device, package::Package package, BackendKind backend = BackendKind::kNative,
      const std::function<void(uint64_t, uint64_t)>& progress = {});
  ~Model();

  const ModelInfo& info() const { return info_; }
  const package::Package& package() const { return package_; }
  const kv::Group& kv_group() const { return group_; }
  BackendKind backend() const { return ort_ ? BackendKind::kOrt : BackendKind::kNative; }
  const Plan& plan() const { return *plan_; }    // of kNative
  const OrtModel& ort() const { return *ort_; }  // of kOrt

  // What runs, as text: the plan, a line per step; of ONNX Runtime how it is bound. For `inspect`.
  std::string DescribePlan() const;

 private:
  Model();
  Status MakePlan(const kernels::Context* kernels);
  Status LoadOrt(DeviceContext& device);
  Status LoadCuda(DeviceContext& device, const std::function<void(uint64_t, uint64_t)>& progress);
  void LowerTableRows(int64_t rows, const std::string& source);

  package::Package package_;
  ModelInfo info_;
  kv::Group group_;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<CudaWeights> cuda_;  // what the plan points to, on a GPU
  std::unique_ptr<OrtModel> ort_;
};

// What would not run and why, without loading weights: for `inspect`. Empty = everything has a
// native operator.
struct Unsupported {
  std::string op;
  std::string domain;
  std::string node;  // name of the first such node
  int64_t count = 0;
  std::string reason;  // "no native operator", "attribute softcap = 50 is not built", ...
};
Result<std::vector<Unsupported>> FindUnsupported(package::Package& package);

struct KvOptions {
  kv::LayoutChoice layout;
  kv::CapacityPolicy policy;
  std::optional<kv::Limit> explicit_limit = {};  // --ctx-size
  kv::GrowthKind growth = kv::GrowthKind::kCommit;
  kv::CapturePolicy capture_policy = kv::CapturePolicy::kDefault;
  kv::CaptureMode capture = kv::CaptureMode::kAuto;  // --cuda-graph
  std::string capture_source = "default";
};

// One sequence's part of a step.
struct StepItem {
  kv::Sequence* sequence = nullptr;
  std::span<const TokenId> tokens;  // q >= 1, appended after the live length
  std::span<const int32_t>
      wanted_rows;  // ascending indices into tokens whose logits are wanted; may be empty
};

struct StepOutput {
  // Logits of all wanted rows, item by item: [rows, vocab_size], fp32, dense. Valid until the next
  // Step or the engine's end.
  const float* logits = nullptr;
  int64_t rows = 0;
  int64_t vocab_size = 0;
  std::span<const float> Row(int64_t i) const {
    return {logits + i * vocab_size, static_cast<size_t>(vocab_size)};
  }
};

// How the token after a wanted row is picked where the device does it (base/sample_params.h).
struct RowSampling {
  SampleParams params;
  float uniform = 0.0f;  // in [0, 1): the draw, where the temperature is above 0
};

// Thread rules: one Step at a time per device (it uses all of the device's threads).
class Engine {
 public:
  Engine(DeviceContext& device, const Model& model, KvOptions kv_options);
  ~Engine();

  // An empty sequence with the engine's KV options. Commits no memory. kUsage for a layout that the
  // backend cannot read.
  Result<std::unique_ptr<kv::Sequence>> NewSequence();

  // ensure KV -> run the plan -> advance. After an error no sequence has changed its live length,
  // and the same call may be tried again:
  //   kInvalidInput      a token id outside the vocabulary, the same sequence twice, an empty item
  //   kCapacityExceeded  a sequence would pass its hard maximum
  //   kExhausted         the system refused memory
  //   kPoisoned          a sequence lost memory earlier and can only be closed
  //   kDeviceLost        a GPU's context broke: its sequences can only be closed
  //   kUsage             more than 256 sequences at once on a GPU
  Result<StepOutput> Step(std::span<const StepItem> items);

  // The same, but the tokens after the wanted rows are picked where the logits are, which stay
  // there: one id per wanted row, valid until the next step. Greedy picks are the host's; draws
  // agree with it but for limits that fall on a rounding. kUsage where the backend cannot
  // (SamplesOnDevice).
  Result<std::span<const TokenId>> StepAndSample(std::span<const StepItem> items,
                                                 std::span<const RowSampling> sampling);
  bool SamplesOnDevice() const;

  const Model& model() const { return model_; }
  const kv::HardMax& hard_max() const { return hard_max_; }
  const KvOptions& kv_options() const { return kv_options_; }
  // Whether decode steps are captured, and the predicate that said so.
  const kv::CaptureDecision& capture_decision() const { return capture_; }
  // Steps run and the rows they had, for tests and reports.
  uint64_t steps() const { return steps_; }
  int64_t largest_step_rows() const { return largest_step_rows_; }

 private:
  struct Rows;

  Status CollectRows(std::span<const StepItem> items);
  Result<const float*> RunStep(std::span<const StepItem> items);
  Result<const float*> RunRows(std::span<const StepItem> items);

  DeviceContext& device_;
  const Model& model_;
  KvOptions kv_options_;
  kv::HardMax hard_max_;
  kv::CaptureDecision capture_;
  std::map<int64_t, kv::GraphCapture> class_captures_;  // of batches, by size class
  std::unique_ptr<Rows> rows_;
  std::unique_ptr<Backend> backend_;
  uint64_t steps_ = 0;
  int64_t largest_step_rows_ = 0;
};

}  // namespace granule::engine
