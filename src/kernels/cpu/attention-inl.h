// Rotary positions, appending to the KV, and one KV block of attention at one level.
namespace granule::kernels::GRANULE_LEVEL {

// ---- rotary, append ----

// The rotated pair: x0 * cos - x1 * sin, x1 * cos + x0 * sin, the first product rounded, the second
// fused where the level can.
GRANULE_INLINE void RotateLanes(F x0, F x1, F cos, F sin, F* y0, F* y1) {
  *y0 = NegMulAdd(x1, sin, Mul(x0, cos));
  *y1 = MulAdd(x0, sin, Mul(x1, cos));
}

// Rotates the head at x for `position` into y (y may be x): the first rotary_dim lanes change.
inline void RotateHead(const Rotary& rotary, int64_t position, int64_t head_dim, const float* x,
                       float* y) {
  const int64_t half = rotary.rotary_dim / 2;
  const float* cos = rotary.cos + position * half;
  const float* sin = rotary.sin + position * half;
  if (!rotary.interleaved) {
    ForLanes(half, [&](int64_t i, int n) GRANULE_LAMBDA {
      F y0, y1;
      RotateLanes(LoadFirst(x + i, n), LoadFirst(x + half + i, n), LoadFirst(cos + i, n),
                  LoadFirst(sin + i, n), &y0, &y1);
      StoreFirst(y0, y + i, n);
      StoreFirst(y1, y + half + i, n);
    });
  } else {
    ForLanes(half, [&](int64_t i, int n) GRANULE_LAMBDA {
      alignas(64) float even[16] = {}, odd[16] = {};
      for (int j = 0; j < n; ++j) {
        even[j] = x[2 * (i + j)];
        odd[j] = x[2 * (i + j) + 1];
      }
      F y0, y1;
      RotateLanes(Load(even), Load(odd), LoadFirst(cos + i, n), LoadFirst(sin + i, n), &y0, &y1);
      Store(y0, even);
      Store(y1, odd);
      for (int j = 0; j < n; ++j) {
        y[2 * (i + j)] = even[j];
        y[2 * (i + j) + 1] = odd[j];
      }
    });
  }
  if (y == x) return;
  ForLanes(head_dim - 2 * half, [&](int64_t i, int n) GRANULE_LAMBDA {
    StoreFirst(LoadFirst(x + 2 * half + i, n), y + 2 * half + i, n);
  });
}

// Rounds a head, or a part of one, into KV memory.
inline void NarrowHead(DType type, const float* x, int64_t head_dim, std::byte* out) {
  const int64_t element = type == DType::kF32 ? 4 : 2;
  ForLanes(head_dim, [&](int64_t i, int n) GRANULE_LAMBDA {
    NarrowFirst(type, LoadFirst(x + i, n), out + i * element, n);
  });
}

// Rotates the head at x straight into KV memory of any float type.
inline void RotateHeadInto(const Rotary& rotary, int64_t position, int64_t head_dim, const float* x,
                           DType type, std::byte* out) {
  if (type == DType::kF32) {
    RotateHead(rotary, position, head_dim, x, reinterpret_cast<float*>(out));
    return;
  }
  auto* halves = reinterpret_cast<uint16_t*>(out);
  const int64_t half = rotary.rotary_dim / 2;
  const float* cos = rotary.cos + position * half;
  const float* sin = rotary.sin + position * half;
  const int64_t step = rotary.interleaved ? 2 : 1, to_second = rotary.interleaved ? 1 : half;
  ForLanes(half, [&](int64_t i, int n) GRANULE_LAMBDA {
    alignas(64) float first[16] = {}, second[16] = {};
    for (int j = 0; j < n; ++j) {
      first[j] = x[step * (i + j)];
      second[j] = x[step * (i + j) + to_second];
    }
    F y0, y1;
    RotateLanes(Load(first), Load(second), LoadFirst(cos + i, n), LoadFirst(sin + i, n), &y0, &y1);
    uint16_t rounded[32] = {};
    NarrowFirst(type, y0, reinterpret_cast<std::byte*>(rounded), 16);
    NarrowFirst(type, y1, reinterpret_cast<std::byte*>(rounded + 16), 16);
    for (int j = 0; j < n; ++j) {
      halves[step * (i + j)] = rounded[j];
      halves[step * (i + j) + to_second] = rounded[16 + j];
    }
  });
  NarrowHead(type, x + 2 * half, head_dim - 2 * half, out + 4 * half);
}

inline void RotateAppend(const AppendArgs& args, const RowPlace* places, const KvView* views,
                         int64_t begin, int64_t end) {
  const AttentionShape& shape = args.shape;
  const int64_t dim = shape.head_dim;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t slot = places[r].slot;
    const KvView& view = views[places[r].sequence];
    if (args.rotary.rotary_dim > 0) {
      for (int64_t h = 0; h < shape.heads; ++h) {
        float* q = args.q + r * args.ldq + h * dim;
        RotateHead(args.rotary, slot, dim, q, q);
      }
    }
    for (int64_t h = 0; h < shape.kv_heads; ++h) {
      RotateHeadInto(args.rotary, slot, dim, args.k + r * args.ldk + h * dim, view.dtype,
                     view.k + slot * view.k_token_stride + h * view.k_head_stride);
      NarrowHead(view.dtype, args.v + r * args.ldv + h * dim, dim,
                 view.v + slot * view.v_token_stride + h * view.v_head_stride);
    }
  }
}

