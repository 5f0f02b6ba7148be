// Memory for packed matrices. A decode step walks all weights once; on 4 KiB pages the translation
// misses and the restarts of the hardware prefetcher at each page cost a quarter of the speed
// (measured on Zen 5: 0.42 against 0.53 of the read ceiling), so matrices share large mappings that
// may use huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace granule::kernels {

class WeightMemory {
 public:
  // 64-byte aligned, zeroed memory that lives as long as the piece; null where the system refuses.
  struct Piece {
    std::byte* data = nullptr;
    std::shared_ptr<void> mapping;
  };
  Piece Take(uint64_t bytes);

 private:
  std::mutex mutex_;
  std::shared_ptr<void> current_;  // pieces are cut from its front
  std::byte* next_ = nullptr;
  uint64_t left_ = 0;
};

}  // namespace granule::kernels
