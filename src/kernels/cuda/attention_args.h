// What the host passes to the attention kernels (attention.cu, attention_tiles.cu), and the sizes
// that both sides cut work by: plain data.
#pragma once

#include <cstdint>

#include "base/kv_view.h"
#include "kernels/cuda/rowwise_args.h"

namespace granule::kernels {

// Rows of one sequence that are adjacent and ascending (each slot one above the slot before),
// handled together by the prefill kernel.
inline constexpr int32_t kTileRows = 64;
struct AttentionTile {
  int32_t first_row = 0;  // of the step
  int32_t rows = 0;       // 1 to kTileRows; 0: nothing
};

namespace cuda_args {

struct Append {
  const CudaRow* rows;
  const KvView* views;
  const float* cos;
  const float* sin;
  float* q;
  const float* k;
  const float* v;
  int64_t ldq, ldk, ldv;
  int32_t heads, kv_heads, head_dim;
  int32_t half;  // rotary_dim / 2
  int32_t interleaved;
  DType kv_type;
};
inline constexpr int kAppendWarps = 4;  // one head each

struct Scores {
  // q is multiplied by it. Scores are then in powers of two, ready for exp2; with a softcap they
  // are shares of it, ready for tanh.
  float q_scale;
  float softcap;       // 0: none
  int32_t window;      // 0: all
  const float* sinks;  // [heads] or null
};

// Single rows. Slots are read in units of kUnit from slot 0 on, dealt contiguously to at most
// `splits` blocks; each leaves for each of its heads max and sum in `sums` and a value sum in
// `acc`.
inline constexpr int kUnit = 64;
inline constexpr int kDecodeWarps = 4;
inline constexpr int kMergeWarps = 8;
struct Decode {
  const CudaRow* rows;
  const KvView* views;
  const int32_t* single_rows;  // null: 0, 1, ..
  const float* q;
  float* out;
  float* sums;  // [single, heads, splits, 2]
  float* acc;   // [single, heads, splits, head_dim]
  int64_t ldq, ldo;
  Scores scores;
  int32_t heads, head_dim;
  int32_t group;             // query heads of one KV head
  int32_t heads_per_block;   // at most 16
  int32_t blocks_per_group;  // blocks that share a KV head
  int32_t splits;
};

struct Tiles {
  const AttentionTile* tiles;
  const CudaRow* rows;
  const KvView* views;
  const float* q;
  float* out;
  int64_t ldq, ldo;
  Scores scores;
  int32_t group;
  int32_t heads_per_block;  // 1 or 2
  int32_t blocks_per_group;
  int32_t kv_is_f32;  // converted to fp16 on the way
};

// Of the tile kernel for one head size: keys per stage, query rows of a warp, shared memory.
constexpr int TileKeys(int head_dim) { return head_dim > 128 ? 32 : 64; }
constexpr int TileWarpRows(int head_dim) { return head_dim > 128 ? 16 : 32; }
constexpr int TileWarpsPerHead(int head_dim) { return kTileRows / TileWarpRows(head_dim); }
// 16 bytes more than the row: the 8 rows that a matrix load touches lie in different banks.
constexpr int TileRowBytes(int head_dim) { return head_dim * 2 + 16; }
constexpr int TileSharedBytes(int head_dim, int heads) {
  return (heads * kTileRows + 2 * 2 * TileKeys(head_dim)) * TileRowBytes(head_dim);
}

}  // namespace cuda_args
}  // namespace granule::kernels
