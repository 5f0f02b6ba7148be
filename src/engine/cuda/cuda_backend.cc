#include "engine/cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/arith.h"
#include "engine/cuda/cuda_execute.h"
#include "kernels/cuda/cuda_sample.h"

namespace granule::engine {
namespace {

using kernels::AttentionTile;
using kernels::CudaRow;

// Decode steps of up to so many sequences run through the graph of their class. One more and
// products may use a library, which no graph of ours holds.
constexpr int64_t kGraphClasses[] = {1, 2, 4, 8, 16, 32, 63};
// Rows of one sequence from which they are handled as tiles: tensor cores pay there.
constexpr int64_t kTileFromRows = 8;

constexpr uint64_t kSampleAlignment = 256;
constexpr uint64_t kCutRowsAlignment = 256;

// Device memory that a step works in.
struct StepMemory {
  cuda::Buffer arena, cut, logits, products, attention, inputs;

  Status Reserve(cuda::Device& device, const Plan& plan, int64_t rows, int64_t wanted,
                 int64_t singles) {
    const auto floats = [](uint64_t a, uint64_t b = 1) { return a * b * sizeof(float); };
    const auto r = static_cast<uint64_t>(rows);
    const auto w = static_cast<uint64_t>(wanted);
    const struct {
      cuda::Buffer& buffer;
      uint64_t bytes;
      const char* what;
    } needs[] = {
        {arena, floats(static_cast<uint64_t>(plan.arena_floats_per_row), r), "activations"},
        {cut,
         wanted == rows
             ? 0
             : RoundUp(w * sizeof(CudaRow), kCutRowsAlignment) + floats(CutFloats(plan, wanted)),
         "activations of wanted rows"},
        {logits, floats(static_cast<uint64_t>(plan.vocab_size), w), "logits"},
        {products, CudaMatMulBytes(plan, rows, wanted), "matrix products"},
        {attention, CudaAttentionBytes(plan, singles, wanted), "attention"},
        {inputs, InputBytes(rows, wanted), "a step's inputs"},
    };
    for (const auto& need : needs) {
      if (Status s = need.buffer.Reserve(device, need.bytes, need.what); !s.ok()) {
        if (s.code() != Code::kExhausted || rows == 1) return s;
        return Status(s.code(), s.message() + "; use a smaller -ub/--ubatch-size");
      }
    }
    return {};
  }

  // Rows, then the list of single rows, the wanted rows and the tiles.
  static uint64_t InputBytes(int64_t rows, int64_t wanted) {
    const auto r = static_cast<uint64_t>(rows);
    return RoundUp(r * sizeof(CudaRow), uint64_t{16}) + RoundUp(r * sizeof(int32_t), uint64_t{16}) +
           RoundUp(static_cast<uint64_t>(wanted) * sizeof(int32_t), uint64_t{16}) +
           r * sizeof(AttentionTile);
  }
};

struct Graph {
  StepMemory memory;  // baked into the graph
  cuda::GraphHandle graph = nullptr;
  cuda::GraphExecHandle exec = nullptr;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(Gpu& gpu, const Plan& plan, const kv::Group& group) : gpu_(gpu), plan_(plan) {
    for (const kv::LayerGeometry& layer : group.layers) kv_types_.push_back(layer.dtype);
  }
  ~CudaBackend() override {
    (void)device().Synchronize();
    for (auto& [size, graph] : graphs_) Drop(graph);
  }

  const char* name() const override { return "native"; }

  Status Prepare(int64_t rows, int64_t wanted_rows) override {
    if (Status s = device().lost(); !s.ok()) return s;
    if (rows == prepared_rows_ && wanted_rows == prepared_wanted_) return {};
    const uint64_t views = kv_types_.size() * kMaxCudaSequences * sizeof(KvView);
    if (Status s = views_.Reserve(device(), views, "KV views"); !s.ok()) return s;
    if (Status s = views_host_.Reserve(device(), views, "KV views"); !s.ok()) return s;
    // Decode steps have their own memory, with their graph.
    if (Status s = memory_.Reserve(device(), plan_, rows, wanted_rows, SinglesBound(rows));
        !s.ok()) {
      return s;
    }
    if (Status s = inputs_host_.Reserve(device(), StepMemory::InputBytes(rows, wanted_rows),
                                        "a step's inputs");
        !s.ok()) {
      return s;
    }
    prepared_rows_ = rows;
    prepared_wanted_ = wanted_rows;
    return {};
  }

