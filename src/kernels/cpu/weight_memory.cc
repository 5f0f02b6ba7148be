#include "kernels/cpu/weight_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <limits>

#include "base/arith.h"

namespace granule::kernels {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;
// Address space of one mapping. Pages that no matrix reaches cost nothing.
constexpr uint64_t kMapping = uint64_t{64} << 20;

// `bytes` at a huge-page boundary; a matrix's last page may be huge too, so less than 2 MiB is
// wasted per mapping.
std::shared_ptr<void> Map(uint64_t bytes, std::byte** data) {
  const uint64_t size = SaturatingAdd(bytes, kHugePage);
  void* p = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<uint64_t>(p);
  *data = reinterpret_cast<std::byte*>(RoundUp(address, kHugePage));
  ::madvise(*data, bytes, MADV_HUGEPAGE);  // a kernel without huge pages refuses: only slower
  return std::shared_ptr<void>(p, [size](void* mapping) { ::munmap(mapping, size); });
}

}  // namespace

WeightMemory::Piece WeightMemory::Take(uint64_t bytes) {
  if (bytes > std::numeric_limits<uint64_t>::max() / 2) return {};
  bytes = RoundUp(std::max<uint64_t>(bytes, 1), uint64_t{64});
  Piece piece;
  if (bytes > kMapping / 4) {
    piece.mapping = Map(bytes, &piece.data);
    return piece;
  }
  const std::lock_guard lock(mutex_);
  if (bytes > left_) {
    current_ = Map(kMapping, &next_);
    left_ = current_ == nullptr ? 0 : kMapping;
    if (current_ == nullptr) return {};
  }
  piece.data = next_;
  piece.mapping = current_;
  next_ += bytes;
  left_ -= bytes;
  return piece;
}

}  // namespace granule::kernels
