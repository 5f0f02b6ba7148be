// Attention of tiles (prefill): up to 64 adjacent rows of one sequence against its slots, with
// tensor cores, fp32 sums and a running softmax, in the manner of FlashAttention-2 (Dao 2023).
//
// A block takes one tile and one or two query heads of one KV head. K and V pass through shared
// memory in stages of TileKeys slots, the next being copied while one is worked on; no slot outside
// what the tile's rows read is touched. A warp takes TileWarpRows rows of one head.
#include "kernels/cuda/attention.cuh"

namespace granule::kernels {
namespace {

using namespace cuda_args;

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Four 8x8 matrices; lane i gives the row of matrix i / 8 at `address`.
__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void LoadTransposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// What the rows of a tile read.
struct TileSlots {
  int first_row_slot;  // of the tile's first row
  int first, last;     // slots that any row reads
};

// Slots [from, from + TileKeys) of K or V into shared memory; zeros where the tile reads none.
template <class E, int D>
__device__ __forceinline__ void LoadStage(char* to, const char* base, int64_t token_stride,
                                          int from, const TileSlots& slots, bool is_f32) {
  constexpr int kPieces = D / 8;  // of 8 elements
  const int threads = static_cast<int>(blockDim.x);
  if (is_f32) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < TileKeys(D) * kPieces; i += threads) {
      const int key = i / kPieces, piece = i % kPieces, slot = from + key;
      uint4 packed = make_uint4(0, 0, 0, 0);
      if (slot >= slots.first && slot <= slots.last) {
        const auto* row =
            reinterpret_cast<const float4*>(AtSlot(base, slot, token_stride) + piece * 32);
        const float4 x = __ldg(row), y = __ldg(row + 1);
        packed =
            make_uint4(E::Pack(x.x, x.y), E::Pack(x.z, x.w), E::Pack(y.x, y.y), E::Pack(y.z, y.w));
      }
      *reinterpret_cast<uint4*>(to + key * TileRowBytes(D) + piece * 16) = packed;
    }
    return;
  }
  const uint32_t shared_to = SharedAddress(to);
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < TileKeys(D) * kPieces; i += threads) {
    const int key = i / kPieces, piece = i % kPieces, slot = from + key;
    // With a size of 0 nothing is read; the address is one that may be, all the same.
    const int readable = max(slots.first, min(slot, slots.last));
    const char* piece_from = AtSlot(base, readable, token_stride) + piece * 16;
    const int size = readable == slot ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     shared_to + key * TileRowBytes(D) + piece * 16),
                 "l"(piece_from), "r"(size)
                 : "memory");
  }
}

