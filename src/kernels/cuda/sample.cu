// Picking tokens. The largest logit is found by many blocks per row; everything else by one block
// per row that never sorts: what top-k, top-p and the draw ask for is one place in the order of
// likelihood, and that is found digit by digit, like the digits of a number, from histograms of
// what each digit holds. Sums are integers (weights in fixed point), so that their order does not
// matter.
#include <cfloat>

#include "kernels/cuda/sample_args.h"

namespace granule::kernels {
namespace {

using namespace cuda_args;

constexpr float kInfinity = __builtin_huge_valf();

// Numbers in the order of floats, -0 as +0; a NaN must not come here.
__device__ __forceinline__ uint32_t Ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float FromOrdered(uint32_t ordered) {
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

// Larger for what wins; 0 for a NaN.
__device__ __forceinline__ uint64_t BestKey(float x, uint32_t id) {
  return isnan(x) ? 0 : static_cast<uint64_t>(Ordered(x)) << 32 | (0xffffffffu - id);
}

__device__ __forceinline__ uint64_t WarpMax(uint64_t key) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, key, distance);
    key = other > key ? other : key;
  }
  return key;
}

// The same in every thread. One call per kernel.
template <int kThreads>
__device__ __forceinline__ uint64_t BlockMax(uint64_t key) {
  __shared__ uint64_t of_warps[kThreads / 32];
  key = WarpMax(key);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = key;
  __syncthreads();
  for (int w = 0; w < kThreads / 32; ++w) key = of_warps[w] > key ? of_warps[w] : key;
  return key;
}

template <int kThreads>
__device__ __forceinline__ uint64_t BestOfRow(const Sample& a, int64_t row) {
  uint64_t key = 0;
  for (int i = static_cast<int>(threadIdx.x); i < a.pieces; i += kThreads) {
    const uint64_t other = a.best[row * a.pieces + i];
    key = other > key ? other : key;
  }
  return BlockMax<kThreads>(key);
}

// 0 where all is NaN.
__device__ __forceinline__ int32_t IdOf(uint64_t best) {
  return best == 0 ? 0 : static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(best));
}

// body(logit, id) for this thread's part of the ids [begin, end). With wide loads both are
// multiples of 4. Loads run ahead of the work: one block has to keep a multiprocessor's share of
// the memory busy.
template <class Body>
__device__ __forceinline__ void EachLogit(const Sample& a, const float* logits, int begin, int end,
                                          const Body& body) {
  constexpr int kAhead = 4;
  const int width = a.vectors ? 4 : 1;
  const int behind = end / width;
  for (int first = begin / width + static_cast<int>(threadIdx.x); first < behind;
       first += kAhead * kDrawThreads) {
    float4 loaded[kAhead];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      const int i = first + n * kDrawThreads;
      if (i >= behind) continue;
      if (a.vectors) {
        loaded[n] = __ldg(reinterpret_cast<const float4*>(logits) + i);
      } else {
        loaded[n].x = __ldg(logits + i);
      }
    }
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      const int i = first + n * kDrawThreads;
      if (i >= behind) continue;
      const float4 v = loaded[n];
#pragma unroll 1  // the body is long
      for (int j = 0; j < width; ++j)
        body(j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w, i * width + j);
    }
  }
}

// What is asked of the order.
enum class Ask {
  kTopK,  // tokens, up to top_k of them
  kTopP,  // weight at temperature 1, up to top_p of all
  kDraw   // weight at the row's temperature, past `uniform` of all
};

