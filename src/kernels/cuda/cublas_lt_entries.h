// The part of cuBLASLt that granule uses, declared here so that no toolkit is needed to build;
// matmul_abi_check.cu compares it with cublasLt.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cuda_driver.h"

namespace granule::kernels::lt {

using Code = int;  // 0 = success
using Handle = struct LtOpaque*;
using Descriptor = struct LtDescriptorOpaque*;
using MatrixLayout = struct LtLayoutOpaque*;
using Preference = struct LtPreferenceOpaque*;

struct Algorithm {
  uint64_t data[8];
};
struct Candidate {
  Algorithm algorithm;
  size_t workspace_bytes;
  Code code;
  float waves;
  int reserved[4];
};

inline constexpr int kTypeF32 = 0, kTypeF16 = 2, kTypeBF16 = 14;  // cudaDataType
inline constexpr int kComputeF32 = 68;
inline constexpr int kTransposed = 1;
inline constexpr int kDescriptorTransposeA = 3;
inline constexpr int kPreferWorkspaceBytes = 1;
inline constexpr int kPreferAlignmentA = 5, kPreferAlignmentB = 6, kPreferAlignmentC = 7,
                     kPreferAlignmentD = 8;

// One entry per line: name here, exported symbol, result, parameters.
#define GRANULE_CUBLASLT_ENTRIES(X)                                                                \
  X(Create, cublasLtCreate, Code, (Handle * handle))                                               \
  X(Destroy, cublasLtDestroy, Code, (Handle handle))                                               \
  X(GetVersion, cublasLtGetVersion, size_t, ())                                                    \
  X(GetStatusString, cublasLtGetStatusString, const char*, (Code code))                            \
  X(DescriptorCreate, cublasLtMatmulDescCreate, Code,                                              \
    (Descriptor * descriptor, int compute_type, int scale_type))                                   \
  X(DescriptorDestroy, cublasLtMatmulDescDestroy, Code, (Descriptor descriptor))                   \
  X(DescriptorSet, cublasLtMatmulDescSetAttribute, Code,                                           \
    (Descriptor descriptor, int attribute, const void* value, size_t bytes))                       \
  X(LayoutCreate, cublasLtMatrixLayoutCreate, Code,                                                \
    (MatrixLayout * layout, int type, uint64_t rows, uint64_t columns, int64_t ld))                \
  X(LayoutDestroy, cublasLtMatrixLayoutDestroy, Code, (MatrixLayout layout))                       \
  X(PreferenceCreate, cublasLtMatmulPreferenceCreate, Code, (Preference * preference))             \
  X(PreferenceDestroy, cublasLtMatmulPreferenceDestroy, Code, (Preference preference))             \
  X(PreferenceSet, cublasLtMatmulPreferenceSetAttribute, Code,                                     \
    (Preference preference, int attribute, const void* value, size_t bytes))                       \
  X(Heuristic, cublasLtMatmulAlgoGetHeuristic, Code,                                               \
    (Handle handle, Descriptor descriptor, MatrixLayout a, MatrixLayout b, MatrixLayout c,         \
     MatrixLayout d, Preference preference, int wanted, Candidate* candidates, int* found))        \
  X(Matmul, cublasLtMatmul, Code,                                                                  \
    (Handle handle, Descriptor descriptor, const void* alpha, const void* a,                       \
     MatrixLayout a_layout, const void* b, MatrixLayout b_layout, const void* beta, const void* c, \
     MatrixLayout c_layout, void* d, MatrixLayout d_layout, const Algorithm* algorithm,            \
     void* workspace, size_t workspace_bytes, cuda::StreamHandle stream))

struct Entries {
// NOLINTBEGIN(bugprone-macro-parentheses): names and parameter lists, not expressions.
#define GRANULE_CUBLASLT_ENTRY(name, symbol, result, parameters) result(*name) parameters = nullptr;
  GRANULE_CUBLASLT_ENTRIES(GRANULE_CUBLASLT_ENTRY)
#undef GRANULE_CUBLASLT_ENTRY
  // NOLINTEND(bugprone-macro-parentheses)
};

}  // namespace granule::kernels::lt
