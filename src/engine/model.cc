#include "engine/cuda/cuda_weights.h"
#include "engine/engine.h"
#include "engine/native/build_plan.h"
#include "engine/ort/ort_model.h"
#include "kernels/cuda/cuda_attention.h"

namespace granule::engine {
namespace {

Status Refusal(const std::vector<Unsupported>& unsupported) {
  std::string text = "this model has nodes that the native backend cannot run:";
  for (const Unsupported& u : unsupported) {
    text += Format("\n  {} x {} ({}), first at node '{}': {}", u.count, u.op,
                   u.domain.empty() ? "ai.onnx" : u.domain, u.node, u.reason);
  }
  return Status(Code::kInvalidInput, text);
}

kv::Group GroupOf(const package::Package& package) {
  kv::Group group;
  for (const package::KvPort& port : package.roles.kv) {
    group.layers.push_back({port.kv_heads, port.head_dim, port.dtype});
  }
  return group;
}

struct Describe {
  const Plan& plan;

  std::string Place(BufferId id) const {
    if (id == kNoBuffer) return "-";
    const Buffer& buffer = plan.buffers[static_cast<size_t>(id)];
    return Format("%{}[{}]", id, buffer.width);
  }
  std::string operator()(const GatherStep& s) const {
    return Format("gather {} rows of {} {} -> {}", s.table_rows, DTypeName(s.dtype),
                  s.indices == Indices::kTokenIds ? "by token" : "by position", Place(s.y));
  }
  std::string operator()(const GatherQuantizedStep& s) const {
    return Format("gather {} rows of int{} blocks of {} -> {}", s.table.rows, s.table.bits,
                  s.table.block_size, Place(s.y));
  }
  std::string operator()(const MatMulStep& s) const {
    std::string text = Format("matmul {} x", Place(s.x.buffer));
    for (const auto& output : s.outputs) {
      text += Format(" [{}, {}]{} -> {}", Width(output.y), s.k, output.bias ? " + bias" : "",
                     Place(output.y));
    }
    return text;
  }
  std::string operator()(const RmsNormStep& s) const {
    return Format("rms_norm {} -> {}", Place(s.x.buffer), Place(s.y));
  }
  std::string operator()(const SkipRmsNormStep& s) const {
    return Format("skip_rms_norm {} + {} -> {}, sum {}", Place(s.x), Place(s.skip), Place(s.y),
                  Place(s.sum));
  }
  std::string operator()(const BinaryStep& s) const {
    static constexpr const char* kNames[] = {"add", "sub", "mul", "div"};
    return Format("{} {}, {} -> {}", kNames[static_cast<int>(s.op)], Place(s.x),
                  s.z == kNoBuffer ? "constant" : Place(s.z), Place(s.y));
  }
  std::string operator()(const UnaryStep& s) const {
    static constexpr const char* kNames[] = {"sigmoid", "silu", "tanh", "neg"};
    return Format("{} {} -> {}", kNames[static_cast<int>(s.op)], Place(s.x), Place(s.y));
  }
  std::string operator()(const SiluMulStep& s) const {
    return Format("silu_mul {}, {} -> {}", Place(s.gate), Place(s.up), Place(s.y));
  }
  std::string operator()(const ConcatStep& s) const {
    return Format("concat {} parts -> {}", s.parts.size(), Place(s.y));
  }
  std::string operator()(const AttentionStep& s) const {
    return Format("attention layer {}: {} heads, {} KV heads, head size {}, rotary {} -> {}",
                  s.layer, s.shape.heads, s.shape.kv_heads, s.shape.head_dim, s.rotary.rotary_dim,
                  Place(s.y));
  }
  int64_t Width(BufferId id) const { return plan.buffers[static_cast<size_t>(id)].width; }
};

}  // namespace

Model::Model() = default;
Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::Load(
    DeviceContext& device, package::Package package, BackendKind backend,
    const std::function<void(uint64_t, uint64_t)>& progress) {
  std::unique_ptr<Model> model(new Model());
  model->package_ = std::move(package);
  const package::Package& p = model->package_;
  model->group_ = GroupOf(p);
  ModelInfo& info = model->info_;
  info.name = p.name;
  info.model_type = p.model_type;
  info.layers = static_cast<int64_t>(model->group_.layers.size());
  info.kv_bytes_per_token = model->group_.BytesPerToken();
  info.source_weight_bytes = p.source_weight_bytes;
  Status status;
  if (device.gpu() != nullptr) {
    status = backend == BackendKind::kOrt
                 ? Error(Code::kUsage,
                         "--backend ort runs on the CPU: use --device cpu, or --backend native")
                 : model->LoadCuda(device, progress);
  } else if (p.on_demand != nullptr) {
    status = Error(Code::kInternal,
                   "{} was opened without its weights, which only a GPU makes by itself", p.name);
  } else {
    status =
        backend == BackendKind::kOrt ? model->LoadOrt(device) : model->MakePlan(&device.kernels());
  }
  if (!status.ok()) return status;
  return model;
}

// The plan, with weights packed for the CPU or, without `kernels`, as sources alone.
Status Model::MakePlan(const kernels::Context* kernels) {
  auto built = BuildPlan(package_, kernels);
  if (!built.ok()) return built.status().In(package_.folder.string());
  if (!built->unsupported.empty()) {
    return Refusal(built->unsupported).In(package_.folder.string());
  }
  plan_ = std::move(built->plan);
  LowerTableRows(plan_->table_rows, plan_->table_rows_source);
  info_.backend = "native";
  info_.vocab_size = plan_->vocab_size;
  info_.packed_weight_bytes = built->packed_bytes;
  info_.macs_per_token = built->macs_per_token;
  return {};
}

Status Model::LoadCuda(DeviceContext& device,
                       const std::function<void(uint64_t, uint64_t)>& progress) {
  if (Status s = MakePlan(nullptr); !s.ok()) return s;
  for (const PlanStep& step : plan_->steps) {
    const auto* attention = std::get_if<AttentionStep>(&step);
    if (attention == nullptr) continue;
    const DType type = group_.layers[static_cast<size_t>(attention->layer)].dtype;
    if (Status s = kernels::CheckCudaAttention(attention->shape, type); !s.ok())
      return s.In(Format("attention layer {}", attention->layer));
  }
  auto weights = PutOnDevice(*device.gpu(), *plan_, package_.on_demand.get(), progress);
  if (!weights.ok()) return weights.status();
  cuda_ = std::make_unique<CudaWeights>(std::move(*weights));
  info_.packed_weight_bytes = cuda_->bytes;
  return {};
}

Status Model::LoadOrt(DeviceContext& device) {
  auto loaded = OrtModel::Load(OrtPlaces::Usual(ProcessEnvironment), package_, device.threads());
  if (!loaded.ok()) return loaded.status();
  ort_ = std::move(*loaded);
  if (ort_->fixed_tokens() >= 0)
    LowerTableRows(ort_->fixed_tokens(), "fixed KV shape of the graph");
  info_.backend = Format("ONNX Runtime {}", ort_->graph->library().version());
  info_.vocab_size = ort_->vocab_size;
  return {};
}

void Model::LowerTableRows(int64_t rows, const std::string& source) {
  std::optional<package::Sourced>& known = package_.table_rows;
  if (rows != INT64_MAX && (!known || rows < known->value)) known = package::Sourced{rows, source};
}

std::string Model::DescribePlan() const {
  if (ort_) {
    return Format("{} ({}) runs {} whole\nKV {}: {}\n", info_.backend,
                  ort_->graph->library().path(), package_.model.files.front()->path().native(),
                  ort_->kv_mode == OrtKvMode::kShared ? "shared" : "copied", ort_->kv_reason);
  }
  std::string text;
  for (size_t i = 0; i < plan_->steps.size(); ++i) {
    text += Format("{:4}  {}    # {}\n", i, std::visit(Describe{*plan_}, plan_->steps[i]),
                   plan_->labels[i]);
  }
  return text;
}

Result<std::vector<Unsupported>> FindUnsupported(package::Package& package) {
  auto built = BuildPlan(package, nullptr);
  if (!built.ok()) return built.status();
  return std::move(built->unsupported);
}

}  // namespace granule::engine
