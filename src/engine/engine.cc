#include "engine/engine.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/arith.h"
#include "base/check.h"
#include "engine/native/execute.h"
#include "engine/native/plan.h"

namespace granule::engine {
namespace {

constexpr size_t kAlignment = 64;

// Uninitialised memory that only grows; what was in it is lost when it does.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Status Reserve(std::optional<uint64_t> bytes, const char* what) {
    if (bytes && *bytes <= bytes_) return {};
    void* data = bytes && *bytes <= UINT64_MAX / 2
                     ? std::aligned_alloc(kAlignment, RoundUp<uint64_t>(*bytes, kAlignment))
                     : nullptr;
    if (data == nullptr) {
      return Error(Code::kExhausted, "no memory for {} ({} bytes): use a smaller -ub/--ubatch-size",
                   what, bytes.value_or(UINT64_MAX));
    }
    std::free(data_);
    data_ = data;
    bytes_ = *bytes;
    return {};
  }
  float* floats() const { return static_cast<float*>(data_); }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

std::optional<uint64_t> FloatBytes(int64_t a, int64_t b) {
  const auto elements = CheckedMul(static_cast<uint64_t>(a), static_cast<uint64_t>(b));
  return elements ? CheckedMul<uint64_t>(*elements, sizeof(float)) : std::nullopt;
}

}  // namespace

// Everything a step needs besides weights and KV. Sized by the largest step so far: no allocation
// in a step of a size that ran before.
struct Engine::Arena {
  Scratch activations;
  Scratch logits;
  Scratch workspace;
  std::vector<int64_t> token_ids;
  std::vector<int64_t> positions;
  std::vector<int64_t> wanted;
  std::vector<kernels::RowPlace> places;
  std::vector<KvView> views;
  std::vector<kernels::MatMulOutput> products;

  Status Reserve(const Plan& plan, const kernels::Context& kernels, int64_t rows,
                 int64_t wanted_rows) {
    if (Status s = activations.Reserve(FloatBytes(plan.arena_floats_per_row, rows), "activations");
        !s.ok())
      return s;
    if (Status s = logits.Reserve(FloatBytes(plan.vocab_size, wanted_rows), "logits"); !s.ok())
      return s;
    uint64_t bytes = 0;
    for (const PlanStep& step : plan.steps) {
      if (const auto* attention = std::get_if<AttentionStep>(&step)) {
        bytes = std::max<uint64_t>(bytes, kernels::AttentionWorkspaceBytes(
                                              attention->shape, rows, kernels.pool->threads()));
      }
    }
    return workspace.Reserve(bytes, "attention");
  }
};

Engine::Engine(DeviceContext& device, const Model& model, KvOptions kv_options)
    : device_(device),
      model_(model),
      kv_options_(std::move(kv_options)),
      arena_(std::make_unique<Arena>()) {
  const auto limit = [](const std::optional<package::Sourced>& s) -> std::optional<kv::Limit> {
    if (!s) return std::nullopt;
    return kv::Limit{static_cast<uint64_t>(s->value), s->source};
  };
  hard_max_ = kv::ResolveHardMax(kv_options_.explicit_limit, limit(model.package().context_length),
                                 limit(model.package().table_rows));
}

Engine::~Engine() = default;

Result<std::unique_ptr<kv::Sequence>> Engine::NewSequence() {
  kv::SequenceOptions options;
  options.layout = kv_options_.layout;
  options.policy = kv_options_.policy;
  options.hard_max = hard_max_;
  if (const auto& stated = model_.package().context_length)
    options.model_context = static_cast<uint64_t>(stated->value);
  return kv::Sequence::Create(device_.store(), model_.kv_group(), options);
}

Result<StepOutput> Engine::Step(std::span<const StepItem> items) {
  const Plan& plan = model_.plan();
  Arena& arena = *arena_;

  // 1. Check, and lay the rows of all items one after the other.
  arena.token_ids.clear();
  arena.positions.clear();
  arena.places.clear();
  arena.wanted.clear();
  for (size_t i = 0; i < items.size(); ++i) {
    const StepItem& item = items[i];
    if (item.sequence == nullptr || item.tokens.empty())
      return InvalidInput("item {} of the step has no tokens", i);
    for (size_t j = 0; j < i; ++j) {
      if (items[j].sequence == item.sequence)
        return InvalidInput("items {} and {} of the step are the same sequence", j, i);
    }
    const auto first_row = static_cast<int64_t>(arena.token_ids.size());
    int64_t previous = -1;
    for (const int32_t row : item.wanted_rows) {
      if (row <= previous || row >= static_cast<int64_t>(item.tokens.size())) {
        return InvalidInput("item {}: wanted rows must ascend within its {} tokens, found {}", i,
                            item.tokens.size(), row);
      }
      arena.wanted.push_back(first_row + row);
      previous = row;
    }
    auto slot = static_cast<int64_t>(item.sequence->live_length());
    for (const TokenId id : item.tokens) {
      if (id < 0 || id >= plan.vocab_size) {
        return InvalidInput("token id {} is outside the model's vocabulary of {} (at position {})",
                            id, plan.vocab_size, slot);
      }
      arena.token_ids.push_back(id);
      arena.positions.push_back(slot);
      arena.places.push_back({static_cast<int32_t>(i), slot});
      ++slot;
    }
  }
  if (items.empty()) return InvalidInput("a step needs at least one sequence");
  const auto rows = static_cast<int64_t>(arena.token_ids.size());
  const auto wanted_rows = static_cast<int64_t>(arena.wanted.size());

  // 2. Memory: activations, then KV of every sequence. Growth that succeeded before a later failure
  // stays; no length changed.
  if (Status s = arena.Reserve(plan, device_.kernels(), rows, wanted_rows); !s.ok()) return s;
  for (const StepItem& item : items) {
    if (Status s = item.sequence->Ensure(item.sequence->live_length() + item.tokens.size());
        !s.ok())
      return s;
  }
  arena.views.clear();
  for (int32_t layer = 0; layer < static_cast<int32_t>(model_.kv_group().layers.size()); ++layer) {
    for (const StepItem& item : items) arena.views.push_back(item.sequence->View(layer));
  }

  // 3. Run.
  Execution run;
  run.kernels = &device_.kernels();
  run.rows = rows;
  run.token_ids = arena.token_ids;
  run.positions = arena.positions;
  run.places = arena.places;
  run.wanted = arena.wanted;
  run.sequences = static_cast<int64_t>(items.size());
  run.views = arena.views;
  run.arena = arena.activations.floats();
  run.logits = arena.logits.floats();
  run.workspace = arena.workspace.bytes();
  run.products = &arena.products;
  Execute(plan, run);

  // 4. The tokens are there now.
  for (const StepItem& item : items) item.sequence->Advance(item.tokens.size());
  ++steps_;
  largest_step_rows_ = std::max(largest_step_rows_, rows);
  return StepOutput{arena.logits.floats(), wanted_rows, plan.vocab_size};
}

}  // namespace granule::engine
