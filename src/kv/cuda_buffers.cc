#include "kv/cuda_buffers.h"

#include <map>
#include <mutex>

#include "base/check.h"

namespace granule::kv {
namespace {

class CudaBuffers final : public BufferAllocator {
 public:
  explicit CudaBuffers(cuda::Device& device) : device_(device) {}

  Result<std::byte*> Allocate(uint64_t bytes) override {
    if (Status s = device_.lost(); !s.ok()) return s;
    auto buffer = cuda::Buffer::Allocate(device_, bytes, "a KV buffer");
    if (!buffer.ok()) return buffer.status();
    auto* address = buffer->as<std::byte>();
    const std::scoped_lock lock(mutex_);
    buffers_.emplace(address, std::move(*buffer));
    return address;
  }

  void Free(std::byte* address) override {
    // A device that is lost runs nothing any more.
    if (device_.Submitted().ok()) (void)device_.WaitSubmitted();
    const std::scoped_lock lock(mutex_);
    const size_t freed = buffers_.erase(address);
    GRANULE_CHECK(freed == 1);
  }

 private:
  cuda::Device& device_;
  std::mutex mutex_;
  std::map<std::byte*, cuda::Buffer> buffers_;
};

}  // namespace

std::unique_ptr<BufferAllocator> MakeCudaBuffers(cuda::Device& device) {
  return std::make_unique<CudaBuffers>(device);
}

}  // namespace granule::kv
