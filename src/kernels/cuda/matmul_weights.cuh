// Loads and conversions that the kernels of matrix products share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/matmul_args.h"

namespace granule::kernels {

// Weights are read once: they should not push x out of the caches.
__device__ __forceinline__ uint4 LoadStream(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
__device__ __forceinline__ uint2 LoadStream8(const void* from) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(from));
  return v;
}

__device__ __forceinline__ uint32_t Word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ __forceinline__ float HalfBits(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
__device__ __forceinline__ float2 Halves(uint32_t bits) {
  const __half2_raw raw{static_cast<unsigned short>(bits & 0xffff),
                        static_cast<unsigned short>(bits >> 16)};
  return __half22float2(__half2(raw));
}
__device__ __forceinline__ float2 BHalves(uint32_t bits) {
  return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
}

// Two floats as fp16, the first in the low half. Beyond the range: the largest of that sign; NaN
// stays.
__device__ __forceinline__ uint32_t PackF16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ uint32_t PackBF16(float low, float high) {
  const __nv_bfloat162 packed = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&packed);
}

__device__ __forceinline__ float LoadFloat(const void* data, int32_t type, int64_t i) {
  if (type == kTypeF32) return __ldg(static_cast<const float*>(data) + i);
  const uint32_t bits = __ldg(static_cast<const unsigned short*>(data) + i);
  return type == kTypeF16 ? HalfBits(bits) : __uint_as_float(bits << 16);
}

// Block of unit `unit` of a row, clamped where padding has units beyond the last block.
__device__ __forceinline__ int BlockOf(const CudaWeights& w, int unit) {
  const int block = unit >> (w.block_log2 - 4);
  return block < w.blocks ? block : w.blocks - 1;
}
__device__ __forceinline__ float LoadScale(const CudaWeights& w, int64_t row, int block) {
  return LoadFloat(w.scales, w.scales_type, row * w.blocks + block);
}
// Of packed zero points.
template <int kBits>
__device__ __forceinline__ uint32_t LoadZeroCode(const CudaWeights& w, int64_t row, int block) {
  const uint8_t* zeros = static_cast<const uint8_t*>(w.zeros) + row * w.zero_row_bytes;
  if (w.tiled) {
    constexpr int kParts = kBits == 4 ? 4 : 2;
    const int part = block << (w.block_log2 - 5);
    return __ldg(zeros + part / kParts * 4 + part % kParts);
  }
  if (kBits == 8) return __ldg(zeros + block);
  return (__ldg(zeros + (block >> 1)) >> (block & 1) * 4) & 15;
}
template <int kBits>
__device__ __forceinline__ float LoadZero(const CudaWeights& w, int64_t row, int block) {
  if (w.zero_kind == ZeroKind::kDefault) return kBits == 4 ? 8.0f : 128.0f;
  if (w.zero_kind == ZeroKind::kFloat)
    return LoadFloat(w.zeros, w.zeros_type, row * w.blocks + block);
  return static_cast<float>(LoadZeroCode<kBits>(w, row, block));
}

// 2^23: a float whose low mantissa bits are an integer's own.
constexpr uint32_t kMagic = 0x4b000000u;
constexpr float kMagicValue = 8388608.0f;

// 16 values of one row as they are loaded, before they are converted.
template <WeightKind kKind>
struct RawUnit {
  static constexpr int kWords = kKind == WeightKind::kF32  ? 16
                                : kKind == WeightKind::kQ4 ? 2
                                : kKind == WeightKind::kQ8 ? 4
                                                           : 8;
  uint32_t words[kWords];
  float scale, zero;
};

template <WeightKind kKind>
__device__ __forceinline__ void LoadUnit(const CudaWeights& w, int64_t row, int unit,
                                         RawUnit<kKind>& raw) {
  constexpr int kWords = RawUnit<kKind>::kWords;
  constexpr bool kCodes = kKind == WeightKind::kQ4 || kKind == WeightKind::kQ8;
  const char* from = static_cast<const char*>(w.data) + row * w.row_bytes +
                     static_cast<int64_t>(unit) * (kWords * 4);
  if (kCodes && w.tiled) {
    // Words first to first + kWords - 1 of the row, all in one run of 16 bytes. Neighbours read the
    // rest of the sectors.
    const int first = unit * kWords;
    const uint32_t* group =
        reinterpret_cast<const uint32_t*>(static_cast<const char*>(w.data) + row * w.row_bytes +
                                          static_cast<int64_t>(first / 16) * 64);
    const int run = first / 4 % 4;
#pragma unroll
    for (int i = 0; i < kWords; ++i) raw.words[i] = __ldg(group + (first + i) % 4 * 4 + run);
  } else if constexpr (kKind == WeightKind::kQ4) {
    const uint2 v = LoadStream8(from);
    raw.words[0] = v.x;
    raw.words[1] = v.y;
  } else {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const uint4 v = LoadStream(from + 16 * i);
      raw.words[4 * i] = v.x;
      raw.words[4 * i + 1] = v.y;
      raw.words[4 * i + 2] = v.z;
      raw.words[4 * i + 3] = v.w;
    }
  }
  if constexpr (kCodes) {
    const int block = BlockOf(w, unit);
    raw.scale = LoadScale(w, row, block);
    raw.zero = LoadZero < kKind == WeightKind::kQ4 ? 4 : 8 > (w, row, block);
  }
}

// The unit as eight pairs of fp16 (bf16 weights: of bf16).
template <WeightKind kKind>
__device__ __forceinline__ void ConvertUnit(const RawUnit<kKind>& raw, uint32_t (&pairs)[8]) {
  if constexpr (kKind == WeightKind::kF16 || kKind == WeightKind::kBF16) {
#pragma unroll
    for (int i = 0; i < 8; ++i) pairs[i] = raw.words[i];
  } else if constexpr (kKind == WeightKind::kF32) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      pairs[i] = PackF16(__uint_as_float(raw.words[2 * i]), __uint_as_float(raw.words[2 * i + 1]));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t low, high;
      if constexpr (kKind == WeightKind::kQ4) {
        const uint32_t word = raw.words[i / 4] >> (i % 4 * 8);
        low = word & 15;
        high = (word >> 4) & 15;
      } else {
        const uint32_t word = raw.words[i / 2] >> (i % 2 * 16);
        low = word & 255;
        high = (word >> 8) & 255;
      }
      const float a = __uint_as_float(kMagic | low) - kMagicValue;
      const float b = __uint_as_float(kMagic | high) - kMagicValue;
      pairs[i] = PackF16((a - raw.zero) * raw.scale, (b - raw.zero) * raw.scale);
    }
  }
}

}  // namespace granule::kernels
