// Products of 1 to 8 rows with tiled codes of 4 or 8 bits: on tensor cores, and still with the exact
// values of x and of the codes.
//
// A dot product in fp32 would spend three instructions on a code (to float, minus the zero point,
// multiply); that, not memory, would bound the product. Here x is cut into three bf16 pieces of 8 bits
// each, whose sum is x exactly; a code minus an integer zero point is exact in bf16 as well. So
// mma.sync m16n8k16 makes exact products of 16 rows of weights with up to 8 rows of x, and sums
// them in fp32. The sum of 32 codes is multiplied by their scale and added to the result in fp32.
//
// Lanes: g = lane / 4 stands for rows g and g + 8 of the tile and for row g of x, t = lane % 4 for a
// quarter of the values. Which four values of 16 a lane holds does not matter, as long as it is the
// same on both sides; so each lane loads 16 bytes (a column of the tiled group, matmul_args.h), and x
// is laid out to suit:
//   float4 cell [group][part][piece][row of x][t]: for both instructions of a part, two pairs of
//   bf16. Lanes read neighbouring cells; with fewer rows than 8 several lanes read the same.
//
// Order of a sum: 3 pieces of each instruction; the two instructions; parts ascending; the warps of a
// split ascending; the bias. It does not depend on m.
#pragma once

#include "kernels/cuda/matmul_weights.cuh"

namespace granule::kernels {

__device__ __forceinline__ void MultiplyCodes(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1, const float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
}

// Both bf16 values of `a` plus those of `b`. As a multiply-add, which capability 8.0 has too.
__device__ __forceinline__ uint32_t AddPairs(uint32_t a, uint32_t b) {
  uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x3f803f80u), "r"(b));
  return sum;
}

// The upper halves of two floats, the first one low: a pair of bf16, rounded to zero.
__device__ __forceinline__ uint32_t UpperHalves(uint32_t low, uint32_t high) {
  return __byte_perm(low, high, 0x7632);
}

// One group of one row on its way: 16 bytes of codes, and what belongs to each part of 32 codes.
template <int kBits>
struct CodeGroup {
  static constexpr int kParts = kBits == 4 ? 4 : 2;
  uint4 codes;
  float scale[kParts];
  uint32_t zeros;  // a byte for each part
};

// `codes` points at the lane's 16 bytes of group 0 of `row`.
template <int kBits, bool kZeros>
__device__ __forceinline__ void LoadGroup(const CudaWeights& w, const char* codes, int64_t row,
                                          int group, CodeGroup<kBits>& out) {
  constexpr int kParts = CodeGroup<kBits>::kParts;
  out.codes = LoadStream(codes + static_cast<int64_t>(group) * 64);
  if (w.wide_scales) {  // a block is a part, and the scales of a group are aligned: one load
    const int64_t first = row * w.blocks + static_cast<int64_t>(group) * kParts;
    if (w.scales_type == kTypeF32) {
      const float* from = static_cast<const float*>(w.scales) + first;
      if constexpr (kBits == 4) {
        const float4 v = __ldg(reinterpret_cast<const float4*>(from));
        out.scale[0] = v.x;
        out.scale[1] = v.y;
        out.scale[2] = v.z;
        out.scale[3] = v.w;
      } else {
        const float2 v = __ldg(reinterpret_cast<const float2*>(from));
        out.scale[0] = v.x;
        out.scale[1] = v.y;
      }
    } else {
      const uint16_t* from = static_cast<const uint16_t*>(w.scales) + first;
      const bool f16 = w.scales_type == kTypeF16;
#pragma unroll
      for (int i = 0; i < kParts; i += 2) {
        const uint32_t pair = __ldg(reinterpret_cast<const unsigned int*>(from + i));
        const float2 v = f16 ? Halves(pair) : BHalves(pair);
        out.scale[i] = v.x;
        out.scale[i + 1] = v.y;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      out.scale[i] = LoadScale(w, row, BlockOf(w, 2 * (group * kParts + i)));
  }
  if constexpr (kZeros) {
    out.zeros = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int block = BlockOf(w, 2 * (group * kParts + i));
      out.zeros |= LoadZeroCode<kBits>(w, row, block) << (8 * i);
    }
  }
}

// The lane's 8 codes of a part, less the zero point: pairs for the first instruction in pairs[0] and
// [1], for the second in [2] and [3]. In the order of SplitX.
template <int kBits, bool kZeros>
__device__ __forceinline__ void CodePairs(const CodeGroup<kBits>& group, int part,
                                          uint32_t (&pairs)[4]) {
  if constexpr (kBits == 4) {
    // 128 + code in bf16 is 0x4300 | code. Pair j: codes j and j + 4 of the word.
    const uint32_t word = Word(group.codes, part);
    const uint32_t zero = kZeros ? (group.zeros >> (8 * part)) & 15 : 8;
    const uint32_t less = 0xc300c300u | zero * 0x10001u;  // -(128 + zero)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      pairs[j] = AddPairs(((word >> (4 * j)) & 0x000f000fu) | 0x43004300u, less);
  } else {
    const uint32_t zero = kZeros ? (group.zeros >> (8 * part)) & 255 : 128;
    const float less = __uint_as_float(kMagic | zero);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = Word(group.codes, 2 * part + i);
      uint32_t bits[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // At most 255 in size: 8 bits, exact in the upper half.
        bits[j] =
            __float_as_uint(__uint_as_float(__byte_perm(word, kMagic, 0x7650 + j)) - less);
      }
      pairs[2 * i] = UpperHalves(bits[0], bits[1]);
      pairs[2 * i + 1] = UpperHalves(bits[2], bits[3]);
    }
  }
}

