// Operators that treat every row, or every element, alone.
namespace granule::kernels::GRANULE_LEVEL {

// y may be x: the sum is complete before anything is written.
inline void RmsNormRow(const float* x, const float* gamma, float epsilon, int64_t width, float* y) {
  F squares = Zero();
  ForLanes(width, [&](int64_t i, int n) GRANULE_LAMBDA {
    const F v = LoadFirst(x + i, n);
    squares = MulAdd(v, v, squares);
  });
  const F mean = Div(Set(ReduceAdd(squares)), Set(static_cast<float>(width)));
  const F inverse = Div(Set(1.0f), Sqrt(Add(mean, Set(epsilon))));
  ForLanes(width, [&](int64_t i, int n) GRANULE_LAMBDA {
    StoreFirst(Mul(Mul(LoadFirst(x + i, n), inverse), LoadFirst(gamma + i, n)), y + i, n);
  });
}

inline void AddRow(const float* x, const float* skip, const float* bias, int64_t width,
                   float* out) {
  ForLanes(width, [&](int64_t i, int n) GRANULE_LAMBDA {
    F sum = Add(LoadFirst(x + i, n), LoadFirst(skip + i, n));
    if (bias != nullptr) sum = Add(sum, LoadFirst(bias + i, n));
    StoreFirst(sum, out + i, n);
  });
}

template <class Op>
GRANULE_INLINE void BinaryLoop(const float* x, const float* z, bool z_is_scalar, int64_t count,
                               float* y, const Op& op) {
  const F scalar = z_is_scalar ? Set(*z) : Zero();
  ForLanes(count, [&](int64_t i, int n) GRANULE_LAMBDA {
    StoreFirst(op(LoadFirst(x + i, n), z_is_scalar ? scalar : LoadFirst(z + i, n)), y + i, n);
  });
}
inline void BinaryRow(Binary op, const float* x, const float* z, bool z_is_scalar, int64_t count,
                      float* y) {
  switch (op) {
    case Binary::kAdd:
      return BinaryLoop(x, z, z_is_scalar, count, y,
                        [](F a, F b) GRANULE_LAMBDA { return Add(a, b); });
    case Binary::kSub:
      return BinaryLoop(x, z, z_is_scalar, count, y,
                        [](F a, F b) GRANULE_LAMBDA { return Sub(a, b); });
    case Binary::kMul:
      return BinaryLoop(x, z, z_is_scalar, count, y,
                        [](F a, F b) GRANULE_LAMBDA { return Mul(a, b); });
    case Binary::kDiv:
      return BinaryLoop(x, z, z_is_scalar, count, y,
                        [](F a, F b) GRANULE_LAMBDA { return Div(a, b); });
  }
}

template <class Op>
GRANULE_INLINE void UnaryLoop(const float* x, int64_t count, float* y, const Op& op) {
  ForLanes(count,
           [&](int64_t i, int n) GRANULE_LAMBDA { StoreFirst(op(LoadFirst(x + i, n)), y + i, n); });
}
inline void UnaryRow(Unary op, const float* x, int64_t count, float* y) {
  switch (op) {
    case Unary::kSigmoid:
      return UnaryLoop(x, count, y, [](F v) GRANULE_LAMBDA { return Sigmoid(v); });
    case Unary::kSilu:
      return UnaryLoop(x, count, y, [](F v) GRANULE_LAMBDA { return Silu(v); });
    case Unary::kTanh:
      return UnaryLoop(x, count, y, [](F v) GRANULE_LAMBDA { return Tanh(v); });
    case Unary::kNeg:
      return UnaryLoop(x, count, y, [](F v) GRANULE_LAMBDA { return Mul(v, Set(-1.0f)); });
  }
}
inline void ExpRow(const float* x, int64_t count, float* y) {
  UnaryLoop(x, count, y, [](F v) GRANULE_LAMBDA { return Exp(v); });
}

inline void SiluMulRow(const float* gate, const float* up, int64_t count, float* y) {
  BinaryLoop(gate, up, false, count, y, [](F g, F u) GRANULE_LAMBDA { return Mul(Silu(g), u); });
}

inline void RoundToRow(DType type, const float* x, int64_t count, float* y) {
  ForLanes(count, [&](int64_t i, int n) GRANULE_LAMBDA {
    alignas(64) std::byte rounded[64] = {};
    NarrowFirst(type, LoadFirst(x + i, n), rounded, n);
    StoreFirst(WidenFirst(type, rounded, n), y + i, n);
  });
}
inline void WidenRow(DType type, const void* x, int64_t count, float* y) {
  const int64_t element = type == DType::kF32 ? 4 : 2;
  const auto* bytes = static_cast<const std::byte*>(x);
  ForLanes(count, [&](int64_t i, int n) GRANULE_LAMBDA {
    StoreFirst(WidenFirst(type, bytes + i * element, n), y + i, n);
  });
}

// Two passes over what is in the cache by then: the largest value that is a number, then its first
// place.
inline int64_t ArgMaxRow(const float* x, int64_t count) {
  const F lowest = Set(-__builtin_inff());
  F best = lowest;
  // Max gives its second operand for NaN; lanes behind the end count as the lowest.
  ForLanes(count, [&](int64_t i, int n) GRANULE_LAMBDA {
    best = Max(n == 16 ? Load(x + i) : SelectFirst(LoadFirst(x + i, n), lowest, n), best);
  });
  const F target = Set(ReduceMax(best));
  for (int64_t i = 0; i < count; i += 16) {
    const int n = count - i < 16 ? static_cast<int>(count - i) : 16;
    uint32_t equal = EqualMask(LoadFirst(x + i, n), target);
    if (n < 16) equal &= (1u << n) - 1u;
    if (equal != 0) return i + __builtin_ctz(equal);
  }
  return 0;  // nothing but NaN
}

inline float ReadAll(const std::byte* data, uint64_t bytes) {
  constexpr uint64_t kStep = 1024;
  F sum[16];
  Unroll<16>([&](auto j) GRANULE_LAMBDA { sum[j] = Zero(); });
  for (uint64_t i = 0; i < bytes; i += kStep) {
    const auto* p = reinterpret_cast<const float*>(data + i);
    __builtin_prefetch(data + i + 4 * kStep);
    Unroll<16>([&](auto j) GRANULE_LAMBDA { sum[j] = Max(Load(p + 16 * j), sum[j]); });
  }
  Unroll<15>([&](auto j) GRANULE_LAMBDA { sum[0] = Max(sum[0], sum[j + 1]); });
  return ReduceMax(sum[0]);
}

// As many chains as hide the latency of a multiply-add and still fit into registers on every level.
inline int64_t FmaRounds(int64_t rounds, float* sink) {
  constexpr int kChains = kRowsOneTile >= 12 ? 16 : kRowsOneTile;
  F acc[kChains];
  Unroll<kChains>([&](auto j) GRANULE_LAMBDA { acc[j] = Set(static_cast<float>(j)); });
  const F a = Load(sink), b = Load(sink + 16);
  for (int64_t r = 0; r < rounds; ++r) {
    Unroll<kChains>([&](auto j) GRANULE_LAMBDA { acc[j] = MulAdd(acc[j], a, b); });
  }
  Unroll<kChains - 1>([&](auto j) GRANULE_LAMBDA { acc[0] = Add(acc[0], acc[j + 1]); });
  Store(acc[0], sink + 32);
  return kChains * 16;
}

}  // namespace granule::kernels::GRANULE_LEVEL
