// Fragments of single-row attention: how a warp reads 16 slots of K and V of one KV head straight
// into the operands of tensor-core instructions, for up to 8 * N query heads at a time.
//
// Scores are computed as S^T = K Q^T and values as O^T = V^T P^T, so that slots and head lanes fill
// the 16 rows of an operand and the (few) query heads are its 8 columns. The order of the summed
// dimension is free as long as both operands agree; it is chosen so that each lane's part of a K or
// V row is one 16-byte load. With lane = 4 * g + c:
//   K: lane reads slots g and g + 8 at head lanes 8c .. 8c+7 (4c .. 4c+3 of fp32) of each chunk
//   V: lane reads slots 2c, 2c+1, 2c+8, 2c+9 (c, c+4, c+8, c+12 of fp32) at lanes 8g .. 8g+7 (4g ..
//   )
// K and V of 16 bits enter as they are; q and the weights, which are fp32, enter as the sum of two
// numbers of that type, so that their rounding does not count. fp32 K and V enter as sums of two
// tf32 numbers as well.
#pragma once

#include "kernels/cuda/attention.cuh"

namespace granule::kernels {

// kWords 32-bit words of one lane, as one load.
template <int kWords>
struct Words {
  uint32_t w[kWords];

  __device__ __forceinline__ void Load(const char* from, bool wanted) {
    static_assert(kWords == 1 || kWords == 2 || kWords == 4);
    if constexpr (kWords == 4) {
      uint4 v = make_uint4(0, 0, 0, 0);
      if (wanted) v = __ldg(reinterpret_cast<const uint4*>(from));
      w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    } else if constexpr (kWords == 2) {
      uint2 v = make_uint2(0, 0);
      if (wanted) v = __ldg(reinterpret_cast<const uint2*>(from));
      w[0] = v.x, w[1] = v.y;
    } else {
      w[0] = 0;
      if (wanted) w[0] = __ldg(reinterpret_cast<const uint32_t*>(from));
    }
  }
};

// Rows of D elements, cut into whole chunks and a rest: kWide words per lane in each whole chunk,
// kRest in the last. `Lanes` lanes share a chunk.
template <int D, int kElementBytes, int kLanes>
struct RowPieces {
  static constexpr int kChunkBytes = kLanes * 16;
  static constexpr int kWhole = D * kElementBytes / kChunkBytes;
  static constexpr int kRestBytes = D * kElementBytes - kWhole * kChunkBytes;
  static constexpr int kRest = kRestBytes / kLanes / 4;
  static_assert(kRest * kLanes * 4 == kRestBytes);

  Words<4> whole[kWhole];
  Words<kRest == 0 ? 1 : kRest> rest;

  __device__ __forceinline__ void Load(const char* row, int lane, bool wanted) {
#pragma unroll
    for (int i = 0; i < kWhole; ++i) whole[i].Load(row + i * kChunkBytes + lane * 16, wanted);
    if constexpr (kRest > 0) rest.Load(row + kWhole * kChunkBytes + lane * kRest * 4, wanted);
  }
  // Word `i` of this lane, counted through all chunks.
  __device__ __forceinline__ uint32_t Word(int i) const {
    return i < kWhole * 4 ? whole[i / 4].w[i % 4] : rest.w[i - kWhole * 4];
  }
  // Byte of the row at which this lane's word i lies.
  static __device__ __forceinline__ int ByteOf(int i, int lane) {
    return i < kWhole * 4 ? i / 4 * kChunkBytes + lane * 16 + i % 4 * 4
                          : kWhole * kChunkBytes + lane * kRest * 4 + (i - kWhole * 4) * 4;
  }
};

// fp16 and bf16.
template <class E, int D>
struct HalfKv {
  static constexpr int kHeadDim = D;
  using KRow = RowPieces<D, 2, 4>;
  using VRow = RowPieces<D, 2, 8>;
  static constexpr int kSteps = D / 16;   // instructions of a score
  static constexpr int kVTiles = D / 16;  // 16 head lanes each
  static constexpr int kQWords = kSteps;  // uint4 per lane and 8 heads

  // The part of q that a lane multiplies in step s: of head lanes d .. d+3, high and low halves.
  static __device__ __forceinline__ uint4 QFragment(const float* q, int s, int c, float scale) {
    const int d = KRow::ByteOf(2 * s, c) / 2;
    uint4 out;
    Split(q[d] * scale, q[d + 1] * scale, out.x, out.z);
    Split(q[d + 2] * scale, q[d + 3] * scale, out.y, out.w);
    return out;
  }
  static __device__ __forceinline__ void Split(float a, float b, uint32_t& high, uint32_t& low) {
    high = E::Pack(a, b);
    const float2 rounded = E::Unpack(high);
    low = E::Pack(a - rounded.x, b - rounded.y);
  }

  KRow k[2];  // slots g, g + 8
  VRow v[4];  // slots 2c, 2c+1, 2c+8, 2c+9
  static __device__ __forceinline__ int KSlot(int i, int g) { return g + 8 * i; }
  static __device__ __forceinline__ int VSlot(int i, int c) {
    return 2 * c + (i & 1) + 8 * (i >> 1);
  }