// Value i of the lane's 8 of a part lies at this place of the part's 32 values.
template <int kBits>
__device__ __forceinline__ int PlaceOf(int t, int i) {
  return kBits == 4 ? 8 * t + i : 4 * t + i % 4 + i / 4 * 16;
}

// Three pieces of 8 values of x, as cells. Cutting bits off leaves an exact remainder: 24 bits are
// three times 8.
template <int kBits>
__device__ __forceinline__ void SplitX(const float (&x)[8], uint4 (&cells)[3]) {
  float rest[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) rest[i] = x[i];
#pragma unroll
  for (int piece = 0; piece < 3; ++piece) {
    uint32_t bits[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      bits[i] = __float_as_uint(rest[i]);
      rest[i] -= __uint_as_float(bits[i] & 0xffff0000u);
    }
    if constexpr (kBits == 4) {
      cells[piece] = {UpperHalves(bits[0], bits[4]), UpperHalves(bits[1], bits[5]),
                      UpperHalves(bits[2], bits[6]), UpperHalves(bits[3], bits[7])};
    } else {
      cells[piece] = {UpperHalves(bits[0], bits[1]), UpperHalves(bits[2], bits[3]),
                      UpperHalves(bits[4], bits[5]), UpperHalves(bits[6], bits[7])};
    }
  }
}

