// Kernels of matrix products: instances of matmul_gemv.cuh, matmul_codes.cuh and matmul_gemm.cuh,
// and the copies and conversions around them.
#include "kernels/cuda/matmul_codes.cuh"
#include "kernels/cuda/matmul_gemm.cuh"
#include "kernels/cuda/matmul_gemv.cuh"
#include "kernels/cuda/matmul_weights.cuh"

namespace granule::kernels {

#define GRANULE_GEMV(name, kind, zeros, m)                                             \
  extern "C" __global__ void __launch_bounds__(32 * GemvWarps(WeightKind::kind, m), 2) \
      matmul_gemv_##name##_##m(const __grid_constant__ GemvArgs args) {                \
    Gemv<WeightKind::kind, zeros, m>(args);                                            \
  }
#define GRANULE_GEMVS(name, kind, zeros) \
  GRANULE_GEMV(name, kind, zeros, 1)     \
  GRANULE_GEMV(name, kind, zeros, 2)     \
  GRANULE_GEMV(name, kind, zeros, 4)     \
  GRANULE_GEMV(name, kind, zeros, 8)
GRANULE_GEMVS(f32, kF32, false)
GRANULE_GEMVS(f16, kF16, false)
GRANULE_GEMVS(bf16, kBF16, false)
GRANULE_GEMVS(q4, kQ4, false)
GRANULE_GEMVS(q8, kQ8, false)
// Zero points that are floats.
GRANULE_GEMVS(q4_float, kQ4, true)
GRANULE_GEMVS(q8_float, kQ8, true)
#undef GRANULE_GEMVS
#undef GRANULE_GEMV

#define GRANULE_CODES(name, bits, zeros, m)                                      \
  extern "C" __global__ void __launch_bounds__(kCodesWarps * 32, m <= 2 ? 3 : 2) \
      matmul_codes_##name##_##m(const __grid_constant__ GemvArgs args) {         \
    CodesGemv<bits, zeros, m>(args);                                             \
  }
#define GRANULE_CODES_OF(name, bits, zeros) \
  GRANULE_CODES(name, bits, zeros, 1)       \
  GRANULE_CODES(name, bits, zeros, 2)       \
  GRANULE_CODES(name, bits, zeros, 4)       \
  GRANULE_CODES(name, bits, zeros, 8)
GRANULE_CODES_OF(q4, 4, false)
GRANULE_CODES_OF(q8, 8, false)
// With zero points of their own.
GRANULE_CODES_OF(q4_zeros, 4, true)
GRANULE_CODES_OF(q8_zeros, 8, true)
#undef GRANULE_CODES_OF
#undef GRANULE_CODES

// Tile i of kGemmTiles with wm x wn warps.
#define GRANULE_GEMM(name, kind, i, wm, wn)                                                     \
  extern "C" __global__ void __launch_bounds__(kGemmTiles[i].threads)                           \
      matmul_gemm_##name##_##i(const __grid_constant__ GemmArgs args) {                         \
    static_assert(kGemmTiles[i].threads == 32 * wm * wn);                                       \
    Gemm<WeightKind::kind, kGemmTiles[i].bm, kGemmTiles[i].bn, kGemmTiles[i].bk, wm, wn>(args); \
  }
#define GRANULE_GEMMS(name, kind)   \
  GRANULE_GEMM(name, kind, 0, 1, 8) \
  GRANULE_GEMM(name, kind, 1, 2, 4) \
  GRANULE_GEMM(name, kind, 2, 2, 4)
GRANULE_GEMMS(f32, kF32)
GRANULE_GEMMS(f16, kF16)
GRANULE_GEMMS(bf16, kBF16)
GRANULE_GEMMS(q4, kQ4)
GRANULE_GEMMS(q8, kQ8)
#undef GRANULE_GEMMS
#undef GRANULE_GEMM

extern "C" __global__ void __launch_bounds__(256)
    matmul_merge(const __grid_constant__ GemmArgs args) {
  Merge(args);
}

// One thread per pair of values; ld is even.
extern "C" __global__ void __launch_bounds__(256)
    matmul_narrow(const __grid_constant__ NarrowArgs args) {
  const int64_t pairs = args.ld / 2;
  const int64_t count = args.rows * pairs;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t row = i / pairs;
    const int64_t k = i % pairs * 2;
    const float* from = args.x + row * args.ldx + k;
    const float low = k < args.width ? from[0] : 0.0f;
    const float high = k + 1 < args.width ? from[1] : 0.0f;
    reinterpret_cast<uint32_t*>(args.y)[i] = args.bf16 ? PackBF16(low, high) : PackF16(low, high);
  }
}