  Result<const float*> Run(const StepBatch& batch) override {
    if (Status s = Settle(); !s.ok()) return s;
    CudaExecution run = Over(memory_, static_cast<int64_t>(batch.token_ids.size()),
                             static_cast<int64_t>(batch.wanted.size()));
    if (Status s = UploadViews(batch); !s.ok()) return s;
    if (Status s = UploadInputs(batch, memory_, run); !s.ok()) return s;
    gpu_.launcher->ClearStatus();
    ExecuteOnCuda(plan_, run);
    if (Status s = gpu_.launcher->status(); !s.ok()) return s;
    return Finish(memory_, batch);
  }

  bool SamplesOnDevice() const override { return plan_.vocab_size <= kernels::kMostSampledVocab; }

  int64_t GraphClass(int64_t sequences) const override {
    for (const int64_t size : kGraphClasses) {
      if (sequences <= size) return size;
    }
    return 0;
  }
  bool HasGraph(int64_t sequences) const override {
    const auto it = graphs_.find(GraphClass(sequences));
    return it != graphs_.end() && it->second.exec != nullptr;
  }

  Result<GraphRun> RunGraph(const StepBatch& batch, kv::StepAction action) override {
    const auto rows = static_cast<int64_t>(batch.token_ids.size());
    const int64_t size = GraphClass(rows);
    if (batch.sequences.size() != batch.token_ids.size() ||
        batch.wanted.size() != batch.token_ids.size() || size == 0) {
      return GraphRun{
          nullptr, kv::StepResult::kDeclined,
          Format("predicate `decode step` declined capture: {} rows of {} sequences, {} "
                 "wanted, expected one wanted row for each of up to {} sequences",
                 rows, batch.sequences.size(), batch.wanted.size(),
                 kGraphClasses[std::size(kGraphClasses) - 1])};
    }
    if (action == kv::StepAction::kReplay && !HasGraph(rows)) {
      return GraphRun{
          nullptr, kv::StepResult::kGraphInvalid,
          Format("predicate `graph` ended the replay: there is none for {} sequences", size)};
    }
    Graph& graph = graphs_[size];
    if (action == kv::StepAction::kCapture) {
      if (Status s = Capture(graph, size); !s.ok()) {
        Drop(graph);
        graph.memory = {};
        if (s.code() == Code::kDeviceLost) return s;
        return GraphRun{nullptr, kv::StepResult::kDeclined,
                        Format("predicate `driver` declined capture: {}", s.message())};
      }
    }
    if (Status s = Settle(); !s.ok()) return s;
    if (Status s = UploadViews(batch); !s.ok()) return s;
    CudaExecution run = Over(graph.memory, size, size);
    if (Status s = UploadDecodeRows(batch, run); !s.ok()) return s;
    device().MakeCurrent();
    if (Status s = device().Check(device().driver().GraphLaunch(graph.exec, device().stream()),
                                  "launching a graph");
        !s.ok()) {
      return s;
    }
    auto logits = Finish(graph.memory, batch);
    if (!logits.ok()) return logits.status();
    return GraphRun{*logits, kv::StepResult::kDone, {}};
  }

 private:
  cuda::Device& device() const { return *gpu_.device; }

  // Most rows of a step that can end up in the list of single rows.
  static int64_t SinglesBound(int64_t rows) {
    return std::min(rows, kMaxCudaSequences * (kTileFromRows - 1));
  }

