#include "engine/cuda/cuda_weights.h"

#include <algorithm>
#include <unordered_map>

#include "base/arith.h"
#include "engine/cuda/made_weights.h"
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/cuda_matmul.h"

namespace granule::engine {
namespace {

constexpr uint64_t kAlignment = 256;

// A pointer of the plan that leads to host memory, and how much is there.
struct Constant {
  const float** pointer = nullptr;
  uint64_t bytes = 0;
};
struct Table {
  const void** pointer = nullptr;
  uint64_t bytes = 0;
};

uint64_t FloatBytesOf(int64_t a, int64_t b = 1) {
  return static_cast<uint64_t>(a) * static_cast<uint64_t>(b) * sizeof(float);
}

const void* KeyOf(const WeightSource& source) {
  if (const auto* dense = std::get_if<kernels::DenseWeights>(&source)) return dense->data;
  return std::get<kernels::QuantizedWeights>(source).q;
}

// Everything in a plan that has to go to the device.
class Inventory {
 public:
  explicit Inventory(Plan& plan) {
    for (PlanStep& step : plan.steps) std::visit(*this, step);
  }

  void operator()(GatherStep& s) {
    tables.push_back({&s.table, static_cast<uint64_t>(s.table_rows) *
                                    static_cast<uint64_t>(s.width) * BitsOf(s.dtype) / 8});
  }
  void operator()(GatherQuantizedStep& s) {
    kernels::QuantizedTable& t = s.table;
    const auto rows = static_cast<uint64_t>(t.rows);
    const auto blocks = static_cast<uint64_t>(CeilDiv(t.width, t.block_size));
    const auto bits = static_cast<uint64_t>(t.bits);
    tables.push_back({reinterpret_cast<const void**>(&t.data),
                      rows * static_cast<uint64_t>(t.width) * bits / 8});
    tables.push_back({&t.scales, rows * blocks * BitsOf(t.scales_type) / 8});
    if (t.zero_points != nullptr) {
      tables.push_back({reinterpret_cast<const void**>(&t.zero_points),
                        rows * CeilDiv(blocks * bits, uint64_t{8})});
    }
  }
  void operator()(MatMulStep& s) {
    for (MatMulStep::Output& output : s.outputs) {
      const int64_t n = std::visit([](const auto& w) { return w.n; }, output.source);
      Add(output.bias, FloatBytesOf(n));
      matrices.push_back(&output);
    }
  }
  void operator()(RmsNormStep& s) { Add(s.gamma, FloatBytesOf(s.width)); }
  void operator()(SkipRmsNormStep& s) {
    Add(s.gamma, FloatBytesOf(s.width));
    Add(s.bias, FloatBytesOf(s.width));
  }
  void operator()(BinaryStep& s) { Add(s.constant, FloatBytesOf(s.z_width)); }
  void operator()(UnaryStep&) {}
  void operator()(SiluMulStep&) {}
  void operator()(ConcatStep&) {}
  void operator()(AttentionStep& s) {
    const uint64_t bytes = FloatBytesOf(s.rotary.table_rows, s.rotary.rotary_dim / 2);
    Add(s.rotary.cos, bytes);
    Add(s.rotary.sin, bytes);
  }

  std::vector<Constant> constants;
  std::vector<Table> tables;
  std::vector<MatMulStep::Output*> matrices;

 private:
  void Add(const float*& pointer, uint64_t bytes) {
    if (pointer != nullptr) constants.push_back({&pointer, bytes});
  }
};

class Loader {
 public:
  Loader(Gpu& gpu, Plan& plan, const package::SynthContent* on_demand,
         const WeightProgress& progress)
      : gpu_(gpu), inventory_(plan), made_(gpu, on_demand), progress_(progress) {}

  Result<CudaWeights> Load() {
    if (Status s = CheckBill(); !s.ok()) return s;
    auto staging = kernels::Staging::Create(*gpu_.device);
    if (!staging.ok()) return staging.status();
    staging_ = std::move(*staging);
    if (progress_) {
      staging_->progress = [this](uint64_t done) {
        progress_(std::min(done + made_bytes_, total_), total_);
      };
    }
    gpu_.launcher->ClearStatus();
    if (Status s = LoadConstants(); !s.ok()) return s;
    if (Status s = LoadTables(); !s.ok()) return s;
    if (Status s = LoadMatrices(); !s.ok()) return s;
    if (Status s = staging_->Finish(); !s.ok()) return s;
    if (Status s = gpu_.device->Synchronize(); !s.ok()) return s;
    weights_.bytes = total_;
    return std::move(weights_);
  }

