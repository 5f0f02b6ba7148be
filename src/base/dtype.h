// Element types and the conversions between the floating ones.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace granule {

enum class DType : uint8_t { kF32, kF16, kBF16, kI4, kU4, kI8, kU8, kI32, kI64, kBool };

// Bits of one element. 4-bit elements are packed two to a byte, low half first.
constexpr int BitsOf(DType type) {
  switch (type) {
    case DType::kI64:
      return 64;
    case DType::kF32:
    case DType::kI32:
      return 32;
    case DType::kF16:
    case DType::kBF16:
      return 16;
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
      return 8;
    case DType::kI4:
    case DType::kU4:
      return 4;
  }
  return 0;
}

constexpr bool IsFloat(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

std::string_view DTypeName(DType type);  // "float32", "int4", ... (numpy's and ONNX's names)

// Scalar conversions; exact in the widening direction, round to nearest even in the other.
float F16ToF32(uint16_t bits);
uint16_t F32ToF16(float value);
inline float BF16ToF32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
uint16_t F32ToBF16(float value);

}  // namespace granule