  CudaExecution Over(const StepMemory& memory, int64_t rows, int64_t wanted) {
    CudaExecution run;
    run.launcher = gpu_.launcher.get();
    run.blas = gpu_.blas.get();
    run.rows = rows;
    run.row_data = memory.inputs.as<CudaRow>();
    run.single_count = rows;
    run.wanted_count = wanted;
    run.wanted_row_data = memory.cut.as<CudaRow>();
    run.cut_arena = reinterpret_cast<float*>(
        memory.cut.address() +
        RoundUp(static_cast<uint64_t>(wanted) * sizeof(CudaRow), kCutRowsAlignment));
    run.views = views_.as<KvView>();
    run.views_per_layer = kMaxCudaSequences;
    run.kv_types = kv_types_;
    run.arena = memory.arena.as<float>();
    run.logits = memory.logits.as<float>();
    run.matmul_workspace = memory.products.as<std::byte>();
    run.matmul_workspace_bytes = memory.products.bytes();
    run.attention_workspace = memory.attention.as<std::byte>();
    run.attention_workspace_bytes = memory.attention.bytes();
    run.products = &products_;
    return run;
  }

  // Records a decode step of `size` rows over memory of its own. Nothing of any sequence is baked
  // in: tokens, slots and places are read from device memory.
  Status Capture(Graph& graph, int64_t size) {
    Drop(graph);
    if (Status s = graph.memory.Reserve(device(), plan_, size, size, size); !s.ok()) return s;
    device().MakeCurrent();
    const cuda::Driver& driver = device().driver();
    if (Status s = device().Check(driver.GraphCreate(&graph.graph, 0), "making a graph"); !s.ok())
      return s;
    CudaExecution run = Over(graph.memory, size, size);
    gpu_.launcher->ClearStatus();
    gpu_.launcher->RecordInto(graph.graph);
    ExecuteOnCuda(plan_, run);
    gpu_.launcher->RecordInto(nullptr);
    if (Status s = gpu_.launcher->status(); !s.ok()) return s;
    return device().Check(driver.GraphInstantiate(&graph.exec, graph.graph, 0),
                          "instantiating a graph");
  }

  void Drop(Graph& graph) {
    device().MakeCurrent();
    (void)device().WaitSubmitted();
    if (graph.exec != nullptr) device().driver().GraphExecDestroy(graph.exec);
    if (graph.graph != nullptr) device().driver().GraphDestroy(graph.graph);
    graph.exec = nullptr;
    graph.graph = nullptr;
  }

  // The places of these sequences' KV, where they changed since the last step.
  Status UploadViews(const StepBatch& batch) {
    if (batch.sequences.size() > kMaxCudaSequences) {
      return Error(Code::kUsage, "a step on a GPU takes at most {} sequences, found {}",
                   kMaxCudaSequences, batch.sequences.size());
    }
    auto* host = reinterpret_cast<KvView*>(views_host_.data());
    places_.resize(std::max(places_.size(), batch.sequences.size()));
    for (size_t i = 0; i < batch.sequences.size(); ++i) {
      const kv::Sequence& sequence = *batch.sequences[i];
      const Place place{sequence.base(), sequence.capacity()};
      if (places_[i] == place) continue;
      // The pinned copy may still be on its way to the device.
      if (Status s = device().WaitSubmitted(); !s.ok()) return s;
      for (size_t layer = 0; layer < kv_types_.size(); ++layer) {
        const size_t at = layer * kMaxCudaSequences + i;
        host[at] = sequence.View(static_cast<int32_t>(layer));
        if (Status s = device().UploadAsync(views_.address() + at * sizeof(KvView), &host[at],
                                            sizeof(KvView));
            !s.ok()) {
          places_[i] = {};
          return s;
        }
      }
      places_[i] = place;
    }
    return {};
  }

  Status UploadDecodeRows(const StepBatch& batch, const CudaExecution& run) {
    const size_t bytes = static_cast<size_t>(run.rows) * sizeof(CudaRow);
    if (Status s = inputs_host_.Reserve(device(), bytes, "a step's inputs"); !s.ok()) return s;
    auto* rows = reinterpret_cast<CudaRow*>(inputs_host_.data());
    for (size_t i = 0; i < static_cast<size_t>(run.rows); ++i) {
      rows[i] = i < batch.token_ids.size() ? CudaRow{static_cast<int32_t>(batch.token_ids[i]),
                                                     batch.places[i].sequence, batch.places[i].slot}
                                           : CudaRow{0, -1, 0};
    }
    return device().UploadAsync(reinterpret_cast<cuda::DevicePtr>(run.row_data), rows, bytes);
  }

