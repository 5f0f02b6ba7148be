// Appending to the KV, and attention of single rows: split over slots, then merged.
#include "kernels/cuda/attention_decode.cuh"

namespace granule::kernels {
namespace {

using namespace cuda_args;

__device__ __forceinline__ void StoreElement(char* row, int i, float value, DType type) {
  if (type == DType::kF32) {
    reinterpret_cast<float*>(row)[i] = value;
  } else if (type == DType::kF16) {
    reinterpret_cast<__half*>(row)[i] = __float2half_rn(value);
  } else {
    reinterpret_cast<__nv_bfloat16*>(row)[i] = __float2bfloat16_rn(value);
  }
}

// Pair i of a head's rotating lanes.
__device__ __forceinline__ int2 PairOf(const Append& a, int i) {
  return a.interleaved ? make_int2(2 * i, 2 * i + 1) : make_int2(i, i + a.half);
}

__device__ __forceinline__ float2 RotatePair(const Append& a, const float* head, int2 pair,
                                             int64_t at) {
  const float x = head[pair.x], y = head[pair.y], cos = a.cos[at], sin = a.sin[at];
  return make_float2(x * cos - y * sin, y * cos + x * sin);
}

// One warp: one head of q, k or v of one row.
__device__ void AppendHead(const Append& a) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int unit = static_cast<int>(blockIdx.y * kAppendWarps + threadIdx.x / 32);
  const int64_t r = blockIdx.x;
  const CudaRow row = a.rows[r];
  if (row.sequence < 0 || unit >= a.heads + 2 * a.kv_heads) return;
  const int64_t angles = row.slot * a.half;
  if (unit < a.heads) {
    float* head = a.q + r * a.ldq + static_cast<int64_t>(unit) * a.head_dim;
    for (int i = lane; i < a.half; i += 32) {
      const int2 pair = PairOf(a, i);
      const float2 rotated = RotatePair(a, head, pair, angles + i);
      head[pair.x] = rotated.x;
      head[pair.y] = rotated.y;
    }
    return;
  }
  const KvView& view = a.views[row.sequence];
  if (unit < a.heads + a.kv_heads) {
    const int h = unit - a.heads;
    const float* head = a.k + r * a.ldk + static_cast<int64_t>(h) * a.head_dim;
    char* to =
        reinterpret_cast<char*>(view.k) + row.slot * view.k_token_stride + h * view.k_head_stride;
    for (int i = lane; i < a.half; i += 32) {
      const int2 pair = PairOf(a, i);
      const float2 rotated = RotatePair(a, head, pair, angles + i);
      StoreElement(to, pair.x, rotated.x, a.kv_type);
      StoreElement(to, pair.y, rotated.y, a.kv_type);
    }
    for (int i = 2 * a.half + lane; i < a.head_dim; i += 32)
      StoreElement(to, i, head[i], a.kv_type);
    return;
  }
  const int h = unit - a.heads - a.kv_heads;
  const float* head = a.v + r * a.ldv + static_cast<int64_t>(h) * a.head_dim;
  char* to =
      reinterpret_cast<char*>(view.v) + row.slot * view.v_token_stride + h * view.v_head_stride;
  for (int i = lane; i < a.head_dim; i += 32) StoreElement(to, i, head[i], a.kv_type);
}

// The slots that a row reads, in units, and the part of one split. A function of the row's slot,
// the window and the number of splits alone.
struct Work {
  int first_slot, slot;
  int first_unit, used;
  int units_each, one_more;  // the first `one_more` splits take one unit more than units_each

