#include "engine/engine.h"

#include <algorithm>

#include "engine/backend.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/native/native_backend.h"
#include "engine/ort/ort_backend.h"

namespace granule::engine {
namespace {

std::unique_ptr<Backend> MakeBackend(DeviceContext& device, const Model& model) {
  if (device.gpu() != nullptr)
    return MakeCudaBackend(*device.gpu(), model.plan(), model.kv_group());
  return model.backend() == BackendKind::kOrt ? MakeOrtBackend(model.ort())
                                              : MakeNativeBackend(device, model.plan());
}

}  // namespace

// Rows of a step, reused from step to step.
struct Engine::Rows {
  std::vector<kv::Sequence*> sequences;
  std::vector<int64_t> token_ids;
  std::vector<int64_t> positions;
  std::vector<int64_t> wanted;
  std::span<const RowSampling> sampling;  // of StepAndSample
  std::vector<TokenId> sampled;
  std::vector<kernels::RowPlace> places;
};

Engine::Engine(DeviceContext& device, const Model& model, KvOptions kv_options)
    : device_(device),
      model_(model),
      kv_options_(std::move(kv_options)),
      rows_(std::make_unique<Rows>()),
      backend_(MakeBackend(device, model)) {
  const auto limit = [](const std::optional<package::Sourced>& s) -> std::optional<kv::Limit> {
    if (!s) return std::nullopt;
    return kv::Limit{static_cast<uint64_t>(s->value), s->source};
  };
  hard_max_ = kv::ResolveHardMax(kv_options_.explicit_limit, limit(model.package().context_length),
                                 limit(model.package().table_rows));
  kv::CaptureInputs inputs;
  inputs.mode = kv_options_.capture;
  inputs.mode_source = kv_options_.capture_source;
  inputs.device = device.name();
  capture_ = kv::DecideCapture(inputs);
}

Engine::~Engine() = default;

Result<std::unique_ptr<kv::Sequence>> Engine::NewSequence() {
  if (Status s = backend_->CheckLayout(kv_options_.layout); !s.ok()) return s;
  kv::SequenceOptions options;
  options.layout = kv_options_.layout;
  options.policy = kv_options_.policy;
  options.hard_max = hard_max_;
  options.growth = kv_options_.growth;
  options.capture_policy = kv_options_.capture_policy;
  options.capture_enabled = capture_.enabled;
  // Growth that moves tokens moves their mask too, where the graph reads one: 8 bytes each.
  if (model_.package().roles.attention_mask != onnx::kNone) options.mask_bytes_per_token = 8;
  if (const auto& stated = model_.package().context_length)
    options.model_context = static_cast<uint64_t>(stated->value);
  return kv::Sequence::Create(device_.store(), model_.kv_group(), options);
}

// Checks the items and lays their rows one after the other.
Status Engine::CollectRows(std::span<const StepItem> items) {
  Rows& rows = *rows_;
  rows.sequences.clear();
  rows.token_ids.clear();
  rows.positions.clear();
  rows.places.clear();
  rows.wanted.clear();
  if (items.empty()) return InvalidInput("a step needs at least one sequence");
  const int64_t vocab_size = model_.info().vocab_size;
  for (size_t i = 0; i < items.size(); ++i) {
    const StepItem& item = items[i];
    if (item.sequence == nullptr || item.tokens.empty()) {
      return InvalidInput("item {} of the step has no tokens", i);
    }
    if (std::count(rows.sequences.begin(), rows.sequences.end(), item.sequence) > 0) {
      return InvalidInput("item {} of the step is a sequence that the step has already", i);
    }
    rows.sequences.push_back(item.sequence);
    const auto first_row = static_cast<int64_t>(rows.token_ids.size());
    int64_t previous = -1;
    for (const int32_t row : item.wanted_rows) {
      if (row <= previous || row >= static_cast<int64_t>(item.tokens.size())) {
        return InvalidInput("item {}: wanted rows must ascend within its {} tokens, found {}", i,
                            item.tokens.size(), row);
      }
      rows.wanted.push_back(first_row + row);
      previous = row;
    }
    auto slot = static_cast<int64_t>(item.sequence->live_length());
    for (const TokenId id : item.tokens) {
      if (id < 0 || id >= vocab_size) {
        return InvalidInput("token id {} is outside the model's vocabulary of {} (at position {})",
                            id, vocab_size, slot);
      }
      rows.token_ids.push_back(id);
      rows.positions.push_back(slot);
      rows.places.push_back({static_cast<int32_t>(i), slot});
      ++slot;
    }
  }
  return {};
}

// Decode steps run eagerly or through a captured graph: as the state machine of the sequence says,
// or for a batch that of its size class. All other steps run eagerly.
Result<const float*> Engine::RunRows(std::span<const StepItem> items) {
  const StepBatch batch{rows_->sequences, rows_->token_ids, rows_->positions, rows_->places,
                        rows_->wanted,    rows_->sampling,  rows_->sampled};
  const bool decode =
      rows_->token_ids.size() == items.size() && rows_->wanted.size() == rows_->token_ids.size();
  if (!decode) {
    auto logits = backend_->Run(batch);
    if (!logits.ok()) return logits;
    for (const StepItem& item : items) {
      item.sequence->capture().Finished(static_cast<int64_t>(item.tokens.size()),
                                        kv::StepAction::kEager, kv::StepResult::kDone, "");
    }
    return logits;
  }
  const auto sequences = static_cast<int64_t>(items.size());
  const bool may_capture = capture_.enabled && backend_->GraphClass(sequences) != 0;
  if (items.size() > 1 && !may_capture) return backend_->Run(batch);
  kv::GraphCapture& capture = items.size() == 1
                                  ? items[0].sequence->capture()
                                  : class_captures_
                                        .try_emplace(backend_->GraphClass(sequences),
                                                     kv::CapturePolicy::kDefault, capture_.enabled)
                                        .first->second;
  if (backend_->HasGraph(sequences)) capture.Adopt();
  for (kv::StepAction action = capture.Next(1);;) {
    GraphRun run;
    if (action == kv::StepAction::kEager) {
      auto logits = backend_->Run(batch);
      if (!logits.ok()) return logits.status();
      run.logits = *logits;
    } else {
      auto graph = backend_->RunGraph(batch, action);
      if (!graph.ok()) return graph.status();
      run = std::move(*graph);
    }
    const auto again = capture.Finished(1, action, run.result, run.reason);
    if (!again) return run.logits;
    action = *again;
  }
}

Result<const float*> Engine::RunStep(std::span<const StepItem> items) {
  const auto row_count = static_cast<int64_t>(rows_->token_ids.size());
  const auto wanted_rows = static_cast<int64_t>(rows_->wanted.size());

  // Memory: the backend's, then KV. Growth before a later failure stays; no live length has
  // changed.
  if (Status s = backend_->Prepare(row_count, wanted_rows); !s.ok()) return s;
  for (const StepItem& item : items) {
    const uint64_t needed = item.sequence->live_length() + item.tokens.size();
    if (Status s = item.sequence->Ensure(needed); !s.ok()) return s;
  }

  // Run.
  auto logits = RunRows(items);
  if (!logits.ok()) return logits.status();

  // The tokens are there now.
  for (const StepItem& item : items) item.sequence->Advance(item.tokens.size());
  ++steps_;
  largest_step_rows_ = std::max(largest_step_rows_, row_count);
  return logits;
}

Result<StepOutput> Engine::Step(std::span<const StepItem> items) {
  if (Status s = CollectRows(items); !s.ok()) return s;
  rows_->sampling = {};
  rows_->sampled.clear();
  auto logits = RunStep(items);
  if (!logits.ok()) return logits.status();
  return StepOutput{*logits, static_cast<int64_t>(rows_->wanted.size()), model_.info().vocab_size};
}

bool Engine::SamplesOnDevice() const { return backend_->SamplesOnDevice(); }

Result<std::span<const TokenId>> Engine::StepAndSample(std::span<const StepItem> items,
                                                       std::span<const RowSampling> sampling) {
  if (!SamplesOnDevice()) {
    return Error(Code::kUsage, "{} does not pick tokens on the device: sample from Step's logits",
                 model_.info().backend);
  }
  if (Status s = CollectRows(items); !s.ok()) return s;
  if (sampling.size() != rows_->wanted.size()) {
    return InvalidInput("{} rows are wanted and {} are to be sampled", rows_->wanted.size(),
                        sampling.size());
  }
  rows_->sampling = sampling;
  rows_->sampled.assign(sampling.size(), 0);
  if (auto done = RunStep(items); !done.ok()) return done.status();
  return std::span<const TokenId>(rows_->sampled);
}

}  // namespace granule::engine
