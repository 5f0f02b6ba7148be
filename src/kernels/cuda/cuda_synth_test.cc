// Synthetic weights made on a GPU against the definition, one number at a time. (That the
// definition is the one of package/synth_values.cc is shown in engine/cuda/cuda_weights_test.cc.)
#include "kernels/cuda/cuda_synth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <functional>
#include <string>

#include "kernels/cuda/kernels_for_test.h"

namespace granule::kernels {
namespace {

using Kind = SynthFill::Kind;

uint64_t Number(uint64_t key, uint64_t i) {
  uint64_t x = key + (i + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

uint64_t U(int64_t value) { return static_cast<uint64_t>(value); }

int CodeAt(const SynthFill& f, int64_t row, int64_t column) {
  if (f.kind == Kind::kProjection) {
    const int64_t i = row * f.columns + column;
    const auto nibble = static_cast<int>(Number(f.key, U(i / 16)) >> (i % 16 * 4) & 15);
    return nibble == 0 ? 0 : nibble - 8;
  }
  const auto sign = [&](uint64_t key) {
    return static_cast<int>(Number(key, U(column / 64)) >> (column % 64) & 1) * 2 - 1;
  };
  const int64_t member = row / f.clusters;
  if (f.kind == Kind::kHead) {
    if ((row >= f.zeros_begin && row < f.zeros_end) || row >= f.zeros_from) return 0;
    return 2 * sign(Number(f.cluster_key, U(row % f.clusters))) +
           5 * sign(Number(f.key, U(member)));
  }
  const int64_t next = (row % f.clusters + f.stride * (1 + member)) % f.clusters;
  const uint64_t noise = Number(Number(f.key, U(row)), U(column / 16)) >> (column % 16 * 4) & 15;
  return 5 * sign(Number(f.cluster_key, U(next))) + std::popcount(noise) - 2;
}

float ScaleAt(const SynthFill& f, int64_t row, int64_t column) {
  if (f.kind != Kind::kProjection) return f.scale;
  constexpr float kFactors[] = {0.75f, 1.0f, 1.25f, 1.5f};
  const uint64_t i = U(row * (f.columns / 32) + column / 32);
  return f.scale * kFactors[Number(~f.key, i / 32) >> (i % 32 * 2) & 3];
}

// Rows and columns that end inside of warps, blocks, words of signs and of factors.
std::vector<SynthFill> Fills() {
  std::vector<SynthFill> fills;
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{1, 32}, {7, 96}, {261, 416}, {1051, 160}, {3, 8224}}) {
    SynthFill f{.kind = Kind::kProjection, .scale = 0.4375f, .rows = rows, .columns = columns};
    f.key = 0xfedcba9876543210u + U(rows);
    fills.push_back(f);
    f.cluster_key = 0x0123456789abcdefu;
    f.clusters = std::max<int64_t>(rows / 4, 1);
    f.stride = f.clusters * 5 / 8 + 1;
    f.kind = Kind::kTable;
    fills.push_back(f);
    f.kind = Kind::kHead;
    f.zeros_begin = 2;
    f.zeros_end = 5;
    f.zeros_from = f.clusters * 4;
    fills.push_back(f);
  }
  return fills;
}

class CudaSynthTest : public CudaKernelTest {
 protected:
  // Device memory that holds `count` of T and a guard behind them, all poisoned.
  template <class T>
  cuda::Buffer Poisoned(int64_t count) {
    return Put(std::vector<uint8_t>(static_cast<size_t>(count) * sizeof(T) + kGuard, kPoison));
  }
  // What was made, once the guard has been looked at.
  template <class T>
  std::vector<T> Made(const cuda::Buffer& buffer, int64_t count) {
    ExpectRan();
    const auto n = static_cast<size_t>(count);
    for (const uint8_t b : Get<uint8_t>(buffer.address() + n * sizeof(T), kGuard))
      EXPECT_EQ(b, kPoison);
    return Get<T>(buffer.address(), n);
  }
  template <class T>
  void ExpectEach(const std::vector<T>& got, const SynthFill& f, int64_t per_row, const char* what,
                  const std::function<T(int64_t row, int64_t i)>& want) {
    int shown = 0;
    for (int64_t row = 0; row < f.rows && shown < 5; ++row) {
      for (int64_t i = 0; i < per_row && shown < 5; ++i) {
        const T value = got[static_cast<size_t>(row * per_row + i)];
        if (value == want(row, i)) continue;
        ++shown;
        ADD_FAILURE() << what << ", kind " << static_cast<int>(f.kind) << ", [" << f.rows << ", "
                      << f.columns << "]: row " << row << ", element " << i << " is " << +value
                      << ", expected " << +want(row, i);
      }
    }
  }