// ---- attention ----

inline void AttendBegin(const AttendJob& job, const AttendScratch& scratch) {
  for (int64_t t = 0; t < job.tokens; ++t) {
    const float* q = job.q + t * job.ldq + job.kv_head * job.group * job.head_dim;
    float* out = scratch.q + t * job.group * job.head_dim;
    ForLanes(job.group * job.head_dim,
             [&](int64_t i, int n) GRANULE_LAMBDA { StoreFirst(LoadFirst(q + i, n), out + i, n); });
  }
}

// Slots of `block` that token t attends to: 0 .. kKvBlock.
GRANULE_INLINE int64_t SlotsOf(const AttendJob& job, int64_t t, int64_t block) {
  const int64_t slots = job.places[t].slot + 1 - block * kKvBlock;
  return slots < 0 ? 0 : slots < kKvBlock ? slots : kKvBlock;
}

// Asks for what will be read after the keys of 16 slots: their values, and the keys of the same
// slots one block later. (Past the live length nothing is read: a prefetch of unmapped memory does
// nothing.) To the second level: a block of keys and values with its transposed copy is larger than
// the first.
GRANULE_INLINE void PrefetchTile(const AttendJob& job, const std::byte* keys,
                                 const std::byte* values, int64_t element) {
  const int64_t bytes = job.head_dim * element;
  const std::byte* next = keys + kKvBlock * job.view.k_token_stride;
  for (int i = 0; i < kTile; ++i) {
    for (int64_t at = 0; at < bytes; at += 64) {
      __builtin_prefetch(values + i * job.view.v_token_stride + at, 0, 2);
      __builtin_prefetch(next + i * job.view.k_token_stride + at, 0, 2);
    }
  }
}

// out[slot / 32][d][slot % 32] of the first `slots` slots; whole tiles of 16, zeros behind the last
// slot.
template <DType kType>
inline void TransposeKeys(const AttendJob& job, int64_t block, int64_t slots, float* out) {
  const KvView& view = job.view;
  constexpr int64_t element = kType == DType::kF32 ? 4 : 2;
  const int64_t stride = view.k_token_stride;
  const std::byte* base =
      view.k + block * kKvBlock * view.k_token_stride + job.kv_head * view.k_head_stride;
  const std::byte* values =
      view.v + block * kKvBlock * view.v_token_stride + job.kv_head * view.v_head_stride;
  for (int64_t tile = 0; tile * kTile < slots; ++tile) {
    const int64_t live = slots - tile * kTile < kTile ? slots - tile * kTile : kTile;
    const std::byte* rows = base + tile * kTile * view.k_token_stride;
    PrefetchTile(job, rows, values + tile * kTile * view.v_token_stride, element);
    float* columns = out + tile / 2 * job.head_dim * kStrip + tile % 2 * kTile;
    int64_t d = 0;
    for (; d + kTile <= job.head_dim; d += kTile) {
      F x[kTile];
      if (live == kTile) {
        Unroll<kTile>([&](auto i)
                          GRANULE_LAMBDA { x[i] = Widen<kType>(rows + i * stride + d * element); });
      } else {
        for (int i = 0; i < kTile; ++i) {
          x[i] = i < live ? Widen<kType>(rows + i * stride + d * element) : Zero();
        }
      }
      Transpose16(x, columns + d * kStrip, kStrip);
    }
    if (d < job.head_dim) {
      const int rest = static_cast<int>(job.head_dim - d);
      F x[kTile];
      for (int i = 0; i < kTile; ++i) {
        x[i] = i < live ? WidenFirst(kType, rows + i * stride + d * element, rest) : Zero();
      }
      alignas(64) float square[kTile * kTile];
      Transpose16(x, square, kTile);
      for (int i = 0; i < rest; ++i) Store(Load(square + i * kTile), columns + (d + i) * kStrip);
    }
  }
}

