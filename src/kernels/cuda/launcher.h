// Starts kernels on a GPU: on its stream now, or as nodes of a graph that is run later.
//
// The functions of this folder have the names of their CPU twins and take a Launcher where those
// take a Context. Pointers are device addresses unless said otherwise. Nothing waits: work runs in
// order on the device's stream. The first failure sticks in the launcher and is read once per step
// with status(); after it every launch does nothing.
//
// Determinism, the contract of this folder: a result does not depend on the KV layout, the
// capacity, the kind of growth, nor on being launched or replayed. Split work is cut by lengths
// alone and merged in ascending order; there are no atomic sums. (Other row counts may round
// differently.)
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/cuda_device.h"
#include "base/status.h"

namespace granule::kernels {

// Compiled kernels, loaded into one device's context. The images are part of the program
// (cmake/cuda.cmake).
class CudaKernels {
 public:
  // kUnavailable where this build has no images (no nvcc when it was built) or none for this GPU.
  static Result<std::unique_ptr<CudaKernels>> Load(cuda::Device& device);
  ~CudaKernels();
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  // By its name in the .cu file (extern "C"). kInternal when there is none. `shared_bytes` is the
  // most dynamic shared memory that it will ever be launched with.
  Result<cuda::FunctionHandle> Find(std::string_view name, int shared_bytes = 0);

  static bool InThisBuild();
  static uint64_t ImageBytes();  // of all images in this program

 private:
  explicit CudaKernels(cuda::Device& device) : device_(device) {}

  struct Function {
    cuda::FunctionHandle handle = nullptr;
    int shared_bytes = 0;
  };
  cuda::Device& device_;
  std::vector<cuda::ModuleHandle> modules_;
  std::unordered_map<std::string, Function> functions_;
};

// A number of blocks or threads as a launch takes it; none for a negative one.
inline unsigned Count(int64_t count) { return static_cast<unsigned>(std::max<int64_t>(count, 0)); }

struct Grid {
  unsigned x = 1, y = 1, z = 1;
};

class Launcher {
 public:
  Launcher(cuda::Device& device, CudaKernels& kernels) : device_(device), kernels_(kernels) {}

  // One kernel whose only parameter is a struct, passed by value. A grid with a zero does nothing.
  template <class Arguments>
  void Launch(std::string_view kernel, Grid grid, unsigned threads, unsigned shared_bytes,
              const Arguments& arguments) {
    Start(kernel, grid, threads, shared_bytes, const_cast<Arguments*>(&arguments));
  }

  // From here on launches become nodes of this graph, each after the one before; null: the stream
  // again. Functions that need a library (cuBLASLt) must not be called while a graph is recorded:
  // they fail with kInternal.
  void RecordInto(cuda::GraphHandle graph);
  bool recording() const { return graph_ != nullptr; }

  // A failure of something that a function called beside launches.
  void Fail(Status status);
  const Status& status() const { return status_; }
  void ClearStatus() { status_ = {}; }

  cuda::Device& device() { return device_; }
  CudaKernels& kernels() { return kernels_; }

 private:
  void Start(std::string_view kernel, Grid grid, unsigned threads, unsigned shared_bytes,
             void* arguments);

  cuda::Device& device_;
  CudaKernels& kernels_;
  cuda::GraphHandle graph_ = nullptr;
  cuda::GraphNodeHandle last_node_ = nullptr;
  Status status_;
};

}  // namespace granule::kernels
