#include "kernels/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/thread_pool.h"
#include "kernels/ref/reference.h"
#include "kernels/test_inputs.h"

namespace granule::kernels {
namespace {

using ZeroPoints = QuantizedWeights::ZeroPoints;

struct Case {
  int64_t n, k;
  int bits;
  int64_t block;
  ZeroPoints zero_points;
  DType scales, zero_type;
  bool half_values;  // scales are fp16 values whatever their type
};

std::string Name(const Case& c) {
  const char* zero[] = {"Default", "Packed", "Float"};
  return "N" + std::to_string(c.n) + "K" + std::to_string(c.k) + "Bits" + std::to_string(c.bits) +
         "Block" + std::to_string(c.block) + zero[static_cast<int>(c.zero_points)] +
         std::string(DTypeName(c.scales)) + std::string(DTypeName(c.zero_type)) +
         (c.half_values ? "Half" : "");
}

// A quantised matrix with random codes, scales of both signs, and zero points of the wanted form.
struct Quantized {
  QuantizedWeights weights;
  std::vector<uint8_t> q, packed;
  std::vector<std::byte> scales, zeros;

  Quantized(const Case& c, Inputs& in) {
    const int64_t blocks = (c.k + c.block - 1) / c.block;
    q = in.Bytes(c.n * blocks * c.block * c.bits / 8);
    std::vector<float> s = in.Floats(c.n * blocks, 0.02f);
    if (c.half_values) {
      for (float& x : s) x = F16ToF32(F32ToF16(x));
    }
    scales = Narrow(s, c.scales);
    packed = in.Bytes(c.n * ((blocks * c.bits + 7) / 8));
    std::vector<float> z = in.Floats(c.n * blocks, c.bits == 4 ? 4.0f : 50.0f);
    for (float& x : z) x += c.bits == 4 ? 7.3f : 120.4f;
    zeros = Narrow(z, c.zero_type);
    weights = {c.n,           c.k,      c.bits,        c.block, q.data(),
               scales.data(), c.scales, c.zero_points, nullptr, c.zero_type};
    if (c.zero_points == ZeroPoints::kPacked) weights.zero_points = packed.data();
    if (c.zero_points == ZeroPoints::kFloat) weights.zero_points = zeros.data();
  }
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  // Shapes: odd N and K, K inside a group, K inside a block, several panels, several strips, blocks
  // of every size.
  struct Shape {
    int64_t n, k, block;
  };
  for (Shape s : {Shape{1, 1, 16},
                  {7, 33, 16},
                  {16, 64, 32},
                  {33, 95, 32},
                  {70, 576, 32},
                  {96, 576, 64},
                  {31, 1536, 128},
                  {40, 700, 256},
                  {65, 1537, 512},
                  {5, 1100, 1024}}) {
    for (int bits : {4, 8}) {
      cases.push_back(
          {s.n, s.k, bits, s.block, ZeroPoints::kDefault, DType::kF32, DType::kF32, false});
      cases.push_back(
          {s.n, s.k, bits, s.block, ZeroPoints::kPacked, DType::kF16, DType::kF32, true});
      cases.push_back(
          {s.n, s.k, bits, s.block, ZeroPoints::kFloat, DType::kF32, DType::kF32, true});
      cases.push_back(
          {s.n, s.k, bits, s.block, ZeroPoints::kFloat, DType::kF32, DType::kF16, false});
      cases.push_back(
          {s.n, s.k, bits, s.block, ZeroPoints::kPacked, DType::kBF16, DType::kF32, false});
      cases.push_back(
          {s.n, s.k, bits, s.block, ZeroPoints::kFloat, DType::kBF16, DType::kBF16, false});
    }
  }
  return cases;
}

std::vector<float> Multiply(const Context& context, const std::vector<float>& a, int64_t lda,
                            int64_t m, const PackedMatrix& w, const float* bias) {
  std::vector<float> y(static_cast<size_t>(m * w.n()), std::numeric_limits<float>::quiet_NaN());
  const MatMulOutput output{&w, bias, y.data(), w.n()};
  MatMul(context, a.data(), lda, m, {&output, 1});
  return y;
}

// Rounding errors of a chain of k multiply-adds: at most k + 1 roundings of partial sums (two each
// at the portable level), each of half an ulp of at most sum |a| |w|, and the weight's own: half an
// ulp of it, of its zero-point product and, before the zero point is taken away, of q * scale,
// which can be 16 or 256 times the weight for 4 or 8 bits (weight_slack).
void ExpectNear(const std::vector<float>& y, const ref::Product& expected, int64_t k, double slack,
                const std::string& what) {
  const double eps = std::numeric_limits<float>::epsilon() / 2;
  ASSERT_EQ(y.size(), expected.y.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const double bound = expected.magnitude[i] * eps * 2 * static_cast<double>(k + 2) + slack;
    ASSERT_NEAR(y[i], expected.y[i], bound) << what << " element " << i;
  }
}

class PerLevel : public testing::TestWithParam<Isa> {
 protected:
  PerLevel()
      : pool_(2),
        one_(1),
        context_(MakeContext(pool_, GetParam())),
        single_(MakeContext(one_, GetParam())) {}
  ThreadPool pool_, one_;
  Context context_, single_;
};

using MatMulTest = PerLevel;
INSTANTIATE_TEST_SUITE_P(Levels, MatMulTest, testing::ValuesIn(Levels()),
                         [](const auto& info) { return std::string(IsaName(info.param)); });

TEST_P(MatMulTest, QuantizedIsNearReferenceAndRowsDoNotMatter) {
  uint32_t seed = 1;
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c));
    Inputs in(seed++);
    const Quantized source(c, in);
    auto packed = PackedMatrix::Pack(context_, source.weights);
    ASSERT_TRUE(packed.ok());
    const PackedMatrix& w = **packed;
    const int64_t m = 29, lda = c.k + 3;
    const std::vector<float> a = in.Floats(m * lda);
    const std::vector<float> bias = in.Floats(c.n);
    const std::vector<double> exact = ref::Dequantize(source.weights);
    const std::vector<float> y = Multiply(context_, a, lda, m, w, bias.data());

