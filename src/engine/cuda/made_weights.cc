#include "engine/cuda/made_weights.h"

#include "base/arith.h"
#include "kernels/cuda/cuda_synth.h"

namespace granule::engine {
namespace {

using Form = package::SynthTensor::Form;
using kernels::DenseWeights;
using kernels::QuantizedWeights;
using kernels::SynthFill;

constexpr uint64_t kAlignment = 256;

SynthFill::Kind KindOf(package::SynthMatrix::Kind kind) {
  switch (kind) {
    case package::SynthMatrix::Kind::kTable:
      return SynthFill::Kind::kTable;
    case package::SynthMatrix::Kind::kHead:
      return SynthFill::Kind::kHead;
    case package::SynthMatrix::Kind::kProjection:
      break;
  }
  return SynthFill::Kind::kProjection;
}

SynthFill FillOf(const package::SynthMatrix& matrix, const package::SynthRing& ring) {
  SynthFill fill;
  fill.kind = KindOf(matrix.kind);
  fill.scale = matrix.scale;
  fill.rows = matrix.rows;
  fill.columns = matrix.columns;
  fill.key = matrix.key;
  fill.cluster_key = ring.key;
  fill.clusters = ring.clusters;
  fill.stride = ring.stride;
  fill.zeros_begin = ring.specials_begin;
  fill.zeros_end = ring.specials_end;
  fill.zeros_from = ring.tokens;
  return fill;
}

// Of one tensor in the form that is made: a dense matrix is [n, k] either way.
uint64_t BytesOf(const package::SynthTensor& tensor) {
  const auto elements = static_cast<uint64_t>(tensor.matrix.rows * tensor.matrix.columns);
  switch (tensor.form) {
    case Form::kCodes:
      return elements * static_cast<uint64_t>(tensor.bits) / 8;
    case Form::kScales:
      return elements / package::kSynthBlock * sizeof(float);
    case Form::kRows:
    case Form::kTransposed:
      break;
  }
  return elements * BitsOf(tensor.dtype) / 8;
}

uint64_t CodeBytes(const QuantizedWeights& w) {
  return static_cast<uint64_t>(w.n * CeilDiv(w.k, w.block_size) * (w.block_size * w.bits / 8));
}
uint64_t ScaleBytes(const QuantizedWeights& w) {
  return static_cast<uint64_t>(w.n * CeilDiv(w.k, w.block_size)) * BitsOf(w.scales_type) / 8;
}
uint64_t DenseBytes(const DenseWeights& w) {
  return static_cast<uint64_t>(w.n * w.k) * BitsOf(w.dtype) / 8;
}

}  // namespace

bool MadeWeights::Has(const void* source) const {
  return content_ != nullptr && content_->FindOrNull(source) != nullptr;
}

bool MadeWeights::Has(const WeightSource& source) const {
  if (const auto* dense = std::get_if<DenseWeights>(&source)) return Has(dense->data);
  const auto& quantized = std::get<QuantizedWeights>(source);
  return Has(quantized.q) || Has(quantized.scales);
}

Status MadeWeights::Fill(const void* source, uint64_t bytes, cuda::DevicePtr to) {
  const package::SynthTensor& tensor = *content_->FindOrNull(source);
  if (BytesOf(tensor) != bytes) {
    return Error(Code::kInternal, "a tensor of {} bytes is made where the plan reads {}",
                 BytesOf(tensor), bytes);
  }
  const SynthFill fill = FillOf(tensor.matrix, content_->values().Ring());
  kernels::Launcher& launcher = *gpu_.launcher;
  switch (tensor.form) {
    case Form::kCodes:
      kernels::FillSynthCodes(launcher, fill, tensor.bits, reinterpret_cast<void*>(to));
      break;
    case Form::kScales:
      kernels::FillSynthScales(launcher, fill, reinterpret_cast<float*>(to));
      break;
    case Form::kRows:
    case Form::kTransposed:
      kernels::FillSynthRows(launcher, fill, tensor.dtype, reinterpret_cast<void*>(to));
      break;
  }
  return launcher.status();
}

uint64_t MadeWeights::ScratchBytes(const WeightSource& source) {
  if (const auto* dense = std::get_if<DenseWeights>(&source)) return DenseBytes(*dense);
  const auto& quantized = std::get<QuantizedWeights>(source);
  return RoundUp(CodeBytes(quantized), kAlignment) + ScaleBytes(quantized);
}

Result<WeightSource> MadeWeights::Make(const WeightSource& source, kernels::Staging& staging,
                                       const cuda::Buffer& scratch) {
  const auto bring = [&](const void* from, uint64_t bytes, cuda::DevicePtr to) {
    if (Has(from)) return Fill(from, bytes, to);
    return staging.Upload(to, {static_cast<const std::byte*>(from), bytes});
  };
  const cuda::DevicePtr base = scratch.address();
  if (const auto* dense = std::get_if<DenseWeights>(&source)) {
    const package::SynthMatrix& matrix = content_->FindOrNull(dense->data)->matrix;
    if (matrix.rows != dense->n || matrix.columns != dense->k) {
      return Error(Code::kInternal, "a matrix [{}, {}] is made where the plan reads [{}, {}]",
                   matrix.rows, matrix.columns, dense->n, dense->k);
    }
    if (Status s = bring(dense->data, DenseBytes(*dense), base); !s.ok()) return s;
    DenseWeights made = *dense;
    made.data = reinterpret_cast<const void*>(base);
    made.transposed = true;
    return WeightSource(made);
  }
  QuantizedWeights made = std::get<QuantizedWeights>(source);
  const cuda::DevicePtr scales = base + RoundUp(CodeBytes(made), kAlignment);
  if (made.zero_points != nullptr || made.block_size != package::kSynthBlock)
    return Error(Code::kInternal, "a matrix is made with blocks of {}", made.block_size);
  if (Status s = bring(made.q, CodeBytes(made), base); !s.ok()) return s;
  if (Status s = bring(made.scales, ScaleBytes(made), scales); !s.ok()) return s;
  made.q = reinterpret_cast<const uint8_t*>(base);
  made.scales = reinterpret_cast<const void*>(scales);
  return WeightSource(made);
}

}  // namespace granule::engine
