// Row-wise operators on a GPU against their double-precision definitions.
#include "kernels/cuda/cuda_rowwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>

#include "base/arith.h"
#include "kernels/cuda/kernels_for_test.h"
#include "kernels/ref/reference.h"
#include "kernels/test_inputs.h"

namespace granule::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class CudaRowwiseTest : public CudaKernelTest {
 protected:
  // Output memory that no result can hide in.
  cuda::Buffer Poisoned(int64_t floats) {
    return Put(std::vector<float>(static_cast<size_t>(floats), kNaN));
  }
  std::vector<float> Floats(const cuda::Buffer& buffer, int64_t count) {
    return Get<float>(buffer.address(), static_cast<size_t>(count));
  }

  // Median of 20 runs, in seconds.
  double Seconds(const std::function<void()>& work) {
    const cuda::Driver& driver = device().driver();
    cuda::EventHandle start = nullptr, stop = nullptr;
    device().MakeCurrent();
    EXPECT_EQ(driver.EventCreate(&start, 0), cuda::kSuccess);
    EXPECT_EQ(driver.EventCreate(&stop, 0), cuda::kSuccess);
    std::vector<float> times;
    for (int run = 0; run < 22; ++run) {
      driver.EventRecord(start, device().stream());
      work();
      driver.EventRecord(stop, device().stream());
      EXPECT_EQ(driver.EventSynchronize(stop), cuda::kSuccess);
      float ms = 0;
      driver.EventElapsedTime(&ms, start, stop);
      if (run >= 2) times.push_back(ms);  // after the loading of the kernel
    }
    driver.EventDestroy(start);
    driver.EventDestroy(stop);
    std::nth_element(times.begin(), times.begin() + 10, times.end());
    return times[10] * 1e-3;
  }
};

// Expects |got - want| <= tolerance * (1 + |want|) in every element; prints the first few that
// differ.
void ExpectNear(const std::vector<float>& got, const std::vector<double>& want, double tolerance,
                const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  int shown = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - want[i]);
    if (difference <= tolerance * (1.0 + std::abs(want[i]))) continue;
    ADD_FAILURE() << what << ": element " << i << " is " << got[i] << ", expected " << want[i];
    if (++shown == 5) return;
  }
}

void Append(std::vector<double>& to, const std::vector<double>& values) {
  to.insert(to.end(), values.begin(), values.end());
}

// Widths around every boundary of the kernels: groups of 4, warps, threads of a block, what stays
// in registers.
const std::vector<int64_t> kWidths = {1,    3,    4,    31,   64,   127,   128,   576,  896,
                                      1023, 1024, 1025, 2049, 5120, 20000, 20481, 25000};

TEST_F(CudaRowwiseTest, RmsNormOfEveryWidth) {
  for (const int64_t width : kWidths) {
    Inputs in(static_cast<uint32_t>(width));
    const int64_t rows = 3, ldx = width + 5, ldy = width + 2;
    const auto x = in.Floats(rows * ldx, 3.0f);
    const auto gamma = in.Floats(width);
    std::vector<double> want;
    for (int64_t r = 0; r < rows; ++r)
      Append(want, ref::RmsNorm(x.data() + r * ldx, gamma.data(), 1e-5, width));
    const auto dx = Put(x);
    const auto dgamma = Put(gamma);
    const auto dy = Poisoned(rows * ldy);
    RmsNorm(launcher(), dx.as<float>(), ldx, dgamma.as<float>(), 1e-5f, rows, width, dy.as<float>(),
            ldy);
    ExpectRan();
    const auto y = Floats(dy, rows * ldy);
    std::vector<float> got;
    for (int64_t r = 0; r < rows; ++r) {
      got.insert(got.end(), y.begin() + r * ldy, y.begin() + r * ldy + width);
      for (int64_t i = width; i < ldy; ++i)
        EXPECT_TRUE(std::isnan(y[static_cast<size_t>(r * ldy + i)]));
    }
    ExpectNear(got, want, 2e-6, Format("width {}", width));

    // In place, and dense: where the width allows wide loads the bits are the same.
    std::vector<float> dense;
    for (int64_t r = 0; r < rows; ++r)
      dense.insert(dense.end(), x.begin() + r * ldx, x.begin() + r * ldx + width);
    const auto in_place = Put(dense);
    RmsNorm(launcher(), in_place.as<float>(), width, dgamma.as<float>(), 1e-5f, rows, width,
            in_place.as<float>(), width);
    ExpectRan();
    EXPECT_TRUE(SameBits(Floats(in_place, rows * width), got)) << "width " << width;
  }
}