  static constexpr size_t kGuard = 256;
  static constexpr uint8_t kPoison = 0xa5;
};

TEST_F(CudaSynthTest, CodesAreTheDefinitions) {
  for (const SynthFill& f : Fills()) {
    for (const int bits : {4, 8}) {
      const int64_t per_row = f.columns * bits / 8;
      const auto buffer = Poisoned<uint8_t>(f.rows * per_row);
      FillSynthCodes(launcher(), f, bits, buffer.as<void>());
      ExpectEach<uint8_t>(Made<uint8_t>(buffer, f.rows * per_row), f, per_row,
                          bits == 4 ? "4 bits" : "8 bits", [&](int64_t row, int64_t i) {
                            if (bits == 8) return static_cast<uint8_t>(CodeAt(f, row, i) + 128);
                            return static_cast<uint8_t>(CodeAt(f, row, 2 * i) + 8 +
                                                        16 * (CodeAt(f, row, 2 * i + 1) + 8));
                          });
    }
  }
}

TEST_F(CudaSynthTest, ScalesAreTheDefinitions) {
  for (const SynthFill& f : Fills()) {
    const int64_t per_row = f.columns / 32;
    const auto buffer = Poisoned<float>(f.rows * per_row);
    FillSynthScales(launcher(), f, buffer.as<float>());
    ExpectEach<float>(Made<float>(buffer, f.rows * per_row), f, per_row, "scales",
                      [&](int64_t row, int64_t i) { return ScaleAt(f, row, 32 * i); });
  }
}

TEST_F(CudaSynthTest, RowsAreTheDefinitions) {
  for (const SynthFill& f : Fills()) {
    const auto value = [&](int64_t row, int64_t i) {
      return static_cast<float>(CodeAt(f, row, i)) * ScaleAt(f, row, i);
    };
    const int64_t count = f.rows * f.columns;
    const auto wide = Poisoned<float>(count);
    FillSynthRows(launcher(), f, DType::kF32, wide.as<void>());
    ExpectEach<uint32_t>(
        Made<uint32_t>(wide, count), f, f.columns, "fp32 (bits)",
        [&](int64_t row, int64_t i) { return std::bit_cast<uint32_t>(value(row, i)); });
    const auto narrow = Poisoned<uint16_t>(count);
    FillSynthRows(launcher(), f, DType::kF16, narrow.as<void>());
    ExpectEach<uint16_t>(Made<uint16_t>(narrow, count), f, f.columns, "fp16 (bits)",
                         [&](int64_t row, int64_t i) { return F32ToF16(value(row, i)); });
  }
}

TEST_F(CudaSynthTest, SpeedOfFilling) {
  // The head of qwen2.5-14b and the largest of its projections.
  SynthFill head{.kind = Kind::kHead, .scale = 0.5f, .rows = 152064, .columns = 5120, .key = 1};
  head.clusters = head.rows / 4;
  SynthFill table = head;
  table.kind = Kind::kTable;
  table.stride = 23497;
  const SynthFill up{.scale = 0.5f, .rows = 13824, .columns = 5120, .key = 2};
  const auto memory = cuda::Buffer::Allocate(device(), size_t{152064} * 5120 * 4, "a test");
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  void* to = memory->as<void>();

  const cuda::Driver& driver = device().driver();
  cuda::EventHandle start = nullptr, stop = nullptr;
  device().MakeCurrent();
  ASSERT_EQ(driver.EventCreate(&start, 0), cuda::kSuccess);
  ASSERT_EQ(driver.EventCreate(&stop, 0), cuda::kSuccess);
  const auto report = [&](const std::string& what, const SynthFill& f, double bits,
                          const std::function<void()>& work) {
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
    std::nth_element(times.begin(), times.begin() + 10, times.end());
    const double bytes = static_cast<double>(f.rows * f.columns) * bits / 8;
    std::printf("synth %-17s [%lld, %lld]: %.3f ms, %.0f GB/s\n", what.c_str(),
                static_cast<long long>(f.rows), static_cast<long long>(f.columns), times[10],
                bytes / times[10] * 1e-6);
    EXPECT_GT(bytes / times[10] * 1e-6, 1.0);
  };
  for (const auto& [name, f] :
       {std::pair<std::string, SynthFill>{"table", table}, {"head", head}, {"projection", up}}) {
    report(name + " int4", f, 4, [&] { FillSynthCodes(launcher(), f, 4, to); });
    report(name + " int8", f, 8, [&] { FillSynthCodes(launcher(), f, 8, to); });
    report(name + " scales", f, 1,
           [&] { FillSynthScales(launcher(), f, static_cast<float*>(to)); });
    report(name + " fp16", f, 16, [&] { FillSynthRows(launcher(), f, DType::kF16, to); });
    report(name + " fp32", f, 32, [&] { FillSynthRows(launcher(), f, DType::kF32, to); });
  }
  driver.EventDestroy(start);
  driver.EventDestroy(stop);
  ExpectRan();
}

}  // namespace
}  // namespace granule::kernels
