// One product through cuBLASLt.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/cuda_device.h"
#include "kernels/cuda/cublas_lt_entries.h"
#include "kernels/cuda/cuda_matmul.h"

namespace granule::kernels {

// Of every product, so that the algorithm does not depend on who calls.
inline constexpr uint64_t kLtWorkspaceBytes = uint64_t{32} << 20;

// y[m, n] = x[m, k] * w[n, k]^T with fp16 or bf16 operands and fp32 sums and results.
struct LtProduct {
  bool bf16 = false;
  int64_t m = 0, n = 0, k = 0;
  const void* x = nullptr;
  int64_t ldx = 0;
  const void* w = nullptr;
  int64_t ldw = 0;
  float* y = nullptr;
  int64_t ldy = 0;
};

struct CublasLt::Api {
  explicit Api(cuda::Device& device_in) : device(device_in) {}
  ~Api();
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  // On the device's stream; `workspace` has kLtWorkspaceBytes. The algorithm is chosen once per
  // shape, strides and alignment, so the same product is always computed in the same way. One
  // thread at a time.
  Status Multiply(const LtProduct& product, void* workspace) const;

  cuda::Device& device;
  lt::Entries entries;
  lt::Handle handle = nullptr;
  std::string path;

  struct Key {
    bool bf16;
    int64_t m, n, k, ldx, ldw, ldy;
    uint32_t x_alignment, w_alignment, y_alignment;
    auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr)
  };
  // What one shape needs, made once.
  struct Plan {
    explicit Plan(const lt::Entries& entries_in) : entries(entries_in) {}
    ~Plan();
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    const lt::Entries& entries;
    lt::Descriptor descriptor = nullptr;
    lt::MatrixLayout w = nullptr, x = nullptr, y = nullptr;
    lt::Algorithm algorithm = {};
  };
  mutable std::map<Key, std::unique_ptr<Plan>> plans;
};

}  // namespace granule::kernels
