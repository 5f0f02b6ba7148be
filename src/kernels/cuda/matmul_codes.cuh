// Products of 1 to 8 rows with tiled codes of 4 or 8 bits: on tensor cores, and still with the
// exact values of x and of the codes.
//
// A dot product in fp32 would spend three instructions on a code (to float, minus the zero point,
// multiply); that, not memory, would bound the product. Here x is cut into three bf16 pieces of 8
// bits each, whose sum is x exactly; a code minus an integer zero point is exact in bf16 as well.
// So mma.sync m16n8k16 makes exact products of 16 rows of weights with up to 8 rows of x, and sums
// them in fp32. The sum of 32 codes is multiplied by their scale and added to the result in fp32.
//
// Lanes: g = lane / 4 stands for rows g and g + 8 of the tile and for row g of x, t = lane % 4 for
// a quarter of the values. Which four values of 16 a lane holds does not matter, as long as it is
// the same on both sides; so each lane loads 16 bytes (a column of the tiled group, matmul_args.h),
// and x is laid out to suit:
//   16-byte cell [group][part][piece][row of x][t]: for both instructions of a part, two pairs of
//   bf16. Lanes read neighbouring cells; with fewer rows than 8 several lanes read the same.
//
// Order of a sum: a part's pieces from the smallest, both instructions of each; parts ascending;
// the warps of a split ascending; the bias. It does not depend on m.
#pragma once

#include "kernels/cuda/matmul_weights.cuh"

namespace granule::kernels {

__device__ __forceinline__ void MultiplyCodes(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// (a & mask) | set, in one instruction.
template <uint32_t kMask, uint32_t kSet>
__device__ __forceinline__ uint32_t MaskSet(uint32_t a) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "n"(kMask), "n"(kSet));
  return r;
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

// 16 bytes on their way to shared memory, past the first cache.
__device__ __forceinline__ void CopyAsync16(void* to, const void* from) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
__device__ __forceinline__ void CopyAsync8(void* to, const void* from) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address), "l"(from) : "memory");
}
__device__ __forceinline__ void CopyAsync4(void* to, const void* from) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
}
__device__ __forceinline__ void CopyAsyncEnd() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// What a warp has of one group of its tile, in shared memory, as the lanes copied it.
template <int kRows8>  // rows, in eights
struct CodesStage {
  uint4 codes[kRows8][32];
  float scales[kRows8][8][4];
  uint32_t zeros[kRows8][8];
};

template <bool kZeros, int kRows8>
__device__ __forceinline__ void CopyGroup(const CudaWeights& w, const char* lane_codes,
                                          int first_row, int group, int scales_log2, int lane,
                                          CodesStage<kRows8>& to) {
#pragma unroll
  for (int i = 0; i < kRows8; ++i) {
    CopyAsync16(&to.codes[i][lane],
                lane_codes + i * 8 * w.row_bytes + static_cast<int64_t>(group) * 64);
  }
  if (lane >= kRows8 * 8) return;
  const int64_t row = first_row + lane;
  const float* from = static_cast<const float*>(w.scales) + row * w.blocks +
                      (static_cast<int64_t>(group) << scales_log2);
  float* scales = to.scales[lane / 8][lane % 8];
  if (scales_log2 == 2) {
    CopyAsync16(scales, from);
  } else if (scales_log2 == 1) {
    CopyAsync8(scales, from);
  } else {
    CopyAsync4(scales, from);
  }
  if constexpr (kZeros) {
    CopyAsync4(&to.zeros[lane / 8][lane % 8], static_cast<const char*>(w.zeros) +
                                                  row * w.zero_row_bytes +
                                                  static_cast<int64_t>(group) * 4);
  }
}