// out[d / 32][slot][d % 32] of the first `slots` slots as fp32, zeros behind head_dim.
template <DType kType>
inline void StageValues(const AttendJob& job, int64_t block, int64_t slots, float* out) {
  const KvView& view = job.view;
  constexpr int64_t element = kType == DType::kF32 ? 4 : 2;
  const std::byte* base =
      view.v + block * kKvBlock * view.v_token_stride + job.kv_head * view.v_head_stride;
  for (int64_t s = 0; s < slots; ++s) {
    const std::byte* row = base + s * view.v_token_stride;
    for (int64_t d = 0; d < job.padded_dim; d += kTile) {
      const int64_t left = job.head_dim - d;
      const F x = left >= kTile ? Widen<kType>(row + d * element)
                  : left > 0    ? WidenFirst(kType, row + d * element, static_cast<int>(left))
                                : Zero();
      Store(x, out + d / kStrip * kKvBlock * kStrip + s * kStrip + d % kStrip);
    }
  }
}

// body(Index-like tag of the type): one copy of it per KV type.
template <class Body>
GRANULE_INLINE void WithType(DType type, const Body& body) {
  switch (type) {
    case DType::kF16:
      return body(Index<static_cast<int>(DType::kF16)>());
    case DType::kBF16:
      return body(Index<static_cast<int>(DType::kBF16)>());
    default:
      return body(Index<static_cast<int>(DType::kF32)>());
  }
}

// Scores of one query row, in place, to weights e^(score - max); gives max and the sum of the
// weights.
inline void SoftmaxRow(float* scores, int64_t slots, float scale, float* max, float* sum) {
  F best = Set(-__builtin_inff());
  for (int64_t i = 0; i < slots; i += kTile) {
    const int64_t left = slots - i;
    F s = Mul(Load(scores + i), Set(scale));
    if (left < kTile) s = SelectFirst(s, Set(-__builtin_inff()), static_cast<int>(left));
    Store(s, scores + i);
    best = Max(s, best);
  }
  *max = ReduceMax(best);
  F total = Zero();
  for (int64_t i = 0; i < slots; i += kTile) {
    const F p = Exp(Sub(Load(scores + i), Set(*max)));
    Store(p, scores + i);
    total = Add(total, p);
  }
  *sum = ReduceAdd(total);
}

// acc[row, d] over [from, to) slots for `rows` query rows.
inline void ValueSums(const AttendJob& job, const float* weights, int64_t rows, const float* v,
                      int64_t v_stride, int64_t v_strip_step, int64_t from, int64_t to,
                      float* acc) {
  BlockArgs args;
  args.a = weights + from;
  args.lda = kKvBlock;
  args.ldb = v_stride;
  args.k = to - from;
  args.ldc = job.padded_dim;
  args.first = from == 0;
  int64_t d = 0;
  for (; d + kTile < job.head_dim; d += kStrip) {
    args.b = v + d / kStrip * v_strip_step + from * v_stride;
    args.c = acc + d;
    StripProduct(args, rows);
  }
  if (d < job.head_dim) {
    args.b = v + d / kStrip * v_strip_step + from * v_stride;
    args.c = acc + d;
    TileProduct(args, rows);
  }
}