TEST_F(CudaRowwiseTest, SkipRmsNormWithEveryOptionalPart) {
  for (const int64_t width : kWidths) {
    for (const bool with_bias : {false, true}) {
      Inputs in(static_cast<uint32_t>(width) + 7);
      const int64_t rows = 2;
      const auto x = in.Floats(rows * width);
      const auto skip = in.Floats(rows * width, 2.0f);
      const auto bias = in.Floats(width, 0.5f);
      const auto gamma = in.Floats(width);
      std::vector<float> sums(x.size());
      std::vector<double> want_sum, want;
      for (size_t i = 0; i < x.size(); ++i) {
        sums[i] = x[i] + skip[i];
        if (with_bias) sums[i] += bias[i % static_cast<size_t>(width)];
        want_sum.push_back(sums[i]);
      }
      for (int64_t r = 0; r < rows; ++r)
        Append(want, ref::RmsNorm(sums.data() + r * width, gamma.data(), 1e-6, width));
      const auto dbias = Put(bias);
      const auto dgamma = Put(gamma);
      // Where the sum goes: nowhere, elsewhere, over x, over skip; and without y.
      enum Where { kNowhere, kElsewhere, kOverX, kOverSkip, kSumAlone };
      for (const Where where : {kNowhere, kElsewhere, kOverX, kOverSkip, kSumAlone}) {
        const auto dx = Put(x);
        const auto dskip = Put(skip);
        const auto dy = Poisoned(rows * width);
        const auto dsum = Poisoned(rows * width);
        SkipRmsNormArgs args;
        args.x = dx.as<float>();
        args.skip = dskip.as<float>();
        args.bias = with_bias ? dbias.as<float>() : nullptr;
        args.gamma = dgamma.as<float>();
        args.epsilon = 1e-6f;
        args.rows = rows;
        args.width = width;
        args.y = where == kSumAlone ? nullptr : dy.as<float>();
        args.sum = where == kNowhere    ? nullptr
                   : where == kOverX    ? dx.as<float>()
                   : where == kOverSkip ? dskip.as<float>()
                                        : dsum.as<float>();
        SkipRmsNorm(launcher(), args);
        ExpectRan();
        const std::string what = Format("width {} bias {} case {}", width, with_bias, int{where});
        if (args.y != nullptr) ExpectNear(Floats(dy, rows * width), want, 2e-6, what);
        if (args.sum != nullptr) {
          const cuda::Buffer& sum = where == kOverX ? dx : where == kOverSkip ? dskip : dsum;
          ExpectNear(Floats(sum, rows * width), want_sum, 0, what + " sum");
        }
      }
    }
  }
}