  __device__ __forceinline__ Work(int slot, int window, int splits)
      : first_slot(FirstSlot(slot, window)), slot(slot), first_unit(first_slot / kUnit) {
    const unsigned units = static_cast<unsigned>(slot / kUnit - first_unit + 1);
    used = static_cast<int>(min(units, static_cast<unsigned>(splits)));
    units_each = static_cast<int>(units / static_cast<unsigned>(used));
    one_more = static_cast<int>(units) - units_each * used;
  }
  // First slot of split s; of s == used: the first behind the last unit.
  __device__ __forceinline__ int Begin(int s) const {
    return (first_unit + units_each * s + min(s, one_more)) * kUnit;
  }
};

// One block: one split of one row for the query heads (of one block) of one KV head. N sets of 8.
template <class Kv, int N>
__device__ __forceinline__ void DecodeSplit(const Decode& a) {
  constexpr int D = Kv::kHeadDim;
  constexpr int kVTiles = Kv::kVTiles;
  const int64_t single = blockIdx.z;
  const int64_t r = a.single_rows == nullptr ? single : a.single_rows[single];
  const CudaRow row = a.rows[r];
  if (row.sequence < 0) return;
  const int split = static_cast<int>(blockIdx.y);
  const Work work(static_cast<int>(row.slot), a.scores.window, a.splits);
  if (split >= work.used) return;
  const int begin = work.Begin(split);
  const int behind = min(work.Begin(split + 1), work.slot + 1);

  const int kv_head = static_cast<int>(blockIdx.x) / a.blocks_per_group;
  const int head_in_group = static_cast<int>(blockIdx.x) % a.blocks_per_group * a.heads_per_block;
  const int head = kv_head * a.group + head_in_group;
  const int heads = min(a.heads_per_block, a.group - head_in_group);

  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4, c = lane % 4;

  // First q as the second operand of every score instruction, in the end the block's value sums.
  constexpr int kFragments = N * Kv::kQWords * 32;
  static_assert(kFragments * 4 >= N * 8 * D);
  __shared__ uint4 shared[kFragments];
  __shared__ float warp_max[kDecodeWarps][N * 8], warp_sum[kDecodeWarps][N * 8];
  for (int i = static_cast<int>(threadIdx.x); i < kFragments; i += kDecodeWarps * 32) {
    const int s = i / 32 % Kv::kQWords, h = i / 32 / Kv::kQWords * 8 + i % 32 / 4;
    shared[i] = h < heads ? Kv::QFragment(a.q + r * a.ldq + static_cast<int64_t>(head + h) * D, s,
                                          i % 4, a.scores.q_scale)
                          : make_uint4(0, 0, 0, 0);
  }
  const KvView& view = a.views[row.sequence];
  const char* k = reinterpret_cast<const char*>(view.k) + kv_head * view.k_head_stride;
  const char* v = reinterpret_cast<const char*>(view.v) + kv_head * view.v_head_stride;
  const int64_t k_stride = view.k_token_stride, v_stride = view.v_token_stride;
  __syncthreads();

  // Of heads 2c and 2c + 1 of each set: maximum, this lane's part of the sum, values.
  float max[N][2], sum[N][2] = {}, acc[N][kVTiles][4] = {};
#pragma unroll
  for (int n = 0; n < N; ++n) max[n][0] = max[n][1] = -kInfinity;

  for (int t = begin + warp * 16; t < behind; t += kDecodeWarps * 16) {
    Kv kv;
    // A slot outside is not read: there may be no memory behind it.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int slot = t + Kv::KSlot(i, g);
      kv.k[i].Load(AtSlot(k, slot, k_stride), c, slot >= work.first_slot && slot < behind);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int slot = t + Kv::VSlot(i, c);
      kv.v[i].Load(AtSlot(v, slot, v_stride), g, slot >= work.first_slot && slot < behind);
    }
    float p[N][4] = {};
    kv.template Score<N>(shared, lane, p);
    if (a.scores.softcap > 0.0f) {
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) p[n][i] = a.scores.softcap * kLog2E * tanhf(p[n][i]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int slot = t + g + 8 * i;
      if (slot < work.first_slot || slot >= behind) {
#pragma unroll
        for (int n = 0; n < N; ++n) p[n][2 * i] = p[n][2 * i + 1] = -kInfinity;
      }
    }
    typename Kv::Weights weights[N];
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float largest = fmaxf(p[n][i], p[n][2 + i]);
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 4));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 8));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 16));
        largest = fmaxf(largest, max[n][i]);
        const float base = Finite(largest);
        const float shrink = Exp2(max[n][i] - base);
        max[n][i] = largest;
        p[n][i] = Exp2(p[n][i] - base);
        p[n][2 + i] = Exp2(p[n][2 + i] - base);
        sum[n][i] = sum[n][i] * shrink + (p[n][i] + p[n][2 + i]);