// The lane's 8 codes of a part, less the zero point: pairs for the first instruction in pairs[0]
// and [1], for the second in [2] and [3]. In the order of SplitX.
template <int kBits, bool kZeros>
__device__ __forceinline__ void CodePairs(const uint4& codes, uint32_t zeros, int part,
                                          uint32_t (&pairs)[4]) {
  if constexpr (kBits == 4) {
    // 128 + code in bf16 is 0x4300 | code. Pair j: codes j and j + 4 of the word.
    const uint32_t word = Word(codes, part);
    const uint32_t zero = kZeros ? (zeros >> (8 * part)) & 15 : 8;
    const uint32_t less = 0xc300c300u | zero * 0x10001u;  // -(128 + zero)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      pairs[j] = AddPairs(MaskSet<0x000f000fu, 0x43004300u>(word >> (4 * j)), less);
  } else {
    const uint32_t zero = kZeros ? (zeros >> (8 * part)) & 255 : 128;
    const float less = __uint_as_float(kMagic | zero);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = Word(codes, 2 * part + i);
      uint32_t bits[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // At most 255 in size: 8 bits, exact in the upper half.
        bits[j] = __float_as_uint(__uint_as_float(__byte_perm(word, kMagic, 0x7650 + j)) - less);
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

// 8 values of row `row` of x for lane quarter t of a part whose values begin at `first`; zero
// beyond k and beyond the rows that there are.
template <int kBits>
__device__ __forceinline__ void LoadXPart(const GemvArgs& args, int row, int64_t first, int t,
                                          float (&x)[8]) {
  const float* from = args.x + row * args.ldx;
  const int64_t low = first + PlaceOf<kBits>(t, 0);
  const int64_t high = first + PlaceOf<kBits>(t, 4);
  if (row < args.m && args.aligned && high + 4 <= args.k) {
    const float4 a = __ldg(reinterpret_cast<const float4*>(from + low));
    const float4 b = __ldg(reinterpret_cast<const float4*>(from + high));
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int64_t k = j < 4 ? low + j : high + j - 4;
    x[j] = row < args.m && k < args.k ? __ldg(from + k) : 0.0f;
  }
}

// Shared memory: the warps' stages, then x.
template <int kBits, bool kZeros, int kM>
__device__ __forceinline__ void CodesGemv(const GemvArgs& args) {
  constexpr int kParts = kBits == 4 ? 4 : 2;
  constexpr int kGroupValues = 32 * kParts;
  constexpr int kTiles = CodesRows(kM) / 16;
  constexpr int kRows8 = 2 * kTiles;
  constexpr int kStages = CodesStages(kM);
  using Stage = CodesStage<kRows8>;
  static_assert(sizeof(Stage) * kStages * kCodesWarps == CodesStageBytes(kM));
  extern __shared__ uint4 shared_codes[];
  __shared__ float partial[kCodesWarps][kTiles * 4][32];

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int split = args.split;
  const int slice = warp % split;
  const int tile = static_cast<int>(blockIdx.x) * (kCodesWarps / split) + warp / split;
  const bool active = tile < args.first_group[args.count];
  int which = 0;
  while (which + 1 < args.count && tile >= args.first_group[which + 1]) ++which;
  const MatMulTarget& target = args.targets[which];
  const CudaWeights& w = target.weights;
  const int first_row = (tile - static_cast<int>(args.first_group[which])) * (16 * kTiles);
  // Rows beyond n are there; their sums go nowhere.
  const char* lane_codes =
      static_cast<const char*>(w.data) + static_cast<int64_t>(first_row + g) * w.row_bytes + t * 16;
  Stage* stages = reinterpret_cast<Stage*>(shared_codes) + warp * kStages;
  uint4* cells = shared_codes + CodesStageBytes(kM) / 16;

  // The warp's turns: groups slice, slice + split, ... One copy ends for every turn, an empty one
  // after the last, so that the number of those pending tells which have arrived.
  const int groups = static_cast<int>((args.k + kGroupValues - 1) / kGroupValues);
  const int own = active ? groups : 0;
  const int part_shift = w.block_log2 - 5;                    // from a part of a group to its scale
  const int scales_log2 = (kBits == 4 ? 2 : 1) - part_shift;  // scales of a group
  const auto copy = [&](int turn) {
    const int group = slice + turn * split;
    if (group < own)
      CopyGroup<kZeros>(w, lane_codes, first_row, group, scales_log2, lane, stages[turn % kStages]);
    CopyAsyncEnd();
  };
#pragma unroll
  for (int turn = 0; turn < kStages - 1; ++turn) copy(turn);

  float acc[kTiles][4] = {};
  int turn = 0;
  for (int begin = 0; begin < groups; begin += args.stage_chunks) {
    const int end = min(begin + args.stage_chunks, groups);
    if (begin > 0) __syncthreads();  // all are done with the x before
    for (int i = threadIdx.x; i < (end - begin) * kParts * 4 * kM; i += kCodesWarps * 32) {
      // As the cells lie: t fastest, then the row, then the part.
      const int row = i / 4 % kM;
      const int part = i / (4 * kM);
      float x[8];
      LoadXPart<kBits>(args, row, static_cast<int64_t>(begin) * kGroupValues + part * 32, i % 4, x);
      uint4 pieces[3];
      SplitX<kBits>(x, pieces);
#pragma unroll
      for (int piece = 0; piece < 3; ++piece)
        cells[(part * 3 + piece) * (4 * kM) + i % (4 * kM)] = pieces[piece];
    }
    __syncthreads();

    for (int group = begin + slice; active && group < end; group += split, ++turn) {
      CopyAsyncWait<kStages - 2>();
      __syncwarp();  // the other lanes' copies too; and all are done with the stage before this one
      copy(turn + kStages - 1);
      const Stage& stage = stages[turn % kStages];
      uint4 codes[kRows8];
      uint32_t zeros[kRows8];
#pragma unroll
      for (int i = 0; i < kRows8; ++i) {
        codes[i] = stage.codes[i][lane];
        zeros[i] = kZeros ? stage.zeros[i][g] : 0;
      }
      const uint4* x = cells + (group - begin) * (kParts * 3 * 4 * kM) + g % kM * 4 + t;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        uint4 b[3];
#pragma unroll
        for (int piece = 0; piece < 3; ++piece) b[piece] = x[(part * 3 + piece) * (4 * kM)];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          uint32_t low[4], high[4];  // rows g and g + 8
          CodePairs<kBits, kZeros>(codes[2 * i], zeros[2 * i], part, low);
          CodePairs<kBits, kZeros>(codes[2 * i + 1], zeros[2 * i + 1], part, high);
          const uint32_t first[4] = {low[0], high[0], low[1], high[1]};
          const uint32_t second[4] = {low[2], high[2], low[3], high[3]};
          float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
          MultiplyCodes(c, first, b[2].x, b[2].y);  // the smallest pieces first
          MultiplyCodes(c, second, b[2].z, b[2].w);
          MultiplyCodes(c, first, b[1].x, b[1].y);
          MultiplyCodes(c, second, b[1].z, b[1].w);
          MultiplyCodes(c, first, b[0].x, b[0].y);
          MultiplyCodes(c, second, b[0].z, b[0].w);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float scale = stage.scales[2 * i + j / 2][g][part >> part_shift];
            acc[i][j] = fmaf(c[j], scale, acc[i][j]);
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
      const int64_t row = first_row + i * 16 + g + j / 2 * 8;
      const int m = t * 2 + j % 2;
      if (m >= args.m || row >= w.n) continue;
      const float bias = target.bias == nullptr ? 0.0f : target.bias[row];
      target.y[m * target.ldy + row] = acc[i][j] + bias;
    }
  }
}

}  // namespace granule::kernels
