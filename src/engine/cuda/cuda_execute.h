// Runs the steps of a plan on a GPU, or records them into a graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/kv_view.h"
#include "engine/native/plan.h"
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/cuda_matmul.h"
#include "kernels/cuda/cuda_rowwise.h"
#include "kernels/cuda/launcher.h"

namespace granule::engine {

// What a plan runs over: pointers into device memory that is big enough and stays where it is.
struct CudaExecution {
  kernels::Launcher* launcher = nullptr;
  const kernels::CublasLt* blas = nullptr;  // null: our own kernels
  int64_t rows = 0;
  const kernels::CudaRow* row_data = nullptr;  // [rows]
  const int32_t* single_rows = nullptr;        // as in CudaAttentionArgs
  int64_t single_count = 0;
  const kernels::AttentionTile* tiles = nullptr;
  int64_t tile_count = 0;

  // Rows whose logits are wanted; null where every row is.
  const int32_t* wanted = nullptr;
  int64_t wanted_count = 0;
  kernels::CudaRow* wanted_row_data = nullptr;  // [wanted_count], filled on the way
  float* cut_arena = nullptr;                   // [CutFloats]

  const KvView* views = nullptr;  // [layer * views_per_layer + sequence]
  int64_t views_per_layer = 0;
  std::span<const DType> kv_types;  // [layers]
  float* arena = nullptr;           // [arena_floats_per_row * rows]
  float* logits = nullptr;          // [wanted_count, vocab_size]
  std::byte* matmul_workspace = nullptr;
  uint64_t matmul_workspace_bytes = 0;
  std::byte* attention_workspace = nullptr;
  uint64_t attention_workspace_bytes = 0;
  std::vector<kernels::CudaMatMulOutput>* products = nullptr;  // reused between runs
};

// Floats that the cut at the last attention needs.
uint64_t CutFloats(const Plan& plan, int64_t wanted_count);
// Workspace of the products of a step.
uint64_t CudaMatMulBytes(const Plan& plan, int64_t rows, int64_t wanted_count);
// Of its attention, with this many single rows and wanted rows.
uint64_t CudaAttentionBytes(const Plan& plan, int64_t single_count, int64_t wanted_count);

// Launches (or records) everything; nothing waits. Failures stick in the launcher. Without wanted
// rows it stops once the last K and V are written.
void ExecuteOnCuda(const Plan& plan, CudaExecution& run);

}  // namespace granule::engine