#pragma unroll
        for (int tile = 0; tile < kVTiles; ++tile) {
          acc[n][tile][i] *= shrink;
          acc[n][tile][2 + i] *= shrink;
        }
      }
      weights[n] = Kv::Transpose(p[n]);
    }
    kv.template Accumulate<N>(weights, acc);
  }

  // The warps' results become the block's: sums over lanes by halving, warps ascending.
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float total = sum[n][i];
      total += __shfl_xor_sync(0xffffffffu, total, 4);
      total += __shfl_xor_sync(0xffffffffu, total, 8);
      total += __shfl_xor_sync(0xffffffffu, total, 16);
      if (g == 0) {
        warp_max[warp][n * 8 + 2 * c + i] = max[n][i];
        warp_sum[warp][n * 8 + 2 * c + i] = total;
      }
    }
  }
  __syncthreads();
  auto* const values = reinterpret_cast<float*>(shared);  // [8 * N, D]
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int h = n * 8 + 2 * c + i;
      float largest = warp_max[0][h];
      for (int w = 1; w < kDecodeWarps; ++w) largest = fmaxf(largest, warp_max[w][h]);
      const float shrink = Exp2(max[n][i] - Finite(largest));
#pragma unroll
      for (int tile = 0; tile < kVTiles; ++tile) {
        acc[n][tile][i] *= shrink;
        acc[n][tile][2 + i] *= shrink;
      }
    }
  }
  for (int w = 0; w < kDecodeWarps; ++w) {
    if (w == warp) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int tile = 0; tile < kVTiles; ++tile) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float& value = values[(n * 8 + 2 * c + i % 2) * D + Kv::LaneOf(tile, g) + i / 2];
            value = w == 0 ? acc[n][tile][i] : value + acc[n][tile][i];
          }
        }
      }
    }
    __syncthreads();
  }
  const int64_t at = ((single * a.heads + head) * a.splits + split);
  for (int i = static_cast<int>(threadIdx.x) * 4; i < heads * D; i += kDecodeWarps * 32 * 4) {
    const int h = i / D, d = i % D;
    *reinterpret_cast<float4*>(a.acc + (at + static_cast<int64_t>(h) * a.splits) * D + d) =
        *reinterpret_cast<const float4*>(values + i);
  }
  if (static_cast<int>(threadIdx.x) < heads) {
    const int h = static_cast<int>(threadIdx.x);
    float largest = warp_max[0][h];
    for (int w = 1; w < kDecodeWarps; ++w) largest = fmaxf(largest, warp_max[w][h]);
    float total = 0.0f;
    for (int w = 0; w < kDecodeWarps; ++w)
      total += warp_sum[w][h] * Exp2(warp_max[w][h] - Finite(largest));
    reinterpret_cast<float2*>(a.sums)[at + static_cast<int64_t>(h) * a.splits] =
        make_float2(largest, total);
  }
}

