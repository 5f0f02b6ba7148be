// The portable level. CMake compiles this file, and only this one, with the level's instruction-set
// flags.
#include "kernels/cpu/table.h"
#include "kernels/cpu/vec_portable-inl.h"

#define GRANULE_LEVEL portable
#include "kernels/cpu/level-inl.h"

namespace granule::kernels {

const CpuTable& PortableTable() { return GRANULE_LEVEL::kTable; }

}  // namespace granule::kernels
