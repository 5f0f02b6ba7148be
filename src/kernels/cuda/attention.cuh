// What the attention kernels share: 16-bit element types as tensor cores take them, wide loads, and
// which slots a row reads.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/attention_args.h"

namespace granule::kernels {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kInfinity = __builtin_huge_valf();

// d += a * b for a 16x16 (row) and a 16x8 (column) fragment. Lane = 4 * g + c holds of a: rows g
// and g + 8 at columns 2c, 2c+1 and 2c+8, 2c+9; of b: rows 2c, 2c+1 and 2c+8, 2c+9 at column g; of
// d: rows g and g + 8 at columns 2c, 2c+1. (PTX ISA, matrix fragments of mma.m16n8k16)
struct F16 {
  static __device__ __forceinline__ uint32_t Pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  static __device__ __forceinline__ float2 Unpack(uint32_t bits) {
    return __half22float2(*reinterpret_cast<const __half2*>(&bits));
  }
  static __device__ __forceinline__ void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};
struct BF16 {
  static __device__ __forceinline__ uint32_t Pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  static __device__ __forceinline__ float2 Unpack(uint32_t bits) {
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
  }
  static __device__ __forceinline__ void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

// What is subtracted from scores: their maximum, or 0 where there is none yet, so that exp2 of
// -infinity minus it is 0.
__device__ __forceinline__ float Finite(float maximum) {
  return maximum == -kInfinity ? 0.0f : maximum;
}

// 2^x, 0 below 2^-126: one instruction, relative error 2^-22.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Where a slot lies. Token strides are less than 2 GiB: one instruction instead of four.
__device__ __forceinline__ const char* AtSlot(const char* base, int slot, int64_t token_stride) {
  return base + static_cast<int64_t>(slot) * static_cast<int>(token_stride);
}

// The first slot that a row at `slot` attends to.
__device__ __forceinline__ int FirstSlot(int slot, int window) {
  return window > 0 && slot - window + 1 > 0 ? slot - window + 1 : 0;
}

}  // namespace granule::kernels
