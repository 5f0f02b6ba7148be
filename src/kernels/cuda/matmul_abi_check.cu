// kernels/cuda/cublas_lt_entries.h declares cuBLASLt's types by itself; here the compiler compares
// them with the toolkit's, where it has them.
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#include <cstddef>
#include <type_traits>

#include "kernels/cuda/cublas_lt_entries.h"

namespace granule::kernels::lt {

static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(Candidate) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(Candidate, workspace_bytes) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(Candidate, code) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(offsetof(Candidate, waves) == offsetof(cublasLtMatmulHeuristicResult_t, wavesCount));
static_assert(sizeof(Code) == sizeof(cublasStatus_t) && CUBLAS_STATUS_SUCCESS == 0);
static_assert(kTypeF32 == CUDA_R_32F && kTypeF16 == CUDA_R_16F && kTypeBF16 == CUDA_R_16BF);
static_assert(kComputeF32 == CUBLAS_COMPUTE_32F && kTransposed == CUBLAS_OP_T);
static_assert(kDescriptorTransposeA == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(kPreferWorkspaceBytes == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(kPreferAlignmentA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(kPreferAlignmentB == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(kPreferAlignmentC == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(kPreferAlignmentD == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);

// Signatures, with every pointer and handle as a bare pointer and every enumeration as an integer.
template <class T>
using Bare = std::conditional_t<std::is_pointer_v<T>, const void*,
                                std::conditional_t<std::is_enum_v<T>, int, T>>;
template <class F>
struct Signature;
template <class R, class... P>
struct Signature<R (*)(P...)> {
  using Type = Bare<R>(Bare<P>...);
};
#define GRANULE_CUBLASLT_COMPARE(name, symbol, result, parameters)       \
  static_assert(std::is_same_v<Signature<decltype(Entries::name)>::Type, \
                               Signature<decltype(&symbol)>::Type>);
GRANULE_CUBLASLT_ENTRIES(GRANULE_CUBLASLT_COMPARE)
#undef GRANULE_CUBLASLT_COMPARE

}  // namespace granule::kernels::lt
#endif
