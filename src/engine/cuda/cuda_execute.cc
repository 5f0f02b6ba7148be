#include "engine/cuda/cuda_execute.h"

#include <algorithm>

#include "base/arith.h"

namespace granule::engine {
namespace {

constexpr int64_t kCutAlignment = 64;  // floats

class CudaRunner {
 public:
  CudaRunner(const Plan& plan, CudaExecution& run)
      : plan_(plan),
        run_(run),
        launcher_(*run.launcher),
        rows_(run.rows),
        row_data_(run.row_data),
        moved_(plan.buffers.size(), nullptr) {}

  bool Done() const { return done_; }
  void SetStep(int32_t step) { step_ = step; }

  void operator()(const GatherStep& s) {
    kernels::GatherRows(launcher_, s.table, s.dtype, s.table_rows, s.width, row_data_,
                        IndexOf(s.indices), rows_, At(s.y), s.width);
  }
  void operator()(const GatherQuantizedStep& s) {
    kernels::GatherQuantizedRows(launcher_, s.table, row_data_, IndexOf(s.indices), rows_, At(s.y),
                                 s.table.width);
  }
  void operator()(const MatMulStep& s) {
    auto& outputs = *run_.products;
    outputs.clear();
    for (const auto& output : s.outputs) {
      outputs.push_back({output.cuda_weights.get(), output.bias, At(output.y), Width(output.y)});
    }
    kernels::CudaMatMulArgs args;
    args.a = At(s.x);
    args.lda = Width(s.x.buffer);
    args.m = rows_;
    args.outputs = outputs;
    args.workspace = run_.matmul_workspace;
    args.workspace_bytes = run_.matmul_workspace_bytes;
    args.blas = run_.blas;
    kernels::MatMul(launcher_, args);
  }
  void operator()(const RmsNormStep& s) {
    kernels::RmsNorm(launcher_, At(s.x), Width(s.x.buffer), s.gamma, s.epsilon, rows_, s.width,
                     At(s.y), s.width);
  }
  void operator()(const SkipRmsNormStep& s) {
    kernels::SkipRmsNormArgs args;
    args.x = At(s.x);
    args.skip = At(s.skip);
    args.bias = s.bias;
    args.gamma = s.gamma;
    args.epsilon = s.epsilon;
    args.rows = rows_;
    args.width = s.width;
    args.y = s.y == kNoBuffer ? nullptr : At(s.y);
    args.sum = s.sum == kNoBuffer ? nullptr : At(s.sum);
    kernels::SkipRmsNorm(launcher_, args);
  }
  void operator()(const BinaryStep& s) {
    const float* z = s.z == kNoBuffer ? s.constant : At(s.z);
    const int64_t z_stride = s.z == kNoBuffer ? 0 : s.z_width;
    kernels::Elementwise(launcher_, s.op, At(s.x), z, z_stride, s.z_width, rows_, s.width, At(s.y));
  }
  void operator()(const UnaryStep& s) {
    kernels::Elementwise(launcher_, s.op, At(s.x), rows_ * s.width, At(s.y));
  }
  void operator()(const SiluMulStep& s) {
    kernels::SiluMul(launcher_, At(s.gate), At(s.up), rows_ * s.width, At(s.y));
  }
  void operator()(const ConcatStep& s) {
    float* y = At(s.y);
    const int64_t ldy = Width(s.y);
    for (size_t p = 0; p < s.parts.size(); ++p) {
      kernels::CopyColumns(launcher_, At(s.parts[p]), Width(s.parts[p].buffer), y, ldy, rows_,
                           s.widths[p]);
      y += s.widths[p];
    }
  }
  void operator()(const AttentionStep& s) {
    const KvView* views = run_.views + s.layer * run_.views_per_layer;
    const DType kv_type = run_.kv_types[static_cast<size_t>(s.layer)];
    kernels::CudaAppendArgs append;
    append.shape = s.shape;
    append.rotary = s.rotary;
    append.rows = row_data_;
    append.row_count = rows_;
    append.views = views;
    append.kv_type = kv_type;
    append.q = At(s.q);
    append.ldq = Width(s.q.buffer);
    append.k = At(s.k);
    append.ldk = Width(s.k.buffer);
    append.v = At(s.v);
    append.ldv = Width(s.v.buffer);
    kernels::RotateAndAppend(launcher_, append);

    bool cut = false;
    if (step_ == plan_.last_attention) {
      cut = KeepWantedRows();
      if (done_) return;
    }
    kernels::CudaAttentionArgs attention;
    attention.shape = s.shape;
    attention.rows = row_data_;
    attention.row_count = rows_;
    attention.views = views;
    attention.kv_type = kv_type;
    attention.q = At(s.q);
    attention.ldq = Width(s.q.buffer);
    attention.out = At(s.y);
    attention.ldo = Width(s.y);
    if (cut) {  // what is left are single rows of any sequences
      attention.single_count = rows_;
    } else {
      attention.single_rows = run_.single_rows;
      attention.single_count = run_.single_count;
      attention.tiles = run_.tiles;
      attention.tile_count = run_.tile_count;
    }
    attention.workspace = run_.attention_workspace;
    attention.workspace_bytes = run_.attention_workspace_bytes;
    kernels::Attention(launcher_, attention);
  }

