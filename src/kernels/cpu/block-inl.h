// The register-blocked product that everything dense runs on: matrix products over panels, scores
// and value sums.
//
//   c[r, n] (+)= sum over k ascending of a[r, k] * b[k, n]
//
// One multiply-add chain per output. Row count and tile count only choose how many chains run side
// by side, and a chain may be cut anywhere and continued from c: the bits are the same.
namespace granule::kernels::GRANULE_LEVEL {

struct BlockArgs {
  const float* a = nullptr;
  int64_t lda = 0;
  const float* b = nullptr;  // tile t of row k at b + k * ldb + 16 * t
  int64_t ldb = 0;
  int64_t k = 0;
  float* c = nullptr;
  int64_t ldc = 0;
  bool first = true;  // start at +0 instead of at c
};

template <int kRows, int kTiles>
__attribute__((noinline)) void Block(const BlockArgs& args) {
  const float* a = args.a;
  const float* b = args.b;
  float* c = args.c;
  const int64_t lda = args.lda, ldb = args.ldb, ldc = args.ldc;
  F acc[kRows][kTiles];
  Unroll<kRows>([&](auto r) GRANULE_LAMBDA {
    Unroll<kTiles>([&](auto t) GRANULE_LAMBDA {
      acc[r][t] = args.first ? Zero() : Load(c + r * ldc + t * kTile);
    });
  });
  for (int64_t k = 0; k < args.k; ++k) {
    F w[kTiles];
    Unroll<kTiles>([&](auto t) GRANULE_LAMBDA { w[t] = Load(b + t * kTile); });
    Unroll<kRows>([&](auto r) GRANULE_LAMBDA {
      const F x = Set(a[r * lda + k]);
      Unroll<kTiles>([&](auto t) GRANULE_LAMBDA { acc[r][t] = MulAdd(w[t], x, acc[r][t]); });
    });
    b += ldb;
  }
  Unroll<kRows>([&](auto r) GRANULE_LAMBDA {
    Unroll<kTiles>([&](auto t) GRANULE_LAMBDA { Store(acc[r][t], c + r * ldc + t * kTile); });
  });
}

// Runs as many blocks of kRows rows as fit; moves args and rows on.
template <int kRows, int kTiles>
GRANULE_INLINE void RunBlocks(BlockArgs& args, int64_t& rows) {
  constexpr int kMost = kTiles == 1 ? kRowsOneTile : kRowsTwoTiles;
  if constexpr (kRows <= kMost) {
    for (; rows >= kRows; rows -= kRows) {
      Block<kRows, kTiles>(args);
      args.a += kRows * args.lda;
      args.c += kRows * args.ldc;
    }
  }
}

template <int kTiles>
inline void RowsOfBlocks(BlockArgs args, int64_t rows) {
  RunBlocks<12, kTiles>(args, rows);
  RunBlocks<8, kTiles>(args, rows);
  RunBlocks<6, kTiles>(args, rows);
  RunBlocks<4, kTiles>(args, rows);
  RunBlocks<3, kTiles>(args, rows);
  RunBlocks<2, kTiles>(args, rows);
  RunBlocks<1, kTiles>(args, rows);
}

// One tile of 16 outputs.
inline void TileProduct(const BlockArgs& args, int64_t rows) { RowsOfBlocks<1>(args, rows); }

// Two tiles, side by side where the registers allow it.
inline void StripProduct(const BlockArgs& args, int64_t rows) {
  if (kRowsTwoTiles >= kRowsOneTile || rows <= kRowsTwoTiles) {
    RowsOfBlocks<2>(args, rows);
    return;
  }
  BlockArgs right = args;
  right.b += kTile;
  right.c += kTile;
  RowsOfBlocks<1>(args, rows);
  RowsOfBlocks<1>(right, rows);
}

}  // namespace granule::kernels::GRANULE_LEVEL
