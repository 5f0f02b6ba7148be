// What one instruction-set level offers: plain functions over plain arguments.
//
// The three isa_*.cc files fill one CpuTable each from the same *-inl.h sources. They are compiled
// for different CPUs, so they must not emit any function that another file emits too (the linker
// would keep one copy, perhaps the AVX-512 one): arguments are raw pointers and PODs, and
// everything inline lives in the level's own namespace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/kv_view.h"
#include "kernels/attention.h"
#include "kernels/rowwise.h"

namespace granule::kernels {

// ---- matrix products (cpu/matmul.cc) ----

enum class WeightKind : uint8_t { kF32, kF16, kBF16, kQ4, kQ8 };

inline constexpr int kTile = 16;                    // outputs in the lanes of one virtual register
inline constexpr int kStrip = 2 * kTile;            // outputs packed together (cpu/packing.h)
inline constexpr int64_t kGroupBytes = kStrip * 4;  // codes of one group of a strip
inline constexpr int64_t kPanelK = 512;  // k of one dequantised panel: 64 KiB of scratch per strip
inline constexpr int kGemvRows = 4;      // up to here weights are dequantised in registers

// A packed matrix as the levels see it. Layout: cpu/packing.h.
struct StripView {
  const std::byte* data = nullptr;
  int64_t n = 0, k = 0;
  int64_t strips = 0;  // ceil(n / kStrip)
  WeightKind kind = WeightKind::kF32;
  int64_t strip_bytes =
      0;  // dense kinds: from strip to strip. Quantised kinds: from pair of strips to pair
  // Quantised kinds only.
  bool half_scales = false;  // scales are fp16, else fp32
  bool has_mins = false;     // w = fma(q, scale, min), else w = (q - zero_point) * scale
  float zero_point = 0.0f;   // an integer
  int block_log2 = 0;
  int64_t record_bytes = 0;  // one block of one strip; the last block's may be shorter
  int64_t last_record_bytes = 0;
};

// y[0..rows, n of the strip range] = a * W^T (+ bias).
struct MatMulJob {
  StripView weights;
  const float* bias = nullptr;
  const float* a = nullptr;
  int64_t lda = 0;
  int64_t rows = 0;
  int64_t strip_begin = 0, strip_end = 0;
  float* y = nullptr;
  int64_t ldy = 0;
  float* panel = nullptr;  // kPanelK * kStrip floats, 64-byte aligned; not used by gemv
};

// ---- attention (cpu/attention.cc) ----

// Scratch of one thread, all 64-byte aligned. `rows` counts query rows (tokens * heads of a group),
// padded_dim is head_dim rounded up to kStrip.
struct AttendScratch {
  float* q = nullptr;  // [rows, head_dim]
  float* k = nullptr;  // [kKvBlock / kStrip, head_dim, kStrip]: keys of a block, slots in the lanes
  float* v = nullptr;  // [padded_dim / kStrip, kKvBlock, kStrip]: values of a block
  float* scores = nullptr;     // [rows, kKvBlock]
  float* block_acc = nullptr;  // [rows, padded_dim]
  float* block_max = nullptr;  // [rows]
  float* block_sum = nullptr;  // [rows]
  float* acc = nullptr;        // the same three, merged
  float* max = nullptr;
  float* sum = nullptr;
};

// The query rows of consecutive tokens of one sequence that share one KV head. Query row i is token
// i / group, head kv_head * group + i % group.
struct AttendJob {
  const RowPlace* places = nullptr;  // [tokens], ascending in slot
  int64_t tokens = 0;
  int64_t group = 0;  // Hq / Hk
  int64_t kv_head = 0;
  int64_t head_dim = 0;
  int64_t padded_dim = 0;
  float scale = 0.0f;
  KvView view;
  const float* q = nullptr;  // first token's row, head 0
  int64_t ldq = 0;
  float* out = nullptr;  // first token's row, head 0
  int64_t ldo = 0;
};

struct CpuTable {
  // rows <= kGemvRows.
  void (*gemv)(const MatMulJob& job);
  // Any rows. Dequantises each strip by panels.
  void (*gemm)(const MatMulJob& job);

  void (*rotate_append)(const AppendArgs& args, const RowPlace* places, const KvView* views,
                        int64_t begin, int64_t end);
  // Copies the job's query rows to scratch.q.
  void (*attend_begin)(const AttendJob& job, const AttendScratch& scratch);
  // max, sum and acc of one KV block for every query row that reaches it, from scratch.q.
  void (*attend_block)(const AttendJob& job, int64_t block, const AttendScratch& scratch,
                       float* max, float* sum, float* acc);
  // Merges a block's results into the running ones; block 0 is copied.
  void (*attend_merge)(const AttendJob& job, int64_t block, const float* block_max,
                       const float* block_sum, const float* block_acc, float* max, float* sum,
                       float* acc);
  void (*attend_end)(const AttendJob& job, const float* sum, const float* acc);

  void (*rms_norm)(const float* x, const float* gamma, float epsilon, int64_t width, float* y);
  // out = x + skip (+ bias).
  void (*add_rows)(const float* x, const float* skip, const float* bias, int64_t width, float* out);
  void (*binary)(Binary op, const float* x, const float* z, bool z_is_scalar, int64_t count,
                 float* y);
  void (*unary)(Unary op, const float* x, int64_t count, float* y);
  void (*silu_mul)(const float* gate, const float* up, int64_t count, float* y);
  void (*round_to)(DType type, const float* x, int64_t count, float* y);
  void (*widen)(DType type, const void* x, int64_t count, float* y);  // fp32, fp16, bf16 to fp32
  int64_t (*arg_max)(const float* x, int64_t count);
  void (*exp)(const float* x, int64_t count,
              float* y);  // the exponential of attention and SiLU, for tests

  // Sums `bytes` (a multiple of 1024) of memory so that the read cannot be skipped.
  float (*read_all)(const std::byte* data, uint64_t bytes);
  // Runs `rounds` rounds of independent multiply-adds; returns how many multiply-adds one round
  // has.
  int64_t (*fma_rounds)(int64_t rounds, float* sink);
};

const CpuTable& PortableTable();
const CpuTable& Avx2Table();
const CpuTable& Avx512Table();

}  // namespace granule::kernels