  template <int N>
  __device__ __forceinline__ void Score(const uint4* q, int lane, float (&scores)[N][4]) const {
    float low[N][4] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const uint32_t a[4] = {k[0].Word(2 * s), k[1].Word(2 * s), k[0].Word(2 * s + 1),
                             k[1].Word(2 * s + 1)};
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const uint4 b = q[(n * kQWords + s) * 32 + lane];
        E::Mma(scores[n], a, b.x, b.y);
        E::Mma(low[n], a, b.z, b.w);
      }
    }
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] += low[n][i];
  }

  // The weights of one set of 8 heads, transposed into the second operand.
  struct Weights {
    uint32_t high[2], low[2];
  };
  static __device__ __forceinline__ Weights Transpose(const float (&p)[4]) {
    Weights out;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t high, low;
      Split(p[2 * i], p[2 * i + 1], high, low);
      asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out.high[i]) : "r"(high));
      asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out.low[i]) : "r"(low));
    }
    return out;
  }
  template <int N>
  __device__ __forceinline__ void Accumulate(const Weights (&p)[N],
                                             float (&acc)[N][kVTiles][4]) const {
#pragma unroll
    for (int t = 0; t < kVTiles; ++t) {
      const uint32_t w0 = v[0].Word(t), w1 = v[1].Word(t), w2 = v[2].Word(t), w3 = v[3].Word(t);
      const uint32_t a[4] = {__byte_perm(w0, w1, 0x5410), __byte_perm(w0, w1, 0x7632),
                             __byte_perm(w2, w3, 0x5410), __byte_perm(w2, w3, 0x7632)};
#pragma unroll
      for (int n = 0; n < N; ++n) {
        E::Mma(acc[n][t], a, p[n].high[0], p[n].high[1]);
        E::Mma(acc[n][t], a, p[n].low[0], p[n].low[1]);
      }
    }
  }
  // The head lane of acc[..][t][0 and 1]; that of [2 and 3] is the next.
  static __device__ __forceinline__ int LaneOf(int t, int g) { return VRow::ByteOf(t, g) / 2; }
};

// fp32, by three products of tf32 parts: what they leave out is below 2^-20 of a term.
template <int D>
struct FloatKv {
  static constexpr int kHeadDim = D;
  using KRow = RowPieces<D, 4, 4>;
  using VRow = RowPieces<D, 4, 8>;
  static constexpr int kSteps = D / 8;
  static constexpr int kVTiles = D / 16;
  static constexpr int kQWords = kSteps;

  static __device__ __forceinline__ void Split(float x, uint32_t& high, uint32_t& low) {
    high = __float_as_uint(x) & 0xffffe000u;  // the bits that a tf32 operand keeps
    low = __float_as_uint(x - __uint_as_float(high));
  }
  // d += a * b for 16x8 (row) and 8x8 (column): of a, rows g and g + 8 at columns c and c + 4; of
  // b, rows c and c + 4 at column g.
  static __device__ __forceinline__ void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  static __device__ __forceinline__ uint4 QFragment(const float* q, int s, int c, float scale) {
    const int d = KRow::ByteOf(2 * s, c) / 4;
    uint4 out;
    Split(q[d] * scale, out.x, out.z);
    Split(q[d + 1] * scale, out.y, out.w);
    return out;
  }

  KRow k[2];
  VRow v[4];
  static __device__ __forceinline__ int KSlot(int i, int g) { return g + 8 * i; }
  static __device__ __forceinline__ int VSlot(int i, int c) { return c + 4 * i; }

  template <int N>
  __device__ __forceinline__ void Score(const uint4* q, int lane, float (&scores)[N][4]) const {
    float low[N][4] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t high_a[4], low_a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        Split(__uint_as_float(k[i % 2].Word(2 * s + i / 2)), high_a[i], low_a[i]);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const uint4 b = q[(n * kQWords + s) * 32 + lane];
        Mma(scores[n], high_a, b.x, b.y);
        Mma(low[n], high_a, b.z, b.w);
        Mma(low[n], low_a, b.x, b.y);
      }
    }
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] += low[n][i];
  }

  // b0, b1 of slots 0-7, then of slots 8-15.
  struct Weights {
    uint32_t high[4], low[4];
  };
  static __device__ __forceinline__ Weights Transpose(const float (&p)[4]) {
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, c = lane % 4;
    Weights out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Head g of slot c + 4 * (i % 2) of eight lies with the lane of that slot and head pair.
      const int from = (c + 4 * (i % 2)) * 4 + g / 2;
      const float even = __shfl_sync(0xffffffffu, p[i / 2 * 2], from);
      const float odd = __shfl_sync(0xffffffffu, p[i / 2 * 2 + 1], from);
      Split(g % 2 == 0 ? even : odd, out.high[i], out.low[i]);
    }
    return out;
  }
  template <int N>
  __device__ __forceinline__ void Accumulate(const Weights (&p)[N],
                                             float (&acc)[N][kVTiles][4]) const {
#pragma unroll
    for (int t = 0; t < kVTiles; ++t) {
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
        uint32_t high_a[4], low_a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          Split(__uint_as_float(v[2 * eight + i / 2].Word(2 * t + i % 2)), high_a[i], low_a[i]);
        }
#pragma unroll
        for (int n = 0; n < N; ++n) {
          Mma(acc[n][t], high_a, p[n].low[2 * eight], p[n].low[2 * eight + 1]);
          Mma(acc[n][t], low_a, p[n].high[2 * eight], p[n].high[2 * eight + 1]);
          Mma(acc[n][t], high_a, p[n].high[2 * eight], p[n].high[2 * eight + 1]);
        }
      }
    }
  }
  static __device__ __forceinline__ int LaneOf(int t, int g) { return VRow::ByteOf(2 * t, g) / 4; }
};

}  // namespace granule::kernels
