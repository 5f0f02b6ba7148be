// Matrix products with constant weights on a GPU. Activations are fp32; products accumulate in fp32.
//
// | rows m  | weights are read | how                                                             |
// |---------|------------------|-----------------------------------------------------------------|
// | 1 to 8  | once             | dot products in fp32, exact values of the weights               |
// | 9 to 63 | once per tile    | tensor cores over fp16 (bf16 weights: bf16) copies of x, our own |
// | 64 up   | once             | cuBLASLt where it is there, else our own                         |
//
// Up to 63 rows nothing but our own kernels run, so those steps can be recorded into a graph.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/cuda_device.h"
#include "kernels/cuda/launcher.h"
#include "kernels/matmul.h"

namespace granule::kernels {

// cuBLASLt, opened at run time by name (.so.13, .so.12, unversioned).
class CublasLt {
 public:
  // kUnavailable with everything that was tried.
  static Result<std::unique_ptr<CublasLt>> Open(cuda::Device& device);
  ~CublasLt();

  const std::string& path() const;
  int64_t version() const;

  struct Api;
  const Api& api() const { return *api_; }

 private:
  CublasLt();
  std::unique_ptr<Api> api_;
};

// Host bytes to device memory through two page-locked buffers: the copy into one runs beside the
// transfer of the other. One per load; not thread-safe.
class Staging {
 public:
  static Result<std::unique_ptr<Staging>> Create(cuda::Device& device);
  ~Staging();

  Status Upload(cuda::DevicePtr to, std::span<const std::byte> from);
  // Waits for all transfers.
  Status Finish();
  // Called with the bytes uploaded so far, now and then; may be empty.
  std::function<void(uint64_t)> progress;
  bool from_device = false;  // sources are device addresses

 private:
  struct State;
  Staging();
  std::unique_ptr<State> state_;
};

// A weight matrix [n, k] on the device. Immutable.
class CudaMatrix {
 public:
  // Sizes were checked by the caller against the tensors' bytes, as with PackedMatrix. Sources lie
  // in host memory and may go once Staging::Finish has returned. fp16 and bf16 stay as they are, fp32
  // too; [k, n] is turned on the device. kExhausted for lack of device memory.
  static Result<std::shared_ptr<const CudaMatrix>> Upload(Launcher& launcher, Staging& staging,
                                                          const QuantizedWeights& weights);
  static Result<std::shared_ptr<const CudaMatrix>> Upload(Launcher& launcher, Staging& staging,
                                                          const DenseWeights& weights);
  ~CudaMatrix();

  int64_t n() const;
  int64_t k() const;
  uint64_t bytes() const;  // on the device

  struct Data;
  const Data& data() const { return *data_; }

 private:
  CudaMatrix();
  std::unique_ptr<Data> data_;
};

// Device bytes that Upload will take, without loading: for the bill.
uint64_t CudaMatrixBytes(const QuantizedWeights& weights);
uint64_t CudaMatrixBytes(const DenseWeights& weights);

struct CudaMatMulOutput {
  const CudaMatrix* weights = nullptr;
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;           // [m, n]
  int64_t ldy = 0;              // floats from row to row
};

// Scratch for products of m rows with any of these outputs.
uint64_t MatMulWorkspaceBytes(int64_t m, std::span<const CudaMatMulOutput> outputs);

struct CudaMatMulArgs {
  const float* a = nullptr;  // [m, k]
  int64_t lda = 0;           // floats from row to row
  int64_t m = 0;
  std::span<const CudaMatMulOutput> outputs;  // all with the same k
  std::byte* workspace = nullptr;             // MatMulWorkspaceBytes, 256-byte aligned
  uint64_t workspace_bytes = 0;
  const CublasLt* blas = nullptr;  // null: our own kernels alone
};
void MatMul(Launcher& launcher, const CudaMatMulArgs& args);

}  // namespace granule::kernels
