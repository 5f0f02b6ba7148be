// Products of 1 to 8 rows: dot products in fp32 with the exact values of the weights.
//
// Every lane streams 16-byte chunks of GemvRows rows of weights and multiplies them with the same
// values of x, which lie in shared memory. The next chunks are in flight while the last are
// multiplied, the first ones already while x is brought in. A sum is made in this order: a lane's
// chunks ascending, lanes by a butterfly, the warps of a split ascending, then the bias. It depends
// on n, k and the kind, not on m: one row alone and the same row among 8 give the same bits.
//
// x in shared memory: piece p (4 values) of chunk c of row m lies at float4 [m * pieces + p][c], so
// that lanes with neighbouring chunks read neighbouring 16 bytes; one float4 more per line keeps
// the writes apart as well.
#pragma once

#include "kernels/cuda/matmul_weights.cuh"

namespace granule::kernels {

template <WeightKind kKind>
inline constexpr bool kQuantised = kKind == WeightKind::kQ4 || kKind == WeightKind::kQ8;

template <WeightKind kKind>
struct GemvBatch {
  uint4 data;
  float scale[kKind == WeightKind::kQ4 ? 2 : 1];  // 4 bit: of both units
  float zero[kKind == WeightKind::kQ4 ? 2 : 1];
};

template <WeightKind kKind>
__device__ __forceinline__ void LoadChunk(const CudaWeights& w, int64_t row, int chunk,
                                          GemvBatch<kKind>& out) {
  out.data = LoadStream(static_cast<const char*>(w.data) + row * w.row_bytes +
                        static_cast<int64_t>(chunk) * 16);
  if constexpr (kKind == WeightKind::kQ8) {
    const int block = BlockOf(w, chunk);
    out.scale[0] = LoadScale(w, row, block);
    out.zero[0] = LoadZero<8>(w, row, block);
  } else if constexpr (kKind == WeightKind::kQ4) {
    const int block = BlockOf(w, 2 * chunk);
    out.scale[0] = LoadScale(w, row, block);
    out.zero[0] = LoadZero<4>(w, row, block);
    out.scale[1] = out.scale[0];
    out.zero[1] = out.zero[0];
    if (w.block_log2 == 4) {  // two blocks in a chunk
      const int second = BlockOf(w, 2 * chunk + 1);
      out.scale[1] = LoadScale(w, row, second);
      out.zero[1] = LoadZero<4>(w, row, second);
    }
  }
}

// 2^23 + code, less the zero point. All exact, except that a zero point that is no integer rounds
// once, as in float(code) - zero point.
template <bool kFloatZeros>
__device__ __forceinline__ float Centred(uint32_t magic_code, float zero) {
  const float value = __uint_as_float(magic_code);
  return kFloatZeros ? (value - kMagicValue) - zero : value - (kMagicValue + zero);
}

// Values 4 * piece to 4 * piece + 3 of a chunk. Of 4 bit codes value i comes 16^i times too large;
// x was made that much smaller (both exact), which saves a shift per code.
template <WeightKind kKind, bool kFloatZeros>
__device__ __forceinline__ float4 Values(const GemvBatch<kKind>& batch, int piece) {
  if constexpr (kKind == WeightKind::kF32) {
    return {__uint_as_float(batch.data.x), __uint_as_float(batch.data.y),
            __uint_as_float(batch.data.z), __uint_as_float(batch.data.w)};
  } else if constexpr (kKind == WeightKind::kF16) {
    const float2 a = Halves(Word(batch.data, 2 * piece));
    const float2 b = Halves(Word(batch.data, 2 * piece + 1));
    return {a.x, a.y, b.x, b.y};
  } else if constexpr (kKind == WeightKind::kBF16) {
    const float2 a = BHalves(Word(batch.data, 2 * piece));
    const float2 b = BHalves(Word(batch.data, 2 * piece + 1));
    return {a.x, a.y, b.x, b.y};
  } else if constexpr (kKind == WeightKind::kQ8) {
    const uint32_t word = Word(batch.data, piece);
    const auto value = [&](uint32_t selector) {
      return Centred<kFloatZeros>(__byte_perm(word, kMagic, selector), batch.zero[0]);
    };
    return {value(0x7650), value(0x7651), value(0x7652), value(0x7653)};
  } else {
    const uint32_t word = Word(batch.data, piece / 2) >> (piece % 2 * 16);
    const float zero = batch.zero[piece / 4];
    const auto value = [&](uint32_t mask, float power) {
      return Centred<kFloatZeros>(kMagic | (word & mask), zero * power);
    };
    return {value(0xfu, 1.0f), value(0xf0u, 16.0f), value(0xf00u, 256.0f), value(0xf000u, 4096.0f)};
  }
}

__device__ __forceinline__ float4 LoadX(const GemvArgs& args, int row, int64_t k) {
  const float* from = args.x + row * args.ldx + k;
  if (args.aligned && k + 4 <= args.k) return *reinterpret_cast<const float4*>(from);
  float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
  if (k < args.k) v.x = from[0];
  if (k + 1 < args.k) v.y = from[1];
  if (k + 2 < args.k) v.z = from[2];
  if (k + 3 < args.k) v.w = from[3];
  return v;
}

template <WeightKind kKind, bool kFloatZeros, int kM>
__device__ __forceinline__ void Gemv(const GemvArgs& args) {
  constexpr int kRows = GemvRows(kKind, kM);
  constexpr int kValues = GemvChunkValues(kKind);
  constexpr int kPieces = kValues / 4;
  constexpr int kWarps = GemvWarps(kKind, kM);
  constexpr int kDepth = kRows > 2 || kKind == WeightKind::kQ4 ? 1 : 2;  // chunks per row in flight
  extern __shared__ float4 shared[];
  __shared__ float partial[kWarps][kRows * kM];

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int split = args.split;
  const int slice = warp % split;
  const int64_t group = static_cast<int64_t>(blockIdx.x) * (kWarps / split) + warp / split;
  const bool active = group < args.first_group[args.count];
  int t = 0;
  while (t + 1 < args.count && group >= args.first_group[t + 1]) ++t;
  const MatMulTarget& target = args.targets[t];
  const CudaWeights& w = target.weights;
  const int64_t first_row = (group - args.first_group[t]) * kRows;

  const int chunks = static_cast<int>((args.k + kValues - 1) / kValues);
  const int line = args.stage_chunks + 1;  // float4s
  float acc[kRows][kM] = {};

  for (int begin = 0; begin < chunks; begin += args.stage_chunks) {
    const int end = min(begin + args.stage_chunks, chunks);
    GemvBatch<kKind> next[kDepth][kRows];
    // Rows beyond n read the last one again; their sums go nowhere.
    const auto load = [&](int chunk) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int c = chunk + d * 32 * split;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (active && c < end) LoadChunk<kKind>(w, min(first_row + r, w.n - 1), c, next[d][r]);
        }
      }
    };
    int chunk = begin + slice * 32 + lane;
    load(chunk);

    if (begin > 0) __syncthreads();  // all are done with the x before
    const int pieces = (end - begin) * kPieces;
    for (int m = 0; m < args.m; ++m) {
      for (int i = threadIdx.x; i < pieces; i += kWarps * 32) {
        float4 v = LoadX(args, m, static_cast<int64_t>(begin) * kValues + i * 4);
        if constexpr (kKind == WeightKind::kQ4) {
          v.y *= 1.0f / 16;
          v.z *= 1.0f / 256;
          v.w *= 1.0f / 4096;
        }
        shared[(m * kPieces + i % kPieces) * line + i / kPieces] = v;
      }
    }
    __syncthreads();

    while (chunk < end) {
      GemvBatch<kKind> now[kDepth][kRows];
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) now[d][r] = next[d][r];
      }
      const int at = chunk - begin;
      chunk += kDepth * 32 * split;
      load(chunk);
      if (!active) continue;
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int c = at + d * 32 * split;
        if (begin + c >= end) break;
        float sums[kQuantised<kKind> ? kRows : 1][kQuantised<kKind> ? kM : 1];
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          float4 values[kRows];
#pragma unroll
          for (int r = 0; r < kRows; ++r) values[r] = Values<kKind, kFloatZeros>(now[d][r], p);