TEST_F(CudaRowwiseTest, BinaryOfEveryBroadcast) {
  for (const int64_t width : {1, 5, 64, 1025, 4096}) {
    const int64_t rows = 3;
    // z: a matrix, a constant row, one element for all, one element per row.
    struct Shape {
      int64_t ld, width;
    };
    for (const Shape z : {Shape{width, width}, Shape{0, width}, Shape{0, 1}, Shape{1, 1}}) {
      for (const Binary op : {Binary::kAdd, Binary::kSub, Binary::kMul, Binary::kDiv}) {
        Inputs in(static_cast<uint32_t>(width * 10 + z.ld));
        const auto x = in.Floats(rows * width);
        const auto zs = in.Floats(rows * width);
        std::vector<double> want;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t i = 0; i < width; ++i) {
            want.push_back(ref::Binary(op, x[static_cast<size_t>(r * width + i)],
                                       zs[static_cast<size_t>(r * z.ld + (z.width == 1 ? 0 : i))]));
          }
        }
        const auto dx = Put(x);
        const auto dz = Put(zs);
        const auto dy = Poisoned(rows * width);
        const std::string what =
            Format("width {} z {}/{} op {}", width, z.ld, z.width, static_cast<int>(op));
        Elementwise(launcher(), op, dx.as<float>(), dz.as<float>(), z.ld, z.width, rows, width,
                    dy.as<float>());
        ExpectRan();
        ExpectNear(Floats(dy, rows * width), want, 1e-6, what);
        Elementwise(launcher(), op, dx.as<float>(), dz.as<float>(), z.ld, z.width, rows, width,
                    dx.as<float>());
        ExpectRan();
        ExpectNear(Floats(dx, rows * width), want, 1e-6, what + " in place");
      }
    }
  }
}

TEST_F(CudaRowwiseTest, UnaryAndSiluMulAtEveryAlignment) {
  for (const int64_t count : {1, 3, 4, 1000, 1024, 100'003}) {
    for (const int64_t shift : {0, 1}) {  // 1: not 16-byte aligned
      Inputs in(static_cast<uint32_t>(count));
      const auto x = in.Floats(count + shift, 20.0f);
      const auto up = in.Floats(count + shift);
      const auto dx = Put(x);
      const auto dup = Put(up);
      for (const Unary op : {Unary::kSigmoid, Unary::kSilu, Unary::kTanh, Unary::kNeg}) {
        std::vector<double> want;
        for (int64_t i = 0; i < count; ++i)
          want.push_back(ref::Unary(op, x[static_cast<size_t>(i + shift)]));
        const auto dy = Poisoned(count + 1);
        Elementwise(launcher(), op, dx.as<float>() + shift, count, dy.as<float>());
        ExpectRan();
        auto got = Floats(dy, count + 1);
        EXPECT_TRUE(std::isnan(got.back())) << "wrote behind its end";
        got.pop_back();
        ExpectNear(got, want, 1e-6, Format("count {} op {}", count, static_cast<int>(op)));
      }
      std::vector<double> want;
      for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(i + shift);
        want.push_back(ref::Unary(Unary::kSilu, x[at]) * up[at]);
      }
      const auto dy = Poisoned(count + shift);
      SiluMul(launcher(), dx.as<float>() + shift, dup.as<float>() + shift, count,
              dy.as<float>() + shift);
      SiluMul(launcher(), dx.as<float>() + shift, dup.as<float>() + shift, count,
              dup.as<float>() + shift);
      ExpectRan();
      const auto got =
          Get<float>(dy.address() + static_cast<size_t>(shift) * 4, static_cast<size_t>(count));
      ExpectNear(got, want, 1e-6, Format("SiluMul count {}", count));
      EXPECT_TRUE(SameBits(
          Get<float>(dup.address() + static_cast<size_t>(shift) * 4, static_cast<size_t>(count)),
          got));
    }
  }
}

// Rows whose tokens and slots differ, with ids at and beyond both ends of a table of 50.
const std::vector<CudaRow> kRows = {
    {0, 0, 49}, {49, 0, 0}, {7, 1, 31}, {-1, -1, -1}, {50, 0, 1LL << 40}};