template <class E, int D>
__device__ __forceinline__ void AttendTile(const Tiles& a) {
  constexpr int kKeys = TileKeys(D), kRowBytes = TileRowBytes(D);
  constexpr int kParts = TileWarpRows(D) / 16;  // of 16 rows
  constexpr int kStep = 32;                     // keys whose scores are held at a time
  static_assert(kKeys % kStep == 0);
  extern __shared__ __align__(16) char shared[];

  // Long tiles first: the last blocks to start are short ones.
  const AttentionTile tile = a.tiles[gridDim.y - 1 - blockIdx.y];
  if (tile.rows <= 0) return;
  const CudaRow first_row = a.rows[tile.first_row];
  if (first_row.sequence < 0) return;
  const int window = a.scores.window;
  TileSlots slots;
  slots.first_row_slot = static_cast<int>(first_row.slot);
  slots.first = FirstSlot(slots.first_row_slot, window);
  slots.last = slots.first_row_slot + tile.rows - 1;

  const int kv_head = static_cast<int>(blockIdx.x) / a.blocks_per_group;
  const int head_in_group = static_cast<int>(blockIdx.x) % a.blocks_per_group * a.heads_per_block;
  const int heads = min(a.heads_per_block, a.group - head_in_group);
  const int first_head = kv_head * a.group + head_in_group;
  const KvView& view = a.views[first_row.sequence];

  // [heads * 64 rows of q][stage 0: K, V][stage 1: K, V]
  char* const stages = shared + a.heads_per_block * kTileRows * kRowBytes;
  constexpr int kHalfStage = kKeys * kRowBytes;
  const int begin = slots.first / kKeys * kKeys;
  const int stage_count = (slots.last - begin) / kKeys + 1;
  const auto load = [&](int stage) {
    // Pointers and strides are read again for each stage: the registers are needed elsewhere.
    char* to = stages + stage % 2 * 2 * kHalfStage;
    const int from = begin + stage * kKeys;
    const char* k = reinterpret_cast<const char*>(view.k) + kv_head * view.k_head_stride;
    LoadStage<E, D>(to, k, view.k_token_stride, from, slots, a.kv_is_f32);
    const char* v = reinterpret_cast<const char*>(view.v) + kv_head * view.v_head_stride;
    LoadStage<E, D>(to + kHalfStage, v, view.v_token_stride, from, slots, a.kv_is_f32);
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  load(0);

  for (int i = static_cast<int>(threadIdx.x); i < a.heads_per_block * kTileRows * (D / 2);
       i += static_cast<int>(blockDim.x)) {
    const int pair = i % (D / 2), row = i / (D / 2) % kTileRows, h = i / (D / 2) / kTileRows;
    uint32_t packed = 0;
    if (row < tile.rows && h < heads) {
      const float* q = a.q + static_cast<int64_t>(tile.first_row + row) * a.ldq +
                       static_cast<int64_t>(first_head + h) * D + 2 * pair;
      packed = E::Pack(q[0] * a.scores.q_scale, q[1] * a.scores.q_scale);
    }
    *reinterpret_cast<uint32_t*>(shared + (h * kTileRows + row) * kRowBytes + pair * 4) = packed;
  }

  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4, c = lane % 4;
  const int h = warp / TileWarpsPerHead(D);
  const int warp_row = warp % TileWarpsPerHead(D) * TileWarpRows(D);
  const bool has_work = h < heads && warp_row < tile.rows;
  const int lowest_slot = slots.first_row_slot + warp_row;
  const int highest_slot = min(lowest_slot + TileWarpRows(D) - 1, slots.last);
  // Where this lane's rows of the matrices lie, see LoadMatrices.
  const uint32_t q_at =
      SharedAddress(shared + (h * kTileRows + warp_row + lane % 16) * kRowBytes + lane / 16 * 16);
  const uint32_t stages_at = SharedAddress(stages);
  const uint32_t k_at = stages_at + (lane / 16 * 8 + lane % 8) * kRowBytes + lane / 8 % 2 * 16;
  const uint32_t v_at =
      stages_at + kHalfStage + (lane / 8 % 2 * 8 + lane % 8) * kRowBytes + lane / 16 * 16;

  // Of rows g and g + 8 of each part: maximum, this lane's part of the sum, values at head lanes
  // 8n + 2c, +1.
  float max[kParts][2], sum[kParts][2] = {}, acc[kParts][D / 8][4] = {};
#pragma unroll
  for (int p = 0; p < kParts; ++p) max[p][0] = max[p][1] = -kInfinity;

  for (int stage = 0; stage < stage_count; ++stage) {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();  // this stage is there for all, and nobody reads the one before any more
    if (stage + 1 < stage_count) load(stage + 1);
    if (!has_work) continue;
#pragma unroll 1
    for (int step = 0; step < kKeys; step += kStep) {
      const int first_key = begin + stage * kKeys + step;
      if (first_key > highest_slot) break;
      if (window > 0 && first_key + kStep - 1 <= lowest_slot - window) continue;
      const uint32_t offset = stage % 2 * 2 * kHalfStage + step * kRowBytes;

      float s[kParts][kStep / 8][4] = {};
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        uint32_t q[kParts][4];
#pragma unroll
        for (int p = 0; p < kParts; ++p) LoadMatrices(q[p], q_at + p * 16 * kRowBytes + d * 32);
#pragma unroll
        for (int n = 0; n < kStep / 16; ++n) {
          uint32_t b[4];
          LoadMatrices(b, k_at + offset + n * 16 * kRowBytes + d * 32);
#pragma unroll
          for (int p = 0; p < kParts; ++p) {
            E::Mma(s[p][2 * n], q[p], b[0], b[1]);
            E::Mma(s[p][2 * n + 1], q[p], b[2], b[3]);
          }
        }
      }
      if (a.scores.softcap > 0.0f) {
#pragma unroll
        for (int p = 0; p < kParts; ++p)
#pragma unroll
          for (int n = 0; n < kStep / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) s[p][n][i] = a.scores.softcap * kLog2E * tanhf(s[p][n][i]);
      }
      const bool masked =
          first_key + kStep - 1 > lowest_slot || (window > 0 && first_key <= highest_slot - window);
      if (masked) {
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
#pragma unroll
          for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int key = first_key + n * 8 + 2 * c + i % 2;
              const int slot = lowest_slot + p * 16 + g + i / 2 * 8;
              if (key > slot || (window > 0 && key <= slot - window)) s[p][n][i] = -kInfinity;
            }
          }
        }
      }
      float shrink[kParts][2];
      bool moved = false;
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float largest = max[p][i];
#pragma unroll
          for (int n = 0; n < kStep / 8; ++n)
            largest = fmaxf(largest, fmaxf(s[p][n][2 * i], s[p][n][2 * i + 1]));
          largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
          largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
          const float base = Finite(largest);
          shrink[p][i] = Exp2(max[p][i] - base);
          moved |= largest != max[p][i];
          max[p][i] = largest;
          float total = 0.0f;