#pragma unroll
          for (int m = 0; m < kM; ++m) {  // beyond args.m: garbage, which nobody reads
            const float4 x = shared[(m * kPieces + p) * line + c];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
              float* sum = &acc[r][m];
              if constexpr (kQuantised<kKind>) {
                sum = &sums[r][m];
                if (p % 4 == 0) *sum = 0.0f;
              }
              *sum = fmaf(values[r].x, x.x, *sum);
              *sum = fmaf(values[r].y, x.y, *sum);
              *sum = fmaf(values[r].z, x.z, *sum);
              *sum = fmaf(values[r].w, x.w, *sum);
              if constexpr (kQuantised<kKind>) {
                if (p % 4 == 3) acc[r][m] = fmaf(*sum, now[d][r].scale[p / 4], acc[r][m]);
              }
            }
          }
        }
      }
    }
  }

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2)
        acc[r][m] += __shfl_xor_sync(0xffffffffu, acc[r][m], offset);
    }
  }
  if (split > 1) {
    if (lane == 0) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int m = 0; m < kM; ++m) partial[warp][r * kM + m] = acc[r][m];
      }
    }
    __syncthreads();
    if (slice != 0) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        for (int s = 1; s < split; ++s) acc[r][m] += partial[warp + s][r * kM + m];
      }
    }
  }
  if (!active) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const int64_t row = first_row + r;
      if (lane != r * kM + m || m >= args.m || row >= w.n) continue;
      const float bias = target.bias == nullptr ? 0.0f : target.bias[row];
      target.y[m * target.ldy + row] = acc[r][m] + bias;
    }
  }
}

}  // namespace granule::kernels
