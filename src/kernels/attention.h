// Rotary positions, appending to the KV, and grouped-query attention that reads the KV in place.
#pragma once

#include <cstdint>
#include <span>

#include "base/kv_view.h"
#include "kernels/kernels.h"

namespace granule::kernels {

// Slots per KV block: the unit in which attention is computed and merged. Part of the accumulation
// order.
inline constexpr int64_t kKvBlock = 128;

struct AttentionShape {
  int64_t heads = 0;     // Hq
  int64_t kv_heads = 0;  // Hk, divides Hq
  int64_t head_dim = 0;  // D, any value >= 1 (80 and 96 exist)
  float scale = 0.0f;    // applied to q*k
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

// Where each row of the step belongs.
struct RowPlace {
  int32_t sequence = 0;  // index into the views
  int64_t slot = 0;      // its token's slot == its position; it attends to slots [0, slot]
};

struct Rotary {
  const float* cos = nullptr;  // [rows_of_table, rotary_dim / 2]
  const float* sin = nullptr;
  int64_t rotary_dim = 0;    // even, <= head_dim; only these first lanes rotate. 0 = no rotation
  bool interleaved = false;  // pairs (2i, 2i+1) instead of (i, i + rotary_dim/2)
  int64_t table_rows = 0;    // positions that the tables have
};

// Rotates q in place and writes rotated k, and v, of every row to its slot. q: [R, Hq*D] with ldq,
// k and v: [R, Hk*D] with ldk, ldv. fp16 and bf16 KV is rounded to nearest even. Slots were
// committed before.
struct AppendArgs {
  AttentionShape shape;
  Rotary rotary;
  std::span<const RowPlace> rows;
  std::span<const KvView> views;  // one per sequence
  float* q = nullptr;
  int64_t ldq = 0;
  const float* k = nullptr;
  int64_t ldk = 0;
  const float* v = nullptr;
  int64_t ldv = 0;
};
void RotateAndAppend(const Context& context, const AppendArgs& args);

// out[r] = softmax(scale * q[r] . K[0..slot]) V[0..slot], per head. Rows of one sequence are
// adjacent and ascending in slot; all their K and V are in the KV already (RotateAndAppend of this
// step ran). out: [R, Hq*D] with ldo; may not alias q.
struct AttentionArgs {
  AttentionShape shape;
  std::span<const RowPlace> rows;
  std::span<const KvView> views;
  const float* q = nullptr;
  int64_t ldq = 0;
  float* out = nullptr;
  int64_t ldo = 0;
  // AttentionWorkspaceBytes of at least this many rows, of the pool's threads; 64-byte aligned.
  // Bounded however long the sequences are.
  std::byte* workspace = nullptr;
  size_t workspace_bytes = 0;
};
size_t AttentionWorkspaceBytes(const AttentionShape& shape, int64_t rows, int threads);
void Attention(const Context& context, const AttentionArgs& args);

}  // namespace granule::kernels