// One row. A token that can be chosen is a number: in which of 16 steps below the largest its logit
// is, the logit's place in the order of floats, the id, the last descending; the likelier, the
// larger. (The steps follow from the logits. As the first digit they leave few tokens after one
// pass.) What is left so far are the numbers >= floor_.
class Draw {
 public:
  __device__ Draw(const Sample& a, int64_t row, float largest, char* shared)
      : a_(a),
        logits_(a.logits + row * a.vocab),
        settings_(a.settings[row]),
        largest_(largest),
        sharpness_(1.0f / settings_.temperature),
        id_mask_((1u << a.id_bits) - 1),
        weights_(reinterpret_cast<uint64_t*>(shared)),
        list_(weights_ + kDrawThreads * kDigits),
        counts_(reinterpret_cast<uint16_t*>(list_ + kDrawList)) {}

  __device__ __forceinline__ int32_t Run() {
    bool in_order = false;  // of likelihood; else by id
#pragma unroll 1            // one copy of Find
    for (int i = 0; i < 3; ++i) {
      const auto ask = static_cast<Ask>(i);
      if (ask == Ask::kTopK && settings_.top_k <= 0) continue;
      if (ask == Ask::kTopP && !(settings_.top_p < 1.0f)) continue;
      const bool cut = Find(ask, in_order || ask != Ask::kDraw);
      if (ask != Ask::kDraw) in_order |= cut;
    }
    return Found(in_order);
  }

 private:
  // Fixed point: 43 bits behind the point, so that 2^20 weights of at most 1 can be summed.
  static __device__ __forceinline__ uint64_t Fixed(float weight) {
    return __float2ull_rz(weight * 8796093022208.0f);
  }

  __device__ __forceinline__ uint64_t Number(float logit, int id) const {
    const float finite = fminf(logit, FLT_MAX);
    const auto step = static_cast<uint32_t>(fminf((largest_ - finite) * 0.5f, 15.0f));
    return static_cast<uint64_t>(15 - step) << (a_.id_bits + 32) |
           static_cast<uint64_t>(Ordered(finite)) << a_.id_bits |
           (id_mask_ - static_cast<uint32_t>(id));
  }
  __device__ __forceinline__ float LogitOf(uint64_t number) const {
    return FromOrdered(static_cast<uint32_t>(number >> a_.id_bits));
  }

  // body(number) for this thread's part of what is left.
  template <class Body>
  __device__ __forceinline__ void Each(const Body& body) const {
    if (listed_ >= 0) {
      for (int i = static_cast<int>(threadIdx.x); i < listed_; i += kDrawThreads)
        if (list_[i] >= floor_) body(list_[i]);
      return;
    }
    EachLogit(a_, logits_, begin_, end_, [&](float logit, int id) {
      if (!(logit > -kInfinity)) return;  // NaN too
      const uint64_t number = Number(logit, id);
      if (number >= floor_) body(number);
    });
  }

  // False where min-p takes a token out of the draw.
  __device__ __forceinline__ bool Measure(Ask ask, uint64_t number, uint64_t& measure) const {
    if (ask == Ask::kTopK) {
      measure = 1;
      return true;
    }
    const float below = LogitOf(number) - largest_;
    if (ask == Ask::kTopP) {
      measure = Fixed(expf(below));
      return true;
    }
    if (settings_.min_p > 0.0f && expf(below) < settings_.min_p) return false;
    measure = Fixed(below < 0.0f ? expf(below * sharpness_) : 1.0f);
    return true;
  }

  // The measure that is to be reached, of `total`; 0: everything stays.
  __device__ __forceinline__ uint64_t Target(Ask ask, uint64_t total) const {
    if (ask == Ask::kTopK) {
      const auto k = static_cast<uint64_t>(settings_.top_k);
      return total <= k ? 0 : k;
    }
    const double all = static_cast<double>(total);
    const double part =
        ask == Ask::kTopP ? ceil(all * settings_.top_p) : floor(all * settings_.uniform) + 1.0;
    const auto target = static_cast<uint64_t>(fmax(part, 1.0));
    return target < total ? target : total;
  }

