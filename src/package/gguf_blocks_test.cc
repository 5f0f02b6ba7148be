#include "package/gguf_blocks.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/dtype.h"

namespace granule::package {
namespace {

using Block = std::vector<std::byte>;

Block MakeBlock(std::initializer_list<uint16_t> halves, const std::vector<uint8_t>& codes) {
  Block block(2 * halves.size() + codes.size());
  size_t at = 0;
  for (uint16_t half : halves) {
    std::memcpy(block.data() + at, &half, 2);
    at += 2;
  }
  std::memcpy(block.data() + at, codes.data(), codes.size());
  return block;
}

// What MatMulNBits makes of the converted block, computed as the operator is specified, in fp32.
std::array<float, kBlock> ThroughOnnx(GgmlType type, const Block& block) {
  std::array<uint8_t, kBlock> codes{};
  WriteCodes(type, block.data(), codes.data());
  const float scale = ScaleOf(type, block.data());
  const float zero = HasFloatZeroPoints(type) ? ZeroPointOf(type, block.data())
                     : BitsOfCodes(type) == 8 ? 128.0f
                                              : 8.0f;
  std::array<float, kBlock> values{};
  for (size_t k = 0; k < values.size(); ++k) {
    const int q = BitsOfCodes(type) == 8 ? codes[k] : codes[k / 2] >> (k % 2 * 4) & 15;
    const float difference = static_cast<float>(q) - zero;
    values[k] = difference * scale;
  }
  return values;
}

std::array<float, kBlock> ThroughGgml(GgmlType type, const Block& block) {
  std::array<float, kBlock> values{};
  Dequantize(type, block.data(), values);
  return values;
}

float Ulp(float x) {
  x = std::fabs(x);
  return std::nextafter(x, std::numeric_limits<float>::infinity()) - x;
}

uint16_t FiniteHalf() {
  const uint16_t bits = *rc::gen::arbitrary<uint16_t>();
  return (bits & 0x7c00) == 0x7c00 ? static_cast<uint16_t>(bits & ~0x4000) : bits;
}

std::vector<uint8_t> Codes(size_t n) {
  return *rc::gen::container<std::vector<uint8_t>>(n, rc::gen::arbitrary<uint8_t>());
}

TEST(GgufBlocks, FormulasOnKnownBlocks) {
  std::vector<uint8_t> codes(16);
  for (size_t j = 0; j < 16; ++j) codes[j] = static_cast<uint8_t>(j | (15 - j) << 4);
  const Block q4_0 = MakeBlock({F32ToF16(0.5f)}, codes);
  const Block q4_1 = MakeBlock({F32ToF16(0.5f), F32ToF16(-3.0f)}, codes);
  std::vector<uint8_t> bytes(32);
  for (size_t j = 0; j < 32; ++j) bytes[j] = static_cast<uint8_t>(static_cast<int>(j) * 8 - 128);
  const Block q8_0 = MakeBlock({F32ToF16(0.25f)}, bytes);
  for (int j = 0; j < 32; ++j) {
    const float q = static_cast<float>(j < 16 ? j : 31 - j);
    EXPECT_EQ(ThroughGgml(GgmlType::kQ4_0, q4_0)[j], (q - 8) * 0.5f);
    EXPECT_EQ(ThroughGgml(GgmlType::kQ4_1, q4_1)[j], q * 0.5f - 3.0f);
    EXPECT_EQ(ThroughGgml(GgmlType::kQ8_0, q8_0)[j], static_cast<float>(j * 8 - 128) * 0.25f);
  }
}

TEST(GgufBlocks, DenseTypesWiden) {
  std::array<float, 2> out{};
  const uint16_t halves[2] = {0x3c01, 0xfc00};
  Dequantize(GgmlType::kF16, reinterpret_cast<const std::byte*>(halves), out);
  EXPECT_EQ(out[0], 1.0009765625f);
  EXPECT_EQ(out[1], -std::numeric_limits<float>::infinity());
  const uint16_t brains[2] = {0x3f81, 0xc000};
  Dequantize(GgmlType::kBF16, reinterpret_cast<const std::byte*>(brains), out);
  EXPECT_EQ(out[0], 1.0078125f);
  EXPECT_EQ(out[1], -2.0f);
  const float floats[2] = {1e-42f, 3.0f};
  Dequantize(GgmlType::kF32, reinterpret_cast<const std::byte*>(floats), out);
  EXPECT_EQ(out[0], 1e-42f);
}

RC_GTEST_PROP(GgufBlocks, Q8AndQ40AreExact, ()) {
  const Block q8_0 = MakeBlock({FiniteHalf()}, Codes(32));
  RC_ASSERT(ThroughOnnx(GgmlType::kQ8_0, q8_0) == ThroughGgml(GgmlType::kQ8_0, q8_0));
  const Block q4_0 = MakeBlock({FiniteHalf()}, Codes(16));
  RC_ASSERT(ThroughOnnx(GgmlType::kQ4_0, q4_0) == ThroughGgml(GgmlType::kQ4_0, q4_0));
}

RC_GTEST_PROP(GgufBlocks, Q41StaysWithinThreeUlpOfTheLargerEnd, ()) {
  const uint16_t d = FiniteHalf(), m = FiniteHalf();
  std::vector<uint8_t> every_code(16);
  for (size_t j = 0; j < 16; ++j) every_code[j] = static_cast<uint8_t>(j | (15 - j) << 4);
  const Block block = MakeBlock({d, m}, every_code);
  const float end = std::max(std::fabs(F16ToF32(m)), std::fabs(F16ToF32(m) + 15 * F16ToF32(d)));
  const auto onnx = ThroughOnnx(GgmlType::kQ4_1, block), ggml = ThroughGgml(GgmlType::kQ4_1, block);
  for (size_t j = 0; j < onnx.size(); ++j) {
    RC_ASSERT(std::isfinite(onnx[j]));
    RC_ASSERT(std::fabs(static_cast<double>(onnx[j]) - ggml[j]) <= 3.0 * Ulp(end));
  }
}

RC_GTEST_PROP(GgufBlocks, Q41WithoutAStepIsExact, ()) {
  const uint16_t zero = *rc::gen::element<uint16_t>(0x0000, 0x8000);
  const Block block = MakeBlock({zero, FiniteHalf()}, Codes(16));
  RC_ASSERT(ThroughOnnx(GgmlType::kQ4_1, block) == ThroughGgml(GgmlType::kQ4_1, block));
}

TEST(GgufBlocks, FiniteMeansEveryNumberOfTheHead) {
  const uint16_t one = F32ToF16(1), infinity = 0x7c00, nan = 0x7e00;
  const std::vector<uint8_t> codes(16);
  EXPECT_TRUE(IsFiniteBlock(GgmlType::kQ4_1, MakeBlock({one, one}, codes).data()));
  EXPECT_FALSE(IsFiniteBlock(GgmlType::kQ4_1, MakeBlock({one, nan}, codes).data()));
  EXPECT_FALSE(IsFiniteBlock(GgmlType::kQ4_0, MakeBlock({infinity}, codes).data()));
  // The second half of a Q4_0 block is codes.
  EXPECT_TRUE(IsFiniteBlock(GgmlType::kQ4_0, MakeBlock({one, nan}, codes).data()));
}

}  // namespace
}  // namespace granule::package