    // What the fp32 value of a weight may differ from the exact one, times the row of a.
    double weight_error = 0;
    std::vector<float> row(static_cast<size_t>(c.k));
    for (int64_t n = 0; n < c.n; ++n) {
      w.DequantizeRow(n, row.data());
      for (int64_t k = 0; k < c.k; ++k) {
        const double scale = std::fabs(ref::ElementOf(
            source.weights.scales, c.scales, n * ((c.k + c.block - 1) / c.block) + k / c.block));
        const double difference = std::fabs(row[k] - exact[n * c.k + k]);
        // One rounding of zero_point * scale, one of the sum; |zero point| < 512 in these cases.
        ASSERT_LE(difference, 512 * scale * std::numeric_limits<float>::epsilon()) << n << " " << k;
        weight_error = std::max(weight_error, difference);
      }
    }
    double a_size = 0;
    for (int64_t r = 0; r < m; ++r) {
      double sum = 0;
      for (int64_t k = 0; k < c.k; ++k) sum += std::fabs(a[r * lda + k]);
      a_size = std::max(a_size, sum);
    }
    ExpectNear(y, ref::MatMul(a.data(), lda, m, exact, c.n, c.k, bias.data()), c.k,
               weight_error * a_size, "y");

    for (int64_t rows : {1, 2, 3, 4, 5, 7, 12, 13}) {
      const std::vector<float> some = Multiply(context_, a, lda, rows, w, bias.data());
      ASSERT_TRUE(SameBits(some, {y.begin(), y.begin() + rows * c.n})) << rows << " rows";
    }
    ASSERT_TRUE(SameBits(y, Multiply(single_, a, lda, m, w, bias.data()))) << "one thread";
  }
}

TEST_P(MatMulTest, QuantizedEqualsItsDequantizedTwinBitForBit) {
  uint32_t seed = 100;
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c));
    Inputs in(seed++);
    const Quantized source(c, in);
    auto packed = PackedMatrix::Pack(context_, source.weights);
    ASSERT_TRUE(packed.ok());
    std::vector<float> twin(static_cast<size_t>(c.n * c.k));
    for (int64_t n = 0; n < c.n; ++n) (*packed)->DequantizeRow(n, &twin[n * c.k]);
    DenseWeights dense{c.n, c.k, twin.data(), DType::kF32, true};
    auto packed_twin = PackedMatrix::Pack(context_, dense);
    ASSERT_TRUE(packed_twin.ok());
    const std::vector<float> a = in.Floats(14 * c.k);
    for (int64_t m : {1, 3, 14}) {
      ASSERT_TRUE(SameBits(Multiply(context_, a, c.k, m, **packed, nullptr),
                           Multiply(context_, a, c.k, m, **packed_twin, nullptr)))
          << m << " rows";
    }
  }
}

