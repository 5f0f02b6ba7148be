// What every CPU kernel takes along: the threads and the table of the chosen instruction-set level.
//
// Determinism, the contract of this folder (docs/decisions/003-accumulation-order.md):
//   1. A result depends on the inputs of its own row only: not on how many rows, threads or
//      sequences the call has, not on how a prompt was cut into chunks, not on the KV layout.
//   2. Matrix products: y[m,n] = sum over k ascending, one fused multiply-add per term, starting at
//      +0, in one chain; the bias is added last. The weight enters as the fp32 value of its
//      dequantisation. So a quantised matrix and its dequantised fp32 twin give the same bits.
//   3. Attention: KV blocks of kKvBlock slots from slot 0; a score is one fma chain over d
//      ascending; inside a block the maximum, the sum of the weights as in 4 (lane = slot mod 16)
//      and value sums as one chain in slot order; blocks merged in ascending order. Decode, prefill
//      and split work run the same steps.
//   4. Reductions over a row (norms) run in 16 virtual lanes and one fixed tree, on every level.
//   The AVX2 and AVX-512 levels therefore agree bit for bit; the portable level has no fused
//   multiply-add and differs.
#pragma once

#include <cstdint>
#include <memory>

#include "base/cpu.h"
#include "base/thread_pool.h"

namespace granule::kernels {

struct CpuTable;     // kernels/cpu/table.h
class WeightMemory;  // kernels/cpu/weight_memory.h

// A plain value: copy it freely. Scratch of matrix products belongs to the threads, that of
// attention to the caller.
struct Context {
  ThreadPool* pool = nullptr;
  const CpuTable* table = nullptr;
  Isa isa = Isa::kPortable;
  std::shared_ptr<WeightMemory> weights;  // where Pack puts matrices; shared by copies
};

// The table of one level; the caller made sure that the CPU has it (ParseIsa, BestIsa).
Context MakeContext(ThreadPool& pool, Isa isa);

}  // namespace granule::kernels
