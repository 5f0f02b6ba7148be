// 16 virtual lanes on AVX2, FMA and F16C: two ymm registers. Names as in vec_portable-inl.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/force_inline.h"

namespace granule::kernels::avx2 {

struct F {
  __m256 a, b;  // lanes 0-7, 8-15
};
struct I {
  __m256i a, b;
};

inline constexpr int kRowsOneTile = 6;
inline constexpr int kRowsTwoTiles = 3;
inline constexpr int kGemvStrips = 1;

// All bits in the lanes [8 * half, 8 * half + 8) that are below n.
GRANULE_INLINE __m256i FirstMask(int n, int half) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8 * half), lane);
}

GRANULE_INLINE F Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
GRANULE_INLINE F Set(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
GRANULE_INLINE F Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
GRANULE_INLINE F LoadFirst(const float* p, int n) {
  return {_mm256_maskload_ps(p, FirstMask(n, 0)),
          n > 8 ? _mm256_maskload_ps(p + 8, FirstMask(n, 1)) : _mm256_setzero_ps()};
}
GRANULE_INLINE void Store(F x, float* p) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
GRANULE_INLINE void StoreFirst(F x, float* p, int n) {
  _mm256_maskstore_ps(p, FirstMask(n, 0), x.a);
  if (n > 8) _mm256_maskstore_ps(p + 8, FirstMask(n, 1), x.b);
}

GRANULE_INLINE F Add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
GRANULE_INLINE F Sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
GRANULE_INLINE F Mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
GRANULE_INLINE F Div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
GRANULE_INLINE F Sqrt(F x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
GRANULE_INLINE F MulAdd(F x, F y, F z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
GRANULE_INLINE F NegMulAdd(F x, F y, F z) {
  return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
GRANULE_INLINE F Dequantize(F q, F scale, F min, bool) { return MulAdd(q, scale, min); }
GRANULE_INLINE F Max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
GRANULE_INLINE F Min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }

GRANULE_INLINE F SelectFirst(F x, F y, int n) {
  return {_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(FirstMask(n, 0))),
          _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(FirstMask(n, 1)))};
}
GRANULE_INLINE F SelectLess(F a, F b, F yes, F no) {
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
}
GRANULE_INLINE uint32_t EqualMask(F x, F y) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ));
  const int hi = _mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ));
  return static_cast<uint32_t>(lo | hi << 8);
}

GRANULE_INLINE I SetI(int32_t x) {
  const __m256i v = _mm256_set1_epi32(x);
  return {v, v};
}
GRANULE_INLINE I LoadI(const void* p) {
  const auto* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
GRANULE_INLINE I AddI(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
GRANULE_INLINE I SubI(I x, I y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
template <int kBits>
GRANULE_INLINE I ShiftLeft(I x) {
  return {_mm256_slli_epi32(x.a, kBits), _mm256_slli_epi32(x.b, kBits)};
}
template <int kBits>
GRANULE_INLINE I ShiftRightSigned(I x) {
  return {_mm256_srai_epi32(x.a, kBits), _mm256_srai_epi32(x.b, kBits)};
}
GRANULE_INLINE I BitsOf(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
GRANULE_INLINE F FromBits(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }

GRANULE_INLINE F LoadF16(const uint16_t* p) {
  const auto* q = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
GRANULE_INLINE F LoadBF16(const uint16_t* p) {
  const auto* q = reinterpret_cast<const __m128i*>(p);
  return {
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), 16)),
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1)), 16))};
}
GRANULE_INLINE void StoreF16(F x, uint16_t* p) {
  auto* q = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(q, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(q + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

// Picks byte kIndex of each 32-bit lane, zero-extended: one shuffle instead of a shift and a mask.
template <int kIndex>
GRANULE_INLINE __m256i LaneByte(__m256i x) {
  constexpr int kLane = static_cast<int>(0x80808000u) + kIndex;  // high bit set: a zero byte
  return _mm256_shuffle_epi8(x, _mm256_setr_epi32(kLane, kLane + 4, kLane + 8, kLane + 12, kLane,
                                                  kLane + 4, kLane + 8, kLane + 12));
}

// Codes as numbers, less the zero point where one is to be subtracted; all of it exact.
template <bool kSubtract>
GRANULE_INLINE __m256 Number(__m256i code, __m256 zero_point) {
  const __m256 number = _mm256_cvtepi32_ps(code);
  return kSubtract ? _mm256_sub_ps(number, zero_point) : number;
}

struct Nibbles {
  __m256 zero_point;
  GRANULE_INLINE explicit Nibbles(float z) : zero_point(_mm256_set1_ps(z)) {}
  // The mask is shared by the four codes that lie in low, or in high, halves of the bytes.
  template <int kShift, bool kSubtract>
  GRANULE_INLINE __m256 Half(__m256i codes) const {
    const __m256i halves = _mm256_and_si256(kShift % 8 == 0 ? codes : _mm256_srli_epi32(codes, 4),
                                            _mm256_set1_epi32(0x0f0f0f0f));
    return Number<kSubtract>(LaneByte<kShift / 8>(halves), zero_point);
  }
  template <int kShift, bool kSubtract>
  GRANULE_INLINE F Get(I codes) const {
    return {Half<kShift, kSubtract>(codes.a), Half<kShift, kSubtract>(codes.b)};
  }
};
struct Bytes {
  __m256 zero_point;
  GRANULE_INLINE explicit Bytes(float z) : zero_point(_mm256_set1_ps(z)) {}
  template <int kIndex, bool kSubtract>
  GRANULE_INLINE F Get(I codes) const {
    return {Number<kSubtract>(LaneByte<kIndex>(codes.a), zero_point),
            Number<kSubtract>(LaneByte<kIndex>(codes.b), zero_point)};
  }
};

GRANULE_INLINE void Transpose8(const __m256* in, float* out, int64_t stride) {
  __m256 a[8], b[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_ps(in[2 * i], in[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_ps(in[2 * i], in[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    b[4 * i] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
    b[4 * i + 1] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0xee);
    b[4 * i + 2] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
    b[4 * i + 3] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    _mm256_storeu_ps(out + j * stride, _mm256_permute2f128_ps(b[j], b[4 + j], 0x20));
    _mm256_storeu_ps(out + (4 + j) * stride, _mm256_permute2f128_ps(b[j], b[4 + j], 0x31));
  }
}

// out[c * stride + r] = in[r][c] for 16 x 16 floats.
GRANULE_INLINE void Transpose16(const F* in, float* out, int64_t stride) {
  for (int half = 0; half < 2; ++half) {
    __m256 left[8], right[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      left[i] = in[8 * half + i].a;
      right[i] = in[8 * half + i].b;
    }
    Transpose8(left, out + 8 * half, stride);
    Transpose8(right, out + 8 * stride + 8 * half, stride);
  }
}

}  // namespace granule::kernels::avx2