TEST_P(MatMulTest, DenseOfEveryTypeIsNearReference) {
  uint32_t seed = 200;
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (bool transposed : {false, true}) {
      for (auto [n, k] : std::vector<std::pair<int64_t, int64_t>>{
               {1, 1}, {17, 33}, {64, 576}, {100, 1025}, {31, 5}}) {
        SCOPED_TRACE(std::string(DTypeName(type)) + (transposed ? " [n,k] " : " [k,n] ") +
                     std::to_string(n) + " " + std::to_string(k));
        Inputs in(seed++);
        const std::vector<std::byte> data = Narrow(in.Floats(n * k), type);
        const DenseWeights source{n, k, data.data(), type, transposed};
        auto packed = PackedMatrix::Pack(context_, source);
        ASSERT_TRUE(packed.ok());
        const std::vector<float> a = in.Floats(37 * k);
        const std::vector<float> bias = in.Floats(n);
        const std::vector<double> w = ref::Dense(source);
        std::vector<float> row(static_cast<size_t>(k));
        for (int64_t i = 0; i < n; ++i) {
          (*packed)->DequantizeRow(i, row.data());
          for (int64_t j = 0; j < k; ++j) ASSERT_EQ(row[j], w[i * k + j]);
        }
        const std::vector<float> y = Multiply(context_, a, k, 37, **packed, bias.data());
        ExpectNear(y, ref::MatMul(a.data(), k, 37, w, n, k, bias.data()), k, 0, "y");
        for (int64_t rows : {1, 2, 3, 4, 6, 9, 11, 36}) {
          ASSERT_TRUE(SameBits(Multiply(context_, a, k, rows, **packed, bias.data()),
                               {y.begin(), y.begin() + rows * n}))
              << rows;
        }
      }
    }
  }
}

TEST_P(MatMulTest, ChainIsOneMultiplyAddAfterTheOther) {
  if (GetParam() == Isa::kPortable) GTEST_SKIP() << "the portable level has no fused multiply-add";
  Inputs in(7);
  const int64_t n = 3, k = 777;
  const std::vector<float> w = in.Floats(n * k), a = in.Floats(k), bias = in.Floats(n);
  auto packed = PackedMatrix::Pack(context_, DenseWeights{n, k, w.data(), DType::kF32, true});
  ASSERT_TRUE(packed.ok());
  std::vector<float> expected;
  for (int64_t i = 0; i < n; ++i) {
    float sum = 0.0f;
    for (int64_t j = 0; j < k; ++j) sum = std::fma(w[i * k + j], a[j], sum);
    expected.push_back(sum + bias[i]);
  }
  EXPECT_TRUE(SameBits(Multiply(context_, a, k, 1, **packed, bias.data()), expected));
}

// Row counts around every register block and pass, the same row everywhere.
TEST_P(MatMulTest, ManyRowsGiveTheBitsOfOne) {
  Inputs in(8);
  const Case c{80, 600, 4, 32, ZeroPoints::kFloat, DType::kF32, DType::kF32, false};
  const Quantized source(c, in);
  auto packed = PackedMatrix::Pack(context_, source.weights);
  ASSERT_TRUE(packed.ok());
  const std::vector<float> row = in.Floats(c.k);
  const std::vector<float> one = Multiply(context_, row, c.k, 1, **packed, nullptr);
  for (int64_t m : {64, 143, 144, 145, 157, 300}) {
    std::vector<float> a;
    for (int64_t i = 0; i < m; ++i) a.insert(a.end(), row.begin(), row.end());
    const std::vector<float> y = Multiply(context_, a, c.k, m, **packed, nullptr);
    for (int64_t i = 0; i < m; ++i) {
      ASSERT_TRUE(SameBits(one, {y.begin() + i * c.n, y.begin() + (i + 1) * c.n}))
          << m << " rows, row " << i;
    }
  }
}

