// The avx2 level. CMake compiles this file, and only this one, with the level's instruction-set
// flags.
#include "kernels/cpu/table.h"
#include "kernels/cpu/vec_avx2-inl.h"

#define GRANULE_LEVEL avx2
#include "kernels/cpu/level-inl.h"

namespace granule::kernels {

const CpuTable& Avx2Table() { return GRANULE_LEVEL::kTable; }

}  // namespace granule::kernels
