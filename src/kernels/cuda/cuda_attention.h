// Rotary positions, appending to the KV, and attention over strided KV, on a GPU. The same kernels
// serve every layout: where a sequence's keys and values lie is read from KvViews in device memory.
// Pointers and strides of the views are multiples of 16 bytes, token strides below 2 GiB. Padding
// rows (sequence -1) and tiles of 0 rows write nothing.
//
// Precision: sums are fp32. Single rows use K and V as they are stored, and q and the weights to 16
// bits or more; tiles use the tensor cores of the KV's type (fp16 for an fp32 KV) for all four.
#pragma once

#include <cstdint>

#include "base/kv_view.h"
#include "kernels/attention.h"
#include "kernels/cuda/attention_args.h"  // AttentionTile
#include "kernels/cuda/cuda_rowwise.h"
#include "kernels/cuda/launcher.h"

namespace granule::kernels {

struct CudaAppendArgs {
  AttentionShape shape;
  Rotary rotary;                  // device tables
  const CudaRow* rows = nullptr;  // [row_count]
  int64_t row_count = 0;
  const KvView* views = nullptr;  // [sequences] of this layer, in device memory
  DType kv_type = DType::kF16;    // of all views: kF32, kF16, kBF16
  float* q = nullptr;             // [R, Hq*D], rotated in place
  int64_t ldq = 0;
  const float* k = nullptr;  // [R, Hk*D]
  int64_t ldk = 0;
  const float* v = nullptr;
  int64_t ldv = 0;
};
// Every row's q is rotated in place, its rotated k and its v go to its slot, rounded to nearest
// even.
void RotateAndAppend(Launcher& launcher, const CudaAppendArgs& args);

// What some models add to attention.
struct AttentionExtras {
  float softcap = 0.0f;          // s -> softcap * tanh(s / softcap); 0 = none
  int64_t window = 0;            // a row at slot p attends to (p - window, p]; 0 = all
  const float* sinks = nullptr;  // [Hq] logits that join each softmax without a value, or null
};

struct CudaAttentionArgs {
  AttentionShape shape;
  AttentionExtras extras;
  const CudaRow* rows = nullptr;  // [row_count]
  int64_t row_count = 0;
  const KvView* views = nullptr;
  DType kv_type = DType::kF16;
  const float* q = nullptr;
  int64_t ldq = 0;
  float* out = nullptr;  // [R, Hq*D]; not q
  int64_t ldo = 0;

  // Every row is in exactly one of the two lists; both are in device memory. At most 65,535 each.
  const int32_t* single_rows = nullptr;  // rows that read the KV alone (decode): split over
                                         // lengths; null: rows 0, 1, .. single_count - 1
  int64_t single_count = 0;
  const AttentionTile* tiles = nullptr;  // the rest (prefill): tensor cores
  int64_t tile_count = 0;

  std::byte* workspace = nullptr;  // CudaAttentionWorkspaceBytes of single_count, 256-byte aligned
  uint64_t workspace_bytes = 0;
};
// Partial results of split rows. Bounded however long the sequences are: the grid is fixed and work
// is dealt on the device from the lengths.
uint64_t CudaAttentionWorkspaceBytes(const AttentionShape& shape, int64_t single_count);
void Attention(Launcher& launcher, const CudaAttentionArgs& args);

// kInvalidInput in words where no kernel was built: head sizes 64, 80, 96, 128, 256.
Status CheckCudaAttention(const AttentionShape& shape, DType kv_type);

}  // namespace granule::kernels
