// 16 virtual lanes on AVX-512: one zmm register. The three vec_*-inl.h files offer the same names;
// what each one means is said in vec_portable-inl.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/force_inline.h"

namespace granule::kernels::avx512 {

struct F {
  __m512 v;
};
struct I {
  __m512i v;
};

// Rows of a register block of a matrix product, for one and for two tiles of 16 outputs
// (matmul-inl.h).
inline constexpr int kRowsOneTile = 12;
inline constexpr int kRowsTwoTiles = 12;
// Strips that a Gemv of one or two rows walks at once, to have enough chains in flight.
inline constexpr int kGemvStrips = 2;

GRANULE_INLINE __mmask16 FirstMask(int n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1u);
}

GRANULE_INLINE F Zero() { return {_mm512_setzero_ps()}; }
GRANULE_INLINE F Set(float x) { return {_mm512_set1_ps(x)}; }
GRANULE_INLINE F Load(const float* p) { return {_mm512_loadu_ps(p)}; }
GRANULE_INLINE F LoadFirst(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(FirstMask(n), p)};
}
GRANULE_INLINE void Store(F x, float* p) { _mm512_storeu_ps(p, x.v); }
GRANULE_INLINE void StoreFirst(F x, float* p, int n) {
  _mm512_mask_storeu_ps(p, FirstMask(n), x.v);
}

GRANULE_INLINE F Add(F x, F y) { return {_mm512_add_ps(x.v, y.v)}; }
GRANULE_INLINE F Sub(F x, F y) { return {_mm512_sub_ps(x.v, y.v)}; }
GRANULE_INLINE F Mul(F x, F y) { return {_mm512_mul_ps(x.v, y.v)}; }
GRANULE_INLINE F Div(F x, F y) { return {_mm512_div_ps(x.v, y.v)}; }
GRANULE_INLINE F Sqrt(F x) { return {_mm512_sqrt_ps(x.v)}; }
GRANULE_INLINE F MulAdd(F x, F y, F z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
GRANULE_INLINE F NegMulAdd(F x, F y, F z) { return {_mm512_fnmadd_ps(x.v, y.v, z.v)}; }
GRANULE_INLINE F Dequantize(F q, F scale, F min, bool) { return MulAdd(q, scale, min); }
GRANULE_INLINE F Max(F x, F y) { return {_mm512_max_ps(x.v, y.v)}; }
GRANULE_INLINE F Min(F x, F y) { return {_mm512_min_ps(x.v, y.v)}; }

GRANULE_INLINE F SelectFirst(F x, F y, int n) {
  return {_mm512_mask_blend_ps(FirstMask(n), y.v, x.v)};
}
GRANULE_INLINE F SelectLess(F a, F b, F yes, F no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
GRANULE_INLINE uint32_t EqualMask(F x, F y) { return _mm512_cmp_ps_mask(x.v, y.v, _CMP_EQ_OQ); }

GRANULE_INLINE I SetI(int32_t x) { return {_mm512_set1_epi32(x)}; }
GRANULE_INLINE I LoadI(const void* p) { return {_mm512_loadu_si512(p)}; }
GRANULE_INLINE I AddI(I x, I y) { return {_mm512_add_epi32(x.v, y.v)}; }
GRANULE_INLINE I SubI(I x, I y) { return {_mm512_sub_epi32(x.v, y.v)}; }
template <int kBits>
GRANULE_INLINE I ShiftLeft(I x) {
  return {_mm512_slli_epi32(x.v, kBits)};
}
template <int kBits>
GRANULE_INLINE I ShiftRightSigned(I x) {
  return {_mm512_srai_epi32(x.v, kBits)};
}
GRANULE_INLINE I BitsOf(F x) { return {_mm512_castps_si512(x.v)}; }
GRANULE_INLINE F FromBits(I x) { return {_mm512_castsi512_ps(x.v)}; }

GRANULE_INLINE F LoadF16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
GRANULE_INLINE F LoadBF16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16))};
}
GRANULE_INLINE void StoreF16(F x, uint16_t* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// The values of 16 four-bit codes: a table of 16 floats indexed by the low four bits of each lane.
struct Nibbles {
  F table;
  GRANULE_INLINE explicit Nibbles(float zero_point)
      : table{_mm512_sub_ps(_mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                            _mm512_set1_ps(zero_point))} {}
  template <int kShift, bool>
  GRANULE_INLINE F Get(I codes) const {
    return {_mm512_permutexvar_ps(_mm512_srli_epi32(codes.v, kShift), table.v)};
  }
};

// The values of 16 eight-bit codes: the byte becomes the low mantissa of 2^23, so one subtraction
// makes the number.
struct Bytes {
  __m512 bias;
  GRANULE_INLINE explicit Bytes(float zero_point) : bias(_mm512_set1_ps(8388608.0f + zero_point)) {}
  template <int kIndex, bool>
  GRANULE_INLINE F Get(I codes) const {
    const __m512i pick = _mm512_set1_epi32(kIndex);
    const __m512i lifted =
        _mm512_mask_shuffle_epi8(_mm512_set1_epi32(0x4b000000), 0x1111111111111111ull, codes.v,
                                 _mm512_add_epi32(pick, LaneBytes()));
    return {_mm512_sub_ps(_mm512_castsi512_ps(lifted), bias)};
  }
  // Byte index of the first byte of each 32-bit lane inside its 128-bit part, as the low byte of
  // the lane.
  static GRANULE_INLINE __m512i LaneBytes() { return _mm512_set4_epi32(12, 8, 4, 0); }
};

// out[c * stride + r] = in[r][c] for 16 x 16 floats.
GRANULE_INLINE void Transpose16(const F* in, float* out, int64_t stride) {
  __m512 a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_ps(in[2 * i].v, in[2 * i + 1].v);
    a[2 * i + 1] = _mm512_unpackhi_ps(in[2 * i].v, in[2 * i + 1].v);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512d p = _mm512_castps_pd(a[4 * i]), q = _mm512_castps_pd(a[4 * i + 2]);
    const __m512d r = _mm512_castps_pd(a[4 * i + 1]), s = _mm512_castps_pd(a[4 * i + 3]);
    b[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(p, q));
    b[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(p, q));
    b[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(r, s));
    b[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(r, s));
  }
  // b[4*i + j] holds, in its 128-bit part p, column 4*p + j of rows 4*i .. 4*i + 3.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512 lo01 = _mm512_shuffle_f32x4(b[j], b[4 + j], 0x44);
    const __m512 hi01 = _mm512_shuffle_f32x4(b[j], b[4 + j], 0xee);
    const __m512 lo23 = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0x44);
    const __m512 hi23 = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0xee);
    _mm512_storeu_ps(out + (0 + j) * stride, _mm512_shuffle_f32x4(lo01, lo23, 0x88));
    _mm512_storeu_ps(out + (4 + j) * stride, _mm512_shuffle_f32x4(lo01, lo23, 0xdd));
    _mm512_storeu_ps(out + (8 + j) * stride, _mm512_shuffle_f32x4(hi01, hi23, 0x88));
    _mm512_storeu_ps(out + (12 + j) * stride, _mm512_shuffle_f32x4(hi01, hi23, 0xdd));
  }
}

}  // namespace granule::kernels::avx512
