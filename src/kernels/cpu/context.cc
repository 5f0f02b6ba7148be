#include "kernels/cpu/table.h"
#include "kernels/cpu/weight_memory.h"
#include "kernels/kernels.h"

namespace granule::kernels {

Context MakeContext(ThreadPool& pool, Isa isa) {
  Context context;
  context.pool = &pool;
  context.isa = isa;
  context.weights = std::make_shared<WeightMemory>();
  switch (isa) {
    case Isa::kPortable:
      context.table = &PortableTable();
      break;
    case Isa::kAvx2:
      context.table = &Avx2Table();
      break;
    case Isa::kAvx512:
      context.table = &Avx512Table();
      break;
  }
  return context;
}

}  // namespace granule::kernels
