// Synthetic weights: every thread computes its codes from counters, as package/synth_values.cc
// does, so nothing is read and the stores are all there is to wait for.
#include <cuda_fp16.h>

#include <cstddef>

#include "kernels/cuda/synth_args.h"

namespace granule::kernels {
namespace {

using cuda_args::kSynthBlock;
using cuda_args::kSynthWord;
using cuda_args::Synth;
using Kind = SynthFill::Kind;

// SplitMix64's increment and finalizer (Steele, Lea and Flood, 2014) over a counter.
__device__ __forceinline__ uint64_t Number(uint64_t key, uint64_t i) {
  uint64_t x = key + (i + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// What all words of a row share.
struct Row {
  int64_t index;
  uint64_t cluster_key, member_key, noise_key;
  bool zeros;
};

__device__ Row RowOf(const SynthFill& f, int64_t index) {
  Row row{index, 0, 0, 0, false};
  if (f.kind == Kind::kProjection) return row;
  const int64_t member = index / f.clusters;
  int64_t cluster = index % f.clusters;
  if (f.kind == Kind::kHead) {
    row.zeros = (index >= f.zeros_begin && index < f.zeros_end) || index >= f.zeros_from;
  } else {
    cluster = (cluster + f.stride * (1 + member)) % f.clusters;  // the successor
  }
  row.cluster_key = Number(f.cluster_key, static_cast<uint64_t>(cluster));
  row.member_key = Number(f.key, static_cast<uint64_t>(member));
  row.noise_key = Number(f.key, static_cast<uint64_t>(index));
  return row;
}

// 16 codes, [-7, 7], of columns [16 * word, 16 * word + 16).
__device__ __forceinline__ void Codes(const SynthFill& f, const Row& row, int64_t word,
                                      int (&codes)[kSynthWord]) {
  if (f.kind == Kind::kProjection) {
    const int64_t words = f.columns / kSynthWord;
    const uint64_t bits = Number(f.key, static_cast<uint64_t>(row.index * words + word));
#pragma unroll
    for (int j = 0; j < kSynthWord; ++j) {
      const int nibble = static_cast<int>(bits >> (4 * j) & 15);
      codes[j] = nibble == 0 ? 0 : nibble - 8;
    }
    return;
  }
  // Signs come 64 to a number, of which this word is a quarter.
  const auto four = static_cast<uint64_t>(word / 4);
  const int shift = static_cast<int>(word % 4) * 16;
  const auto cluster = static_cast<uint32_t>(Number(row.cluster_key, four) >> shift);
  const bool is_head = f.kind == Kind::kHead;
  const uint64_t other = is_head ? Number(row.member_key, four) >> shift
                                 : Number(row.noise_key, static_cast<uint64_t>(word));
#pragma unroll
  for (int j = 0; j < kSynthWord; ++j) {
    const int sign = static_cast<int>(cluster >> j & 1) * 2 - 1;
    const int head = 2 * sign + 5 * (static_cast<int>(other >> j & 1) * 2 - 1);
    const int table = 5 * sign + __popc(static_cast<unsigned>(other >> (4 * j) & 15)) - 2;
    codes[j] = row.zeros ? 0 : is_head ? head : table;
  }
}

// `block` counts through the whole matrix.
__device__ __forceinline__ float Scale(const SynthFill& f, int64_t block) {
  if (f.kind != Kind::kProjection) return f.scale;
  const auto i = static_cast<uint64_t>(block);
  const auto factor = static_cast<int>(Number(~f.key, i / 32) >> (i % 32 * 2) & 3);
  return f.scale * (0.75f + 0.25f * static_cast<float>(factor));  // 0.75, 1, 1.25, 1.5: exact
}

__device__ __forceinline__ unsigned Halves(float low, float high) {
  const __half2 pair = __halves2half2(__float2half_rn(low), __float2half_rn(high));
  return *reinterpret_cast<const unsigned*>(&pair);
}

// Bytes of 16 columns in each form, and their storing.
struct Codes4 {
  static constexpr int64_t kBytes = 8;
  static __device__ __forceinline__ void Store(std::byte* to, const int (&codes)[kSynthWord],
                                               float) {
    unsigned words[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < kSynthWord; ++j)
      words[j / 8] |= static_cast<unsigned>(codes[j] + 8) << (j % 8 * 4);
    *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  }
};

struct Codes8 {
  static constexpr int64_t kBytes = 16;
  static __device__ __forceinline__ void Store(std::byte* to, const int (&codes)[kSynthWord],
                                               float) {
    unsigned words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < kSynthWord; ++j)
      words[j / 4] |= static_cast<unsigned>(codes[j] + 128) << (j % 4 * 8);
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  }
};

struct RowsF16 {
  static constexpr int64_t kBytes = 32;
  static __device__ __forceinline__ void Store(std::byte* to, const int (&codes)[kSynthWord],
                                               float scale) {
    unsigned words[8];
#pragma unroll
    for (int j = 0; j < kSynthWord; j += 2) {
      words[j / 2] =
          Halves(static_cast<float>(codes[j]) * scale, static_cast<float>(codes[j + 1]) * scale);
    }
    auto* out = reinterpret_cast<uint4*>(to);
    out[0] = make_uint4(words[0], words[1], words[2], words[3]);
    out[1] = make_uint4(words[4], words[5], words[6], words[7]);
  }
};

struct RowsF32 {
  static constexpr int64_t kBytes = 64;
  static __device__ __forceinline__ void Store(std::byte* to, const int (&codes)[kSynthWord],
                                               float scale) {
    auto* out = reinterpret_cast<float4*>(to);
#pragma unroll
    for (int j = 0; j < kSynthWord; j += 4) {
      out[j / 4] = make_float4(
          static_cast<float>(codes[j]) * scale, static_cast<float>(codes[j + 1]) * scale,
          static_cast<float>(codes[j + 2]) * scale, static_cast<float>(codes[j + 3]) * scale);
    }
  }
};

template <class Form>
__device__ void FillRow(const Synth& a) {
  const SynthFill& f = a.fill;
  const Row row = RowOf(f, blockIdx.x);
  const int64_t words = f.columns / kSynthWord;
  auto* to = static_cast<std::byte*>(a.to) + row.index * words * Form::kBytes;
  for (int64_t word = threadIdx.x; word < words; word += blockDim.x) {
    int codes[kSynthWord];
    Codes(f, row, word, codes);
    // A block's 32 columns are two words.
    const float scale = Scale(f, row.index * (words / 2) + word / 2);
    Form::Store(to + word * Form::kBytes, codes, scale);
  }
}

}  // namespace

extern "C" __global__ void synth_codes_4(Synth a) { FillRow<Codes4>(a); }
extern "C" __global__ void synth_codes_8(Synth a) { FillRow<Codes8>(a); }
extern "C" __global__ void synth_rows_f16(Synth a) { FillRow<RowsF16>(a); }
extern "C" __global__ void synth_rows_f32(Synth a) { FillRow<RowsF32>(a); }

extern "C" __global__ void synth_scales(Synth a) {
  const int64_t count = a.fill.rows * (a.fill.columns / kSynthBlock);
  auto* to = static_cast<float*>(a.to);
  const auto step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    to[i] = Scale(a.fill, i);
  }
}

}  // namespace granule::kernels
