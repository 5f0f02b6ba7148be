#include "kv/storage.h"

#include <algorithm>
#include <cstdlib>

#include "base/arith.h"

namespace granule::kv {
namespace {

constexpr uint64_t kAlignment = 64;

class HeapBuffers final : public BufferAllocator {
 public:
  Result<std::byte*> Allocate(uint64_t bytes) override {
    void* data =
        bytes <= UINT64_MAX / 2
            ? std::aligned_alloc(kAlignment, RoundUp(std::max<uint64_t>(bytes, 1), kAlignment))
            : nullptr;
    if (data == nullptr)
      return Error(Code::kExhausted, "the system has no {} bytes to allocate", bytes);
    return static_cast<std::byte*>(data);
  }
  void Free(std::byte* buffer) override { std::free(buffer); }
};

}  // namespace

BufferAllocator& PlainBuffers() {
  static HeapBuffers buffers;
  return buffers;
}

std::optional<memory::MemoryInfo> QueryMemory(const memory::Vmm& vmm) {
  auto info = vmm.Memory();
  if (!info.ok()) return std::nullopt;
  return *info;
}

Result<uint64_t> ReservationTokens(const Store& store, uint64_t hard_max,
                                   uint64_t bytes_per_token) {
  uint64_t tokens = hard_max;
  if (const auto memory = QueryMemory(*store.vmm); memory && memory->total_bytes > 0) {
    tokens = std::min(tokens, memory->total_bytes / bytes_per_token);
  }
  auto rung = store.space->LargestRungBytes();
  if (!rung.ok()) return rung.status();
  // Half of the rung: a reservation rounds every span up to a granule and shares the rung with
  // others.
  tokens = std::min(tokens, *rung / 2 / bytes_per_token);
  if (tokens == 0) {
    return Error(Code::kExhausted,
                 "one token of KV takes {} bytes, which neither memory nor address space can hold",
                 bytes_per_token);
  }
  return tokens;
}

}  // namespace granule::kv