inline void AttendBlock(const AttendJob& job, int64_t block, const AttendScratch& scratch,
                        float* max, float* sum, float* acc) {
  int64_t first_token = 0;
  while (SlotsOf(job, first_token, block) == 0)
    ++first_token;  // the caller made sure that the last one reaches it
  const int64_t slots = SlotsOf(job, job.tokens - 1, block);
  const int64_t first_row = first_token * job.group;
  const int64_t rows = job.tokens * job.group;

  WithType(job.view.dtype, [&](auto type) GRANULE_LAMBDA {
    TransposeKeys<static_cast<DType>(type.value)>(job, block, slots, scratch.k);
  });
  BlockArgs score;
  score.a = scratch.q + first_row * job.head_dim;
  score.lda = job.head_dim;
  score.ldb = kStrip;
  score.k = job.head_dim;
  score.ldc = kKvBlock;
  int64_t s = 0;
  for (; s + kTile < slots; s += kStrip) {
    score.b = scratch.k + s * job.head_dim;
    score.c = scratch.scores + first_row * kKvBlock + s;
    StripProduct(score, rows - first_row);
  }
  if (s < slots) {
    score.b = scratch.k + s * job.head_dim;
    score.c = scratch.scores + first_row * kKvBlock + s;
    TileProduct(score, rows - first_row);
  }
  for (int64_t r = first_row; r < rows; ++r) {
    SoftmaxRow(scratch.scores + r * kKvBlock, SlotsOf(job, r / job.group, block), job.scale,
               max + r, sum + r);
  }

  // fp32 values whose rows are whole tiles are read where they lie.
  const KvView& view = job.view;
  const float* v = scratch.v;
  int64_t v_stride = kStrip, v_strip_step = kKvBlock * kStrip;
  if (view.dtype == DType::kF32 && job.head_dim % kTile == 0 && view.v_token_stride % 4 == 0) {
    v = reinterpret_cast<const float*>(view.v + block * kKvBlock * view.v_token_stride +
                                       job.kv_head * view.v_head_stride);
    v_stride = view.v_token_stride / 4;
    v_strip_step = kStrip;
  } else {
    WithType(view.dtype, [&](auto type) GRANULE_LAMBDA {
      StageValues<static_cast<DType>(type.value)>(job, block, slots, scratch.v);
    });
  }
  // Rows run side by side over the slots that all of them see, then each over its own rest: a
  // weight of zero would not be nothing where a later slot holds an infinity.
  constexpr int64_t kRows = kRowsTwoTiles > kRowsOneTile ? kRowsTwoTiles : kRowsOneTile;
  for (int64_t r = first_row; r < rows; r += kRows) {
    const int64_t count = rows - r < kRows ? rows - r : kRows;
    const int64_t common = SlotsOf(job, r / job.group, block);
    const float* weights = scratch.scores + r * kKvBlock;
    ValueSums(job, weights, count, v, v_stride, v_strip_step, 0, common, acc + r * job.padded_dim);
    for (int64_t i = 1; i < count; ++i) {
      const int64_t own = SlotsOf(job, (r + i) / job.group, block);
      if (own == common) continue;
      ValueSums(job, weights + i * kKvBlock, 1, v, v_stride, v_strip_step, common, own,
                acc + (r + i) * job.padded_dim);
    }
  }
}

inline void AttendMerge(const AttendJob& job, int64_t block, const float* block_max,
                        const float* block_sum, const float* block_acc, float* max, float* sum,
                        float* acc) {
  for (int64_t t = 0; t < job.tokens; ++t) {
    if (SlotsOf(job, t, block) == 0) continue;
    for (int64_t r = t * job.group; r < (t + 1) * job.group; ++r) {
      float* to = acc + r * job.padded_dim;
      const float* from = block_acc + r * job.padded_dim;
      if (block == 0) {
        max[r] = block_max[r];
        sum[r] = block_sum[r];
        for (int64_t d = 0; d < job.head_dim; d += kTile) Store(Load(from + d), to + d);
        continue;
      }
      // Two exponentials in two lanes.
      const float larger = max[r] > block_max[r] ? max[r] : block_max[r];
      alignas(64) float lanes[16] = {max[r] - larger, block_max[r] - larger};
      Store(Exp(Load(lanes)), lanes);
      const F keep = Set(lanes[0]), take = Set(lanes[1]);
      max[r] = larger;
      Store(MulAdd(Set(block_sum[r]), take, Mul(Set(sum[r]), keep)), lanes);
      sum[r] = lanes[0];
      for (int64_t d = 0; d < job.head_dim; d += kTile) {
        Store(MulAdd(Load(from + d), take, Mul(Load(to + d), keep)), to + d);
      }
    }
  }
}

inline void AttendEnd(const AttendJob& job, const float* sum, const float* acc) {
  for (int64_t t = 0; t < job.tokens; ++t) {
    for (int64_t g = 0; g < job.group; ++g) {
      const int64_t r = t * job.group + g;
      const F total = Set(sum[r]);
      float* out = job.out + t * job.ldo + (job.kv_head * job.group + g) * job.head_dim;
      ForLanes(job.head_dim, [&](int64_t d, int n) GRANULE_LAMBDA {
        StoreFirst(Div(Load(acc + r * job.padded_dim + d), total), out + d, n);
      });
    }
  }
}

}  // namespace granule::kernels::GRANULE_LEVEL