TEST_P(MatMulTest, SeveralOutputsInOneCallAndNothingElseIsWritten) {
  Inputs in(9);
  const int64_t k = 96, ldy = 200;
  const Case cases[] = {{100, k, 4, 32, ZeroPoints::kPacked, DType::kF16, DType::kF32, true},
                        {5, k, 8, 32, ZeroPoints::kDefault, DType::kF32, DType::kF32, false},
                        {64, k, 4, 16, ZeroPoints::kFloat, DType::kF32, DType::kF32, false}};
  std::vector<std::shared_ptr<const PackedMatrix>> packed;
  std::vector<std::vector<float>> biases;
  for (const Case& c : cases) {
    const Quantized source(c, in);
    auto p = PackedMatrix::Pack(context_, source.weights);
    ASSERT_TRUE(p.ok());
    packed.push_back(*p);
    biases.push_back(in.Floats(c.n));
  }
  for (int64_t m : {1, 2, 5, 150}) {
    const std::vector<float> a = in.Floats(m * k);
    const float mark = -12345.0f;
    std::vector<std::vector<float>> ys(3, std::vector<float>(m * ldy, mark));
    MatMulOutput outputs[3];
    for (int i = 0; i < 3; ++i)
      outputs[i] = {packed[i].get(), i == 1 ? nullptr : biases[i].data(), ys[i].data(), ldy};
    MatMul(context_, a.data(), k, m, outputs);
    for (int i = 0; i < 3; ++i) {
      const int64_t n = cases[i].n;
      const std::vector<float> alone = Multiply(single_, a, k, m, *packed[i], outputs[i].bias);
      for (int64_t r = 0; r < m; ++r) {
        ASSERT_TRUE(SameBits({ys[i].begin() + r * ldy, ys[i].begin() + r * ldy + n},
                             {alone.begin() + r * n, alone.begin() + (r + 1) * n}));
        for (int64_t c = n; c < ldy; ++c) ASSERT_EQ(ys[i][r * ldy + c], mark);
      }
    }
  }
}

TEST_P(MatMulTest, NoRowsAndNoInnerSize) {
  const float w = 1.0f, bias[2] = {3.0f, -4.0f};
  auto packed = PackedMatrix::Pack(context_, DenseWeights{2, 0, &w, DType::kF32, true});
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ(Multiply(context_, {1.0f}, 1, 1, **packed, bias), (std::vector<float>{3.0f, -4.0f}));
  std::vector<float> six = Multiply(context_, std::vector<float>(6), 1, 6, **packed, bias);
  EXPECT_EQ(six, (std::vector<float>{3, -4, 3, -4, 3, -4, 3, -4, 3, -4, 3, -4}));
  EXPECT_TRUE(Multiply(context_, {}, 0, 0, **packed, bias).empty());
}

TEST_P(MatMulTest, OnlyItsOwnRowReachesAResult) {
  Inputs in(10);
  const Case c{64, 100, 4, 32, ZeroPoints::kFloat, DType::kF32, DType::kF32, false};
  const Quantized source(c, in);
  auto packed = PackedMatrix::Pack(context_, source.weights);
  ASSERT_TRUE(packed.ok());
  for (int64_t m : {3, 4, 20}) {
    // Gaps between the rows and all rows but one are NaN.
    const int64_t lda = c.k + 5;
    std::vector<float> a(m * lda, std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> row = in.Floats(c.k);
    std::copy(row.begin(), row.end(), a.begin() + 2 * lda);
    const std::vector<float> y = Multiply(context_, a, lda, m, **packed, nullptr);
    EXPECT_TRUE(SameBits({y.begin() + 2 * c.n, y.begin() + 3 * c.n},
                         Multiply(context_, row, c.k, 1, **packed, nullptr)));
  }
}

// R16 of the public trials: 4-bit blocks of 512, odd block counts, absent zero points.
struct Trial {
  int64_t k, block;
  bool zero_points;
  float y[4];
};
class TrialTest : public testing::TestWithParam<std::tuple<Isa, Trial>> {};
INSTANTIATE_TEST_SUITE_P(
    R16, TrialTest,
    testing::Combine(testing::ValuesIn(Levels()),
                     testing::Values(Trial{96, 32, false, {8.75f, -19.5f, -11.75f, 4.0f}},
                                     Trial{96, 32, true, {4.5f, -24.0f, -4.5f, 11.0f}},
                                     Trial{80, 32, true, {-24.0f, -25.5f, -3.0f, 3.5f}},
                                     Trial{512, 512, true, {2.5f, 11.0f, 13.5f, -0.5f}},
                                     Trial{2048, 512, true, {0.0f, 25.0f, -12.25f, 4.5f}})));

TEST_P(TrialTest, IsExact) {
  const auto& [isa, trial] = GetParam();
  ThreadPool pool(2);
  const Context context = MakeContext(pool, isa);
  const int64_t n = 4, blocks = (trial.k + trial.block - 1) / trial.block,
                zero_row = (blocks + 1) / 2;
  std::vector<uint8_t> q(n * blocks * trial.block / 2), zeros(n * zero_row);
  std::vector<float> scales(n * blocks);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t b = 0; b < blocks; ++b) {
      scales[i * blocks + b] = 0.25f + 0.25f * static_cast<float>((i * blocks + b) % 3);
      zeros[i * zero_row + b / 2] |= ((5 * (i * blocks + b) + 1) % 16) << (4 * (b % 2));
      for (int64_t j = 0; j < trial.block; ++j) {
        const int64_t at = i * blocks * trial.block + b * trial.block + j;
        q[at / 2] |= ((7 * at + i) % 16) << (4 * (at % 2));
      }
    }
  }
  QuantizedWeights weights{n, trial.k, 4, trial.block, q.data(), scales.data(), DType::kF32};
  if (trial.zero_points) {
    weights.zero_points_kind = ZeroPoints::kPacked;
    weights.zero_points = zeros.data();
  }
  auto packed = PackedMatrix::Pack(context, weights);
  ASSERT_TRUE(packed.ok());
  for (int64_t m : {1, 3, 9}) {
    std::vector<float> a;
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t i = 0; i < trial.k; ++i) a.push_back(static_cast<float>(i % 5 - 2));
    }
    const std::vector<float> y = Multiply(context, a, trial.k, m, **packed, nullptr);
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t i = 0; i < n; ++i)
        EXPECT_EQ(y[r * n + i], trial.y[i]) << m << " " << r << " " << i;
    }
  }
}

