// Reductions and transcendental functions in 16 virtual lanes, the same operations in the same
// order on every level.
namespace granule::kernels::GRANULE_LEVEL {

// The fixed tree: lane i meets lane i + 8, then i + 4, i + 2, i + 1.
GRANULE_INLINE float ReduceAdd(F x) {
  alignas(64) float lane[16];
  Store(x, lane);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}
// The largest lane; a NaN may or may not show, the sums after it do.
GRANULE_INLINE float ReduceMax(F x) {
  alignas(64) float lane[16];
  Store(x, lane);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] = lane[i] > lane[i + width] ? lane[i] : lane[i + width];
  }
  return lane[0];
}

// e^x within 2 ulp where the result is normal; 0 below -103.97, infinity above 88.73, NaN stays.
// x = n ln 2 + r with |r| <= ln 2 / 2, e^r = 1 + r + r^2 p(r): p is a least-squares fit of degree 5
// on Chebyshev nodes, relative error 5e-9. 2^n comes in two factors, so that subnormal results are
// rounded and not lost.
GRANULE_INLINE F Exp(F x) {
  constexpr float kLowest = -104.0f, kHighest = 89.0f;
  constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23
  x = Min(Set(kHighest), Max(Set(kLowest), x));   // this order keeps NaN
  const F shifted = MulAdd(x, Set(0x1.715476p+0f), Set(kRoundToInteger));
  const F n = Sub(shifted, Set(kRoundToInteger));
  F r = NegMulAdd(n, Set(0x1.62e4p-1f), x);  // ln 2 = high part of 16 bits: n times it is exact
  r = NegMulAdd(n, Set(0x1.7f7d1cp-20f), r);
  F p = Set(0x1.a1520cp-13f);
  p = MulAdd(p, r, Set(0x1.6d43b4p-10f));
  p = MulAdd(p, r, Set(0x1.1110c6p-7f));
  p = MulAdd(p, r, Set(0x1.5554e8p-5f));
  p = MulAdd(p, r, Set(0x1.555556p-3f));
  p = MulAdd(p, r, Set(0.5f));
  const F e = Add(Set(1.0f), MulAdd(Mul(r, r), p, r));

  const I exponent = SubI(BitsOf(shifted), BitsOf(Set(kRoundToInteger)));
  const I half = ShiftRightSigned<1>(exponent);
  const I rest = SubI(exponent, half);
  const F scale = FromBits(ShiftLeft<23>(AddI(half, SetI(127))));
  const F scale2 = FromBits(ShiftLeft<23>(AddI(rest, SetI(127))));
  return Mul(Mul(e, scale), scale2);
}

GRANULE_INLINE F Sigmoid(F x) { return Div(Set(1.0f), Add(Set(1.0f), Exp(Sub(Zero(), x)))); }
GRANULE_INLINE F Silu(F x) { return Div(x, Add(Set(1.0f), Exp(Sub(Zero(), x)))); }

// An odd polynomial near 0, where 1 - 2 / (e^2x + 1) would cancel.
GRANULE_INLINE F Tanh(F x) {
  const F z = Mul(x, x);
  F p = Set(-0x1.901808p-8f);
  p = MulAdd(p, z, Set(0x1.581fa8p-6f));
  p = MulAdd(p, z, Set(-0x1.b928ep-5f));
  p = MulAdd(p, z, Set(0x1.110e2ep-3f));
  p = MulAdd(p, z, Set(-0x1.555552p-2f));
  const F near = MulAdd(Mul(x, z), p, x);
  const F far = Sub(Set(1.0f), Div(Set(2.0f), Add(Exp(Add(x, x)), Set(1.0f))));
  return SelectLess(z, Set(0.625f * 0.625f), near, far);
}

// bf16 rounds to nearest even with integers; NaN stays NaN, quiet. Lanes from n on are not written.
GRANULE_INLINE void StoreBF16First(F x, uint16_t* p, int n) {
  alignas(64) float lanes[16];
  Store(x, lanes);
  for (int i = 0; i < n && i < 16; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, &lanes[i], 4);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = is_nan ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
    p[i] = static_cast<uint16_t>(rounded >> 16);
  }
}
GRANULE_INLINE void StoreF16First(F x, uint16_t* p, int n) {
  if (n >= 16) return StoreF16(x, p);
  uint16_t lanes[16];
  StoreF16(x, lanes);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

// n elements of a float type as fp32, zeros behind them; nothing behind them is read.
GRANULE_INLINE F WidenFirst(DType type, const std::byte* p, int n) {
  if (type == DType::kF32) {
    const auto* q = reinterpret_cast<const float*>(p);
    return n >= 16 ? Load(q) : LoadFirst(q, n);
  }
  const auto* q = reinterpret_cast<const uint16_t*>(p);
  if (n >= 16) return type == DType::kF16 ? LoadF16(q) : LoadBF16(q);
  uint16_t lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i] = q[i];
  return type == DType::kF16 ? LoadF16(lanes) : LoadBF16(lanes);
}
// 16 elements of a float type that is known when compiling.
template <DType kType>
GRANULE_INLINE F Widen(const std::byte* p) {
  if constexpr (kType == DType::kF32) {
    return Load(reinterpret_cast<const float*>(p));
  } else if constexpr (kType == DType::kF16) {
    return LoadF16(reinterpret_cast<const uint16_t*>(p));
  } else {
    return LoadBF16(reinterpret_cast<const uint16_t*>(p));
  }
}
// Rounds n lanes to a float type in memory.
GRANULE_INLINE void NarrowFirst(DType type, F x, std::byte* p, int n) {
  if (type == DType::kF32) {
    StoreFirst(x, reinterpret_cast<float*>(p), n);
  } else if (type == DType::kF16) {
    StoreF16First(x, reinterpret_cast<uint16_t*>(p), n);
  } else {
    StoreBF16First(x, reinterpret_cast<uint16_t*>(p), n);
  }
}

// body(index of the first lane, number of lanes) over [0, count).
template <class Body>
GRANULE_INLINE void ForLanes(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) body(i, 16);
  if (i < count) body(i, static_cast<int>(count - i));
}

}  // namespace granule::kernels::GRANULE_LEVEL
