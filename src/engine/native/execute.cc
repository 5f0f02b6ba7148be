#include "engine/native/execute.h"

#include <cstring>

#include "base/check.h"
#include "kernels/rowwise.h"

namespace granule::engine {
namespace {

class Runner {
 public:
  Runner(const Plan& plan, Execution& run)
      : plan_(plan),
        run_(run),
        kernels_(*run.kernels),
        rows_(run.rows),
        token_ids_(run.token_ids),
        positions_(run.positions) {}

  // True when the rest of the plan is not needed.
  bool Done() const { return done_; }
  void SetStep(int32_t step) { step_ = step; }

  void operator()(const GatherStep& s) {
    kernels::GatherRows(kernels_, s.table, s.dtype, s.table_rows, s.width, Ids(s.indices), At(s.y),
                        s.width);
  }
  void operator()(const GatherQuantizedStep& s) {
    kernels::GatherQuantizedRows(kernels_, s.table, Ids(s.indices), At(s.y), s.table.width);
  }
  void operator()(const MatMulStep& s) {
    auto& outputs = *run_.products;
    outputs.clear();
    for (const auto& output : s.outputs) {
      outputs.push_back({output.weights.get(), output.bias, At(output.y), Width(output.y)});
    }
    kernels::MatMul(kernels_, At(s.x), Width(s.x.buffer), rows_, outputs);
  }
  void operator()(const RmsNormStep& s) {
    kernels::RmsNorm(kernels_, At(s.x), Width(s.x.buffer), s.gamma, s.epsilon, rows_, s.width,
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
    kernels::SkipRmsNorm(kernels_, args);
  }
  void operator()(const BinaryStep& s) {
    const float* z = s.z == kNoBuffer ? s.constant : At(s.z);
    const int64_t z_stride = s.z == kNoBuffer ? 0 : s.z_width;
    kernels::Elementwise(kernels_, s.op, At(s.x), z, z_stride, s.z_width, rows_, s.width, At(s.y));
  }
  void operator()(const UnaryStep& s) {
    kernels::Elementwise(kernels_, s.op, At(s.x), rows_ * s.width, At(s.y));
  }
  void operator()(const SiluMulStep& s) {
    kernels::SiluMul(kernels_, At(s.gate), At(s.up), rows_ * s.width, At(s.y));
  }
  void operator()(const ConcatStep& s) {
    float* y = At(s.y);
    const int64_t ldy = Width(s.y);
    for (size_t p = 0; p < s.parts.size(); ++p) {
      const float* x = At(s.parts[p]);
      const int64_t ldx = Width(s.parts[p].buffer);
      for (int64_t r = 0; r < rows_; ++r) {
        std::memcpy(y + r * ldy, x + r * ldx, static_cast<size_t>(s.widths[p]) * sizeof(float));
      }
      y += s.widths[p];
    }
  }
  void operator()(const AttentionStep& s) {
    const auto sequences = static_cast<size_t>(run_.sequences);
    const auto views = run_.views.subspan(static_cast<size_t>(s.layer) * sequences, sequences);
    kernels::AppendArgs append;
    append.shape = s.shape;
    append.rotary = s.rotary;
    append.rows = Places();
    append.views = views;
    append.q = At(s.q);
    append.ldq = Width(s.q.buffer);
    append.k = At(s.k);
    append.ldk = Width(s.k.buffer);
    append.v = At(s.v);
    append.ldv = Width(s.v.buffer);
    kernels::RotateAndAppend(kernels_, append);

    if (step_ == plan_.last_attention) {
      KeepWantedRows();
      if (done_) return;
    }
    kernels::AttentionArgs attention;
    attention.shape = s.shape;
    attention.rows = Places();
    attention.views = views;
    attention.q = At(s.q);
    attention.ldq = Width(s.q.buffer);
    attention.out = At(s.y);
    attention.ldo = Width(s.y);
    attention.workspace = run_.workspace.data();
    attention.workspace_bytes = run_.workspace.size();
    kernels::Attention(kernels_, attention);
  }

 private:
  std::span<const int64_t> Ids(Indices indices) const {
    return indices == Indices::kTokenIds ? token_ids_ : positions_;
  }
  std::span<const kernels::RowPlace> Places() const {
    return run_.places.first(static_cast<size_t>(rows_));
  }
  int64_t Width(BufferId id) const { return plan_.buffers[static_cast<size_t>(id)].width; }
  // Offsets are in units of the rows the step began with, also after the cut.
  float* At(BufferId id) const {
    const Buffer& buffer = plan_.buffers[static_cast<size_t>(id)];
    return buffer.is_logits ? run_.logits : run_.arena + buffer.offset_per_row * run_.rows;
  }
  float* At(const Operand& operand) const { return At(operand.buffer) + operand.column; }

  // Later steps treat rows alone, so rows whose logits nobody wants end here: their K and V are
  // written.
  void KeepWantedRows() {
    const auto wanted = static_cast<int64_t>(run_.wanted.size());
    done_ = wanted == 0;
    if (wanted == rows_ || done_) return;
    for (const BufferId id : plan_.cut_buffers) {
      float* data = At(id);
      const int64_t width = Width(id);
      for (int64_t i = 0; i < wanted; ++i) {
        const int64_t row = run_.wanted[static_cast<size_t>(i)];  // >= i: ascending
        if (row != i)
          std::memcpy(data + i * width, data + row * width,
                      static_cast<size_t>(width) * sizeof(float));
      }
    }
    for (int64_t i = 0; i < wanted; ++i) {
      const auto row = static_cast<size_t>(run_.wanted[static_cast<size_t>(i)]);
      const auto to = static_cast<size_t>(i);
      run_.places[to] = run_.places[row];
      kept_ids_.push_back(token_ids_[row]);
      kept_positions_.push_back(positions_[row]);
    }
    token_ids_ = kept_ids_;
    positions_ = kept_positions_;
    rows_ = wanted;
  }

  const Plan& plan_;
  Execution& run_;
  const kernels::Context& kernels_;
  int64_t rows_;  // of the current step
  std::span<const int64_t> token_ids_;
  std::span<const int64_t> positions_;
  std::vector<int64_t> kept_ids_;  // stay empty in decode: every row is wanted
  std::vector<int64_t> kept_positions_;
  int32_t step_ = 0;
  bool done_ = false;
};

}  // namespace

void Execute(const Plan& plan, Execution& run) {
  Runner runner(plan, run);
  for (size_t i = 0; i < plan.steps.size() && !runner.Done(); ++i) {
    runner.SetStep(static_cast<int32_t>(i));
    std::visit(runner, plan.steps[i]);
  }
}

}  // namespace granule::engine