  // Finds the place at which the measure, summed from the largest number down, reaches the target,
  // and leaves what is at or above it. False where everything stays. Not in order: numbers are the
  // ids alone.
  __device__ __forceinline__ bool Find(Ask ask, bool in_order) {
    uint64_t prefix = 0, above = 0, target = 0;
    uint32_t above_count = 0;
    int shift = in_order ? 4 + 32 + a_.id_bits : a_.id_bits;
    const int first_shift = shift;
    while (shift > 0) {
      shift -= 4;
      CountDigits(ask, in_order, prefix, shift);
      if (shift + 4 == first_shift) {
        uint64_t total = 0;
        for (int d = 0; d < kDigits; ++d) total += digit_measure()[d];
        target = Target(ask, total);
        if (target == 0) return false;
      }
      int digit = kDigits - 1;
      while (digit > 0 && above + digit_measure()[digit] < target) {
        above += digit_measure()[digit];
        above_count += digit_count()[digit];
        --digit;
      }
      const uint32_t in_digit = digit_count()[digit];
      prefix = prefix << 4 | static_cast<uint64_t>(digit);
      if (!in_order) {  // only ids that begin like this matter from here on
        const auto low = static_cast<int>(prefix << shift), ids = static_cast<int>(id_mask_) + 1;
        begin_ = ids - low - (1 << shift);
        end_ = min(static_cast<int>(a_.vocab), ids - low);
      }
      if (in_order && listed_ < 0 && above_count + in_digit <= kDrawList)
        List(ask, prefix << shift);
      if (in_digit == 1) break;  // alone: the other digits do not matter
    }
    found_prefix_ = prefix;
    found_shift_ = shift;
    // Where fewer digits sufficed, the place may lie below what an earlier limit left.
    if (ask != Ask::kDraw && prefix << shift > floor_) floor_ = prefix << shift;
    return true;
  }

  // Per digit at `shift`, of the numbers that begin with prefix: their measure and their count.
  __device__ __forceinline__ void CountDigits(Ask ask, bool in_order, uint64_t prefix, int shift) {
    const int thread = static_cast<int>(threadIdx.x);
    for (int d = 0; d < kDigits; ++d) {
      weights_[d * kDrawThreads + thread] = 0;
      counts_[d * kDrawThreads + thread] = 0;
    }
    Each([&](uint64_t number) {
      const uint64_t key = in_order ? number : number & id_mask_;
      if (key >> (shift + 4) != prefix) return;
      uint64_t measure = 0;
      if (!Measure(ask, number, measure)) return;
      const int at = static_cast<int>(key >> shift & (kDigits - 1)) * kDrawThreads + thread;
      weights_[at] += measure;
      ++counts_[at];
    });
    __syncthreads();
    static_assert(kDrawThreads / 32 == kDigits);  // a warp adds up a digit
    const int digit = thread / 32, lane = thread % 32;
    uint64_t measure = 0;
    uint32_t count = 0;
    for (int i = lane; i < kDrawThreads; i += 32) {
      measure += weights_[digit * kDrawThreads + i];
      count += counts_[digit * kDrawThreads + i];
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      measure += __shfl_xor_sync(0xffffffffu, measure, distance);
      count += __shfl_xor_sync(0xffffffffu, count, distance);
    }
    if (lane == 0) {
      digit_measure()[digit] = measure;
      digit_count()[digit] = count;
    }
    __syncthreads();
  }

  // Once few are left, they are kept in shared memory, in any order: what was counted and is at or
  // above least.
  __device__ __forceinline__ void List(Ask ask, uint64_t least) {
    if (threadIdx.x == 0) list_count() = 0;
    __syncthreads();
    Each([&](uint64_t number) {
      uint64_t measure = 0;
      if (number >= least && Measure(ask, number, measure))
        list_[atomicAdd(&list_count(), 1u)] = number;
    });
    __syncthreads();
    listed_ = static_cast<int>(list_count());
  }