 private:
  // Bytes of each thing once, whoever shares it.
  Status CheckBill() {
    std::unordered_map<const void*, uint64_t> once;
    uint64_t matrices = 0;
    for (const MatMulStep::Output* output : inventory_.matrices) {
      if (!once.emplace(KeyOf(output->source), 0).second) continue;
      matrices +=
          std::visit([](const auto& w) { return kernels::CudaMatrixBytes(w); }, output->source);
      if (made_.Has(output->source))
        scratch_bytes_ = std::max(scratch_bytes_, MadeWeights::ScratchBytes(output->source));
    }
    once.clear();
    uint64_t tables = 0;
    for (const Table& table : inventory_.tables) {
      if (once.emplace(*table.pointer, 0).second) tables += RoundUp(table.bytes, kAlignment);
    }
    for (const Constant& constant : inventory_.constants) {
      if (offsets_.emplace(*constant.pointer, constant_bytes_).second)
        constant_bytes_ += RoundUp(constant.bytes, kAlignment);
    }
    total_ = matrices + tables + constant_bytes_;
    const auto memory = gpu_.device->Memory();
    if (!memory.ok()) return memory.status();
    const uint64_t working = scratch_bytes_ + (matrices > 0 ? kernels::kRearrangeBytes : 0);
    const uint64_t needed = total_ + working;
    if (needed <= memory->free_bytes) return {};
    return Error(
        Code::kExhausted,
        "the weights do not fit on {}: {} bytes are needed ({} of matrices, {} of "
        "embeddings, {} of constants, {} to make or rearrange them in), {} of {} are free. Weight "
        "offload is not built: use a smaller or more quantised model, free device memory, "
        "or run with --device cpu",
        gpu_.device->where(), needed, matrices, tables, constant_bytes_, working,
        memory->free_bytes, memory->total_bytes);
  }

  Status LoadConstants() {
    auto buffer = cuda::Buffer::Allocate(*gpu_.device, constant_bytes_, "constants");
    if (!buffer.ok()) return buffer.status();
    weights_.constants = std::move(*buffer);
    std::unordered_map<const void*, bool> done;
    for (const Constant& constant : inventory_.constants) {
      const cuda::DevicePtr to = weights_.constants.address() + offsets_.at(*constant.pointer);
      if (done.emplace(*constant.pointer, true).second) {
        const auto* bytes = reinterpret_cast<const std::byte*>(*constant.pointer);
        if (Status s = staging_->Upload(to, {bytes, constant.bytes}); !s.ok()) return s;
      }
      *constant.pointer = reinterpret_cast<const float*>(to);
    }
    return {};
  }

  Status LoadTables() {
    std::unordered_map<const void*, const void*> known;
    for (const Table& table : inventory_.tables) {
      const void*& on_device = known[*table.pointer];
      if (on_device == nullptr) {
        auto buffer = cuda::Buffer::Allocate(*gpu_.device, table.bytes, "an embedding table");
        if (!buffer.ok()) return buffer.status();
        if (Status s = LoadTable(table, buffer->address()); !s.ok()) return s;
        on_device = buffer->as<void>();
        weights_.tables.push_back(std::move(*buffer));
      }
      *table.pointer = on_device;
    }
    return {};
  }

  Status LoadTable(const Table& table, cuda::DevicePtr to) {
    if (!made_.Has(*table.pointer)) {
      const auto* bytes = static_cast<const std::byte*>(*table.pointer);
      return staging_->Upload(to, {bytes, table.bytes});
    }
    made_bytes_ += table.bytes;
    return made_.Fill(*table.pointer, table.bytes, to);
  }

  Status LoadMatrices() {
    if (scratch_bytes_ > 0) {
      auto buffer = cuda::Buffer::Allocate(*gpu_.device, scratch_bytes_, "making weights");
      if (!buffer.ok()) return buffer.status();
      scratch_ = std::move(*buffer);
    }
    std::unordered_map<const void*, std::shared_ptr<const kernels::CudaMatrix>> known;
    for (MatMulStep::Output* output : inventory_.matrices) {
      auto& matrix = known[KeyOf(output->source)];
      if (matrix == nullptr) {
        auto loaded = LoadMatrix(output->source);
        if (!loaded.ok()) return loaded.status();
        matrix = std::move(*loaded);
      }
      output->cuda_weights = matrix;
    }
    return {};
  }

  Result<std::shared_ptr<const kernels::CudaMatrix>> LoadMatrix(const WeightSource& source) {
    const auto upload = [&](const auto& each) {
      return kernels::CudaMatrix::Upload(*gpu_.launcher, *staging_, each);
    };
    if (!made_.Has(source)) return std::visit(upload, source);
    auto on_device = made_.Make(source, *staging_, scratch_);
    if (!on_device.ok()) return on_device.status();
    staging_->from_device = true;
    auto matrix = std::visit(upload, *on_device);
    staging_->from_device = false;
    return matrix;
  }

  Gpu& gpu_;
  Inventory inventory_;
  MadeWeights made_;
  const WeightProgress& progress_;
  CudaWeights weights_;
  cuda::Buffer scratch_;  // the matrix that is being made; outlives staging_, whose end waits
  std::unique_ptr<kernels::Staging> staging_;
  std::unordered_map<const void*, uint64_t> offsets_;  // of constants, by host address
  uint64_t constant_bytes_ = 0;
  uint64_t total_ = 0;
  uint64_t scratch_bytes_ = 0;
  uint64_t made_bytes_ = 0;  // of tables that were not uploaded
};

}  // namespace

Result<CudaWeights> PutOnDevice(Gpu& gpu, Plan& plan, const package::SynthContent* on_demand,
                                const WeightProgress& progress) {
  auto weights = Loader(gpu, plan, on_demand, progress).Load();
  if (weights.ok()) plan.constants.clear();
  return weights;
}

}  // namespace granule::engine