#pragma unroll
          for (int n = 0; n < kStep / 8; ++n) {
            s[p][n][2 * i] = Exp2(s[p][n][2 * i] - base);
            s[p][n][2 * i + 1] = Exp2(s[p][n][2 * i + 1] - base);
            total += s[p][n][2 * i] + s[p][n][2 * i + 1];
          }
          sum[p][i] = sum[p][i] * shrink[p][i] + total;
        }
      }
      if (__any_sync(0xffffffffu, moved)) {  // rare once many keys were seen
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
#pragma unroll
          for (int n = 0; n < D / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[p][n][i] *= shrink[p][i / 2];
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kStep / 16; ++n) {
        uint32_t w[kParts][4];
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float(&from)[4] = s[p][2 * n + i / 2];
            w[p][i] = E::Pack(from[i % 2 * 2], from[i % 2 * 2 + 1]);
          }
        }
#pragma unroll
        for (int d = 0; d < D / 16; ++d) {
          uint32_t b[4];
          LoadTransposed(b, v_at + offset + n * 16 * kRowBytes + d * 32);
#pragma unroll
          for (int p = 0; p < kParts; ++p) {
            E::Mma(acc[p][2 * d], w[p], b[0], b[1]);
            E::Mma(acc[p][2 * d + 1], w[p], b[2], b[3]);
          }
        }
      }
    }
  }
  if (!has_work) return;

  const int head = first_head + h;
  const float sink = a.scores.sinks == nullptr ? -kInfinity : a.scores.sinks[head] * kLog2E;
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float total = sum[p][i];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      // A sink takes part of the weight and has no value.
      const float base = Finite(fmaxf(max[p][i], sink));
      const float shrink = Exp2(max[p][i] - base);
      const float factor = shrink / (total * shrink + Exp2(sink - base));
      const int row = warp_row + p * 16 + g + 8 * i;
      if (row >= tile.rows) continue;
      float* out = a.out + static_cast<int64_t>(tile.first_row + row) * a.ldo +
                   static_cast<int64_t>(head) * D;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        out[8 * n + 2 * c] = acc[p][n][2 * i] * factor;
        out[8 * n + 2 * c + 1] = acc[p][n][2 * i + 1] * factor;
      }
    }
  }
}

}  // namespace

// Names: attention_tiles_TYPE_D. fp32 KV goes through fp16.
#define GRANULE_TILES(type, E, d)                                     \
  extern "C" __global__ void __launch_bounds__(128, 2)                \
      attention_tiles_##type##_##d(const __grid_constant__ Tiles a) { \
    AttendTile<E, d>(a);                                              \
  }
#define GRANULE_TILES_BOTH(d) GRANULE_TILES(f16, F16, d) GRANULE_TILES(bf16, BF16, d)
GRANULE_TILES_BOTH(64)
GRANULE_TILES_BOTH(80)
GRANULE_TILES_BOTH(96)
GRANULE_TILES_BOTH(128)
GRANULE_TILES_BOTH(256)

}  // namespace granule::kernels
