// Which kernels compute a product, and with what grid. All choices follow from the sizes alone.
#include <algorithm>
#include <string>

#include "base/arith.h"
#include "base/check.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/matmul_matrix.h"

namespace granule::kernels {
namespace {

constexpr int64_t kGemvMost = 8;   // rows
constexpr int64_t kBlasFrom = 64;  // rows
constexpr uint64_t kWorkspaceAlignment = 256;
constexpr int64_t kExpandBytes = int64_t{256} << 20;  // of fp16 copies of weights at a time

constexpr uint64_t Aligned(uint64_t bytes) { return RoundUp(bytes, kWorkspaceAlignment); }

const CudaWeights& View(const CudaMatMulOutput& output) { return output.weights->data().view; }

MatMulTarget Target(const CudaMatMulOutput& output) {
  return {View(output), output.bias, output.y, output.ldy};
}

bool Aligned16(const float* x, int64_t ldx) {
  return reinterpret_cast<uintptr_t>(x) % 16 == 0 && ldx % 4 == 0;
}

bool IsQuantised(WeightKind kind) { return kind == WeightKind::kQ4 || kind == WeightKind::kQ8; }

// Outputs with the same family are computed by the same kernel. Those of 1 to 8 rows tell more
// cases apart than those of more.
struct Family {
  WeightKind kind = WeightKind::kF32;
  bool tiled = false;
  bool zeros = false;  // tiled: zero points of their own; else: float zero points
  bool operator==(const Family&) const = default;
};
Family GemvFamily(const CudaWeights& w) {
  const ZeroKind apart = w.tiled ? ZeroKind::kPacked : ZeroKind::kFloat;
  return {w.kind, w.tiled, IsQuantised(w.kind) && w.zero_kind == apart};
}
Family GemmFamily(const CudaWeights& w) { return {w.kind, false, false}; }

// Calls `run` with outputs of one family, at most kMostTargets at a time, until all have had their
// turn. Families and outputs in order.
template <class Run>
void ForEachFamily(std::span<const CudaMatMulOutput> outputs,
                   Family (*family_of)(const CudaWeights&), Run run) {
  for (size_t first = 0; first < outputs.size(); ++first) {
    const Family family = family_of(View(outputs[first]));
    const auto same = [&](const CudaMatMulOutput& output) {
      return family_of(View(output)) == family;
    };
    const auto before = outputs.first(first);
    if (std::any_of(before.begin(), before.end(), same)) continue;  // had its turn
    const CudaMatMulOutput* some[kMostTargets];
    size_t count = 0;
    for (size_t i = first; i < outputs.size(); ++i) {
      if (same(outputs[i])) some[count++] = &outputs[i];
      if (count == kMostTargets || (count > 0 && i + 1 == outputs.size())) {
        run(std::span(some, count));
        count = 0;
      }
    }
  }
}

// ---- 1 to 8 rows

// How a product of few rows is dealt to warps and to shared memory.
struct GemvShape {
  int64_t rows = 0;    // of weights, in a group
  int64_t chunks = 0;  // of k
  int warps = 0;       // of a block
  int split = 1;
  int64_t stage = 0;         // chunks at a time
  int64_t shared_bytes = 0;  // of them
};

// `m` is 1, 2, 4 or 8. The split, on which the order of sums depends, follows from n and k alone.
GemvShape ShapeOfGemv(Family family, int64_t n, int64_t k, int m) {
  GemvShape shape;
  // Warps that share the rows of a group: as many as fill a GPU, while each has a load or two per
  // lane. Groups are counted as if they always had the rows that they have for one row of x.
  int64_t groups, fewest_chunks, chunk_bytes, extra_bytes, block_bytes;
  if (family.tiled) {
    const int64_t values = family.kind == WeightKind::kQ4 ? 128 : 64;
    shape.warps = kCodesWarps;
    shape.rows = CodesRows(m);
    shape.chunks = CeilDiv(k, values);
    groups = CeilDiv<int64_t>(n, CodesRows(1));
    fewest_chunks = 1;
    chunk_bytes = values * 6 * m;  // three pieces of two bytes
    extra_bytes = CodesStageBytes(m);
    block_bytes = (m <= 2 ? 68 : 91) << 10;
  } else {
    const int64_t values = GemvChunkValues(family.kind);
    shape.warps = GemvWarps(family.kind, m);
    shape.rows = GemvRows(family.kind, m);
    shape.chunks = CeilDiv(k, values);
    groups = CeilDiv<int64_t>(n, GemvRows(family.kind, 1));
    fewest_chunks = 32;  // one per lane
    chunk_bytes = values * 4 * m;
    extra_bytes = chunk_bytes;  // one float4 more per line
    block_bytes = 96 << 10;
  }
  // Of 8 rows of x, what one turn of all warps needs must fit the 99 KiB that the smallest GPUs
  // give.
  const int most = family.tiled || !IsQuantised(family.kind) ? kMostSplit
                   : family.kind == WeightKind::kQ8          ? 4
                                                             : 2;
  constexpr int64_t kEnoughWarps = 3400;
  while (shape.split < most && groups * shape.split < kEnoughWarps &&
         shape.chunks >= 2 * fewest_chunks * shape.split) {
    shape.split *= 2;
  }
  // x in equal pieces such that as many blocks fit a multiprocessor as registers allow.
  const int64_t shared = block_bytes - extra_bytes;
  const int64_t turn = (family.tiled ? 1 : 32) * shape.split;
  const int64_t most_chunks = std::max(turn, shared / chunk_bytes / turn * turn);
  const int64_t stages = CeilDiv(shape.chunks, most_chunks);
  shape.stage = std::min(shape.chunks, RoundUp(CeilDiv(shape.chunks, stages), turn));
  shape.shared_bytes = shape.stage * chunk_bytes + extra_bytes;
  return shape;
}

void RunGemv(Launcher& launcher, const CudaMatMulArgs& call,
             std::span<const CudaMatMulOutput* const> outputs) {
  const Family family = GemvFamily(View(*outputs[0]));
  const int m = call.m == 1 ? 1 : call.m == 2 ? 2 : call.m <= 4 ? 4 : 8;
  GemvArgs args;
  args.m = static_cast<int32_t>(call.m);
  args.x = call.a;
  args.ldx = call.lda;
  args.k = View(*outputs[0]).k;
  args.aligned = Aligned16(call.a, call.lda);
  int64_t n = 0;
  for (const CudaMatMulOutput* output : outputs) n += View(*output).n;
  const GemvShape shape = ShapeOfGemv(family, n, args.k, m);
  for (const CudaMatMulOutput* output : outputs) {
    args.targets[args.count] = Target(*output);
    args.first_group[args.count + 1] =
        args.first_group[args.count] + CeilDiv(View(*output).n, shape.rows);
    ++args.count;
  }
  args.split = shape.split;
  args.stage_chunks = static_cast<int32_t>(shape.stage);
  const char* kind = kWeightKindNames[static_cast<int>(family.kind)];
  const std::string name =
      family.tiled ? Format("matmul_codes_{}{}_{}", kind, family.zeros ? "_zeros" : "", m)
                   : Format("matmul_gemv_{}{}_{}", kind, family.zeros ? "_float" : "", m);
  const int64_t blocks = CeilDiv<int64_t>(args.first_group[args.count], shape.warps / shape.split);
  launcher.Launch(name, {static_cast<unsigned>(blocks)}, static_cast<unsigned>(shape.warps * 32),
                  static_cast<unsigned>(shape.shared_bytes), args);
}

// ---- more rows, our own

struct GemmShape {
  int tile = 0;
  int64_t units = 0, part_units = 0, parts = 1;
  int64_t columns = 0;  // of all outputs
};

template <class Outputs>
GemmShape ShapeOf(int64_t m, const Outputs& outputs) {
  GemmShape shape;
  shape.tile = m <= 32 ? 0 : m <= 64 ? 1 : 2;
  const GemmTile& tile = kGemmTiles[shape.tile];
  int64_t tiles = 0;
  for (const CudaMatMulOutput* output : outputs) {
    tiles += CeilDiv<int64_t>(View(*output).n, tile.bn);
    shape.columns += View(*output).n;
  }
  tiles *= CeilDiv<int64_t>(m, tile.bm);
  shape.units = CeilDiv<int64_t>(View(*outputs[0]).k, kUnit);
  // Few tiles leave multiprocessors idle: then k is cut, into parts of at least 256 values.
  constexpr int64_t kBlocksInFlight = 264;
  constexpr int64_t kMostParts = 8;
  constexpr int64_t kFewestUnits = 16;
  const int64_t wanted =
      std::clamp<int64_t>(kBlocksInFlight / std::max<int64_t>(tiles, 1), 1,
                          std::min(kMostParts, std::max<int64_t>(shape.units / kFewestUnits, 1)));
  shape.part_units = RoundUp<int64_t>(CeilDiv(shape.units, wanted), tile.bk / kUnit);
  shape.parts = CeilDiv(shape.units, shape.part_units);
  return shape;
}

uint64_t GemmBytes(int64_t m, const GemmShape& shape) {
  if (shape.parts == 1) return 0;
  return static_cast<uint64_t>(shape.parts * m * shape.columns) * sizeof(float);
}

void RunGemm(Launcher& launcher, const CudaMatMulArgs& call,
             std::span<const CudaMatMulOutput* const> outputs) {
  const GemmShape shape = ShapeOf(call.m, outputs);
  const GemmTile& tile = kGemmTiles[shape.tile];
  GRANULE_CHECK(call.workspace_bytes >= GemmBytes(call.m, shape));
  GemmArgs args;
  args.m = static_cast<int32_t>(call.m);
  args.x = call.a;
  args.ldx = call.lda;
  args.k = View(*outputs[0]).k;
  args.aligned = Aligned16(call.a, call.lda);
  args.part_units = static_cast<int32_t>(shape.part_units);
  args.parts = static_cast<int32_t>(shape.parts);
  args.partial = reinterpret_cast<float*>(call.workspace);
  for (const CudaMatMulOutput* output : outputs) {
    const int64_t n = View(*output).n;
    args.targets[args.count] = Target(*output);
    args.first_tile[args.count + 1] =
        args.first_tile[args.count] + static_cast<int32_t>(CeilDiv<int64_t>(n, tile.bn));
    args.first_column[args.count + 1] = args.first_column[args.count] + n;
    ++args.count;
  }
  const Grid grid{static_cast<unsigned>(args.first_tile[args.count]),
                  static_cast<unsigned>(CeilDiv<int64_t>(call.m, tile.bm)),
                  static_cast<unsigned>(shape.parts)};
  const int kind = static_cast<int>(args.targets[0].weights.kind);
  launcher.Launch(Format("matmul_gemm_{}_{}", kWeightKindNames[kind], shape.tile), grid,
                  static_cast<unsigned>(tile.threads), 0, args);
  if (shape.parts > 1) {
    const int64_t blocks = std::min<int64_t>(CeilDiv<int64_t>(call.m * shape.columns, 256), 4096);
    launcher.Launch("matmul_merge", {static_cast<unsigned>(blocks)}, 256, 0, args);
  }
}

// ---- more rows, cuBLASLt

unsigned StrideBlocks(int64_t items) {
  return static_cast<unsigned>(std::clamp<int64_t>(CeilDiv<int64_t>(items, 256), 1, 8192));
}

bool NeedsExpansion(const CudaWeights& w) {
  return w.kind != WeightKind::kF16 && w.kind != WeightKind::kBF16;
}
// Rows of weights that are expanded at a time.
int64_t ExpandRows(const CudaWeights& w) {
  constexpr int64_t kStep = 64;
  const int64_t most = kExpandBytes / (HalfRow(w.k) * 2) / kStep * kStep;
  return std::min(w.n, std::max(most, kStep));
}

// The parts of the workspace, in order: x as fp16 or bf16, weights as fp16, cuBLASLt's own.
struct BlasLayout {
  uint64_t weights_at = 0, own_at = 0, bytes = 0;
};
BlasLayout BlasLayoutOf(int64_t m, std::span<const CudaMatMulOutput> outputs) {
  BlasLayout layout;
  uint64_t weights = 0;
  for (const CudaMatMulOutput& output : outputs) {
    const CudaWeights& w = View(output);
    layout.weights_at = Aligned(static_cast<uint64_t>(m * HalfRow(w.k)) * 2);
    if (NeedsExpansion(w))
      weights = std::max(weights, static_cast<uint64_t>(ExpandRows(w) * HalfRow(w.k)) * 2);
  }
  layout.own_at = layout.weights_at + Aligned(weights);
  layout.bytes = layout.own_at + kLtWorkspaceBytes;
  return layout;
}

void RunBlas(Launcher& launcher, const CudaMatMulArgs& call) {
  const BlasLayout layout = BlasLayoutOf(call.m, call.outputs);
  GRANULE_CHECK(call.workspace_bytes >= layout.bytes);
  auto* x = reinterpret_cast<uint16_t*>(call.workspace);
  auto* expanded = reinterpret_cast<uint16_t*>(call.workspace + layout.weights_at);
  std::byte* own = call.workspace + layout.own_at;
  const int64_t ld = HalfRow(View(call.outputs[0]).k);
  int x_type = -1;  // of what lies in x: 0 = fp16, 1 = bf16
  for (const CudaMatMulOutput& output : call.outputs) {
    const CudaWeights& w = View(output);
    const bool bf16 = w.kind == WeightKind::kBF16;
    if (x_type != static_cast<int>(bf16)) {
      x_type = static_cast<int>(bf16);
      NarrowArgs narrow;
      narrow.x = call.a;
      narrow.ldx = call.lda;
      narrow.rows = call.m;
      narrow.width = w.k;
      narrow.y = x;
      narrow.ld = ld;
      narrow.bf16 = bf16;
      launcher.Launch("matmul_narrow", {StrideBlocks(call.m * ld / 2)}, 256, 0, narrow);
    }
    const bool expand = NeedsExpansion(w);
    const int64_t step = expand ? ExpandRows(w) : w.n;
    for (int64_t first = 0; first < w.n; first += step) {
      const int64_t rows = std::min(step, w.n - first);
      if (expand) {
        ExpandArgs args;
        args.weights = w;
        args.first = first;
        args.rows = rows;
        args.y = expanded;
        args.ld = ld;
        launcher.Launch(Format("matmul_expand_{}", kWeightKindNames[static_cast<int>(w.kind)]),
                        {StrideBlocks(rows * ld / kUnit)}, 256, 0, args);
      }
      if (!launcher.status().ok()) return;
      LtProduct product;
      product.bf16 = bf16;
      product.m = call.m;
      product.n = rows;
      product.k = ld;  // both sides are zero from k on
      product.x = x;
      product.ldx = ld;
      product.w = expand ? static_cast<const void*>(expanded) : w.data;
      product.ldw = ld;
      product.y = output.y + first;
      product.ldy = output.ldy;
      launcher.Fail(call.blas->api().Multiply(product, own));
      if (!launcher.status().ok()) return;
    }
    if (output.bias != nullptr) {
      AddBiasArgs args{output.bias, output.y, output.ldy, call.m, w.n};
      launcher.Launch("matmul_add_bias", {StrideBlocks(call.m * w.n)}, 256, 0, args);
    }
  }
}

}  // namespace

uint64_t MatMulWorkspaceBytes(int64_t m, std::span<const CudaMatMulOutput> outputs) {
  if (m <= kGemvMost || outputs.empty()) return 0;
  uint64_t bytes = m >= kBlasFrom ? BlasLayoutOf(m, outputs).bytes : 0;
  ForEachFamily(outputs, GemmFamily,
                [&](auto some) { bytes = std::max(bytes, GemmBytes(m, ShapeOf(m, some))); });
  return bytes;
}

void MatMul(Launcher& launcher, const CudaMatMulArgs& args) {
  if (args.m == 0 || args.outputs.empty() || !launcher.status().ok()) return;
  GRANULE_CHECK(args.m > 0 && args.lda >= args.outputs[0].weights->k());
  for (const CudaMatMulOutput& output : args.outputs) {
    GRANULE_CHECK(output.weights->k() == args.outputs[0].weights->k());
    GRANULE_CHECK(output.ldy >= output.weights->n());
  }
  if (args.m >= kBlasFrom && args.blas != nullptr) {
    if (launcher.recording()) {
      return launcher.Fail(Error(Code::kInternal,
                                 "a product of {} rows needs cuBLASLt, which a graph does not hold",
                                 args.m));
    }
    return RunBlas(launcher, args);
  }
  if (args.m <= kGemvMost) {
    ForEachFamily(args.outputs, GemvFamily, [&](auto some) { RunGemv(launcher, args, some); });
  } else {
    ForEachFamily(args.outputs, GemmFamily, [&](auto some) { RunGemm(launcher, args, some); });
  }
}

}  // namespace granule::kernels