// One thread per unit.
template <WeightKind kKind>
__device__ __forceinline__ void Expand(const ExpandArgs& args) {
  const CudaWeights& w = args.weights;
  const int64_t units = args.ld / kUnit;
  const int64_t count = args.rows * units;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t row = i / units;
    const int unit = static_cast<int>(i % units);
    RawUnit<kKind> raw;
    LoadUnit<kKind>(w, args.first + row, unit, raw);
    uint32_t pairs[8];
    ConvertUnit<kKind>(raw, pairs);
    const int64_t left = w.k - static_cast<int64_t>(unit) * kUnit;  // values before k ends
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (2 * j >= left) pairs[j] = 0;
      if (2 * j + 1 == left) pairs[j] &= 0xffffu;
    }
    uint4* to = reinterpret_cast<uint4*>(args.y) + 2 * i;
    to[0] = {pairs[0], pairs[1], pairs[2], pairs[3]};
    to[1] = {pairs[4], pairs[5], pairs[6], pairs[7]};
  }
}
extern "C" __global__ void __launch_bounds__(256)
    matmul_expand_f32(const __grid_constant__ ExpandArgs args) {
  Expand<WeightKind::kF32>(args);
}
extern "C" __global__ void __launch_bounds__(256)
    matmul_expand_q4(const __grid_constant__ ExpandArgs args) {
  Expand<WeightKind::kQ4>(args);
}
extern "C" __global__ void __launch_bounds__(256)
    matmul_expand_q8(const __grid_constant__ ExpandArgs args) {
  Expand<WeightKind::kQ8>(args);
}

extern "C" __global__ void __launch_bounds__(256)
    matmul_add_bias(const __grid_constant__ AddBiasArgs args) {
  const int64_t count = args.rows * args.width;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t column = i % args.width;
    args.y[i / args.width * args.ldy + column] += args.bias[column];
  }
}

// A block of 32 x 8 threads turns tiles of 32 x 32, block x along n, block y along the rows.
template <class Element>
__device__ __forceinline__ void Turn(const TurnArgs& args) {
  __shared__ Element tile[32][33];
  const Element* from = static_cast<const Element*>(args.from);
  Element* to = static_cast<Element*>(args.to);
  const int64_t n0 = static_cast<int64_t>(blockIdx.x) * 32;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * 32;
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < 32; i += 8) {
    if (row0 + i < args.rows && n0 + lane < args.n)
      tile[i][lane] = from[(row0 + i) * args.n + n0 + lane];
  }
  __syncthreads();
  for (int i = threadIdx.x / 32; i < 32; i += 8) {
    if (n0 + i < args.n && row0 + lane < args.rows)
      to[(n0 + i) * args.to_ld + args.k0 + row0 + lane] = tile[lane][i];
  }
}
extern "C" __global__ void __launch_bounds__(256)
    matmul_turn_2(const __grid_constant__ TurnArgs args) {
  Turn<uint16_t>(args);
}
extern "C" __global__ void __launch_bounds__(256)
    matmul_turn_4(const __grid_constant__ TurnArgs args) {
  Turn<uint32_t>(args);
}

extern "C" __global__ void __launch_bounds__(256) matmul_pad(const __grid_constant__ PadArgs args) {
  const int64_t to_pairs = args.to_bytes / 2;
  const int64_t from_pairs = args.from_bytes / 2;
  const int64_t count = args.rows * to_pairs;
  const uint16_t* from = static_cast<const uint16_t*>(args.from);
  uint16_t* to = static_cast<uint16_t*>(args.to);
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t row = i / to_pairs;
    const int64_t pair = i % to_pairs;
    to[i] = pair < from_pairs ? from[row * from_pairs + pair] : uint16_t{0};
  }
}

// The words of each group of 16: 4 i + t to 4 t + i.
extern "C" __global__ void __launch_bounds__(256)
    matmul_tile(const __grid_constant__ PadArgs args) {
  const int64_t to_words = args.to_bytes / 4;
  const int64_t from_words = args.from_bytes / 4;
  const int64_t count = args.rows * to_words;
  const uint32_t* from = static_cast<const uint32_t*>(args.from);
  uint32_t* to = static_cast<uint32_t*>(args.to);
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t row = i / to_words;
    const int64_t word = i % to_words;
    const int64_t source = word / 16 * 16 + word % 4 * 4 + word / 4 % 4;
    to[i] = source < from_words ? from[row * from_words + source] : 0;
  }
}

extern "C" __global__ void __launch_bounds__(256)
    matmul_tile_scales(const __grid_constant__ TileScalesArgs args) {
  const int64_t count = args.rows * args.to_blocks;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t row = i / args.to_blocks;
    const int block = min(static_cast<int>(i % args.to_blocks) >> args.shift, args.from_blocks - 1);
    args.to[i] = LoadFloat(args.from, args.type, row * args.from_blocks + block);
  }
}

extern "C" __global__ void __launch_bounds__(256)
    matmul_tile_zeros(const __grid_constant__ TileZerosArgs args) {
  const int64_t row_bytes = static_cast<int64_t>(args.groups) * 4;
  const int64_t count = args.rows * row_bytes;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const uint8_t* from = args.from + i / row_bytes * args.from_row_bytes;
    const int byte = static_cast<int>(i % row_bytes);
    const int part = byte / 4 * args.parts + min(byte % 4, args.parts - 1);
    const int block = min(part >> args.parts_log2, args.from_blocks - 1);
    args.to[i] = args.bits == 8 ? from[block]
                                : static_cast<uint8_t>((from[block / 2] >> block % 2 * 4) & 15);
  }
}

}  // namespace granule::kernels