TEST_F(CudaRowwiseTest, GatherRowsOfEveryTypeByTokenAndSlot) {
  const auto drows = Put(kRows);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t width : {1, 6, 64, 1030, 5120}) {
      for (const CudaIndex index : {CudaIndex::kToken, CudaIndex::kSlot}) {
        Inputs in(static_cast<uint32_t>(width));
        const auto table = Narrow(in.Floats(50 * width), type);
        const auto rows = static_cast<int64_t>(kRows.size());
        const int64_t ldy = width + 4;
        const auto dtable = Put(table);
        const auto dy = Poisoned(rows * ldy);
        GatherRows(launcher(), dtable.as<void>(), type, 50, width, drows.as<CudaRow>(), index, rows,
                   dy.as<float>(), ldy);
        ExpectRan();
        const auto got = Floats(dy, rows * ldy);
        for (int64_t r = 0; r < rows; ++r) {
          const CudaRow& row = kRows[static_cast<size_t>(r)];
          const int64_t id = index == CudaIndex::kToken ? row.token : row.slot;
          for (int64_t i = 0; i < ldy; ++i) {
            const float value = got[static_cast<size_t>(r * ldy + i)];
            if (i >= width) {
              ASSERT_TRUE(std::isnan(value));
            } else {
              const double want =
                  id < 0 || id >= 50 ? 0.0 : ref::ElementOf(table.data(), type, id * width + i);
              ASSERT_EQ(value, want) << "row " << r << " element " << i << " width " << width;
            }
          }
        }
      }
    }
  }
}

TEST_F(CudaRowwiseTest, GatherQuantizedRowsOfEveryForm) {
  const auto drows = Put(kRows);
  for (const int bits : {4, 8}) {
    for (const bool is_signed : {false, true}) {
      for (const bool with_zero_points : {false, true}) {
        for (const DType scales_type : {DType::kF32, DType::kF16, DType::kBF16}) {
          for (const int64_t width : {64, 96, 1040}) {
            const int64_t block_size = 32;
            const int64_t blocks = CeilDiv(width, block_size);
            Inputs in(static_cast<uint32_t>(width + bits));
            const auto data = in.Bytes(50 * width * bits / 8);
            const auto zero_points = in.Bytes(50 * CeilDiv<int64_t>(blocks * bits, 8));
            const auto scales = Narrow(in.Floats(50 * blocks), scales_type);
            QuantizedTable host;
            host.rows = 50;
            host.width = width;
            host.bits = bits;
            host.block_size = block_size;
            host.is_signed = is_signed;
            host.scales_type = scales_type;
            host.default_zero_point = is_signed ? 0 : 1 << (bits - 1);
            host.data = data.data();
            host.scales = scales.data();
            host.zero_points = with_zero_points ? zero_points.data() : nullptr;
            const auto ddata = Put(data);
            const auto dzero = Put(zero_points);
            const auto dscales = Put(scales);
            QuantizedTable table = host;
            table.data = ddata.as<uint8_t>();
            table.scales = dscales.as<void>();
            table.zero_points = with_zero_points ? dzero.as<uint8_t>() : nullptr;
            const auto rows = static_cast<int64_t>(kRows.size());
            for (const CudaIndex index : {CudaIndex::kToken, CudaIndex::kSlot}) {
              const auto dy = Poisoned(rows * width);
              GatherQuantizedRows(launcher(), table, drows.as<CudaRow>(), index, rows,
                                  dy.as<float>(), width);
              ExpectRan();
              std::vector<double> want;
              for (const CudaRow& row : kRows) {
                const int64_t id = index == CudaIndex::kToken ? row.token : row.slot;
                Append(want, id < 0 || id >= 50
                                 ? std::vector<double>(static_cast<size_t>(width), 0.0)
                                 : ref::GatherQuantizedRow(host, id));
              }
              ExpectNear(Floats(dy, rows * width), want, 1e-6,
                         Format("bits {} signed {} zero points {} width {}", bits, is_signed,
                                with_zero_points, width));
            }
          }
        }
      }
    }
  }
}