  // The id of the one number that Find stopped at.
  __device__ __forceinline__ int32_t Found(bool in_order) {
    if (found_shift_ == 0)
      return static_cast<int32_t>(id_mask_ - (static_cast<uint32_t>(found_prefix_) & id_mask_));
    if (threadIdx.x == 0) found_id() = 0;
    __syncthreads();
    Each([&](uint64_t number) {
      const uint64_t key = in_order ? number : number & id_mask_;
      uint64_t measure = 0;
      if (key >> found_shift_ == found_prefix_ && Measure(Ask::kDraw, number, measure))
        found_id() = static_cast<int32_t>(id_mask_ - (static_cast<uint32_t>(number) & id_mask_));
    });
    __syncthreads();
    return found_id();
  }

  // Shared by the block; one Draw per block.
  static __device__ uint64_t* digit_measure() {
    __shared__ uint64_t measure[kDigits];
    return measure;
  }
  static __device__ uint32_t* digit_count() {
    __shared__ uint32_t count[kDigits];
    return count;
  }
  static __device__ uint32_t& list_count() {
    __shared__ uint32_t count;
    return count;
  }
  static __device__ int32_t& found_id() {
    __shared__ int32_t id;
    return id;
  }

  const Sample& a_;
  const float* const logits_;
  const CudaSampleRow settings_;
  const float largest_;
  const float sharpness_;  // may be infinite
  const uint32_t id_mask_;
  uint64_t* const weights_;                           // [kDigits][kDrawThreads]
  uint64_t* const list_;                              // [kDrawList]
  uint16_t* const counts_;                            // [kDigits][kDrawThreads]
  int begin_ = 0, end_ = static_cast<int>(a_.vocab);  // ids that are looked at
  uint64_t floor_ = 0;
  int listed_ = -1;  // numbers in list_; -1: the row itself is read
  uint64_t found_prefix_ = 0;
  int found_shift_ = 0;
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kBestThreads)
    sample_best(const __grid_constant__ Sample a) {
  const int64_t row = blockIdx.y;
  const float* logits = a.logits + row * a.vocab;
  const int first = static_cast<int>(blockIdx.x) * kSamplePiece;
  uint64_t key = 0;
  if (a.vectors) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int i = first + (n * kBestThreads + static_cast<int>(threadIdx.x)) * 4;
      if (i >= a.vocab) continue;
      const float4 v = *reinterpret_cast<const float4*>(logits + i);
      const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint64_t other = BestKey(values[j], static_cast<uint32_t>(i + j));
        key = other > key ? other : key;
      }
    }
  } else {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int i = first + n * kBestThreads + static_cast<int>(threadIdx.x);
      if (i >= a.vocab) continue;
      const uint64_t other = BestKey(logits[i], static_cast<uint32_t>(i));
      key = other > key ? other : key;
    }
  }
  key = BlockMax<kBestThreads>(key);
  if (threadIdx.x == 0) a.best[row * a.pieces + blockIdx.x] = key;
}

extern "C" __global__ void __launch_bounds__(kGreedyThreads)
    sample_greedy(const __grid_constant__ Sample a) {
  const int64_t row = blockIdx.x;
  const uint64_t best = BestOfRow<kGreedyThreads>(a, row);
  if (threadIdx.x == 0) a.ids[row] = IdOf(best);
}

extern "C" __global__ void __launch_bounds__(kDrawThreads, 1)
    sample_draw(const __grid_constant__ Sample a) {
  extern __shared__ __align__(16) char shared[];
  const int64_t row = blockIdx.x;
  const uint64_t best = BestOfRow<kDrawThreads>(a, row);
  int32_t id = IdOf(best);
  const float largest =
      best == 0 ? -kInfinity : fminf(FromOrdered(static_cast<uint32_t>(best >> 32)), FLT_MAX);
  if (a.settings[row].temperature > 0.0f && largest > -kInfinity)
    id = Draw(a, row, largest, shared).Run();
  if (threadIdx.x == 0) a.ids[row] = id;
}

}  // namespace granule::kernels