 private:
  static kernels::CudaIndex IndexOf(Indices indices) {
    return indices == Indices::kTokenIds ? kernels::CudaIndex::kToken : kernels::CudaIndex::kSlot;
  }
  int64_t Width(BufferId id) const { return plan_.buffers[static_cast<size_t>(id)].width; }
  float* At(BufferId id) const {
    const auto index = static_cast<size_t>(id);
    if (moved_[index] != nullptr) return moved_[index];
    const Buffer& buffer = plan_.buffers[index];
    return buffer.is_logits ? run_.logits : run_.arena + buffer.offset_per_row * run_.rows;
  }
  float* At(const Operand& operand) const { return At(operand.buffer) + operand.column; }

  // Later steps treat rows alone, so rows whose logits nobody wants end here: their K and V are
  // written. Unlike on the CPU the wanted rows move to another place: threads that write one row
  // must not run into those that still read another.
  bool KeepWantedRows() {
    done_ = run_.wanted_count == 0;
    if (run_.wanted == nullptr || done_) return false;
    float* to = run_.cut_arena;
    for (const BufferId id : plan_.cut_buffers) {
      kernels::TakeRows(launcher_, At(id), Width(id), run_.wanted, run_.wanted_count, to);
      moved_[static_cast<size_t>(id)] = to;
      to += RoundUp(Width(id) * run_.wanted_count, kCutAlignment);
    }
    static_assert(sizeof(kernels::CudaRow) == 4 * sizeof(float));
    kernels::TakeRows(launcher_, reinterpret_cast<const float*>(row_data_), 4, run_.wanted,
                      run_.wanted_count, reinterpret_cast<float*>(run_.wanted_row_data));
    row_data_ = run_.wanted_row_data;
    rows_ = run_.wanted_count;
    return true;
  }

  const Plan& plan_;
  CudaExecution& run_;
  kernels::Launcher& launcher_;
  int64_t rows_;  // of the current step
  const kernels::CudaRow* row_data_;
  std::vector<float*> moved_;  // where the cut put a buffer
  int32_t step_ = 0;
  bool done_ = false;
};

}  // namespace

uint64_t CutFloats(const Plan& plan, int64_t wanted_count) {
  int64_t floats = 0;
  for (const BufferId id : plan.cut_buffers) {
    floats += RoundUp(plan.buffers[static_cast<size_t>(id)].width * wanted_count, kCutAlignment);
  }
  return static_cast<uint64_t>(floats);
}

uint64_t CudaMatMulBytes(const Plan& plan, int64_t rows, int64_t wanted_count) {
  uint64_t bytes = 0;
  std::vector<kernels::CudaMatMulOutput> outputs;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const auto* product = std::get_if<MatMulStep>(&plan.steps[i]);
    if (product == nullptr) continue;
    outputs.clear();
    for (const auto& output : product->outputs)
      outputs.push_back({output.cuda_weights.get(), output.bias, nullptr, 0});
    const bool cut = static_cast<int32_t>(i) > plan.last_attention;
    const int64_t m = cut ? wanted_count : rows;
    if (m > 0) bytes = std::max(bytes, kernels::MatMulWorkspaceBytes(m, outputs));
  }
  return bytes;
}

uint64_t CudaAttentionBytes(const Plan& plan, int64_t single_count, int64_t wanted_count) {
  uint64_t bytes = 0;
  for (const PlanStep& step : plan.steps) {
    if (const auto* attention = std::get_if<AttentionStep>(&step)) {
      bytes = std::max(bytes, kernels::CudaAttentionWorkspaceBytes(
                                  attention->shape, std::max(single_count, wanted_count)));
    }
  }
  return bytes;
}

void ExecuteOnCuda(const Plan& plan, CudaExecution& run) {
  CudaRunner runner(plan, run);
  for (size_t i = 0; i < plan.steps.size() && !runner.Done(); ++i) {
    runner.SetStep(static_cast<int32_t>(i));
    std::visit(runner, plan.steps[i]);
  }
}

}  // namespace granule::engine
