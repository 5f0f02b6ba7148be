// Starts the attention kernels of attention.cu and attention_tiles.cu.
#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <string_view>

#include "base/arith.h"
#include "base/check.h"
#include "kernels/cuda/cuda_attention.h"

namespace granule::kernels {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

constexpr std::array<int64_t, 5> kHeadDims = {64, 80, 96, 128, 256};

// By type (fp32, fp16, bf16), head size, and sets of 8 query heads.
constexpr std::string_view kDecodeKernels[3][5][2] = {
    {{"attention_decode_f32_64_1", "attention_decode_f32_64_2"},
     {"attention_decode_f32_80_1", "attention_decode_f32_80_2"},
     {"attention_decode_f32_96_1", "attention_decode_f32_96_2"},
     {"attention_decode_f32_128_1", "attention_decode_f32_128_2"},
     {"attention_decode_f32_256_1", ""}},
    {{"attention_decode_f16_64_1", "attention_decode_f16_64_2"},
     {"attention_decode_f16_80_1", "attention_decode_f16_80_2"},
     {"attention_decode_f16_96_1", "attention_decode_f16_96_2"},
     {"attention_decode_f16_128_1", "attention_decode_f16_128_2"},
     {"attention_decode_f16_256_1", ""}},
    {{"attention_decode_bf16_64_1", "attention_decode_bf16_64_2"},
     {"attention_decode_bf16_80_1", "attention_decode_bf16_80_2"},
     {"attention_decode_bf16_96_1", "attention_decode_bf16_96_2"},
     {"attention_decode_bf16_128_1", "attention_decode_bf16_128_2"},
     {"attention_decode_bf16_256_1", ""}}};

// By type of the operands (fp16, bf16) and head size.
constexpr std::string_view kTileKernels[2][5] = {
    {"attention_tiles_f16_64", "attention_tiles_f16_80", "attention_tiles_f16_96",
     "attention_tiles_f16_128", "attention_tiles_f16_256"},
    {"attention_tiles_bf16_64", "attention_tiles_bf16_80", "attention_tiles_bf16_96",
     "attention_tiles_bf16_128", "attention_tiles_bf16_256"}};

size_t IndexOf(int64_t head_dim) {
  const auto* at = std::find(kHeadDims.begin(), kHeadDims.end(), head_dim);
  GRANULE_CHECK(at != kHeadDims.end());
  return static_cast<size_t>(at - kHeadDims.begin());
}

size_t IndexOf(DType kv_type) {
  GRANULE_CHECK(IsFloat(kv_type));
  return kv_type == DType::kF32 ? 0 : kv_type == DType::kF16 ? 1 : 2;
}

// How the query heads of a KV head are dealt to blocks.
struct Groups {
  int64_t group, heads_per_block, blocks;

  Groups(const AttentionShape& shape, int64_t most_heads)
      : group(shape.heads / shape.kv_heads),
        heads_per_block(std::min(group, most_heads)),
        blocks(CeilDiv(group, heads_per_block)) {}
};

Groups DecodeGroups(const AttentionShape& shape) {
  return Groups(shape, shape.head_dim > 128 ? 8 : 16);
}

// Counts go up to a power of two: a batch is split the same launched as replayed (size classes of
// graphs), and more rows never need a smaller workspace.
int64_t Rounded(int64_t single_count) {
  return static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(single_count, 1))));
}

// Blocks that a row's slots are dealt to, at most. Few rows are cut finely, so that a single one
// fills the GPU (384 blocks: an H200 has 132 multiprocessors, which hold three at a time with heads
// of 128); many rows fill it anyway, and are cut enough for one long row among short ones. More
// would only cost partial results.
int64_t Splits(const AttentionShape& shape, int64_t single_count) {
  constexpr int64_t kFill = 384, kOfManyRows = 2048, kLeast = 4, kMost = 256;
  const int64_t blocks = shape.kv_heads * DecodeGroups(shape).blocks;
  const int64_t most = std::clamp(CeilDiv(kFill, blocks), kLeast, kMost);
  return std::clamp(CeilDiv(kOfManyRows, blocks * Rounded(single_count)), kLeast, most);
}

// Bytes of the sums; the value sums come behind them.
uint64_t SumsBytes(const AttentionShape& shape, int64_t single_count) {
  const auto parts =
      static_cast<uint64_t>(single_count * shape.heads * Splits(shape, single_count));
  return RoundUp<uint64_t>(parts * 2 * sizeof(float), 256);
}

cuda_args::Scores ScoresOf(const CudaAttentionArgs& args) {
  cuda_args::Scores scores{};
  scores.softcap = args.extras.softcap;
  scores.q_scale = args.shape.scale * (args.extras.softcap > 0 ? 1 / args.extras.softcap : kLog2E);
  scores.window = static_cast<int32_t>(std::min<int64_t>(args.extras.window, INT32_MAX));
  scores.sinks = args.extras.sinks;
  return scores;
}

