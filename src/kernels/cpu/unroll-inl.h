// A loop over compile-time indices that is unrolled before the optimiser sees it, so that arrays of
// virtual registers indexed by it become registers at every optimisation level and with every
// compiler.
namespace granule::kernels::GRANULE_LEVEL {

template <int kValue>
struct Index {
  static constexpr int value = kValue;
  constexpr operator int() const { return kValue; }  // NOLINT
};

template <int kFrom, int kTo, class Body>
GRANULE_INLINE void UnrollFrom(const Body& body) {
  if constexpr (kFrom < kTo) {
    body(Index<kFrom>());
    UnrollFrom<kFrom + 1, kTo>(body);
  }
}
// body(Index<0>()) ... body(Index<kCount - 1>()).
template <int kCount, class Body>
GRANULE_INLINE void Unroll(const Body& body) {
  UnrollFrom<0, kCount>(body);
}

}  // namespace granule::kernels::GRANULE_LEVEL
