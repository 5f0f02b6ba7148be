#include "kernels/rowwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/thread_pool.h"
#include "kernels/cpu/table.h"
#include "kernels/ref/reference.h"
#include "kernels/test_inputs.h"

namespace granule::kernels {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInfinity = std::numeric_limits<float>::infinity();

class RowwiseTest : public testing::TestWithParam<Isa> {
 protected:
  RowwiseTest() : pool_(2), context_(MakeContext(pool_, GetParam())) {}
  ThreadPool pool_;
  Context context_;
};
INSTANTIATE_TEST_SUITE_P(Levels, RowwiseTest, testing::ValuesIn(Levels()),
                         [](const auto& info) { return std::string(IsaName(info.param)); });

TEST_P(RowwiseTest, ExpIsWithinTwoUlp) {
  std::vector<float> x;
  for (int i = 0; i <= 400000; ++i)
    x.push_back(-87.3f + 176.0f * static_cast<float>(i) / 400000.0f);
  std::vector<float> y(x.size());
  context_.table->exp(x.data(), static_cast<int64_t>(x.size()), y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::fabs(y[i] - exact) / ulp);
  }
  EXPECT_LE(worst, 2.0);
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST_P(RowwiseTest, ExpAtTheEdges) {
  const std::vector<float> x = {-kInfinity, -1000.0f, -104.0f, -103.0f,   -88.0f, -0.0f,
                                0.0f,       88.7f,    88.8f,   kInfinity, kNan};
  std::vector<float> y(x.size());
  context_.table->exp(x.data(), static_cast<int64_t>(x.size()), y.data());
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_NEAR(y[3], std::exp(-103.0), 2.9e-45);
  EXPECT_NEAR(y[4], std::exp(-88.0), 2.9e-45);
  EXPECT_EQ(y[5], 1.0f);
  EXPECT_EQ(y[6], 1.0f);
  EXPECT_TRUE(std::isfinite(y[7]));
  EXPECT_EQ(y[8], kInfinity);
  EXPECT_EQ(y[9], kInfinity);
  EXPECT_TRUE(std::isnan(y[10]));
}

// 1 / (1 + e) with e within 2 ulp, and two more roundings: 4 ulp; the polynomial of tanh has an
// error of 1e-7 of its argument.
TEST_P(RowwiseTest, UnaryIsNearReference) {
  Inputs in(1);
  std::vector<float> x = in.Floats(10007, 5.0f);
  for (float special : {0.0f, -0.0f, 1e-30f, 0.62f, 0.63f, -0.625f, 40.0f, -40.0f, 87.0f, -87.0f})
    x.push_back(special);
  std::vector<float> y(x.size());
  for (Unary op : {Unary::kSigmoid, Unary::kSilu, Unary::kTanh, Unary::kNeg}) {
    Elementwise(context_, op, x.data(), static_cast<int64_t>(x.size()), y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = ref::Unary(op, x[i]);
      ASSERT_NEAR(y[i], exact, std::fabs(exact) * 6 * 0x1p-24 + 1e-37)
          << static_cast<int>(op) << " of " << x[i];
    }
  }
  std::vector<float> large = {kInfinity, -kInfinity, kNan, 1e30f, -1e30f};
  std::vector<float> z(5);
  Elementwise(context_, Unary::kTanh, large.data(), 5, z.data());
  EXPECT_EQ(z[0], 1.0f);
  EXPECT_EQ(z[1], -1.0f);
  EXPECT_TRUE(std::isnan(z[2]));
  Elementwise(context_, Unary::kSilu, large.data(), 5, z.data());
  EXPECT_EQ(z[0], kInfinity);
  EXPECT_TRUE(std::isnan(z[2]));
  EXPECT_EQ(z[3], 1e30f);
  EXPECT_EQ(z[4], 0.0f);
}

TEST_P(RowwiseTest, RmsNormIsNearReference) {
  for (int64_t width : {1, 15, 16, 17, 576, 1000}) {
    Inputs in(2);
    const int64_t rows = 40, ldx = width + 3;
    std::vector<float> x = in.Floats(rows * ldx), gamma = in.Floats(width), y(rows * width);
    RmsNorm(context_, x.data(), ldx, gamma.data(), 1e-5f, rows, width, y.data(), width);
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<double> exact = ref::RmsNorm(&x[r * ldx], gamma.data(), 1e-5f, width);
      // The sum of squares has width / 16 + 4 roundings, all of one sign; the square root halves
      // its error; 5 more follow.
      const double bound = (static_cast<double>(width) / 16 + 4 + 10) * 0x1p-24;
      for (int64_t i = 0; i < width; ++i)
        ASSERT_NEAR(y[r * width + i], exact[i], std::fabs(exact[i]) * bound + 1e-30);
    }
    std::vector<float> in_place = x;
    RmsNorm(context_, in_place.data(), ldx, gamma.data(), 1e-5f, rows, width, in_place.data(), ldx);
    for (int64_t r = 0; r < rows; ++r) {
      ASSERT_TRUE(SameBits({in_place.begin() + r * ldx, in_place.begin() + r * ldx + width},
                           {y.begin() + r * width, y.begin() + (r + 1) * width}));
      for (int64_t i = width; i < ldx; ++i) ASSERT_EQ(in_place[r * ldx + i], x[r * ldx + i]);
    }
  }
}

