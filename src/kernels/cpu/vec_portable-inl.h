// 16 virtual lanes on plain x86-64 (SSE2): four xmm registers. Each vec_*-inl.h file offers these
// names to the kernels:
//   F, I                  16 floats, 16 32-bit integers
//   LoadFirst(p, n)       lanes below n from memory, the others zero; p[n] and on are not read
//   StoreFirst(x, p, n)   writes the lanes below n only
//   MulAdd(x, y, z)       x * y + z; NegMulAdd: z - x * y. One rounding, but two at this level
//   Dequantize(q, s, m, exact)   q * s + m, one rounding; exact says that q * s needs none
//   Max, Min              give y where x or y is NaN
//   SelectFirst(x, y, n)  x in the lanes below n, y in the others
//   Nibbles, Bytes        codes of packed weights to floats minus a zero point, exact
//   kRowsOneTile, ...     register-block sizes
//
// Why not Highway: Debian 12 has 1.0.3, which knows no SSE2 target (its baseline is one lane) and
// rounds fp16 by truncation below AVX2; 16 virtual lanes would have been a layer above it in any
// case.
#pragma once

#include <emmintrin.h>

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu/force_inline.h"

namespace granule::kernels::portable {

struct F {
  __m128 v[4];
};
struct I {
  __m128i v[4];
};

inline constexpr int kRowsOneTile = 2;
inline constexpr int kRowsTwoTiles = 1;
inline constexpr int kGemvStrips = 1;

GRANULE_INLINE F Zero() {
  const __m128 z = _mm_setzero_ps();
  return {{z, z, z, z}};
}
GRANULE_INLINE F Set(float x) {
  const __m128 v = _mm_set1_ps(x);
  return {{v, v, v, v}};
}
GRANULE_INLINE F Load(const float* p) {
  return {{_mm_loadu_ps(p), _mm_loadu_ps(p + 4), _mm_loadu_ps(p + 8), _mm_loadu_ps(p + 12)}};
}
GRANULE_INLINE void Store(F x, float* p) {
  _mm_storeu_ps(p, x.v[0]);
  _mm_storeu_ps(p + 4, x.v[1]);
  _mm_storeu_ps(p + 8, x.v[2]);
  _mm_storeu_ps(p + 12, x.v[3]);
}
GRANULE_INLINE F LoadFirst(const float* p, int n) {
  if (n >= 16) return Load(p);
  float lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return Load(lanes);
}
GRANULE_INLINE void StoreFirst(F x, float* p, int n) {
  float lanes[16];
  Store(x, lanes);
  for (int i = 0; i < n && i < 16; ++i) p[i] = lanes[i];
}

GRANULE_INLINE F Add(F x, F y) {
  return {{_mm_add_ps(x.v[0], y.v[0]), _mm_add_ps(x.v[1], y.v[1]), _mm_add_ps(x.v[2], y.v[2]),
           _mm_add_ps(x.v[3], y.v[3])}};
}
GRANULE_INLINE F Sub(F x, F y) {
  return {{_mm_sub_ps(x.v[0], y.v[0]), _mm_sub_ps(x.v[1], y.v[1]), _mm_sub_ps(x.v[2], y.v[2]),
           _mm_sub_ps(x.v[3], y.v[3])}};
}
GRANULE_INLINE F Mul(F x, F y) {
  return {{_mm_mul_ps(x.v[0], y.v[0]), _mm_mul_ps(x.v[1], y.v[1]), _mm_mul_ps(x.v[2], y.v[2]),
           _mm_mul_ps(x.v[3], y.v[3])}};
}
GRANULE_INLINE F Div(F x, F y) {
  return {{_mm_div_ps(x.v[0], y.v[0]), _mm_div_ps(x.v[1], y.v[1]), _mm_div_ps(x.v[2], y.v[2]),
           _mm_div_ps(x.v[3], y.v[3])}};
}
GRANULE_INLINE F Sqrt(F x) {
  return {{_mm_sqrt_ps(x.v[0]), _mm_sqrt_ps(x.v[1]), _mm_sqrt_ps(x.v[2]), _mm_sqrt_ps(x.v[3])}};
}
GRANULE_INLINE F MulAdd(F x, F y, F z) { return Add(Mul(x, y), z); }
GRANULE_INLINE F NegMulAdd(F x, F y, F z) { return Sub(z, Mul(x, y)); }
GRANULE_INLINE F Dequantize(F q, F scale, F min, bool exact) {
  if (exact) return MulAdd(q, scale, min);
  float a[16], b[16], c[16];
  Store(q, a);
  Store(scale, b);
  Store(min, c);
  for (int i = 0; i < 16; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return Load(c);
}
GRANULE_INLINE F Max(F x, F y) {
  return {{_mm_max_ps(x.v[0], y.v[0]), _mm_max_ps(x.v[1], y.v[1]), _mm_max_ps(x.v[2], y.v[2]),
           _mm_max_ps(x.v[3], y.v[3])}};
}
GRANULE_INLINE F Min(F x, F y) {
  return {{_mm_min_ps(x.v[0], y.v[0]), _mm_min_ps(x.v[1], y.v[1]), _mm_min_ps(x.v[2], y.v[2]),
           _mm_min_ps(x.v[3], y.v[3])}};
}

GRANULE_INLINE __m128 Blend(__m128 mask, __m128 yes, __m128 no) {
  return _mm_or_ps(_mm_and_ps(mask, yes), _mm_andnot_ps(mask, no));
}
GRANULE_INLINE __m128 FirstMask(int n, int part) {
  return _mm_castsi128_ps(
      _mm_cmpgt_epi32(_mm_set1_epi32(n - 4 * part), _mm_setr_epi32(0, 1, 2, 3)));
}
GRANULE_INLINE F SelectFirst(F x, F y, int n) {
  return {{Blend(FirstMask(n, 0), x.v[0], y.v[0]), Blend(FirstMask(n, 1), x.v[1], y.v[1]),
           Blend(FirstMask(n, 2), x.v[2], y.v[2]), Blend(FirstMask(n, 3), x.v[3], y.v[3])}};
}
GRANULE_INLINE F SelectLess(F a, F b, F yes, F no) {
  return {{Blend(_mm_cmplt_ps(a.v[0], b.v[0]), yes.v[0], no.v[0]),
           Blend(_mm_cmplt_ps(a.v[1], b.v[1]), yes.v[1], no.v[1]),
           Blend(_mm_cmplt_ps(a.v[2], b.v[2]), yes.v[2], no.v[2]),
           Blend(_mm_cmplt_ps(a.v[3], b.v[3]), yes.v[3], no.v[3])}};
}
GRANULE_INLINE uint32_t EqualMask(F x, F y) {
  uint32_t mask = 0;
  for (int i = 0; i < 4; ++i) {
    mask |= static_cast<uint32_t>(_mm_movemask_ps(_mm_cmpeq_ps(x.v[i], y.v[i]))) << (4 * i);
  }
  return mask;
}

GRANULE_INLINE I SetI(int32_t x) {
  const __m128i v = _mm_set1_epi32(x);
  return {{v, v, v, v}};
}
GRANULE_INLINE I LoadI(const void* p) {
  const auto* q = static_cast<const __m128i*>(p);
  return {
      {_mm_loadu_si128(q), _mm_loadu_si128(q + 1), _mm_loadu_si128(q + 2), _mm_loadu_si128(q + 3)}};
}
GRANULE_INLINE I AddI(I x, I y) {
  return {{_mm_add_epi32(x.v[0], y.v[0]), _mm_add_epi32(x.v[1], y.v[1]),
           _mm_add_epi32(x.v[2], y.v[2]), _mm_add_epi32(x.v[3], y.v[3])}};
}
GRANULE_INLINE I SubI(I x, I y) {
  return {{_mm_sub_epi32(x.v[0], y.v[0]), _mm_sub_epi32(x.v[1], y.v[1]),
           _mm_sub_epi32(x.v[2], y.v[2]), _mm_sub_epi32(x.v[3], y.v[3])}};
}
template <int kBits>
GRANULE_INLINE I ShiftLeft(I x) {
  return {{_mm_slli_epi32(x.v[0], kBits), _mm_slli_epi32(x.v[1], kBits),
           _mm_slli_epi32(x.v[2], kBits), _mm_slli_epi32(x.v[3], kBits)}};
}
template <int kBits>
GRANULE_INLINE I ShiftRightSigned(I x) {
  return {{_mm_srai_epi32(x.v[0], kBits), _mm_srai_epi32(x.v[1], kBits),
           _mm_srai_epi32(x.v[2], kBits), _mm_srai_epi32(x.v[3], kBits)}};
}
GRANULE_INLINE I BitsOf(F x) {
  return {{_mm_castps_si128(x.v[0]), _mm_castps_si128(x.v[1]), _mm_castps_si128(x.v[2]),
           _mm_castps_si128(x.v[3])}};
}
GRANULE_INLINE F FromBits(I x) {
  return {{_mm_castsi128_ps(x.v[0]), _mm_castsi128_ps(x.v[1]), _mm_castsi128_ps(x.v[2]),
           _mm_castsi128_ps(x.v[3])}};
}

GRANULE_INLINE F LoadF16(const uint16_t* p) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = F16ToF32(p[i]);
  return Load(lanes);
}
GRANULE_INLINE F LoadBF16(const uint16_t* p) {
  const __m128i zero = _mm_setzero_si128();
  const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8));
  return {{_mm_castsi128_ps(_mm_unpacklo_epi16(zero, a)),
           _mm_castsi128_ps(_mm_unpackhi_epi16(zero, a)),
           _mm_castsi128_ps(_mm_unpacklo_epi16(zero, b)),
           _mm_castsi128_ps(_mm_unpackhi_epi16(zero, b))}};
}
GRANULE_INLINE void StoreF16(F x, uint16_t* p) {
  float lanes[16];
  Store(x, lanes);
  for (int i = 0; i < 16; ++i) p[i] = F32ToF16(lanes[i]);
}

