#include "package/gguf_blocks.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/dtype.h"

namespace granule::package {
namespace {

uint16_t Half(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}

float D(const std::byte* block) { return F16ToF32(Half(block)); }
float M(const std::byte* block) { return F16ToF32(Half(block + 2)); }  // Q4_1

// Where the codes of a block begin.
int64_t CodesOffset(GgmlType type) { return type == GgmlType::kQ4_1 ? 4 : 2; }

// Element j of a block with 4-bit codes.
uint8_t Nibble(const std::byte* codes, int64_t j) {
  const uint8_t byte = static_cast<uint8_t>(codes[j % (kBlock / 2)]);
  return j < kBlock / 2 ? byte & 15 : byte >> 4;
}

void DequantizeBlock(GgmlType type, const std::byte* block, float* out) {
  const float d = D(block);
  const std::byte* codes = block + CodesOffset(type);
  for (int64_t j = 0; j < kBlock; ++j) {
    switch (type) {
      case GgmlType::kQ8_0:
        out[j] = d * static_cast<float>(static_cast<int8_t>(codes[j]));
        break;
      case GgmlType::kQ4_0:
        out[j] = d * static_cast<float>(Nibble(codes, j) - 8);
        break;
      default:
        out[j] = d * static_cast<float>(Nibble(codes, j)) + M(block);
    }
  }
}

}  // namespace

bool IsQuantized(GgmlType type) {
  return type == GgmlType::kQ4_0 || type == GgmlType::kQ4_1 || type == GgmlType::kQ8_0;
}

bool IsSupported(GgmlType type) {
  return IsQuantized(type) || type == GgmlType::kF32 || type == GgmlType::kF16 ||
         type == GgmlType::kBF16;
}

int BitsOfCodes(GgmlType type) { return type == GgmlType::kQ8_0 ? 8 : 4; }

bool HasFloatZeroPoints(GgmlType type) { return type == GgmlType::kQ4_1; }

void WriteCodes(GgmlType type, const std::byte* block, uint8_t* codes) {
  GRANULE_DCHECK(IsQuantized(type));
  const std::byte* in = block + CodesOffset(type);
  if (type == GgmlType::kQ8_0) {
    for (int64_t j = 0; j < kBlock; ++j) codes[j] = static_cast<uint8_t>(in[j]) ^ 0x80;  // q + 128
    return;
  }
  if (type == GgmlType::kQ4_1 && D(block) == 0.0f) {
    std::memset(codes, 0, kBlock / 2);
    return;
  }
  for (int64_t j = 0; j < kBlock / 2; ++j) {
    codes[j] = static_cast<uint8_t>(Nibble(in, 2 * j) | Nibble(in, 2 * j + 1) << 4);
  }
}

float ScaleOf(GgmlType type, const std::byte* block) {
  const float d = D(block);
  return type == GgmlType::kQ4_1 && d == 0.0f ? M(block) : d;
}

float ZeroPointOf(GgmlType type, const std::byte* block) {
  GRANULE_DCHECK(HasFloatZeroPoints(type));
  const float d = D(block);
  return d == 0.0f ? -1.0f : -M(block) / d;
}

bool IsFiniteBlock(GgmlType type, const std::byte* block) {
  return std::isfinite(D(block)) && (type != GgmlType::kQ4_1 || std::isfinite(M(block)));
}

void Dequantize(GgmlType type, const std::byte* row, std::span<float> out) {
  switch (type) {
    case GgmlType::kF32:
      std::memcpy(out.data(), row, out.size_bytes());
      return;
    case GgmlType::kF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = F16ToF32(Half(row + 2 * i));
      return;
    case GgmlType::kBF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = BF16ToF32(Half(row + 2 * i));
      return;
    default:
      GRANULE_DCHECK(IsQuantized(type));
      const int64_t block_bytes = FindGgmlType(type)->bytes;
      const int64_t blocks = static_cast<int64_t>(out.size()) / kBlock;
      for (int64_t b = 0; b < blocks; ++b)
        DequantizeBlock(type, row + b * block_bytes, out.data() + b * kBlock);
  }
}

}  // namespace granule::package
