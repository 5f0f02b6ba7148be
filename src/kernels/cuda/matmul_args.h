// What the host code and the kernels of matrix products share: plain data, no CUDA headers.
//
// Letters: m rows of x, n rows of the weights, k the length of both. A unit is 16 values of k: no
// quantisation block is smaller, so the values of a unit have one scale. A chunk is the 16 bytes
// that a lane loads at once.
#pragma once

#include <cstdint>

namespace granule::kernels {

// How a weight matrix lies on the device: n rows, each of `row_bytes` (a multiple of 16, and of a
// unit), values of k ascending, the rest of the row unspecified but finite (products multiply it by
// zero). Codes of 4 bits: low half first, as in the source.
enum class WeightKind : int32_t { kF32, kF16, kBF16, kQ4, kQ8 };
inline constexpr int kWeightKinds = 5;
inline constexpr const char* kWeightKindNames[kWeightKinds] = {"f32", "f16", "bf16", "q4", "q8"};

// As granule::DType numbers them (matmul_upload.cc checks).
inline constexpr int32_t kTypeF32 = 0;
inline constexpr int32_t kTypeF16 = 1;
inline constexpr int32_t kTypeBF16 = 2;

inline constexpr int kUnit = 16;
inline constexpr int kTiledRows = 32;

// Of a quantised matrix: value = (code - zero point) * scale.
enum class ZeroKind : int32_t { kDefault, kPacked, kFloat };

//
// Tiled codes (blocks of at least 32, zero points integers; matmul_codes.cuh reads them): rows are
// multiples of 64 bytes, cut into groups of 64 bytes, cut into 16 words of 4 bytes. Word 4 i + t of
// the source is word 4 t + i of its group, so that lane t of four, loading 16 bytes, has words t of
// four runs of 16 bytes. A part is 32 codes of a row: one such run of 4 bits, two of 8 bits. Blocks
// longer than a group are cut into groups, so that each group has scales of its own (1, 2 or 4,
// fp32 whatever they were) and 4 bytes of packed zero points, one for each part. Rows, scales and
// zero points are there up to a multiple of kTiledRows rows.
struct CudaWeights {
  const void* data = nullptr;    // [n] rows
  const void* scales = nullptr;  // [n, blocks] of scales_type
  const void* zeros = nullptr;   // kPacked: [n] rows of zero_row_bytes; kFloat: [n, blocks]
  int64_t row_bytes = 0;
  int64_t n = 0, k = 0;
  int64_t zero_row_bytes = 0;
  int32_t blocks = 0;
  int32_t block_log2 = 0;
  int32_t scales_type = kTypeF32;
  int32_t zeros_type = kTypeF32;
  ZeroKind zero_kind = ZeroKind::kDefault;
  WeightKind kind = WeightKind::kF32;
  bool tiled = false;
};

struct MatMulTarget {
  CudaWeights weights;
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;           // [m, ldy]
  int64_t ldy = 0;
};

inline constexpr int kMostTargets = 8;  // of one launch; the arguments of a kernel end at 4 KiB

// m = 1 to 8, all targets of one kind. A block has GemvWarps warps. The rows of all targets are
// cut into groups of `rows_per_group`; the chunks of a group's rows are dealt to `split` warps in
// turns of 32. Group g of target t is first_group[t] + g.
struct GemvArgs {
  MatMulTarget targets[kMostTargets];
  int64_t first_group[kMostTargets + 1] = {};  // ends with the number of groups
  int32_t count = 0;
  int32_t split = 1;         // 1, 2, 4 or 8
  int32_t stage_chunks = 0;  // of x in shared memory at a time: a multiple of 32 * split, or all
  int32_t m = 0;
  const float* x = nullptr;  // [m, ldx]
  int64_t ldx = 0;
  int64_t k = 0;
  bool aligned = false;  // x and ldx allow loads of 16 bytes
};

// Rows of weights that one warp (or `split` warps) work on at a time, and warps of a block: by the
// kind and by the rows m that the kernel was made for. Many warps share one copy of x where
// registers allow it, since every block brings its own.
constexpr int GemvRows(WeightKind kind, int m) {
  if (kind == WeightKind::kQ4) return m == 1 ? 4 : 2;
  if (kind == WeightKind::kF16 || kind == WeightKind::kBF16) return m <= 4 ? 2 : 4;
  return 2;
}
constexpr int GemvWarps(WeightKind kind, int m) {
  return kind == WeightKind::kQ4 || kind == WeightKind::kQ8 || m > 1 ? 8 : 16;
}
inline constexpr int kMostSplit = 8;
constexpr int GemvChunkValues(WeightKind kind) {
  return kind == WeightKind::kF32  ? 4
         : kind == WeightKind::kQ8 ? 16
         : kind == WeightKind::kQ4 ? 32
                                   : 8;
}

// Tiled codes: the same arguments; a group of rows is a tile or two of 16, a chunk is a group of
// codes. Each warp has stages of shared memory, one per group in flight (and one in use): 16 bytes
// of codes for each lane and eight rows, and 16 bytes for scales for each row.
inline constexpr int kCodesWarps = 8;
constexpr int CodesRows(int m) { return m <= 2 ? 16 : 32; }
constexpr int CodesStages(int m) { return m <= 2 ? 3 : 2; }
constexpr int CodesStageBytes(int m) {
  return kCodesWarps * CodesStages(m) * CodesRows(m) * (4 * 16 + 16 + 4);
}

// More rows: tensor cores. Block x is one tile of `bn` rows of a target's weights (first_tile as
// first_group above), block y one tile of `bm` rows of x, block z one part of k. With parts > 1
// sums go to partial[part][m][columns of all targets], and matmul_merge adds them in ascending
// order.
struct GemmArgs {
  MatMulTarget targets[kMostTargets];
  int32_t first_tile[kMostTargets + 1] = {};
  int64_t first_column[kMostTargets + 1] = {};
  int32_t count = 0;
  int32_t m = 0;
  int32_t part_units = 0;  // units of k in a part, a multiple of the tile's
  int32_t parts = 1;
  const float* x = nullptr;  // [m, ldx]
  int64_t ldx = 0;
  int64_t k = 0;
  float* partial = nullptr;
  bool aligned = false;
};

// The tiles. Low ones for few rows, where the weights' bytes bound the product.
struct GemmTile {
  int bm, bn, bk, threads;
};
inline constexpr GemmTile kGemmTiles[] = {
    {32, 128, 64, 256}, {64, 128, 32, 256}, {128, 128, 32, 256}};

// [rows, width] fp32 to fp16 (saturating) or bf16, rows of `ld` elements; zeros from width to ld.
struct NarrowArgs {
  const float* x = nullptr;
  int64_t ldx = 0;
  int64_t rows = 0, width = 0;
  uint16_t* y = nullptr;
  int64_t ld = 0;
  bool bf16 = false;
};

// Rows [first, first + rows) of a matrix as fp16, rows of `ld` elements (a multiple of kUnit);
// zeros from k to ld.
struct ExpandArgs {
  CudaWeights weights;
  int64_t first = 0, rows = 0;
  uint16_t* y = nullptr;
  int64_t ld = 0;
};

// y[r][c] += bias[c].
struct AddBiasArgs {
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t ldy = 0;
  int64_t rows = 0, width = 0;
};

// Source [rows of k, n] of elements; out[n][k0 + row].
struct TurnArgs {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t rows = 0, n = 0;
  int64_t k0 = 0;
  int64_t to_ld = 0;  // elements
};

// Rows of `from_bytes` become rows of `to_bytes`, the rest zero. Both even; for tiling, which also
// reorders the words of each group, multiples of 16 and 64.
struct PadArgs {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t rows = 0;
  int64_t from_bytes = 0, to_bytes = 0;
};

// Scales [rows, from_blocks] as tiled codes have them, fp32 [rows, to_blocks]: block b is source
// block b >> shift, or the last one where padding has more.
struct TileScalesArgs {
  const void* from = nullptr;
  int32_t type = kTypeF32;
  float* to = nullptr;
  int64_t rows = 0;
  int32_t from_blocks = 0, to_blocks = 0;
  int32_t shift = 0;
};

// Packed zero points as tiled codes have them: 4 bytes for each group of `parts` parts.
struct TileZerosArgs {
  const uint8_t* from = nullptr;
  int64_t from_row_bytes = 0;
  uint8_t* to = nullptr;
  int64_t rows = 0;
  int32_t bits = 4;
  int32_t from_blocks = 0;
  int32_t parts_log2 = 0;  // of a source block
  int32_t groups = 0, parts = 0;
};

}  // namespace granule::kernels
