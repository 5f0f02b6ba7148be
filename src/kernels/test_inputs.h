// What the tests of this layer share: the levels this CPU has, and reproducible inputs.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "base/cpu.h"
#include "base/dtype.h"
#include "kernels/kernels.h"

namespace granule::kernels {

inline std::vector<Isa> Levels() {
  std::vector<Isa> levels;
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= BestIsa()) levels.push_back(isa);
  }
  return levels;
}

class Inputs {
 public:
  explicit Inputs(uint32_t seed) : engine_(seed) {}

  float Normal() { return normal_(engine_); }
  int Below(int n) { return static_cast<int>(engine_() % static_cast<uint32_t>(n)); }
  std::vector<float> Floats(int64_t count, float size = 1.0f) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& x : out) x = size * Normal();
    return out;
  }
  std::vector<uint8_t> Bytes(int64_t count) {
    std::vector<uint8_t> out(static_cast<size_t>(count));
    for (uint8_t& x : out) x = static_cast<uint8_t>(engine_());
    return out;
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

// The same values rounded to a float type, as bytes.
inline std::vector<std::byte> Narrow(const std::vector<float>& values, DType type) {
  const size_t element = static_cast<size_t>(BitsOf(type)) / 8;
  std::vector<std::byte> out(values.size() * element);
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == DType::kF32) {
      __builtin_memcpy(&out[i * 4], &values[i], 4);
    } else {
      const uint16_t half = type == DType::kF16 ? F32ToF16(values[i]) : F32ToBF16(values[i]);
      __builtin_memcpy(&out[i * 2], &half, 2);
    }
  }
  return out;
}

// Equality of bits, which tells +0 from -0 and finds equal NaNs equal.
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         __builtin_memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace granule::kernels