TEST_P(RowwiseTest, SkipRmsNormGivesSumAndNorm) {
  Inputs in(3);
  const int64_t rows = 30, width = 77;
  const std::vector<float> x = in.Floats(rows * width), skip = in.Floats(rows * width),
                           bias = in.Floats(width), gamma = in.Floats(width);
  for (bool with_bias : {false, true}) {
    std::vector<float> sum(rows * width), norm(rows * width);
    for (int64_t i = 0; i < rows * width; ++i)
      sum[i] = x[i] + skip[i] + (with_bias ? bias[i % width] : 0.0f);
    RmsNorm(context_, sum.data(), width, gamma.data(), 1e-6f, rows, width, norm.data(), width);

    SkipRmsNormArgs args{x.data(),     skip.data(), with_bias ? bias.data() : nullptr,
                         gamma.data(), 1e-6f,       rows,
                         width,        nullptr,     nullptr};
    std::vector<float> y(rows * width), s(rows * width);
    args.y = y.data();
    args.sum = s.data();
    SkipRmsNorm(context_, args);
    EXPECT_TRUE(SameBits(y, norm));
    EXPECT_TRUE(SameBits(s, sum));

    std::vector<float> only_y(rows * width);
    args.y = only_y.data();
    args.sum = nullptr;
    SkipRmsNorm(context_, args);
    EXPECT_TRUE(SameBits(only_y, norm));

    std::vector<float> in_place = skip;  // sum may be skip
    args.skip = in_place.data();
    args.sum = in_place.data();
    args.y = nullptr;
    SkipRmsNorm(context_, args);
    EXPECT_TRUE(SameBits(in_place, sum));
    args.skip = skip.data();
  }
}

TEST_P(RowwiseTest, BinaryWithRowsConstantRowAndScalar) {
  Inputs in(4);
  const int64_t rows = 13, width = 1001;
  const std::vector<float> x = in.Floats(rows * width), z = in.Floats(rows * width);
  for (Binary op : {Binary::kAdd, Binary::kSub, Binary::kMul, Binary::kDiv}) {
    std::vector<float> y(rows * width);
    const auto expect = [&](auto z_of) {
      for (int64_t i = 0; i < rows * width; ++i) {
        ASSERT_EQ(y[i], static_cast<float>(ref::Binary(op, x[i], z_of(i)))) << i;
      }
    };
    Elementwise(context_, op, x.data(), z.data(), width, width, rows, width, y.data());
    expect([&](int64_t i) { return z[i]; });
    Elementwise(context_, op, x.data(), z.data(), 0, width, rows, width, y.data());
    expect([&](int64_t i) { return z[i % width]; });
    Elementwise(context_, op, x.data(), z.data(), 0, 1, rows, width, y.data());
    expect([&](int64_t) { return z[0]; });
    y = x;
    Elementwise(context_, op, y.data(), z.data(), width, width, rows, width, y.data());
    expect([&](int64_t i) { return z[i]; });
  }
}

