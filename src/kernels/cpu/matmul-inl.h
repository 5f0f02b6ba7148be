// Products with packed weights (cpu/packing.h) at one level: Gemv dequantises in registers, Gemm by
// panels into scratch.
namespace granule::kernels::GRANULE_LEVEL {

// Outputs of `strip` that exist.
GRANULE_INLINE int StripLanes(const StripView& w, int64_t strip) {
  const int64_t left = w.n - strip * kStrip;
  return left < kStrip ? static_cast<int>(left) : kStrip;
}

// The codes of one group and how they become numbers; kK consecutive k per group. kSubtract: less
// the zero point, which is 0 where weights have minimums.
struct Codes4 {
  static constexpr int kK = 8;
  Nibbles table;
  GRANULE_INLINE explicit Codes4(float zero_point) : table(zero_point) {}
  template <int kIndex, bool kSubtract>
  GRANULE_INLINE F Get(I codes) const {
    constexpr int kShift = kIndex < 4 ? 8 * kIndex : 8 * (kIndex - 4) + 4;
    return table.template Get<kShift, kSubtract>(codes);
  }
};
struct Codes8 {
  static constexpr int kK = 4;
  Bytes table;
  GRANULE_INLINE explicit Codes8(float zero_point) : table(zero_point) {}
  template <int kIndex, bool kSubtract>
  GRANULE_INLINE F Get(I codes) const {
    return table.template Get<kIndex, kSubtract>(codes);
  }
};

GRANULE_INLINE int64_t RecordScaleBytes(const StripView& w) {
  return w.half_scales ? kStrip * 2 : kStrip * 4;
}
GRANULE_INLINE F LoadScale(const StripView& w, const std::byte* record, int tile) {
  return w.half_scales ? LoadF16(reinterpret_cast<const uint16_t*>(record) + tile * kTile)
                       : Load(reinterpret_cast<const float*>(record) + tile * kTile);
}

// The dequantised weight. All levels and both paths use this one definition.
template <bool kMins>
GRANULE_INLINE F Weight(F q, F scale, F min, bool exact_product) {
  if constexpr (kMins) {
    return Dequantize(q, scale, min, exact_product);
  } else {
    return Mul(q, scale);
  }
}

// Adds the bias and stores the rows of one strip.
template <int kRows>
GRANULE_INLINE void StoreStrip(const MatMulJob& job, int64_t strip, const F* acc /* [kRows, 2] */) {
  const int lanes = StripLanes(job.weights, strip);
  for (int t = 0; t < 2; ++t) {
    const int count = lanes - t * kTile;
    if (count <= 0) break;
    const int64_t n = strip * kStrip + t * kTile;
    const F bias = job.bias != nullptr ? LoadFirst(job.bias + n, count) : Zero();
    Unroll<kRows>([&](auto r) GRANULE_LAMBDA {
      const F sum = acc[2 * r + t];
      StoreFirst(job.bias != nullptr ? Add(sum, bias) : sum, job.y + r * job.ldy + n, count);
    });
  }
}

// How far ahead of its use memory is asked for. Far: a loaded machine answers in half a
// microsecond. Measured on Zen 5, one thread, 4 bit, share of the read ceiling: 4 KiB 0.41, 8 KiB
// 0.44, 16 KiB 0.57, 24 KiB 0.67, 32 KiB 0.57 (48 KiB of L1).
inline constexpr int64_t kPrefetchBytes = 24 << 10;

// The same record as in packing.h.
GRANULE_INLINE const std::byte* Record(const StripView& w, int64_t strip, int64_t block) {
  const bool last = (block + 1) << w.block_log2 >= w.k;
  return w.data + strip / 2 * w.strip_bytes + 2 * block * w.record_bytes +
         strip % 2 * (last ? w.last_record_bytes : w.record_bytes);
}

// kStrips strips from `strip` on; two of them are a pair.
template <class Codes, bool kMins, int kRows, int kStrips>
__attribute__((noinline)) void QuantizedGemv(const MatMulJob& job, int64_t strip) {
  constexpr int kTiles = 2 * kStrips;
  constexpr int kK = Codes::kK;
  const StripView& w = job.weights;
  const Codes codes(w.zero_point);
  const int64_t block_size = int64_t{1} << w.block_log2;
  const int64_t scale_bytes = RecordScaleBytes(w);
  const int64_t header_bytes = scale_bytes + (kMins ? kStrip * 4 : 0);
  const bool exact = w.half_scales;
  const float* a = job.a;
  const int64_t lda = job.lda;

  F acc[kRows][kTiles];
  Unroll<kRows>([&](auto r) GRANULE_LAMBDA {
    Unroll<kTiles>([&](auto t) GRANULE_LAMBDA { acc[r][t] = Zero(); });
  });

  for (int64_t first_k = 0; first_k < w.k; first_k += block_size) {
    const std::byte* record = Record(w, strip, first_k >> w.block_log2);
    const int64_t to_second = first_k + block_size < w.k ? w.record_bytes : w.last_record_bytes;
    F scale[kTiles], min[kTiles];
    Unroll<kTiles>([&](auto t) GRANULE_LAMBDA {
      const std::byte* p = record + (t / 2) * to_second;
      scale[t] = LoadScale(w, p, t % 2);
      if constexpr (kMins)
        min[t] = Load(reinterpret_cast<const float*>(p + scale_bytes) + (t % 2) * kTile);
    });
    const std::byte* group = record + header_bytes;
    const int64_t ks = w.k - first_k < block_size ? w.k - first_k : block_size;
    int64_t k = 0;
    for (; k + kK <= ks; k += kK, group += kGroupBytes) {
      I code[kTiles];
      Unroll<kTiles>([&](auto t) GRANULE_LAMBDA {
        const std::byte* p = group + (t / 2) * to_second + (t % 2) * 64;
        code[t] = LoadI(p);
        __builtin_prefetch(p + kPrefetchBytes);
      });
      Unroll<kK>([&](auto j) GRANULE_LAMBDA {
        F x[kRows];
        Unroll<kRows>([&](auto r) GRANULE_LAMBDA { x[r] = Set(a[r * lda + k + j]); });
        Unroll<kTiles>([&](auto t) GRANULE_LAMBDA {
          const F value =
              Weight<kMins>(codes.template Get<j.value, !kMins>(code[t]), scale[t], min[t], exact);
          Unroll<kRows>([&](auto r) GRANULE_LAMBDA { acc[r][t] = MulAdd(value, x[r], acc[r][t]); });
        });
      });
    }
    // K ends inside a group: a has no more elements, and a term of zero would not be nothing.
    if (k < ks) {
      const int rest = static_cast<int>(ks - k);
      Unroll<kTiles>([&](auto t) GRANULE_LAMBDA {
        const I code = LoadI(group + (t / 2) * to_second + (t % 2) * 64);
        Unroll<kK>([&](auto j) GRANULE_LAMBDA {
          if (j >= rest) return;
          const F value =
              Weight<kMins>(codes.template Get<j.value, !kMins>(code), scale[t], min[t], exact);
          Unroll<kRows>([&](auto r) GRANULE_LAMBDA {
            acc[r][t] = MulAdd(value, Set(a[r * lda + k + j]), acc[r][t]);
          });
        });
      });
    }
    a += block_size;
  }
  Unroll<kStrips>([&](auto s) GRANULE_LAMBDA {
    F out[2 * kRows];
    Unroll<kRows>([&](auto r) GRANULE_LAMBDA {
      out[2 * r] = acc[r][2 * s];
      out[2 * r + 1] = acc[r][2 * s + 1];
    });
    StoreStrip<kRows>(job, strip + s, out);
  });
}

template <WeightKind kKind>
GRANULE_INLINE F LoadDense(const std::byte* p) {
  if constexpr (kKind == WeightKind::kF32) {
    return Load(reinterpret_cast<const float*>(p));
  } else if constexpr (kKind == WeightKind::kF16) {
    return LoadF16(reinterpret_cast<const uint16_t*>(p));
  } else {
    return LoadBF16(reinterpret_cast<const uint16_t*>(p));
  }
}
template <WeightKind kKind>
inline constexpr int64_t kDenseBytes = kKind == WeightKind::kF32 ? 4 : 2;

template <WeightKind kKind, int kRows, int kStrips>
__attribute__((noinline)) void DenseGemv(const MatMulJob& job, int64_t strip) {
  constexpr int kTiles = 2 * kStrips;
  const StripView& w = job.weights;
  const std::byte* p = w.data + strip * w.strip_bytes;
  F acc[kRows][kTiles];
  Unroll<kRows>([&](auto r) GRANULE_LAMBDA {
    Unroll<kTiles>([&](auto t) GRANULE_LAMBDA { acc[r][t] = Zero(); });
  });
  for (int64_t k = 0; k < w.k; ++k, p += kStrip * kDenseBytes<kKind>) {
    F x[kRows];
    Unroll<kRows>([&](auto r) GRANULE_LAMBDA { x[r] = Set(job.a[r * job.lda + k]); });
    Unroll<kTiles>([&](auto t) GRANULE_LAMBDA {
      const std::byte* q = p + (t / 2) * w.strip_bytes + (t % 2) * kTile * kDenseBytes<kKind>;
      const F value = LoadDense<kKind>(q);
      __builtin_prefetch(q + kPrefetchBytes / kStrips);
      Unroll<kRows>([&](auto r) GRANULE_LAMBDA { acc[r][t] = MulAdd(value, x[r], acc[r][t]); });
    });
  }
  Unroll<kStrips>([&](auto s) GRANULE_LAMBDA {
    F out[2 * kRows];
    Unroll<kRows>([&](auto r) GRANULE_LAMBDA {
      out[2 * r] = acc[r][2 * s];
      out[2 * r + 1] = acc[r][2 * s + 1];
    });
    StoreStrip<kRows>(job, strip + s, out);
  });
}

// `kernel` is called with Index<strips at once> for the whole range.
template <int kMostStrips, class Kernel>
GRANULE_INLINE void OverStrips(const MatMulJob& job, const Kernel& kernel) {
  int64_t strip = job.strip_begin;
  if constexpr (kMostStrips == 2) {
    if (strip % 2 != 0 && strip < job.strip_end) kernel(Index<1>(), strip++);
    for (; strip + 2 <= job.strip_end; strip += 2) kernel(Index<2>(), strip);
  }
  for (; strip < job.strip_end; ++strip) kernel(Index<1>(), strip);
}

template <class Codes, bool kMins, int kRows>
inline void QuantizedRows(const MatMulJob& job) {
  OverStrips<(kRows <= 2 ? kGemvStrips : 1)>(job, [&](auto strips, int64_t strip) GRANULE_LAMBDA {
    QuantizedGemv<Codes, kMins, kRows, strips.value>(job, strip);
  });
}
template <WeightKind kKind, int kRows>
inline void DenseRows(const MatMulJob& job) {
  OverStrips<(kRows <= 2 ? kGemvStrips : 1)>(job, [&](auto strips, int64_t strip) GRANULE_LAMBDA {
    DenseGemv<kKind, kRows, strips.value>(job, strip);
  });
}

template <int kRows>
inline void GemvRows(const MatMulJob& job) {
  const StripView& w = job.weights;
  switch (w.kind) {
    case WeightKind::kQ4:
      return w.has_mins ? QuantizedRows<Codes4, true, kRows>(job)
                        : QuantizedRows<Codes4, false, kRows>(job);
    case WeightKind::kQ8:
      return w.has_mins ? QuantizedRows<Codes8, true, kRows>(job)
                        : QuantizedRows<Codes8, false, kRows>(job);
    case WeightKind::kF32:
      return DenseRows<WeightKind::kF32, kRows>(job);
    case WeightKind::kF16:
      return DenseRows<WeightKind::kF16, kRows>(job);
    case WeightKind::kBF16:
      return DenseRows<WeightKind::kBF16, kRows>(job);
  }
}

inline void Gemv(const MatMulJob& job) {
  switch (job.rows) {
    case 1:
      return GemvRows<1>(job);
    case 2:
      return GemvRows<2>(job);
    case 3:
      return GemvRows<3>(job);
    default:
      return GemvRows<4>(job);
  }
}

// panel[k - first, 32] = weights of one strip, first <= k < end; first is a multiple of kPanelK.
template <class Codes, bool kMins>
inline void QuantizedPanel(const StripView& w, int64_t strip, int64_t first, int64_t end,
                           float* panel) {
  constexpr int kK = Codes::kK;
  const Codes codes(w.zero_point);
  const int64_t block_size = int64_t{1} << w.block_log2;
  const int64_t scale_bytes = RecordScaleBytes(w);
  const int64_t header_bytes = scale_bytes + (kMins ? kStrip * 4 : 0);
  const bool exact = w.half_scales;
  for (int64_t k = first; k < end;) {
    const int64_t block = k >> w.block_log2;
    const int64_t in_block = k & (block_size - 1);
    const std::byte* record = Record(w, strip, block);
    const std::byte* group = record + header_bytes + in_block / kK * kGroupBytes;
    const int64_t block_end = (block + 1) * block_size < end ? (block + 1) * block_size : end;
    F scale[2], min[2];
    Unroll<2>([&](auto t) GRANULE_LAMBDA {
      scale[t] = LoadScale(w, record, t);
      if constexpr (kMins)
        min[t] = Load(reinterpret_cast<const float*>(record + scale_bytes) + t * kTile);
    });
    // The scratch holds whole groups, so codes behind K are expanded too; nobody reads them.
    for (; k < block_end; k += kK, group += kGroupBytes, panel += kK * kStrip) {
      Unroll<2>([&](auto t) GRANULE_LAMBDA {
        const I code = LoadI(group + t * 64);
        Unroll<kK>([&](auto j) GRANULE_LAMBDA {
          Store(Weight<kMins>(codes.template Get<j.value, !kMins>(code), scale[t], min[t], exact),
                panel + j * kStrip + t * kTile);
        });
      });
    }
  }
}

template <WeightKind kKind>
inline void DensePanel(const std::byte* strip, int64_t first, int64_t end, float* panel) {
  const std::byte* p = strip + first * kStrip * kDenseBytes<kKind>;
  for (int64_t k = first; k < end; ++k, p += kStrip * kDenseBytes<kKind>, panel += kStrip) {
    Store(LoadDense<kKind>(p), panel);
    Store(LoadDense<kKind>(p + kTile * kDenseBytes<kKind>), panel + kTile);
  }
}

// The weights [first, end) of a strip as fp32 [k, 32]: in place where they are stored so.
inline const float* Panel(const StripView& w, int64_t strip, int64_t first, int64_t end,
                          float* scratch) {
  const std::byte* dense = w.data + strip * w.strip_bytes;
  switch (w.kind) {
    case WeightKind::kQ4:
      w.has_mins ? QuantizedPanel<Codes4, true>(w, strip, first, end, scratch)
                 : QuantizedPanel<Codes4, false>(w, strip, first, end, scratch);
      return scratch;
    case WeightKind::kQ8:
      w.has_mins ? QuantizedPanel<Codes8, true>(w, strip, first, end, scratch)
                 : QuantizedPanel<Codes8, false>(w, strip, first, end, scratch);
      return scratch;
    case WeightKind::kF16:
      DensePanel<WeightKind::kF16>(dense, first, end, scratch);
      return scratch;
    case WeightKind::kBF16:
      DensePanel<WeightKind::kBF16>(dense, first, end, scratch);
      return scratch;
    case WeightKind::kF32:
      break;
  }
  return reinterpret_cast<const float*>(dense) + first * kStrip;
}

// A strip with fewer than 32 outputs: blocks go through a buffer, because they load and store whole
// tiles.
inline void RaggedStripProduct(BlockArgs args, int64_t rows, int lanes) {
  constexpr int64_t kRows = 12;
  alignas(64) float buffer[kRows * kStrip];
  float* c = args.c;
  const int64_t ldc = args.ldc;
  args.c = buffer;
  args.ldc = kStrip;
  for (int64_t r = 0; r < rows; r += kRows) {
    const int64_t count = rows - r < kRows ? rows - r : kRows;
    for (int64_t i = 0; i < count && !args.first; ++i) {
      const float* row = c + (r + i) * ldc;
      Store(LoadFirst(row, lanes), buffer + i * kStrip);
      Store(lanes > kTile ? LoadFirst(row + kTile, lanes - kTile) : Zero(),
            buffer + i * kStrip + kTile);
    }
    StripProduct(args, count);
    for (int64_t i = 0; i < count; ++i) {
      float* row = c + (r + i) * ldc;
      StoreFirst(Load(buffer + i * kStrip), row, lanes);
      if (lanes > kTile) StoreFirst(Load(buffer + i * kStrip + kTile), row + kTile, lanes - kTile);
    }
    args.a += count * args.lda;
  }
}

inline void Gemm(const MatMulJob& job) {
  const StripView& w = job.weights;
  for (int64_t strip = job.strip_begin; strip < job.strip_end; ++strip) {
    const int lanes = StripLanes(w, strip);
    float* y = job.y + strip * kStrip;
    int64_t first = 0;
    do {  // once also for K = 0: the sum of nothing is +0
      const int64_t end = w.k - first < kPanelK ? w.k : first + kPanelK;
      BlockArgs args;
      args.a = job.a + first;
      args.lda = job.lda;
      args.b = Panel(w, strip, first, end, job.panel);
      args.ldb = kStrip;
      args.k = end - first;
      args.c = y;
      args.ldc = job.ldy;
      args.first = first == 0;
      if (lanes == kStrip) {
        StripProduct(args, job.rows);
      } else {
        RaggedStripProduct(args, job.rows, lanes);
      }
      first = end;
    } while (first < w.k);
    if (job.bias == nullptr) continue;
    for (int t = 0; t * kTile < lanes; ++t) {
      const int count = lanes - t * kTile;
      const F bias = LoadFirst(job.bias + strip * kStrip + t * kTile, count);
      for (int64_t r = 0; r < job.rows; ++r) {
        float* p = y + r * job.ldy + t * kTile;
        StoreFirst(Add(LoadFirst(p, count), bias), p, count);
      }
    }
  }
}

}  // namespace granule::kernels::GRANULE_LEVEL