template <int kBits, bool kZeros, int kM>
__device__ __forceinline__ void CodesGemv(const GemvArgs& args) {
  constexpr int kParts = CodeGroup<kBits>::kParts;
  constexpr int kGroupValues = 32 * kParts;
  constexpr int kTiles = CodesRows(kM) / 16;
  constexpr int kDepth = 2 / kTiles;  // groups of each row in flight
  extern __shared__ uint4 cells[];
  __shared__ float partial[kGemvWarps][kTiles * 4][32];

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int t = lane % 4;
  const int split = args.split;
  const int slice = warp % split;
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * (kGemvWarps / split) + warp / split;
  const bool active = tile < args.first_group[args.count];
  int which = 0;
  while (which + 1 < args.count && tile >= args.first_group[which + 1]) ++which;
  const MatMulTarget& target = args.targets[which];
  const CudaWeights& w = target.weights;
  const int64_t first_row = (tile - args.first_group[which]) * (16 * kTiles);
  // Row i * 8 + g of the tile. Those beyond n are there; their sums go nowhere.
  const int64_t lane_row = first_row + lane / 4;
  const char* lane_codes = static_cast<const char*>(w.data) + lane_row * w.row_bytes + t * 16;

  const int groups = static_cast<int>((args.k + kGroupValues - 1) / kGroupValues);
  float acc[kTiles][4] = {};

  for (int begin = 0; begin < groups; begin += args.stage_chunks) {
    const int end = min(begin + args.stage_chunks, groups);
    CodeGroup<kBits> ring[kDepth][2 * kTiles];
    const auto load = [&](int group, CodeGroup<kBits>(&to)[2 * kTiles]) {
      if (!active || group >= end) return;
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        LoadGroup<kBits, kZeros>(w, lane_codes + i * 8 * w.row_bytes, lane_row + i * 8, group,
                                 to[i]);
      }
    };
#pragma unroll
    for (int d = 0; d < kDepth; ++d) load(begin + slice + d * split, ring[d]);

    if (begin > 0) __syncthreads();  // all are done with the x before
    const int cells_in_line = (end - begin) * kParts * 4;  // of one piece of a row of x
    for (int i = threadIdx.x; i < cells_in_line * kM; i += kGemvWarps * 32) {
      const int row = i / 4 % kM;  // as the cells lie: t fastest, then the row, then the part
      const int part = i / (4 * kM);
      const int64_t first = static_cast<int64_t>(begin) * kGroupValues + part * 32;
      float x[8];
      if (row < args.m) {
        const float* from = args.x + row * args.ldx;
        const int64_t low = first + PlaceOf<kBits>(i % 4, 0);
        const int64_t high = first + PlaceOf<kBits>(i % 4, 4);
        if (args.aligned && high + 4 <= args.k) {
          const float4 a = __ldg(reinterpret_cast<const float4*>(from + low));
          const float4 b = __ldg(reinterpret_cast<const float4*>(from + high));
          x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
          x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
        } else {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const int64_t k = j < 4 ? low + j : high + j - 4;
            x[j] = k < args.k ? __ldg(from + k) : 0.0f;
          }
        }
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = 0.0f;
      }
      uint4 pieces[3];
      SplitX<kBits>(x, pieces);
#pragma unroll
      for (int piece = 0; piece < 3; ++piece)
        cells[(part * 3 + piece) * (4 * kM) + i % (4 * kM)] = pieces[piece];
    }
    __syncthreads();

    for (int group = begin + slice; active && group < end; group += kDepth * split) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int now = group + d * split;
        if (now >= end) break;
        CodeGroup<kBits> codes[2 * kTiles];
#pragma unroll
        for (int i = 0; i < 2 * kTiles; ++i) codes[i] = ring[d][i];
        load(now + kDepth * split, ring[d]);
        const uint4* x = cells + (now - begin) * (kParts * 3 * 4 * kM) + lane / 4 % kM * 4 + t;
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          uint4 b[3];
#pragma unroll
          for (int piece = 0; piece < 3; ++piece) b[piece] = x[(part * 3 + piece) * (4 * kM)];
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
            uint32_t low[4], high[4];  // rows g and g + 8
            CodePairs<kBits, kZeros>(codes[2 * i], part, low);
            CodePairs<kBits, kZeros>(codes[2 * i + 1], part, high);
            // Two chains of three instructions instead of one of six.
            const float zero[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            const uint32_t first[4] = {low[0], high[0], low[1], high[1]};
            const uint32_t second[4] = {low[2], high[2], low[3], high[3]};
            float c[4], e[4];
            MultiplyCodes(c, first, b[2].x, b[2].y, zero);
            MultiplyCodes(e, second, b[2].z, b[2].w, zero);
            MultiplyCodes(c, first, b[1].x, b[1].y, c);
            MultiplyCodes(e, second, b[1].z, b[1].w, e);
            MultiplyCodes(c, first, b[0].x, b[0].y, c);
            MultiplyCodes(e, second, b[0].z, b[0].w, e);
#pragma unroll
            for (int j = 0; j < 4; ++j)
              acc[i][j] = fmaf(c[j] + e[j], codes[2 * i + j / 2].scale[part], acc[i][j]);
          }
        }
      }
    }
  }

  if (split > 1) {
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) partial[warp][i][lane] = acc[i / 4][i % 4];
    __syncthreads();
    if (slice != 0) return;
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) {
      for (int s = 1; s < split; ++s) acc[i / 4][i % 4] += partial[warp + s][i][lane];
    }
  }
  if (!active) return;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t row = first_row + i * 16 + lane / 4 + j / 2 * 8;
      const int m = t * 2 + j % 2;
      if (m >= args.m || row >= w.n) continue;
      const float bias = target.bias == nullptr ? 0.0f : target.bias[row];
      target.y[m * target.ldy + row] = acc[i][j] + bias;
    }
  }
}

}  // namespace granule::kernels
