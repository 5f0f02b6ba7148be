// Products of many rows on tensor cores: mma.sync m16n8k16, fp16 or bf16 operands, sums in fp32.
//
// A block makes a tile of kBm rows of x by kBn rows of weights, kBk values of k at a time: while
// the warps multiply one stage in shared memory, the next one is on its way to registers, where it
// is converted (x from fp32, weights from whatever they are) before it is stored to the other
// buffer.
//
// Rows in shared memory are kBk + 8 values long: 8 rows of 16 bytes, as ldmatrix reads them, then
// fall into different banks.
#pragma once

#include "kernels/cuda/matmul_weights.cuh"

namespace granule::kernels {

__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4], const uint16_t* row) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

template <bool kBF16>
__device__ __forceinline__ void Multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  if constexpr (kBF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// 16 values of a row of x; zero beyond k.
__device__ __forceinline__ void LoadXUnit(const GemmArgs& args, int64_t row, int64_t k,
                                          float (&v)[kUnit]) {
  const float* from = args.x + row * args.ldx + k;
  if (args.aligned && k + kUnit <= args.k) {
#pragma unroll
    for (int i = 0; i < kUnit; i += 4) {
      const float4 f = __ldg(reinterpret_cast<const float4*>(from + i));
      v[i] = f.x;
      v[i + 1] = f.y;
      v[i + 2] = f.z;
      v[i + 3] = f.w;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kUnit; ++i) v[i] = k + i < args.k ? __ldg(from + i) : 0.0f;
}

// kWm x kWn warps share the tile.
template <WeightKind kKind, int kBm, int kBn, int kBk, int kWm, int kWn>
__device__ __forceinline__ void Gemm(const GemmArgs& args) {
  constexpr bool kBF16 = kKind == WeightKind::kBF16;
  constexpr int kThreads = 32 * kWm * kWn;
  constexpr int kLine = kBk + 8;
  constexpr int kUnits = kBk / kUnit;                                // of a row in a stage
  constexpr int kXUnits = (kBm * kUnits + kThreads - 1) / kThreads;  // of a thread
  constexpr int kWUnits = kBn * kUnits / kThreads;
  static_assert(kBn * kUnits % kThreads == 0);
  constexpr int kTilesM = kBm / kWm / 16;
  constexpr int kTilesN = kBn / kWn / 8;
  static_assert(kTilesM >= 1 && kTilesN % 2 == 0);
  __shared__ __align__(16) uint16_t shared_x[2][kBm * kLine];
  __shared__ __align__(16) uint16_t shared_w[2][kBn * kLine];

  int t = 0;
  while (t + 1 < args.count && static_cast<int>(blockIdx.x) >= args.first_tile[t + 1]) ++t;
  const MatMulTarget& target = args.targets[t];
  const CudaWeights& w = target.weights;
  const int64_t first_n =
      static_cast<int64_t>(static_cast<int>(blockIdx.x) - args.first_tile[t]) * kBn;
  const int64_t first_m = static_cast<int64_t>(blockIdx.y) * kBm;
  const int units = static_cast<int>((args.k + kUnit - 1) / kUnit);
  const int begin = static_cast<int>(blockIdx.z) * args.part_units;
  const int end = min(begin + args.part_units, units);

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int warp_m = warp / kWn * (kBm / kWm);
  const int warp_n = warp % kWn * (kBn / kWn);

  float x_raw[kXUnits][kUnit];
  RawUnit<kKind> w_raw[kWUnits];
  // Unit u of a stage: row u / kUnits, values from u % kUnits * 16. Rows beyond m or n read the
  // last one again; units beyond the part are zero on both sides.
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kXUnits; ++i) {
      const int u = threadIdx.x + i * kThreads;
      if (kBm * kUnits % kThreads != 0 && u >= kBm * kUnits) break;
      const int unit = first + u % kUnits;
      const int64_t row = min(first_m + u / kUnits, static_cast<int64_t>(args.m) - 1);
      if (unit < end) {
        LoadXUnit(args, row, static_cast<int64_t>(unit) * kUnit, x_raw[i]);
      } else {
#pragma unroll
        for (int j = 0; j < kUnit; ++j) x_raw[i][j] = 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kWUnits; ++i) {
      const int u = threadIdx.x + i * kThreads;
      // x is zero there, any weight will do: the last unit of the row again.
      const int unit = min(first + u % kUnits, units - 1);
      LoadUnit<kKind>(w, min(first_n + u / kUnits, w.n - 1), unit, w_raw[i]);
    }
  };
  const auto store = [&](int buffer) {
#pragma unroll
    for (int i = 0; i < kXUnits; ++i) {
      const int u = threadIdx.x + i * kThreads;
      if (kBm * kUnits % kThreads != 0 && u >= kBm * kUnits) break;
      uint32_t pairs[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        pairs[j] = kBF16 ? PackBF16(x_raw[i][2 * j], x_raw[i][2 * j + 1])
                         : PackF16(x_raw[i][2 * j], x_raw[i][2 * j + 1]);
      }
      uint4* to =
          reinterpret_cast<uint4*>(&shared_x[buffer][u / kUnits * kLine + u % kUnits * kUnit]);
      to[0] = {pairs[0], pairs[1], pairs[2], pairs[3]};
      to[1] = {pairs[4], pairs[5], pairs[6], pairs[7]};
    }
#pragma unroll
    for (int i = 0; i < kWUnits; ++i) {
      const int u = threadIdx.x + i * kThreads;
      uint32_t pairs[8];
      ConvertUnit<kKind>(w_raw[i], pairs);
      uint4* to =
          reinterpret_cast<uint4*>(&shared_w[buffer][u / kUnits * kLine + u % kUnits * kUnit]);
      to[0] = {pairs[0], pairs[1], pairs[2], pairs[3]};
      to[1] = {pairs[4], pairs[5], pairs[6], pairs[7]};
    }
  };

  float c[kTilesM][kTilesN][4] = {};
  int buffer = 0;
  load(begin);
  store(0);
  __syncthreads();
  for (int first = begin; first < end; first += kUnits) {
    const bool more = first + kUnits < end;
    if (more) load(first + kUnits);
#pragma unroll
    for (int k = 0; k < kBk; k += 16) {
      uint32_t a[kTilesM][4];
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
        // Matrices: rows 0-7 and 8-15 of values 0-7, then of values 8-15.
        LoadMatrices(a[i],
                     &shared_x[buffer][(warp_m + i * 16 + lane % 16) * kLine + k + lane / 16 * 8]);
      }
#pragma unroll
      for (int j = 0; j < kTilesN; j += 2) {
        // Matrices: values 0-7 and 8-15 of rows 0-7, then of rows 8-15.
        uint32_t b[4];
        LoadMatrices(b, &shared_w[buffer][(warp_n + j * 8 + lane % 8 + lane / 16 * 8) * kLine + k +
                                          lane / 8 % 2 * 8]);
#pragma unroll
        for (int i = 0; i < kTilesM; ++i) {
          Multiply<kBF16>(c[i][j], a[i], b[0], b[1]);
          Multiply<kBF16>(c[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
    // The other buffer was last read before the barrier that ended the stage before.
    if (more) store(buffer ^ 1);
    __syncthreads();
    buffer ^= 1;
  }

  const int64_t total = args.first_column[args.count];
#pragma unroll
  for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
    for (int j = 0; j < kTilesN; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t row = first_m + warp_m + i * 16 + lane / 4 + e / 2 * 8;
        const int64_t column = first_n + warp_n + j * 8 + lane % 4 * 2 + e % 2;
        if (row >= args.m || column >= w.n) continue;
        if (args.parts > 1) {
          args.partial[(blockIdx.z * static_cast<int64_t>(args.m) + row) * total +
                       args.first_column[t] + column] = c[i][j][e];
        } else {
          const float bias = target.bias == nullptr ? 0.0f : target.bias[column];
          target.y[row * target.ldy + column] = c[i][j][e] + bias;
        }
      }
    }
  }
}

// y = the sum of the parts, ascending, and the bias.
__device__ __forceinline__ void Merge(const GemmArgs& args) {
  const int64_t total = args.first_column[args.count];
  const int64_t count = total * args.m;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t row = i / total;
    int64_t column = i % total;
    float sum = args.partial[i];
    for (int p = 1; p < args.parts; ++p) sum += args.partial[p * count + i];
    int t = 0;
    while (t + 1 < args.count && column >= args.first_column[t + 1]) ++t;
    column -= args.first_column[t];
    const MatMulTarget& target = args.targets[t];
    const float bias = target.bias == nullptr ? 0.0f : target.bias[column];
    target.y[row * target.ldy + column] = sum + bias;
  }
}

}  // namespace granule::kernels