  // Rows and lists in one transfer.
  Status UploadInputs(const StepBatch& batch, const StepMemory& memory, CudaExecution& run) {
    const size_t count = batch.token_ids.size();
    std::byte* host = inputs_host_.data();
    auto* rows = reinterpret_cast<CudaRow*>(host);
    uint64_t offset = RoundUp(count * sizeof(CudaRow), uint64_t{16});
    auto* singles = reinterpret_cast<int32_t*>(host + offset);
    const uint64_t singles_at = offset;
    offset += RoundUp(count * sizeof(int32_t), uint64_t{16});
    auto* wanted = reinterpret_cast<int32_t*>(host + offset);
    const uint64_t wanted_at = offset;
    offset += RoundUp(batch.wanted.size() * sizeof(int32_t), uint64_t{16});
    auto* tiles = reinterpret_cast<AttentionTile*>(host + offset);
    const uint64_t tiles_at = offset;

    run.single_count = 0;
    run.tile_count = 0;
    for (size_t first = 0; first < count;) {
      size_t end = first;
      while (end < count && batch.places[end].sequence == batch.places[first].sequence) ++end;
      for (size_t i = first; i < end; ++i) {
        rows[i] = {static_cast<int32_t>(batch.token_ids[i]), batch.places[i].sequence,
                   batch.places[i].slot};
      }
      if (end - first < static_cast<size_t>(kTileFromRows)) {
        for (size_t i = first; i < end; ++i) singles[run.single_count++] = static_cast<int32_t>(i);
      } else {
        for (size_t i = first; i < end; i += kernels::kTileRows) {
          const size_t n = std::min<size_t>(kernels::kTileRows, end - i);
          tiles[run.tile_count++] = {static_cast<int32_t>(i), static_cast<int32_t>(n)};
        }
      }
      first = end;
    }
    for (size_t i = 0; i < batch.wanted.size(); ++i)
      wanted[i] = static_cast<int32_t>(batch.wanted[i]);

    const cuda::DevicePtr device_inputs = memory.inputs.address();
    run.single_rows = reinterpret_cast<const int32_t*>(device_inputs + singles_at);
    run.tiles = reinterpret_cast<const AttentionTile*>(device_inputs + tiles_at);
    if (batch.wanted.size() != count)
      run.wanted = reinterpret_cast<const int32_t*>(device_inputs + wanted_at);
    const uint64_t bytes = tiles_at + static_cast<uint64_t>(run.tile_count) * sizeof(AttentionTile);
    return device().UploadAsync(device_inputs, host, bytes);
  }

  // Marks the step, brings its logits or the tokens picked from them to the host, and waits.
  Result<const float*> Finish(const StepMemory& memory, const StepBatch& batch) {
    if (!batch.sampled.empty()) {
      if (Status s = SampleBatch(memory, batch); !s.ok()) return s;
      return static_cast<const float*>(nullptr);
    }
    const auto wanted = static_cast<int64_t>(batch.wanted.size());
    const auto bytes = static_cast<uint64_t>(plan_.vocab_size * wanted) * sizeof(float);
    if (bytes > 0) {
      if (Status s = logits_host_.Reserve(device(), bytes, "logits"); !s.ok()) return s;
      if (Status s = device().DownloadAsync(logits_host_.data(), memory.logits.address(), bytes);
          !s.ok()) {
        return s;
      }
    }
    if (Status s = WaitForStep(batch); !s.ok()) return s;
    return reinterpret_cast<const float*>(logits_host_.data());
  }

  Status WaitForStep(const StepBatch& batch) {
    if (Status s = device().Submitted(); !s.ok()) return s;
    // While the GPU works: the memory that the next token of each sequence will need is created, so
    // that the gap between steps only maps it. A refusal is no harm, the growth itself will tell.
    for (size_t i = 0; i < batch.places.size(); ++i) {
      const kernels::RowPlace& place = batch.places[i];
      const bool last =
          i + 1 == batch.places.size() || batch.places[i + 1].sequence != place.sequence;
      if (last) {
        (void)batch.sequences[static_cast<size_t>(place.sequence)]->Prepare(
            static_cast<uint64_t>(place.slot) + 2);
      }
    }
    Status done = device().Synchronize();
    settled_ = done.ok();
    return done;
  }