TEST_P(RowwiseTest, SiluMulEqualsItsParts) {
  Inputs in(5);
  const int64_t count = 20011;
  const std::vector<float> gate = in.Floats(count, 4.0f), up = in.Floats(count);
  std::vector<float> silu(count), product(count), y(count);
  Elementwise(context_, Unary::kSilu, gate.data(), count, silu.data());
  Elementwise(context_, Binary::kMul, silu.data(), up.data(), count, count, 1, count,
              product.data());
  SiluMul(context_, gate.data(), up.data(), count, y.data());
  EXPECT_TRUE(SameBits(y, product));
  y = gate;
  SiluMul(context_, y.data(), up.data(), count, y.data());
  EXPECT_TRUE(SameBits(y, product));
}

TEST_P(RowwiseTest, RoundToEqualsTheScalarConversions) {
  Inputs in(6);
  std::vector<float> x = in.Floats(5000, 100.0f);
  for (float special : {0.0f, -0.0f, 65504.0f, 65519.0f, 65520.0f, 1e-8f, 3e-8f, 6e-8f, 5.96e-8f,
                        kInfinity, -kInfinity, 3.4e38f, 1e-40f, 1.00048828125f, 1.00146484375f}) {
    x.push_back(special);
  }
  std::vector<float> y(x.size());
  RoundTo(context_, DType::kF16, x.data(), static_cast<int64_t>(x.size()), y.data());
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], F16ToF32(F32ToF16(x[i]))) << x[i];
  RoundTo(context_, DType::kBF16, x.data(), static_cast<int64_t>(x.size()), y.data());
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], BF16ToF32(F32ToBF16(x[i]))) << x[i];
  x = {kNan};
  for (DType type : {DType::kF16, DType::kBF16}) {
    RoundTo(context_, type, x.data(), 1, y.data());
    EXPECT_TRUE(std::isnan(y[0]));
  }
  // Every fp16 value survives.
  std::vector<float> all;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    if (!std::isnan(F16ToF32(static_cast<uint16_t>(bits))))
      all.push_back(F16ToF32(static_cast<uint16_t>(bits)));
  }
  std::vector<float> back(all.size());
  RoundTo(context_, DType::kF16, all.data(), static_cast<int64_t>(all.size()), back.data());
  EXPECT_TRUE(SameBits(all, back));
}

TEST_P(RowwiseTest, GatherRowsOfEveryType) {
  Inputs in(7);
  const int64_t table_rows = 11, width = 37, ldy = 40;
  const std::vector<int64_t> ids = {3, 10, 0, -1, 11, 3};
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::vector<std::byte> table = Narrow(in.Floats(table_rows * width), type);
    std::vector<float> y(ids.size() * ldy, 7.0f);
    GatherRows(context_, table.data(), type, table_rows, width, ids, y.data(), ldy);
    for (size_t r = 0; r < ids.size(); ++r) {
      const bool known = ids[r] >= 0 && ids[r] < table_rows;
      for (int64_t i = 0; i < width; ++i) {
        ASSERT_EQ(y[r * ldy + i],
                  known ? ref::ElementOf(table.data(), type, ids[r] * width + i) : 0.0);
      }
      for (int64_t i = width; i < ldy; ++i) ASSERT_EQ(y[r * ldy + i], 7.0f);
    }
  }
}

