// A model as a flat list of steps over rows, with weights packed and buffers placed.
//
// Everything but attention treats a row (one token of one sequence) alone, so a ragged batch is
// just R rows and the plan does not know about sequences. Buffers scale with R: a buffer is [R,
// width], dense, at offset_per_row * R in the arena; the same offsets serve every R. A shape
// signature is therefore the pair (rows, logits rows), and "planning" it is a multiplication.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "kernels/rowwise.h"

namespace granule::kernels {
class CudaMatrix;  // cuda/cuda_matmul.h
}

namespace granule::engine {

using BufferId = int32_t;
inline constexpr BufferId kNoBuffer = -1;

struct Buffer {
  int64_t width = 0;  // floats per row
  int64_t offset_per_row =
      0;                   // floats; a multiple of 16, so that every buffer starts on a cache line
  int32_t first_step = 0;  // written here
  int32_t last_step = 0;   // last read here
  bool is_logits = false;  // lies outside the arena, handed to the caller
};

// Columns of a buffer: a packed QKV is three operands of one buffer.
struct Operand {
  BufferId buffer = kNoBuffer;
  int64_t column = 0;
};

enum class Indices { kTokenIds, kPositions };

struct GatherStep {
  Indices indices = Indices::kTokenIds;
  const void* table = nullptr;
  DType dtype = DType::kF32;
  int64_t table_rows = 0;
  int64_t width = 0;
  BufferId y = kNoBuffer;
};

struct GatherQuantizedStep {
  Indices indices = Indices::kTokenIds;
  kernels::QuantizedTable table;
  BufferId y = kNoBuffer;
};

// A weight matrix as the file has it; lives as long as the package.
using WeightSource = std::variant<kernels::QuantizedWeights, kernels::DenseWeights>;

struct MatMulStep {
  struct Output {
    WeightSource source;
    std::shared_ptr<const kernels::PackedMatrix> weights;     // for the CPU
    std::shared_ptr<const kernels::CudaMatrix> cuda_weights;  // or for a GPU
    const float* bias = nullptr;
    BufferId y = kNoBuffer;
  };
  Operand x;
  int64_t k = 0;
  std::vector<Output> outputs;  // products with the same left side run as one loop
};

struct RmsNormStep {
  Operand x;
  const float* gamma = nullptr;
  float epsilon = 0.0f;
  int64_t width = 0;
  BufferId y = kNoBuffer;
};

struct SkipRmsNormStep {
  BufferId x = kNoBuffer;
  BufferId skip = kNoBuffer;
  const float* bias = nullptr;
  const float* gamma = nullptr;
  float epsilon = 0.0f;
  int64_t width = 0;
  BufferId y = kNoBuffer;    // may be kNoBuffer
  BufferId sum = kNoBuffer;  // may be kNoBuffer
};

struct BinaryStep {
  kernels::Binary op = kernels::Binary::kAdd;
  BufferId x = kNoBuffer;
  BufferId z = kNoBuffer;  // or a constant row:
  const float* constant = nullptr;
  int64_t z_width = 0;  // 1 = one number per row (or in all)
  int64_t width = 0;
  BufferId y = kNoBuffer;
};

struct UnaryStep {
  kernels::Unary op = kernels::Unary::kSigmoid;
  BufferId x = kNoBuffer;
  int64_t width = 0;
  BufferId y = kNoBuffer;
};

struct SiluMulStep {
  BufferId gate = kNoBuffer;
  BufferId up = kNoBuffer;
  int64_t width = 0;
  BufferId y = kNoBuffer;
};

struct ConcatStep {
  std::vector<Operand> parts;
  std::vector<int64_t> widths;
  BufferId y = kNoBuffer;
};

struct AttentionStep {
  int32_t layer = 0;  // of the KV group
  kernels::AttentionShape shape;
  kernels::Rotary rotary;
  Operand q, k, v;
  BufferId y = kNoBuffer;
};

using PlanStep =
    std::variant<GatherStep, GatherQuantizedStep, MatMulStep, RmsNormStep, SkipRmsNormStep,
                 BinaryStep, UnaryStep, SiluMulStep, ConcatStep, AttentionStep>;

struct Plan {
  std::vector<PlanStep> steps;
  std::vector<std::string> labels;  // node names, for reports; parallel to steps
  std::vector<Buffer> buffers;
  BufferId logits = kNoBuffer;
  int64_t vocab_size = 0;
  int64_t arena_floats_per_row = 0;

  // Steps after the last attention see wanted rows only; these buffers are cut down to them there,
  // in ascending row order.
  int32_t last_attention = -1;
  std::vector<BufferId> cut_buffers;

  // Positions that rotary and position tables have; INT64_MAX without tables.
  int64_t table_rows = INT64_MAX;
  std::string table_rows_source;

  // fp32 copies of biases, norm weights and rotary tables that the file holds in another type.
  std::vector<std::unique_ptr<float[]>> constants;
};

}  // namespace granule::engine