TEST(MatMulLevels, Avx2AndAvx512AgreeBitForBit) {
  if (BestIsa() < Isa::kAvx512) GTEST_SKIP() << "this CPU has no AVX-512";
  ThreadPool pool(2);
  const Context avx2 = MakeContext(pool, Isa::kAvx2), avx512 = MakeContext(pool, Isa::kAvx512);
  uint32_t seed = 300;
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c));
    Inputs in(seed++);
    const Quantized source(c, in);
    auto packed = PackedMatrix::Pack(avx2, source.weights);
    ASSERT_TRUE(packed.ok());
    const std::vector<float> a = in.Floats(17 * c.k);
    for (int64_t m : {1, 2, 3, 4, 17}) {
      ASSERT_TRUE(SameBits(Multiply(avx2, a, c.k, m, **packed, nullptr),
                           Multiply(avx512, a, c.k, m, **packed, nullptr)))
          << m;
    }
  }
}

TEST(PackedMatrix, SizesFollowTheLayout) {
  ThreadPool pool(1);
  const Context context = MakeContext(pool, Isa::kPortable);
  Inputs in(11);
  // fp16 scales, no mins: 64 + 4 groups * 128 bytes per 32 x 32 weights = 4.5 bits per weight.
  Case c{64, 64, 4, 32, ZeroPoints::kDefault, DType::kF32, DType::kF32, true};
  const Quantized plain(c, in);
  EXPECT_EQ((*PackedMatrix::Pack(context, plain.weights))->bytes(), 4u * (64 + 512));
  c.zero_points = ZeroPoints::kFloat;
  const Quantized mins(c, in);
  EXPECT_EQ((*PackedMatrix::Pack(context, mins.weights))->bytes(), 4u * (64 + 128 + 512));
  c.half_values = false;
  const Quantized full(c, in);
  EXPECT_EQ((*PackedMatrix::Pack(context, full.weights))->bytes(), 4u * (128 + 128 + 512));
}

// Equal integer zero points, packed or float, are folded into a constant; a common fraction is not.
TEST(PackedMatrix, UniformZeroPoints) {
  ThreadPool pool(1);
  Inputs in(12);
  const Case c{32, 64, 4, 32, ZeroPoints::kFloat, DType::kF32, DType::kF32, true};
  for (Isa isa : Levels()) {
    const Context context = MakeContext(pool, isa);
    for (float zero : {3.0f, 7.5f, -2.0f, 5000.0f}) {
      const Quantized source(c, in);
      std::vector<float> zeros(64, zero);
      QuantizedWeights weights = source.weights;
      weights.zero_points = zeros.data();
      auto packed = PackedMatrix::Pack(context, weights);
      ASSERT_TRUE(packed.ok());
      const bool folded = zero == 3.0f || zero == -2.0f;
      EXPECT_EQ((*packed)->bytes(), folded ? 4u * (64 + 512) : 4u * (64 + 128 + 512)) << zero;
      const std::vector<double> exact = ref::Dequantize(weights);
      std::vector<float> row(64), unit(64);
      for (int64_t k = 0; k < 64; ++k) {
        unit.assign(64, 0.0f);
        unit[k] = 1.0f;
        const std::vector<float> y = Multiply(context, unit, 64, 1, **packed, nullptr);
        for (int64_t n = 0; n < 32; ++n) {
          (*packed)->DequantizeRow(n, row.data());
          EXPECT_EQ(y[n], row[k]);
          EXPECT_NEAR(row[k], exact[n * 64 + k], 5000 * 0.2 * 1.2e-7);
        }
      }
    }
  }
}

}  // namespace
}  // namespace granule::kernels
