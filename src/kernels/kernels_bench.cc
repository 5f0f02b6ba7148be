// Speed of the kernels at the shapes of SmolLM2-135M, as shares of the ceilings that are measured
// in the same run, just before.
//   kernels_bench [--benchmark_filter=...]
// Arguments of each line: level (0 portable, 1 AVX2, 2 AVX-512), then threads. A share is of the
// fastest iteration: on a shared machine everything else says what the neighbours did.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <vector>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "kernels/rowwise.h"
#include "kernels/test_inputs.h"

namespace granule::kernels {
namespace {

using Matrix = std::shared_ptr<const PackedMatrix>;

constexpr int64_t kHidden = 576, kKv = 192, kFfn = 1536, kVocabulary = 49152, kLayers = 30;

// Blocks of 32. 4 bit: fp16 scales and a zero point per block, as Q4_1; 8 bit: fp16 scales, as
// Q8_0.
Matrix Pack(const Context& context, Inputs& in, int64_t n, int64_t k, int bits) {
  const std::vector<uint8_t> q = in.Bytes(n * k * bits / 8);
  std::vector<float> scales(static_cast<size_t>(n * k / 32)), zeros(scales.size());
  for (float& s : scales)
    s = F16ToF32(F32ToF16(0.01f + 0.0001f * static_cast<float>(in.Below(100))));
  for (float& z : zeros) z = 7.3f + 0.01f * static_cast<float>(in.Below(100));
  QuantizedWeights weights{n, k, bits, 32, q.data(), scales.data(), DType::kF32};
  if (bits == 4) {
    weights.zero_points_kind = QuantizedWeights::ZeroPoints::kFloat;
    weights.zero_points = zeros.data();
  }
  return *PackedMatrix::Pack(context, weights);
}
// Bytes of the same weights in their source file.
double SourceBytes(const Matrix& m, int bits) {
  return static_cast<double>(m->n() * m->k()) / 32 * (bits == 4 ? 20 : 34);
}

double Seconds(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Runs `work` as the benchmark's iterations; the fastest one.
double Fastest(benchmark::State& state, const auto& work) {
  double best = std::numeric_limits<double>::infinity();
  for (auto _ : state) best = std::min(best, Seconds(work));
  return best;
}

struct Machine {
  explicit Machine(benchmark::State& state)
      : level(static_cast<Isa>(state.range(0))),
        pool(static_cast<int>(state.range(1))),
        has_level(level <= BestIsa()),
        context(MakeContext(pool, has_level ? level : Isa::kPortable)) {
    if (!has_level) state.SkipWithError("this CPU lacks the level");
    state.SetLabel(std::string(IsaName(level)) + ", " + std::to_string(state.range(1)) +
                   " threads");
  }
  Isa level;
  ThreadPool pool;
  bool has_level;
  Context context;
};

// All products of a decode step: one row through 30 layers of 4-bit weights and the 8-bit output
// matrix. Together they are three times a 32 MiB cache; the output matrix alone would be read from
// there.
void DecodeStep(benchmark::State& state) {
  Machine machine(state);
  if (!machine.has_level) return;
  const Context& context = machine.context;
  Inputs in(1);
  struct Layer {
    Matrix q, k, v, o, gate, up, down;
  };
  std::vector<Layer> layers;
  double bytes = 0;
  for (int64_t i = 0; i < kLayers; ++i) {
    const auto pack = [&](int64_t n, int64_t k) {
      Matrix m = Pack(context, in, n, k, 4);
      bytes += SourceBytes(m, 4);
      return m;
    };
    layers.push_back({pack(kHidden, kHidden), pack(kKv, kHidden), pack(kKv, kHidden),
                      pack(kHidden, kHidden), pack(kFfn, kHidden), pack(kFfn, kHidden),
                      pack(kHidden, kFfn)});
  }
  const Matrix head = Pack(context, in, kVocabulary, kHidden, 8);
  const double head_bytes = SourceBytes(head, 8);
  const std::vector<float> x = in.Floats(kFfn);
  std::vector<float> y(3 * kFfn), logits(kVocabulary);
  const double ceiling = MeasureReadCeiling(context, uint64_t{128} << 20);
  const auto multiply = [&](int64_t k, std::initializer_list<Matrix> matrices) {
    MatMulOutput outputs[3];
    size_t count = 0;
    for (const Matrix& m : matrices) {
      outputs[count] = {m.get(), nullptr, y.data() + static_cast<int64_t>(count) * kFfn, m->n()};
      ++count;
    }
    MatMul(context, x.data(), k, 1, {outputs, count});
  };
  // The fastest run of each layer, added up: a whole step is long enough to be interrupted every
  // time.
  std::vector<double> best(layers.size(), std::numeric_limits<double>::infinity());
  double best_head = std::numeric_limits<double>::infinity();
  for (auto _ : state) {
    for (size_t i = 0; i < layers.size(); ++i) {
      const Layer& l = layers[i];
      best[i] = std::min(best[i], Seconds([&] {
                           multiply(kHidden, {l.q, l.k, l.v});
                           multiply(kHidden, {l.o});
                           multiply(kHidden, {l.gate, l.up});
                           multiply(kFfn, {l.down});
                         }));
    }
    const MatMulOutput output{head.get(), nullptr, logits.data(), kVocabulary};
    best_head = std::min(best_head, Seconds([&] {
                           MatMul(context, x.data(), kHidden, 1, {&output, 1});
                         }));
  }
  double seconds = 0;
  for (double b : best) seconds += b;
  state.counters["GB/s"] = (bytes + head_bytes) / (seconds + best_head) / 1e9;
  state.counters["share"] = (bytes + head_bytes) / (seconds + best_head) / ceiling;
  state.counters["layers"] = bytes / seconds / ceiling;
  state.counters["head"] = head_bytes / best_head / ceiling;
}

// range(2) rows through one 4-bit matrix [range(3), range(4)].
void Prefill(benchmark::State& state) {
  Machine machine(state);
  if (!machine.has_level) return;
  const int64_t m = state.range(2), n = state.range(3), k = state.range(4);
  Inputs in(3);
  const Matrix w = Pack(machine.context, in, n, k, 4);
  const std::vector<float> x = in.Floats(m * k);
  std::vector<float> y(static_cast<size_t>(m * n));
  const double ceiling = MeasureFmaCeiling(machine.context);
  const MatMulOutput output{w.get(), nullptr, y.data(), n};
  const double best = Fastest(state, [&] {
    MatMul(machine.context, x.data(), k, m, {&output, 1});
  });
  const double flops = 2.0 * static_cast<double>(m * n * k);
  state.counters["GFLOP/s"] = flops / best / 1e9;
  state.counters["share"] = flops / best / ceiling;
}

// range(2) rows at the end of range(3) slots; range(4) is the KV's type.
void Attend(benchmark::State& state) {
  Machine machine(state);
  if (!machine.has_level) return;
  const int64_t rows = state.range(2), slots = state.range(3);
  const auto type = static_cast<DType>(state.range(4));
  const AttentionShape shape{9, 3, 64, 0.125f};
  Inputs in(4);
  const std::vector<std::byte> k = Narrow(in.Floats(slots * kKv), type),
                               v = Narrow(in.Floats(slots * kKv), type);
  const int64_t element = BitsOf(type) / 8;
  KvView view;
  view.k = const_cast<std::byte*>(k.data());
  view.v = const_cast<std::byte*>(v.data());
  view.k_token_stride = view.v_token_stride = kKv * element;
  view.k_head_stride = view.v_head_stride = shape.head_dim * element;
  view.dtype = type;
  std::vector<RowPlace> places;
  for (int64_t r = 0; r < rows; ++r) places.push_back({0, slots - rows + r});
  const std::vector<float> q = in.Floats(rows * kHidden);
  std::vector<float> out(q.size());
  const size_t bytes = AttentionWorkspaceBytes(shape, rows, machine.pool.threads());
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  const auto workspace = std::make_unique<Line[]>(bytes / 64);
  AttentionArgs args;
  args.shape = shape;
  args.rows = places;
  args.views = {&view, 1};
  args.q = q.data();
  args.ldq = args.ldo = kHidden;
  args.out = out.data();
  args.workspace = workspace[0].bytes;
  args.workspace_bytes = bytes;
  const double best = Fastest(state, [&] { Attention(machine.context, args); });
  state.counters["us"] = best * 1e6;
  state.counters["KV GB/s"] = static_cast<double>(slots * 2 * kKv * element) / best / 1e9;
}

void Levels(benchmark::internal::Benchmark* b) { b->ArgsProduct({{2, 1, 0}, {1, 2}}); }
void Shapes(benchmark::internal::Benchmark* b) {
  for (int level : {2, 1, 0}) {
    for (int threads : {1, 2}) {
      b->Args({level, threads, 512, kFfn, kHidden});
      b->Args({level, threads, 512, kHidden, kFfn});
      b->Args({level, threads, 32, kFfn, kHidden});
    }
  }
}
void Lengths(benchmark::internal::Benchmark* b) {
  for (int level : {2, 1}) {
    for (DType type : {DType::kF32, DType::kF16}) {
      for (int slots : {100, 1000, 4000}) b->Args({level, 2, 1, slots, static_cast<int>(type)});
      b->Args({level, 2, 256, 1000, static_cast<int>(type)});
    }
  }
}
BENCHMARK(DecodeStep)->Apply(Levels)->Iterations(60)->Unit(benchmark::kMillisecond);
BENCHMARK(Prefill)->Apply(Shapes)->Iterations(40)->Unit(benchmark::kMillisecond);
BENCHMARK(Attend)->Apply(Lengths)->Iterations(60)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace granule::kernels
