// Row-wise kernels. Work is cut by shapes alone and every reduction has one fixed order, also where
// alignment decides between wide and narrow loads.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/rowwise_args.h"

namespace granule::kernels {
namespace {

using namespace cuda_args;

// Elements [i, i + 4) of a row of `width`; what lies behind its end reads as 0.
__device__ __forceinline__ float4 Load4(const float* row, int64_t i, int64_t width, bool vectors) {
  if (vectors) return *reinterpret_cast<const float4*>(row + i);
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  v.x = row[i];
  if (i + 1 < width) v.y = row[i + 1];
  if (i + 2 < width) v.z = row[i + 2];
  if (i + 3 < width) v.w = row[i + 3];
  return v;
}

__device__ __forceinline__ void Store4(float* row, int64_t i, int64_t width, bool vectors,
                                       float4 v) {
  if (vectors) {
    *reinterpret_cast<float4*>(row + i) = v;
    return;
  }
  row[i] = v.x;
  if (i + 1 < width) row[i + 1] = v.y;
  if (i + 2 < width) row[i + 2] = v.z;
  if (i + 3 < width) row[i + 3] = v.w;
}

template <class Op>
__device__ __forceinline__ float4 Each(float4 a, float4 b, Op op) {
  return make_float4(op(a.x, b.x), op(a.y, b.y), op(a.z, b.z), op(a.w, b.w));
}

// The sum over the block, the same in every thread: lanes by halving, then warps ascending.
__device__ float BlockSum(float value) {
  __shared__ float of_warps[32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  const int warps = static_cast<int>(blockDim.x / 32);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.0f;
  for (int w = 0; w < warps; ++w) total += of_warps[w];
  return total;
}

// A row's values stay in registers between the sum and the scaling up to here; longer rows are read
// (and added up) again.
constexpr int kKept = 5;

__device__ __forceinline__ float4 NormInput(const Norm& a, const float* x, const float* skip,
                                            int i) {
  float4 v = Load4(x, i, a.width, a.vectors);
  const auto add = [](float p, float q) { return p + q; };
  if (skip != nullptr) v = Each(v, Load4(skip, i, a.width, a.vectors), add);
  if (a.bias != nullptr) v = Each(v, Load4(a.bias, i, a.width, a.vectors), add);
  return v;
}

__device__ __forceinline__ void NormOutput(const Norm& a, float* y, int i, float4 v, float factor) {
  const float4 gamma = Load4(a.gamma, i, a.width, a.vectors);
  Store4(y, i, a.width, a.vectors,
         Each(v, gamma, [factor](float p, float g) { return p * factor * g; }));
}

__device__ void NormRow(const Norm& a) {
  const int64_t row = blockIdx.x;
  const float* x = a.x + row * a.ldx;
  const float* skip = a.skip == nullptr ? nullptr : a.skip + row * a.ld_skip;
  float* sum = a.sum == nullptr ? nullptr : a.sum + row * a.ld_sum;
  const int step = static_cast<int>(blockDim.x) * 4;
  const int first = static_cast<int>(threadIdx.x) * 4;

  float4 kept[kKept];
  float squares = 0.0f;
  const auto take = [&](float4 v, int i) {
    if (sum != nullptr) Store4(sum, i, a.width, a.vectors, v);
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  };
#pragma unroll
  for (int n = 0; n < kKept; ++n) {
    const int i = first + n * step;
    if (i < a.width) kept[n] = NormInput(a, x, skip, i);
  }
#pragma unroll
  for (int n = 0; n < kKept; ++n) {
    const int i = first + n * step;
    if (i < a.width) take(kept[n], i);
  }
  for (int i = first + kKept * step; i < a.width; i += step) take(NormInput(a, x, skip, i), i);
  if (a.y == nullptr) return;

  const float factor = 1.0f / sqrtf(BlockSum(squares) / static_cast<float>(a.width) + a.epsilon);
  float* y = a.y + row * a.ldy;
#pragma unroll
  for (int n = 0; n < kKept; ++n) {
    const int i = first + n * step;
    if (i < a.width) NormOutput(a, y, i, kept[n], factor);
  }
  for (int i = first + kKept * step; i < a.width; i += step) {
    // Where the sum was kept, it may have replaced x or skip.
    const float4 v = sum != nullptr ? Load4(sum, i, a.width, a.vectors) : NormInput(a, x, skip, i);
    NormOutput(a, y, i, v, factor);
  }
}

__device__ __forceinline__ float4 Apply(int op, float4 a, float4 b) {
  switch (op) {  // in the order of kernels::Binary
    case 0:
      return Each(a, b, [](float p, float q) { return p + q; });
    case 1:
      return Each(a, b, [](float p, float q) { return p - q; });
    case 2:
      return Each(a, b, [](float p, float q) { return p * q; });
    default:
      return Each(a, b, [](float p, float q) { return p / q; });
  }
}

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float Silu(float x) { return x / (1.0f + expf(-x)); }

__device__ __forceinline__ float4 Apply(int op, float4 a) {
  switch (op) {  // in the order of kernels::Unary
    case 0:
      return make_float4(Sigmoid(a.x), Sigmoid(a.y), Sigmoid(a.z), Sigmoid(a.w));
    case 1:
      return make_float4(Silu(a.x), Silu(a.y), Silu(a.z), Silu(a.w));
    case 2:
      return make_float4(tanhf(a.x), tanhf(a.y), tanhf(a.z), tanhf(a.w));
    default:
      return make_float4(-a.x, -a.y, -a.z, -a.w);
  }
}

// Four elements of a table row from element i on; all of them exist.
__device__ __forceinline__ float4 Widen4(const void* row, DType type, int64_t i) {
  if (type == DType::kF32)
    return *reinterpret_cast<const float4*>(static_cast<const float*>(row) + i);
  const uint2 bits = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(row) + i);
  if (type == DType::kF16) {
    const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
    const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
    return make_float4(low.x, low.y, high.x, high.y);
  }
  return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
                     __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u));
}