// Codes become the low mantissa of 2^23, so one subtraction makes code - zero point, exactly.
template <int kShift, int kMask>
GRANULE_INLINE __m128 Lift(__m128i codes, __m128 bias) {
  const __m128i code = _mm_and_si128(_mm_srli_epi32(codes, kShift), _mm_set1_epi32(kMask));
  return _mm_sub_ps(_mm_castsi128_ps(_mm_or_si128(code, _mm_set1_epi32(0x4b000000))), bias);
}
struct Nibbles {
  __m128 bias;
  GRANULE_INLINE explicit Nibbles(float zero_point) : bias(_mm_set1_ps(8388608.0f + zero_point)) {}
  template <int kShift, bool>
  GRANULE_INLINE F Get(I codes) const {
    return {{Lift<kShift, 15>(codes.v[0], bias), Lift<kShift, 15>(codes.v[1], bias),
             Lift<kShift, 15>(codes.v[2], bias), Lift<kShift, 15>(codes.v[3], bias)}};
  }
};
struct Bytes {
  __m128 bias;
  GRANULE_INLINE explicit Bytes(float zero_point) : bias(_mm_set1_ps(8388608.0f + zero_point)) {}
  template <int kIndex, bool>
  GRANULE_INLINE F Get(I codes) const {
    return {{Lift<8 * kIndex, 255>(codes.v[0], bias), Lift<8 * kIndex, 255>(codes.v[1], bias),
             Lift<8 * kIndex, 255>(codes.v[2], bias), Lift<8 * kIndex, 255>(codes.v[3], bias)}};
  }
};

// out[c * stride + r] = in[r][c] for 16 x 16 floats.
GRANULE_INLINE void Transpose16(const F* in, float* out, int64_t stride) {
  for (int r = 0; r < 16; r += 4) {
    for (int c = 0; c < 4; ++c) {
      const __m128 lo01 = _mm_unpacklo_ps(in[r].v[c], in[r + 1].v[c]);
      const __m128 hi01 = _mm_unpackhi_ps(in[r].v[c], in[r + 1].v[c]);
      const __m128 lo23 = _mm_unpacklo_ps(in[r + 2].v[c], in[r + 3].v[c]);
      const __m128 hi23 = _mm_unpackhi_ps(in[r + 2].v[c], in[r + 3].v[c]);
      float* p = out + 4 * c * stride + r;
      _mm_storeu_ps(p, _mm_movelh_ps(lo01, lo23));
      _mm_storeu_ps(p + stride, _mm_movehl_ps(lo23, lo01));
      _mm_storeu_ps(p + 2 * stride, _mm_movelh_ps(hi01, hi23));
      _mm_storeu_ps(p + 3 * stride, _mm_movehl_ps(hi23, hi01));
    }
  }
}

}  // namespace granule::kernels::portable
