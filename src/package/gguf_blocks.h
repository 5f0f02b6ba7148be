// The block formats of ggml and what they become in ONNX's MatMulNBits and GatherBlockQuantized.
//
// A row is a sequence of blocks of 32 elements (ggml-common.h of ggml-org/ggml; d and m are fp16):
//   Q8_0  d, 32 signed codes         value = d * q              -> 8 bits, codes q + 128, default
//   zero point 128, scale d Q4_0  d, 16 bytes                value = d * (q - 8)        -> 4 bits,
//   default zero point 8, scale d Q4_1  d, m, 16 bytes             value = d * q + m          -> 4
//   bits, scale d, float zero point -m / d
// The first two are exact. In Q4_1 each value is within 3 ulp of max(|m|, |m + 15 d|); a block with
// d = 0 is exact through scale = m, zero point = -1, codes 0. In 4-bit blocks ggml's byte j holds
// elements j (low half) and j + 16, ONNX's holds 2j and 2j + 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "package/gguf.h"

namespace granule::package {

inline constexpr int64_t kBlock = 32;  // elements of a block in every quantised format here

// True for the types that become MatMulNBits; false for the dense ones and for all that is not
// supported.
bool IsQuantized(GgmlType type);
bool IsSupported(GgmlType type);

int BitsOfCodes(GgmlType type);          // 4 or 8
bool HasFloatZeroPoints(GgmlType type);  // Q4_1

// `block` is one block of a quantised type. Codes are kBlock * bits / 8 bytes.
void WriteCodes(GgmlType type, const std::byte* block, uint8_t* codes);
float ScaleOf(GgmlType type, const std::byte* block);
float ZeroPointOf(GgmlType type, const std::byte* block);  // Q4_1 only
// False where d or m is an infinity or not a number: such a block has no values.
bool IsFiniteBlock(GgmlType type, const std::byte* block);

// n elements of any supported type as fp32, the values of ggml's own dequantiser; n is a multiple
// of the block, out holds n.
void Dequantize(GgmlType type, const std::byte* row, std::span<float> out);

}  // namespace granule::package