__device__ __forceinline__ float Widen(const void* row, DType type, int64_t i) {
  if (type == DType::kF32) return static_cast<const float*>(row)[i];
  const uint16_t bits = static_cast<const uint16_t*>(row)[i];
  if (type == DType::kF16) return __half2float(__ushort_as_half(bits));
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

__device__ __forceinline__ int64_t IdOf(const CudaRow& row, CudaIndex index) {
  return index == CudaIndex::kToken ? row.token : row.slot;
}

// Code i of a row of packed codes, low half of a byte first.
__device__ __forceinline__ int CodeAt(const uint8_t* row, int bits, bool is_signed, int64_t i) {
  if (bits == 8) return is_signed ? static_cast<int8_t>(row[i]) : row[i];
  const int nibble = i % 2 == 0 ? row[i / 2] & 15 : row[i / 2] >> 4;
  return is_signed && nibble >= 8 ? nibble - 16 : nibble;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(1024) rowwise_norm(const Norm a) { NormRow(a); }

extern "C" __global__ void __launch_bounds__(kThreads) rowwise_binary(const BinaryOp a) {
  const int64_t row = blockIdx.x;
  const int64_t i = static_cast<int64_t>(blockIdx.y) * kPiece + threadIdx.x * 4;
  if (i >= a.width) return;
  const float* z = a.z + row * a.z_ld;
  const float4 x4 = Load4(a.x + row * a.width, i, a.width, a.vectors);
  const float4 z4 =
      a.scalar ? make_float4(z[0], z[0], z[0], z[0]) : Load4(z, i, a.width, a.vectors);
  Store4(a.y + row * a.width, i, a.width, a.vectors, Apply(a.op, x4, z4));
}

extern "C" __global__ void __launch_bounds__(kThreads) rowwise_unary(const UnaryOp a) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (i >= a.count) return;
  const bool vectors = a.vectors && i + 4 <= a.count;
  const float4 x = Load4(a.x, i, a.count, vectors);
  if (a.op == kSiluMul) {
    const float4 z = Load4(a.z, i, a.count, vectors);
    Store4(a.y, i, a.count, vectors, Each(x, z, [](float p, float q) { return Silu(p) * q; }));
  } else {
    Store4(a.y, i, a.count, vectors, Apply(a.op, x));
  }
}

extern "C" __global__ void __launch_bounds__(kThreads) rowwise_gather(const Gather a) {
  const int64_t row = blockIdx.x;
  const int64_t i = static_cast<int64_t>(blockIdx.y) * kPiece + threadIdx.x * 4;
  if (i >= a.width) return;
  const int64_t id = IdOf(a.rows[row], a.index);
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (id >= 0 && id < a.table_rows) {
    const int64_t element = a.type == DType::kF32 ? 4 : 2;
    const char* from = static_cast<const char*>(a.table) + id * a.width * element;
    if (a.vectors) {
      v = Widen4(from, a.type, i);
    } else {
      v.x = Widen(from, a.type, i);
      if (i + 1 < a.width) v.y = Widen(from, a.type, i + 1);
      if (i + 2 < a.width) v.z = Widen(from, a.type, i + 2);
      if (i + 3 < a.width) v.w = Widen(from, a.type, i + 3);
    }
  }
  Store4(a.y + row * a.ldy, i, a.width, a.vectors, v);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    rowwise_gather_quantized(const GatherQuantized a) {
  const int64_t row = blockIdx.x;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * kPiece + threadIdx.x * 4;
  const int64_t end = begin + 4 < a.width ? begin + 4 : a.width;
  const int64_t id = IdOf(a.rows[row], a.index);
  float* y = a.y + row * a.ldy;
  if (id < 0 || id >= a.table_rows) {
    for (int64_t i = begin; i < end; ++i) y[i] = 0.0f;
    return;
  }
  const uint8_t* codes = a.data + id * a.row_bytes;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t block = i / a.block_size;
    const int zero_point =
        a.zero_points == nullptr
            ? a.default_zero_point
            : CodeAt(a.zero_points + id * a.zero_point_bytes, a.bits, a.is_signed, block);
    const float scale = Widen(a.scales, a.scales_type, id * a.blocks + block);
    y[i] = static_cast<float>(CodeAt(codes, a.bits, a.is_signed, i) - zero_point) * scale;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads) rowwise_copy(const Copy a) {
  const int64_t row = blockIdx.x;
  const int64_t i = static_cast<int64_t>(blockIdx.y) * kPiece + threadIdx.x * 4;
  if (i >= a.width) return;
  const int64_t from = a.which == nullptr ? row : a.which[row];
  Store4(a.y + row * a.ldy, i, a.width, a.vectors,
         Load4(a.x + from * a.ldx, i, a.width, a.vectors));
}

extern "C" __global__ void __launch_bounds__(512) rowwise_read_all(const ReadAll a) {
  const auto* data = static_cast<const float4*>(a.data);
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  float sum = 0.0f;
#pragma unroll 4
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.vectors;
       i += threads) {
    const float4 v = data[i];
    sum += v.x + v.y + v.z + v.w;
  }
  if (sum == 1.0e30f) *a.sink = sum;  // the memory is zero
}

}  // namespace granule::kernels
