// Matrix products with constant weights on a GPU. Activations are fp32; products accumulate in
// fp32.
//
// | rows m  | weights are read | how                                                              |
// |---------|------------------|------------------------------------------------------------------|
// | 1 to 8  | once             | exact values of x and of the weights: dot products in fp32, or,  |
// |         |                  | for codes, tensor cores over three bf16 pieces of x, whose sum   |
// |         |                  | is x                                                             |
// | 9 to 63 | once per tile    | tensor cores over fp16 (bf16 weights: bf16) copies of x and of   |
// |         |                  | the weights, our own                                             |
// | 64 up   | once             | the same operands, cuBLASLt where it is there, else our own      |
//
// fp32 weights and values of codes are rounded to fp16 from 9 rows on; what is beyond fp16 becomes
// the largest fp16 of its sign. In 1 to 8 rows a row's result is the same bits whatever the other
// rows; it may depend on which outputs are asked for in one call.
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
  // Device memory through which sources pass that are rearranged on the device. There is one, which
  // grows and goes with this object: what is queued on the stream is done with it before what is
  // queued later changes it.
  Result<cuda::DevicePtr> PassThrough(size_t bytes);
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
  // in host memory and may go once Staging::Finish has returned. fp16 and bf16 stay as they are,
  // fp32 too; [k, n] is turned on the device. kExhausted for lack of device memory.
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

// Device memory that a load may need beside the matrices, to rearrange them in.
inline constexpr uint64_t kRearrangeBytes = uint64_t{64} << 20;

// Device bytes that Upload will take, without loading: for the bill.
uint64_t CudaMatrixBytes(const QuantizedWeights& weights);
uint64_t CudaMatrixBytes(const DenseWeights& weights);

struct CudaMatMulOutput {
  const CudaMatrix* weights = nullptr;
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;           // [m, n]
  int64_t ldy = 0;              // floats from row to row
};

// Scratch for one call with m rows and these outputs, with cuBLASLt or without; 0 up to 8 rows.
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