TEST_P(RowwiseTest, GatherQuantizedRowsInEveryForm) {
  uint32_t seed = 8;
  for (int bits : {4, 8}) {
    for (int64_t block : {16, 32, 128}) {
      for (bool is_signed : {false, true}) {
        for (bool zeros : {false, true}) {
          for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
            Inputs in(seed++);
            const int64_t rows = 9, width = 176, blocks = (width + block - 1) / block;
            const std::vector<uint8_t> data = in.Bytes(rows * width * bits / 8),
                                       zero = in.Bytes(rows * ((blocks * bits + 7) / 8));
            const std::vector<std::byte> scales = Narrow(in.Floats(rows * blocks), type);
            const QuantizedTable table{rows,
                                       width,
                                       bits,
                                       block,
                                       data.data(),
                                       is_signed,
                                       scales.data(),
                                       type,
                                       zeros ? zero.data() : nullptr,
                                       is_signed ? 0 : 1 << (bits - 1)};
            const std::vector<int64_t> ids = {8, 0, 5, 9, -3};
            std::vector<float> y(ids.size() * width, kNan);
            GatherQuantizedRows(context_, table, ids, y.data(), width);
            for (size_t r = 0; r < ids.size(); ++r) {
              if (ids[r] < 0 || ids[r] >= rows) {
                for (int64_t i = 0; i < width; ++i) ASSERT_EQ(y[r * width + i], 0.0f);
                continue;
              }
              const std::vector<double> exact = ref::GatherQuantizedRow(table, ids[r]);
              for (int64_t i = 0; i < width; ++i)
                ASSERT_EQ(y[r * width + i], static_cast<float>(exact[i]));
            }
          }
        }
      }
    }
  }
}

TEST_P(RowwiseTest, ArgMaxTakesTheLowestAmongEqualsAndNoNan) {
  Inputs in(9);
  for (int64_t count : {1, 15, 16, 17, 100, 49152}) {
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<float> x(static_cast<size_t>(count));
      for (float& v : x) v = trial < 10 ? static_cast<float>(in.Below(5)) - 10.0f : in.Normal();
      if (trial % 3 == 0) x[in.Below(static_cast<int>(count))] = kNan;
      ASSERT_EQ(ArgMax(context_, x.data(), count), ref::ArgMax(x.data(), count));
    }
  }
  const std::vector<float> nan(40, kNan);
  EXPECT_EQ(ArgMax(context_, nan.data(), 40), 0);
  std::vector<float> mostly = nan;
  mostly[33] = -kInfinity;
  EXPECT_EQ(ArgMax(context_, mostly.data(), 40), 33);
  EXPECT_EQ(ArgMax(context_, std::vector<float>(50, -kInfinity).data(), 50), 0);
}

TEST(RowwiseLevels, Avx2AndAvx512AgreeBitForBit) {
  if (BestIsa() < Isa::kAvx512) GTEST_SKIP() << "this CPU has no AVX-512";
  ThreadPool pool(1);
  const Context avx2 = MakeContext(pool, Isa::kAvx2), avx512 = MakeContext(pool, Isa::kAvx512);
  Inputs in(10);
  const int64_t count = 100003;
  const std::vector<float> x = in.Floats(count, 10.0f), gamma = in.Floats(count);
  std::vector<float> a(count), b(count);
  for (Unary op : {Unary::kSigmoid, Unary::kSilu, Unary::kTanh, Unary::kNeg}) {
    Elementwise(avx2, op, x.data(), count, a.data());
    Elementwise(avx512, op, x.data(), count, b.data());
    EXPECT_TRUE(SameBits(a, b));
  }
  for (int64_t width : {3, 16, 50, 576}) {
    RmsNorm(avx2, x.data(), width, gamma.data(), 1e-5f, 7, width, a.data(), width);
    RmsNorm(avx512, x.data(), width, gamma.data(), 1e-5f, 7, width, b.data(), width);
    EXPECT_TRUE(SameBits(a, b));
  }
}

TEST_P(RowwiseTest, CeilingsAreNumbers) {
  EXPECT_GT(MeasureReadCeiling(context_, 8 << 20), 1e8);
  EXPECT_GT(MeasureFmaCeiling(context_), 1e8);
}

}  // namespace
}  // namespace granule::kernels