  // Before a step's inputs are written: one that failed half-way may still be reading its own.
  Status Settle() {
    if (!settled_) {
      if (Status s = device().Synchronize(); !s.ok()) return s;
    }
    settled_ = false;
    return {};
  }

  Status SampleBatch(const StepMemory& memory, const StepBatch& batch) {
    const auto rows = static_cast<int64_t>(batch.sampled.size());
    const uint64_t id_bytes = RoundUp(batch.sampled.size() * sizeof(int32_t), kSampleAlignment);
    const uint64_t setting_bytes =
        RoundUp(batch.sampled.size() * sizeof(kernels::CudaSampleRow), kSampleAlignment);
    const uint64_t scratch = kernels::SampleWorkspaceBytes(rows, plan_.vocab_size);
    if (Status s = sample_.Reserve(device(), id_bytes + setting_bytes + scratch, "sampling");
        !s.ok()) {
      return s;
    }
    if (Status s = sample_host_.Reserve(device(), id_bytes + setting_bytes, "sampling"); !s.ok())
      return s;
    kernels::CudaSampleArgs args;
    args.logits = memory.logits.as<float>();
    args.rows = rows;
    args.vocab_size = plan_.vocab_size;
    args.ids = sample_.as<int32_t>();
    args.workspace = sample_.as<std::byte>() + id_bytes + setting_bytes;
    args.workspace_bytes = scratch;
    auto* settings = reinterpret_cast<kernels::CudaSampleRow*>(sample_host_.data() + id_bytes);
    bool greedy = true;
    for (size_t i = 0; i < batch.sampling.size(); ++i) {
      const RowSampling& row = batch.sampling[i];
      settings[i] = {};
      settings[i].temperature = row.params.temperature;
      settings[i].top_k = row.params.top_k;
      settings[i].top_p = row.params.top_p;
      settings[i].min_p = row.params.min_p;
      settings[i].uniform = row.uniform;
      greedy = greedy && row.params.temperature == 0.0f;
    }
    if (!greedy) {
      const cuda::DevicePtr to = sample_.address() + id_bytes;
      if (Status s = device().UploadAsync(to, settings, setting_bytes); !s.ok()) return s;
      args.settings = reinterpret_cast<const kernels::CudaSampleRow*>(to);
    }
    gpu_.launcher->ClearStatus();
    kernels::Sample(*gpu_.launcher, args);
    if (Status s = gpu_.launcher->status(); !s.ok()) return s;
    if (Status s = device().DownloadAsync(sample_host_.data(), sample_.address(), id_bytes);
        !s.ok()) {
      return s;
    }
    if (Status s = WaitForStep(batch); !s.ok()) return s;
    std::memcpy(batch.sampled.data(), sample_host_.data(), batch.sampled.size_bytes());
    return {};
  }

  struct Place {
    const std::byte* base = nullptr;
    uint64_t capacity = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };

  Gpu& gpu_;
  const Plan& plan_;
  std::vector<DType> kv_types_;                      // of each layer
  int64_t prepared_rows_ = 0, prepared_wanted_ = 0;  // of the last Prepare
  StepMemory memory_;                                // of eager steps: sized by the largest so far
  std::map<int64_t, Graph> graphs_;
  cuda::Buffer views_;
  cuda::PinnedBuffer views_host_;
  std::vector<Place> places_;  // what views_ has for each index
  bool settled_ = true;        // nothing reads the page-locked inputs
  cuda::PinnedBuffer inputs_host_;
  cuda::PinnedBuffer logits_host_;
  cuda::Buffer sample_;  // ids, settings, scratch
  cuda::PinnedBuffer sample_host_;
  std::vector<kernels::CudaMatMulOutput> products_;
};

}  // namespace

std::unique_ptr<Backend> MakeCudaBackend(Gpu& gpu, const Plan& plan, const kv::Group& group) {
  return std::make_unique<CudaBackend>(gpu, plan, group);
}

}  // namespace granule::engine