TEST_F(CudaRowwiseTest, CopyColumnsAndTakeRows) {
  for (const int64_t width : {1, 7, 64, 1500}) {
    Inputs in(static_cast<uint32_t>(width));
    const int64_t rows = 5, ldx = width + 3, ldy = width + 8;
    const auto x = in.Floats(rows * ldx);
    const auto dx = Put(x);
    const auto dy = Poisoned(rows * ldy);
    CopyColumns(launcher(), dx.as<float>(), ldx, dy.as<float>(), ldy, rows, width);
    ExpectRan();
    const auto y = Floats(dy, rows * ldy);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < ldy; ++i) {
        const float value = y[static_cast<size_t>(r * ldy + i)];
        if (i < width) {
          ASSERT_EQ(value, x[static_cast<size_t>(r * ldx + i)]);
        } else {
          ASSERT_TRUE(std::isnan(value));
        }
      }
    }

    const std::vector<int32_t> which = {4, 0, 4, 2};
    const auto dwhich = Put(which);
    const auto taken = Poisoned(static_cast<int64_t>(which.size()) * width);
    TakeRows(launcher(), dx.as<float>(), width, dwhich.as<int32_t>(), 4, taken.as<float>());
    ExpectRan();
    const auto got = Floats(taken, 4 * width);
    for (size_t r = 0; r < which.size(); ++r) {
      for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
        ASSERT_EQ(got[r * static_cast<size_t>(width) + i],
                  x[static_cast<size_t>(which[r]) * static_cast<size_t>(width) + i]);
      }
    }
  }
}

TEST_F(CudaRowwiseTest, NothingToDoLaunchesNothing) {
  Elementwise(launcher(), Unary::kNeg, nullptr, 0, nullptr);
  RmsNorm(launcher(), nullptr, 64, nullptr, 0.0f, 0, 64, nullptr, 64);
  TakeRows(launcher(), nullptr, 64, nullptr, 0, nullptr);
  SkipRmsNorm(launcher(), SkipRmsNormArgs{});
  ExpectRan();
}

TEST_F(CudaRowwiseTest, ReadCeilingIsNotMeasuredWhileAGraphIsRecorded) {
  cuda::GraphHandle graph = nullptr;
  device().MakeCurrent();
  ASSERT_EQ(device().driver().GraphCreate(&graph, 0), cuda::kSuccess);
  launcher().RecordInto(graph);
  const auto refused = MeasureReadCeiling(launcher(), 1 << 20);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kInternal);
  launcher().RecordInto(nullptr);
  device().driver().GraphDestroy(graph);
}

TEST_F(CudaRowwiseTest, SpeedOfReadsAndNorms) {
  const auto ceiling = MeasureReadCeiling(launcher(), uint64_t{4} << 30);
  ASSERT_TRUE(ceiling.ok()) << ceiling.status().message();
  std::printf("read ceiling: %.2f TB/s\n", *ceiling * 1e-12);
  EXPECT_GT(*ceiling, 1e11);

  for (const int64_t rows : {1, 16, 8192}) {
    const int64_t width = 5120;
    const auto x = Poisoned(rows * width);
    const auto skip = Poisoned(rows * width);
    const auto y = Poisoned(rows * width);
    const auto gamma = Poisoned(width);
    SkipRmsNormArgs args;
    args.x = x.as<float>();
    args.skip = skip.as<float>();
    args.gamma = gamma.as<float>();
    args.epsilon = 1e-6f;
    args.rows = rows;
    args.width = width;
    args.y = y.as<float>();
    args.sum = x.as<float>();
    const double norm = Seconds([&] {
                          for (int i = 0; i < 10; ++i) SkipRmsNorm(launcher(), args);
                        }) /
                        10;
    std::printf("skip norm %lld x %lld: %.2f us, %.0f GB/s\n", static_cast<long long>(rows),
                static_cast<long long>(width), norm * 1e6,
                static_cast<double>(rows * width * 16) / norm * 1e-9);
    const int64_t count = rows * 13824;
    const auto gate = Poisoned(count);
    const auto up = Poisoned(count);
    const double silu =
        Seconds([&] {
          for (int i = 0; i < 10; ++i)
            SiluMul(launcher(), gate.as<float>(), up.as<float>(), count, gate.as<float>());
        }) /
        10;
    std::printf("silu mul %lld x 13824: %.2f us, %.0f GB/s\n", static_cast<long long>(rows),
                silu * 1e6, static_cast<double>(count * 12) / silu * 1e-9);
  }
  ExpectRan();
}

}  // namespace
}  // namespace granule::kernels
