// What tensors of a synthetic model would show that were left out of it (Weights::kOnDemand), for
// those who make them where they are needed: in a GPU's memory, bit for bit (kernels/cuda/
// cuda_synth.h).
#pragma once

#include <cstdint>
#include <unordered_map>

#include "base/dtype.h"
#include "package/synth_values.h"

namespace granule::package {

struct SynthTensor {
  enum class Form {
    kCodes,       // [rows, columns * bits / 8]: 8 (of 4 bits) or 128 added, low half first
    kScales,      // fp32 [rows, columns / 32]
    kRows,        // code * scale as `dtype`, [rows, columns]
    kTransposed,  // the same, [columns, rows]
  };
  SynthMatrix matrix;
  Form form = Form::kRows;
  int bits = 0;               // of kCodes: 4 or 8
  DType dtype = DType::kF32;  // of kRows and kTransposed: kF16 or kF32
};

// Immutable once the package is open; needs nothing of the package to live.
class SynthContent {
 public:
  explicit SynthContent(const SynthModel& model) : values_(model) {}

  // `bytes`: where the tensor's bytes begin.
  void Add(const void* bytes, const SynthTensor& tensor) { tensors_.emplace(bytes, tensor); }

  // The tensor whose bytes begin here, or null: those bytes are what they should be.
  const SynthTensor* FindOrNull(const void* bytes) const {
    const auto found = tensors_.find(bytes);
    return found == tensors_.end() ? nullptr : &found->second;
  }
  size_t size() const { return tensors_.size(); }
  const SynthValues& values() const { return values_; }

 private:
  const SynthValues values_;
  std::unordered_map<const void*, SynthTensor> tensors_;
};

}  // namespace granule::package