// One block: one head of one row. Each warp adds up a contiguous part of the splits, then the
// warps' parts are added ascending.
__device__ void MergeSplits(const Decode& a) {
  const int64_t single = blockIdx.y;
  const int64_t r = a.single_rows == nullptr ? single : a.single_rows[single];
  const CudaRow row = a.rows[r];
  if (row.sequence < 0) return;
  const int head = static_cast<int>(blockIdx.x);
  const int used = Work(static_cast<int>(row.slot), a.scores.window, a.splits).used;
  const int64_t at = (single * a.heads + head) * a.splits;
  const auto* sums = reinterpret_cast<const float2*>(a.sums) + at;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);

  float largest = -kInfinity;
  for (int s = lane; s < used; s += 32) largest = fmaxf(largest, sums[s].x);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  const float sink = a.scores.sinks == nullptr ? -kInfinity : a.scores.sinks[head] * kLog2E;
  const float base = Finite(fmaxf(largest, sink));
  float total = 0.0f;
  for (int s = lane; s < used; s += 32) total += sums[s].y * Exp2(sums[s].x - base);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    total += __shfl_xor_sync(0xffffffffu, total, distance);
  total += Exp2(sink - base);  // a sink takes part of the weight and has no value

  __shared__ float4 parts[kMergeWarps][64];  // head_dim / 4 of each
  const int quads = a.head_dim / 4;
  const int begin = used * warp / kMergeWarps, end = used * (warp + 1) / kMergeWarps;
  const auto* acc = reinterpret_cast<const float4*>(a.acc) + at * quads;
  for (int i = lane; i < quads; i += 32) {
    float4 part = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
    for (int s = begin; s < end; ++s) {
      const float4 value = acc[static_cast<int64_t>(s) * quads + i];
      const float weight = Exp2(sums[s].x - base);
      part.x += weight * value.x;
      part.y += weight * value.y;
      part.z += weight * value.z;
      part.w += weight * value.w;
    }
    parts[warp][i] = part;
  }
  __syncthreads();
  const auto* flat = reinterpret_cast<const float*>(parts);
  for (int d = static_cast<int>(threadIdx.x); d < a.head_dim; d += kMergeWarps * 32) {
    float value = 0.0f;
    for (int w = 0; w < kMergeWarps; ++w) value += flat[w * 256 + d];
    a.out[r * a.ldo + static_cast<int64_t>(head) * a.head_dim + d] = value / total;
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kAppendWarps * 32)
    attention_append(const __grid_constant__ Append a) {
  AppendHead(a);
}

extern "C" __global__ void __launch_bounds__(kMergeWarps * 32)
    attention_merge(const __grid_constant__ Decode a) {
  MergeSplits(a);
}

// Names: attention_decode_TYPE_D_N for N sets of 8 query heads. As many blocks per multiprocessor
// as the registers of 16 slots of K and V and of the value sums allow; two sets of 256 are too
// many.
#define GRANULE_DECODE(type, d, n, blocks, ...)                               \
  extern "C" __global__ void __launch_bounds__(kDecodeWarps * 32, blocks)     \
      attention_decode_##type##_##d##_##n(const __grid_constant__ Decode a) { \
    DecodeSplit<__VA_ARGS__, n>(a);                                           \
  }
#define GRANULE_DECODE_ALL(d, n, half_blocks, float_blocks) \
  GRANULE_DECODE(f16, d, n, half_blocks, HalfKv<F16, d>)    \
  GRANULE_DECODE(bf16, d, n, half_blocks, HalfKv<BF16, d>)  \
  GRANULE_DECODE(f32, d, n, float_blocks, FloatKv<d>)
GRANULE_DECODE_ALL(64, 1, 4, 3)
GRANULE_DECODE_ALL(64, 2, 3, 2)
GRANULE_DECODE_ALL(80, 1, 4, 3)
GRANULE_DECODE_ALL(80, 2, 3, 2)
GRANULE_DECODE_ALL(96, 1, 4, 2)
GRANULE_DECODE_ALL(96, 2, 3, 2)
GRANULE_DECODE_ALL(128, 1, 3, 2)
GRANULE_DECODE_ALL(128, 2, 3, 2)
GRANULE_DECODE_ALL(256, 1, 2, 1)

}  // namespace granule::kernels