void LaunchSingles(Launcher& launcher, const CudaAttentionArgs& args) {
  const AttentionShape& shape = args.shape;
  const Groups groups = DecodeGroups(shape);
  GRANULE_CHECK(args.workspace_bytes >= CudaAttentionWorkspaceBytes(shape, args.single_count));
  cuda_args::Decode a{};
  a.rows = args.rows;
  a.views = args.views;
  a.single_rows = args.single_rows;
  a.q = args.q;
  a.ldq = args.ldq;
  a.out = args.out;
  a.ldo = args.ldo;
  a.sums = reinterpret_cast<float*>(args.workspace);
  a.acc = reinterpret_cast<float*>(args.workspace + SumsBytes(shape, args.single_count));
  a.scores = ScoresOf(args);
  a.heads = static_cast<int32_t>(shape.heads);
  a.head_dim = static_cast<int32_t>(shape.head_dim);
  a.group = static_cast<int32_t>(groups.group);
  a.heads_per_block = static_cast<int32_t>(groups.heads_per_block);
  a.blocks_per_group = static_cast<int32_t>(groups.blocks);
  a.splits = static_cast<int32_t>(Splits(shape, args.single_count));
  const size_t sets = groups.heads_per_block > 8 ? 1 : 0;
  launcher.Launch(
      kDecodeKernels[IndexOf(args.kv_type)][IndexOf(shape.head_dim)][sets],
      {Count(shape.kv_heads * groups.blocks), Count(a.splits), Count(args.single_count)},
      cuda_args::kDecodeWarps * 32, 0, a);
  launcher.Launch("attention_merge", {Count(shape.heads), Count(args.single_count)},
                  cuda_args::kMergeWarps * 32, 0, a);
}

void LaunchTiles(Launcher& launcher, const CudaAttentionArgs& args) {
  const AttentionShape& shape = args.shape;
  const int head_dim = static_cast<int>(shape.head_dim);
  // Two heads share what is copied where registers and shared memory allow.
  const bool two =
      cuda_args::TileWarpsPerHead(head_dim) == 2 &&
      cuda_args::TileSharedBytes(head_dim, 2) <= launcher.device().facts().max_shared_bytes;
  const Groups groups(shape, two ? 2 : 1);
  cuda_args::Tiles a{};
  a.tiles = args.tiles;
  a.rows = args.rows;
  a.views = args.views;
  a.q = args.q;
  a.ldq = args.ldq;
  a.out = args.out;
  a.ldo = args.ldo;
  a.scores = ScoresOf(args);
  a.group = static_cast<int32_t>(groups.group);
  a.heads_per_block = static_cast<int32_t>(groups.heads_per_block);
  a.blocks_per_group = static_cast<int32_t>(groups.blocks);
  a.kv_is_f32 = args.kv_type == DType::kF32;
  const int heads = static_cast<int>(groups.heads_per_block);
  launcher.Launch(kTileKernels[args.kv_type == DType::kBF16 ? 1 : 0][IndexOf(shape.head_dim)],
                  {Count(shape.kv_heads * groups.blocks), Count(args.tile_count)},
                  Count(heads * cuda_args::TileWarpsPerHead(head_dim) * 32),
                  Count(cuda_args::TileSharedBytes(head_dim, heads)), a);
}

}  // namespace

void RotateAndAppend(Launcher& launcher, const CudaAppendArgs& args) {
  cuda_args::Append a{};
  a.rows = args.rows;
  a.views = args.views;
  a.cos = args.rotary.cos;
  a.sin = args.rotary.sin;
  a.half = static_cast<int32_t>(args.rotary.rotary_dim / 2);
  a.interleaved = args.rotary.interleaved;
  a.q = args.q;
  a.ldq = args.ldq;
  a.k = args.k;
  a.ldk = args.ldk;
  a.v = args.v;
  a.ldv = args.ldv;
  a.heads = static_cast<int32_t>(args.shape.heads);
  a.kv_heads = static_cast<int32_t>(args.shape.kv_heads);
  a.head_dim = static_cast<int32_t>(args.shape.head_dim);
  a.kv_type = args.kv_type;
  const int64_t units = args.shape.heads + 2 * args.shape.kv_heads;
  launcher.Launch("attention_append",
                  {Count(args.row_count), Count(CeilDiv<int64_t>(units, cuda_args::kAppendWarps))},
                  cuda_args::kAppendWarps * 32, 0, a);
}

uint64_t CudaAttentionWorkspaceBytes(const AttentionShape& shape, int64_t single_count) {
  if (single_count <= 0) return 0;
  single_count = Rounded(single_count);
  const auto values = static_cast<uint64_t>(single_count * shape.heads *
                                            Splits(shape, single_count) * shape.head_dim);
  return SumsBytes(shape, single_count) + values * sizeof(float);
}

void Attention(Launcher& launcher, const CudaAttentionArgs& args) {
  if (args.single_count > 0) LaunchSingles(launcher, args);
  if (args.tile_count > 0) LaunchTiles(launcher, args);
}

Status CheckCudaAttention(const AttentionShape& shape, DType kv_type) {
  if (std::find(kHeadDims.begin(), kHeadDims.end(), shape.head_dim) == kHeadDims.end()) {
    return Error(Code::kInvalidInput,
                 "attention with heads of {} elements has no CUDA kernel: 64, 80, 96, 128 and 256 "
                 "have one. Use --device cpu",
                 shape.head_dim);
  }
  if (shape.kv_heads < 1 || shape.heads < shape.kv_heads || shape.heads % shape.kv_heads != 0) {
    return Error(Code::kInvalidInput,
                 "attention of {} query heads over {} KV heads: the first must be a multiple of "
                 "the second",
                 shape.heads, shape.kv_heads);
  }
  // A launch's grid has at most 65,535 blocks in its second dimension and these fit with room.
  constexpr int64_t kMostHeads = 16384;
  if (shape.heads > kMostHeads) {
    return Error(Code::kInvalidInput, "attention of {} query heads on CUDA: at most {} are served",
                 shape.heads, kMostHeads);
  }
  if (!IsFloat(kv_type)) {
    return Error(Code::kInvalidInput,
                 "a KV of {} has no CUDA attention kernel: float32, float16 and bfloat16 have one",
                 DTypeName(kv_type));
  }
  return {};
}

}  // namespace granule::kernels
