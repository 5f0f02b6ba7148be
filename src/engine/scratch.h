// Memory that steps work in: reused from step to step, never shrinks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>

#include "base/arith.h"
#include "base/status.h"

namespace granule::engine {

// Uninitialised memory that only grows; what was in it is lost when it does. Starts on a cache
// line.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // At least that many bytes, or kExhausted and no change. nullopt = more than 64 bits can say.
  Status Reserve(std::optional<uint64_t> bytes, const char* what) {
    if (bytes && *bytes <= bytes_) return {};
    void* data = bytes && *bytes <= UINT64_MAX / 2
                     ? std::aligned_alloc(kAlignment, RoundUp<uint64_t>(*bytes, kAlignment))
                     : nullptr;
    if (data == nullptr) {
      return Error(Code::kExhausted, "no memory for {} ({} bytes): use a smaller -ub/--ubatch-size",
                   what, bytes.value_or(UINT64_MAX));
    }
    std::free(data_);
    data_ = data;
    bytes_ = *bytes;
    return {};
  }
  float* floats() const { return static_cast<float*>(data_); }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  static constexpr size_t kAlignment = 64;

  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Bytes of [a, b] floats, or nullopt where they do not fit.
inline std::optional<uint64_t> FloatBytes(int64_t a, int64_t b) {
  const auto elements = CheckedMul(static_cast<uint64_t>(a), static_cast<uint64_t>(b));
  return elements ? CheckedMul<uint64_t>(*elements, sizeof(float)) : std::nullopt;
}

}  // namespace granule::engine
