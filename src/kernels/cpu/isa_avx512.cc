// The avx512 level. CMake compiles this file, and only this one, with the level's instruction-set
// flags.
#if defined(__GNUC__) && !defined(__clang__)
// g++ 12's own header reads an "undefined" vector in its plain forms (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "kernels/cpu/table.h"
#include "kernels/cpu/vec_avx512-inl.h"

#define GRANULE_LEVEL avx512
#include "kernels/cpu/level-inl.h"

namespace granule::kernels {

const CpuTable& Avx512Table() { return GRANULE_LEVEL::kTable; }

}  // namespace granule::kernels
