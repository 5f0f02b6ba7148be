// Weights of synthetic models that are made on the GPU: nothing of them is ever in host memory.
#pragma once

#include <cstdint>

#include "base/cuda_device.h"
#include "base/status.h"
#include "engine/cuda/gpu.h"
#include "engine/native/plan.h"
#include "package/synth_content.h"

namespace granule::engine {

class MadeWeights {
 public:
  // `content` may be null: nothing is made.
  MadeWeights(Gpu& gpu, const package::SynthContent* content) : gpu_(gpu), content_(content) {}

  // Whether the bytes at this host address are not there and have to be made.
  bool Has(const void* source) const;
  bool Has(const WeightSource& source) const;

  // Makes a table's bytes, or those of its scales, at `to` (256-byte aligned). kInternal when the
  // package describes others under this address.
  Status Fill(const void* source, uint64_t bytes, cuda::DevicePtr to);

  // Device memory that Make needs for this matrix; 0 for one that is not made. One piece of memory
  // serves all, as everything is in order on the stream.
  static uint64_t ScratchBytes(const WeightSource& source);

  // Makes the source of a matrix in `scratch` and gives it as it lies there: dense matrices as
  // [n, k], whichever way round the graph has them. What of it is in host memory (small scales)
  // goes there through `staging`.
  Result<WeightSource> Make(const WeightSource& source, kernels::Staging& staging,
                            const cuda::Buffer& scratch);

 private:
  Gpu& gpu_;
  const package::SynthContent* content_;
};

}  // namespace granule::engine
