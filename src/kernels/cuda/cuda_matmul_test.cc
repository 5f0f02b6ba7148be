// Products on a GPU against double precision.
#include "kernels/cuda/cuda_matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "kernels/cuda/kernels_for_test.h"
#include "kernels/ref/reference.h"
#include "kernels/test_inputs.h"

namespace granule::kernels {
namespace {

using ZeroPoints = QuantizedWeights::ZeroPoints;

// A weight matrix in host memory, dense or quantised, with random values.
struct Case {
  int64_t n = 0, k = 0;
  DType dtype = DType::kF16;  // dense where bits == 0
  bool transposed = true;
  int bits = 0;
  int64_t block = 32;
  ZeroPoints zero_points = ZeroPoints::kDefault;
  DType scales = DType::kF32, zero_type = DType::kF32;
};

Case Dense(int64_t n, int64_t k, DType dtype, bool transposed = true) {
  Case c;
  c.n = n;
  c.k = k;
  c.dtype = dtype;
  c.transposed = transposed;
  return c;
}
Case Coded(int64_t n, int64_t k, int bits, int64_t block, ZeroPoints zeros = ZeroPoints::kDefault,
           DType scales = DType::kF32, DType zero_type = DType::kF32) {
  return {n, k, DType::kF32, true, bits, block, zeros, scales, zero_type};
}

std::string Name(const Case& c) {
  std::string name = "[" + std::to_string(c.n) + ", " + std::to_string(c.k) + "] ";
  if (c.bits == 0) return name + std::string(DTypeName(c.dtype)) + (c.transposed ? "" : " turned");
  const char* zero[] = {"default", "packed", "float"};
  return name + std::to_string(c.bits) + " bits, blocks of " + std::to_string(c.block) +
         ", scales " + std::string(DTypeName(c.scales)) + ", zero points " +
         zero[static_cast<int>(c.zero_points)] + " " + std::string(DTypeName(c.zero_type));
}

struct Source {
  Case c;
  std::vector<std::byte> dense, scales, zeros;
  std::vector<uint8_t> q, packed;

  Source(const Case& c_in, Inputs& in) : c(c_in) {
    if (c.bits == 0) {
      dense = Narrow(in.Floats(c.n * c.k, 0.3f), c.dtype);
      return;
    }
    const int64_t blocks = (c.k + c.block - 1) / c.block;
    q = in.Bytes(c.n * blocks * c.block * c.bits / 8);
    scales = Narrow(in.Floats(c.n * blocks, c.bits == 4 ? 0.05f : 0.003f), c.scales);
    packed = in.Bytes(c.n * ((blocks * c.bits + 7) / 8));
    std::vector<float> z = in.Floats(c.n * blocks, c.bits == 4 ? 4.0f : 50.0f);
    for (float& x : z) x += c.bits == 4 ? 7.3f : 120.4f;
    zeros = Narrow(z, c.zero_type);
  }
  QuantizedWeights quantized() const {
    QuantizedWeights w{c.n,           c.k,      c.bits,        c.block, q.data(),
                       scales.data(), c.scales, c.zero_points, nullptr, c.zero_type};
    if (c.zero_points == ZeroPoints::kPacked) w.zero_points = packed.data();
    if (c.zero_points == ZeroPoints::kFloat) w.zero_points = zeros.data();
    return w;
  }
  DenseWeights weights() const { return {c.n, c.k, dense.data(), c.dtype, c.transposed}; }
  std::vector<double> Values() const {
    return c.bits == 0 ? ref::Dense(weights()) : ref::Dequantize(quantized());
  }
  bool bf16() const { return c.bits == 0 && c.dtype == DType::kBF16; }
};

// What a product may be off by, given sum |a| |w|: roundings of fp32 sums, and for m > 8 also those
// of the operands to fp16 or bf16 (half an ulp each; below fp16's normal range an absolute error of
// 2^-25, of |a| up to `a_size` and of |w| up to `w_size`).
double Bound(const Source& source, int64_t m, double magnitude, double a_sum, double w_sum) {
  const auto k = static_cast<double>(source.c.k);
  double relative = std::ldexp(1.0, -24) * (2 * std::sqrt(k) + 32);
  double absolute = 1e-30;
  // (q - zero point) * scale rounds twice, and q, zero point may be much larger than their
  // difference only by factors that the differences' exactness takes away.
  if (source.c.bits != 0) relative += 4 * std::ldexp(1.0, -24);
  if (m > 8) {
    const double x_error = std::ldexp(1.0, source.bf16() ? -9 : -11);
    const bool exact = source.c.bits == 0 && source.c.dtype != DType::kF32;
    relative += 1.01 * (exact ? x_error : 2 * x_error);
    // Sums on tensor cores are cut, not rounded, inside one instruction.
    relative += std::ldexp(1.0, -22) * (k / 16 + 2);
    if (!source.bf16()) absolute += std::ldexp(1.0, -25) * (a_sum + w_sum);
  }
  return magnitude * relative + absolute;
}

TEST(CudaMatrixBytesTest, CountsPadding) {
  // Rows of 17 become rows of 32.
  EXPECT_EQ(CudaMatrixBytes(DenseWeights{3, 17, nullptr, DType::kF16, true}), 256u);
  EXPECT_EQ(CudaMatrixBytes(DenseWeights{8, 64, nullptr, DType::kF32, false}), 8u * 64 * 4);
  // Tiled: 32 rows of 64 bytes, 4 scales each; with packed zero points 4 bytes each.
  QuantizedWeights coded{10, 100, 4, 32, nullptr, nullptr, DType::kF16, ZeroPoints::kDefault};
  EXPECT_EQ(CudaMatrixBytes(coded), 32u * 64 + 32 * 16);
  coded.zero_points_kind = ZeroPoints::kPacked;
  EXPECT_EQ(CudaMatrixBytes(coded), 32u * 64 + 32 * 16 + 256);
  // As they come: rows of 32 bytes, scales and zero points of 2 blocks.
  QuantizedWeights plain{2, 20, 8, 16, nullptr, nullptr, DType::kF16, ZeroPoints::kFloat};
  EXPECT_EQ(CudaMatrixBytes(plain), 3u * 256);
  // Sizes beyond 32 bits.
  EXPECT_EQ(CudaMatrixBytes(DenseWeights{1 << 20, 1 << 14, nullptr, DType::kF16, true}),
            uint64_t{1} << 35);
}

class CudaMatMulTest : public CudaKernelTest {
 protected:
  void SetUp() override {
    CudaKernelTest::SetUp();
    if (launcher_ == nullptr) return;
    auto staging = Staging::Create(device());
    ASSERT_TRUE(staging.ok()) << staging.status().message();
    staging_ = std::move(*staging);
  }
  void TearDown() override {
    blas_.reset();
    staging_.reset();
    CudaKernelTest::TearDown();
  }

  std::shared_ptr<const CudaMatrix> Upload(const Source& source) {
    auto matrix = source.c.bits == 0
                      ? CudaMatrix::Upload(launcher(), *staging_, source.weights())
                      : CudaMatrix::Upload(launcher(), *staging_, source.quantized());
    EXPECT_TRUE(matrix.ok()) << matrix.status().message();
    const Status done = staging_->Finish();
    EXPECT_TRUE(done.ok()) << done.message();
    if (!matrix.ok()) return nullptr;
    EXPECT_EQ((*matrix)->n(), source.c.n);
    EXPECT_EQ((*matrix)->k(), source.c.k);
    EXPECT_EQ((*matrix)->bytes(), source.c.bits == 0 ? CudaMatrixBytes(source.weights())
                                                     : CudaMatrixBytes(source.quantized()));
    return *matrix;
  }

  void OpenBlas() {
    auto blas = CublasLt::Open(device());
    if (!blas.ok()) GTEST_SKIP() << blas.status().message();
    blas_ = std::move(*blas);
  }

  // One call with some outputs; y of each with rows `pad` floats longer than n.
  struct Call {
    const float* a = nullptr;
    int64_t lda = 0, m = 0;
    std::vector<CudaMatMulOutput> outputs;
    std::vector<cuda::Buffer> y;
    cuda::Buffer workspace;
  };
  static constexpr float kPoison = -1.2345e30f;

  Call Prepare(const cuda::Buffer& a, int64_t lda, int64_t m,
               const std::vector<std::shared_ptr<const CudaMatrix>>& matrices,
               const std::vector<cuda::Buffer>& biases, int64_t pad) {
    Call call;
    call.a = a.as<float>();
    call.lda = lda;
    call.m = m;
    for (size_t i = 0; i < matrices.size(); ++i) {
      const int64_t ldy = matrices[i]->n() + pad;
      call.y.push_back(Put(std::vector<float>(m * ldy, kPoison)));
      call.outputs.push_back({matrices[i].get(),
                              biases[i].bytes() == 0 ? nullptr : biases[i].as<float>(),
                              call.y.back().as<float>(), ldy});
    }
    // Exactly as much as was stated, with poison in it.
    const uint64_t bytes = MatMulWorkspaceBytes(m, call.outputs);
    call.workspace = Put(std::vector<uint8_t>(std::max<uint64_t>(bytes, 1), 0xff));
    return call;
  }
  void Run(Call& call, const CublasLt* blas) {
    CudaMatMulArgs args;
    args.a = call.a;
    args.lda = call.lda;
    args.m = call.m;
    args.outputs = call.outputs;
    args.workspace = call.workspace.as<std::byte>();
    args.workspace_bytes = MatMulWorkspaceBytes(call.m, call.outputs);
    args.blas = blas;
    MatMul(launcher(), args);
  }
  std::vector<float> Result(const Call& call, size_t i) {
    return Get<float>(call.y[i].address(), call.m * call.outputs[i].ldy);
  }

  // Products of several matrices of the same k in one call, for each row count, against doubles.
  void ExpectProducts(const std::vector<Case>& cases, const std::vector<int64_t>& rows,
                      const CublasLt* blas, uint32_t seed, int64_t pad = 3, int64_t lda_pad = 5) {
    Inputs in(seed);
    std::vector<Source> sources;
    std::vector<std::shared_ptr<const CudaMatrix>> matrices;
    std::vector<std::vector<float>> biases;
    std::vector<cuda::Buffer> device_biases;
    std::vector<std::vector<double>> values;
    for (const Case& c : cases) {
      sources.emplace_back(c, in);
      matrices.push_back(Upload(sources.back()));
      ASSERT_NE(matrices.back(), nullptr) << Name(c);
      values.push_back(sources.back().Values());
      // Every other output has a bias.
      biases.push_back(biases.size() % 2 == 0 ? in.Floats(c.n) : std::vector<float>());
      device_biases.push_back(biases.back().empty() ? cuda::Buffer() : Put(biases.back()));
    }
    const int64_t k = cases[0].k;
    const int64_t most = *std::max_element(rows.begin(), rows.end());
    const int64_t lda = k + lda_pad;
    std::vector<float> a = in.Floats(most * lda);
    for (int64_t r = 0; r < most; ++r) {  // what lies between rows must not be read
      for (int64_t i = k; i < lda; ++i) a[r * lda + i] = std::numeric_limits<float>::quiet_NaN();
    }
    const cuda::Buffer device_a = Put(a);
    for (int64_t m : rows) {
      Call call = Prepare(device_a, lda, m, matrices, device_biases, pad);
      Run(call, blas);
      ExpectRan();
      for (size_t i = 0; i < cases.size(); ++i) {
        SCOPED_TRACE(Name(cases[i]) + ", rows " + std::to_string(m) + (blas ? ", cuBLASLt" : ""));
        const ref::Product expected = ref::MatMul(a.data(), lda, m, values[i], cases[i].n, k,
                                                  biases[i].empty() ? nullptr : biases[i].data());
        ExpectNear(Result(call, i), sources[i], m, call.outputs[i].ldy, expected, a, lda,
                   values[i]);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }

  static void ExpectNear(const std::vector<float>& y, const Source& source, int64_t m, int64_t ldy,
                         const ref::Product& expected, const std::vector<float>& a, int64_t lda,
                         const std::vector<double>& w) {
    const int64_t n = source.c.n, k = source.c.k;
    std::vector<double> w_sums(n, 0.0);
    for (int64_t i = 0; i < n * k; ++i) w_sums[i / k] += std::fabs(w[i]);
    for (int64_t r = 0; r < m; ++r) {
      double a_sum = 0;
      for (int64_t i = 0; i < k; ++i) a_sum += std::fabs(a[r * lda + i]);
      for (int64_t c = 0; c < n; ++c) {
        const double bound = Bound(source, m, expected.magnitude[r * n + c], a_sum, w_sums[c]);
        ASSERT_NEAR(y[r * ldy + c], expected.y[r * n + c], bound) << "row " << r << " column " << c;
      }
      for (int64_t c = n; c < ldy; ++c)
        ASSERT_EQ(y[r * ldy + c], kPoison) << "row " << r << ": wrote beyond n at " << c;
    }
  }

  std::unique_ptr<Staging> staging_;
  std::unique_ptr<CublasLt> blas_;
};

const std::vector<int64_t> kRows = {1, 2, 3, 5, 8, 9, 33, 63, 64, 200};

TEST_F(CudaMatMulTest, DenseOfEveryType) {
  uint32_t seed = 1;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (bool transposed : {true, false}) {
      for (auto [n, k] : {std::pair<int64_t, int64_t>{1, 1},
                          {7, 33},
                          {64, 64},
                          {67, 129},
                          {130, 257},
                          {129, 576}}) {
        ExpectProducts({Dense(n, k, dtype, transposed)}, kRows, nullptr, seed++);
        if (HasFatalFailure()) return;
      }
    }
  }
}

std::vector<Case> QuantizedCases() {
  std::vector<Case> cases;
  struct Shape {
    int64_t n, k, block;
  };
  for (Shape s : {Shape{1, 1, 16},
                  {7, 33, 16},
                  {66, 100, 16},
                  {33, 95, 32},
                  {70, 576, 32},
                  {96, 576, 64},
                  {31, 700, 256},
                  {65, 1100, 1024}}) {
    for (int bits : {4, 8}) {
      cases.push_back(Coded(s.n, s.k, bits, s.block));
      cases.push_back(Coded(s.n, s.k, bits, s.block, ZeroPoints::kPacked, DType::kF16));
      cases.push_back(Coded(s.n, s.k, bits, s.block, ZeroPoints::kPacked, DType::kBF16));
      cases.push_back(Coded(s.n, s.k, bits, s.block, ZeroPoints::kFloat));
      cases.push_back(Coded(s.n, s.k, bits, s.block, ZeroPoints::kFloat, DType::kF16, DType::kF16));
      cases.push_back(
          Coded(s.n, s.k, bits, s.block, ZeroPoints::kFloat, DType::kBF16, DType::kBF16));
    }
  }
  return cases;
}

TEST_F(CudaMatMulTest, QuantizedOfEveryForm) {
  uint32_t seed = 100;
  for (const Case& c : QuantizedCases()) {
    ExpectProducts({c}, {1, 2, 3, 5, 8, 9, 33, 64, 130}, nullptr, seed++);
    if (HasFatalFailure()) return;
  }
}

// Outputs of one call: q, k and v of one kind; more than one launch holds; all kinds mixed.
TEST_F(CudaMatMulTest, SeveralOutputs) {
  ExpectProducts(
      {Dense(96, 200, DType::kF16), Dense(33, 200, DType::kF16, false), Dense(5, 200, DType::kF16)},
      kRows, nullptr, 1);
  std::vector<Case> many;
  for (int64_t i = 0; i < 11; ++i) many.push_back(Coded(1 + 13 * i, 96, 4, 32));
  ExpectProducts(many, {1, 4, 8, 20, 70}, nullptr, 2);
  ExpectProducts({Coded(70, 160, 4, 32), Dense(40, 160, DType::kBF16),
                  Coded(30, 160, 4, 32, ZeroPoints::kFloat), Dense(9, 160, DType::kF32),
                  Coded(50, 160, 8, 32, ZeroPoints::kPacked), Dense(65, 160, DType::kF16),
                  Coded(12, 160, 8, 16, ZeroPoints::kFloat)},
                 kRows, nullptr, 3);
}

// Aligned rows take the loads of 16 bytes.
TEST_F(CudaMatMulTest, AlignedRows) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
    ExpectProducts({Dense(130, 320, dtype)}, kRows, nullptr, 7, 0, 0);
  ExpectProducts({Coded(130, 320, 4, 32)}, kRows, nullptr, 8, 0, 0);
  ExpectProducts({Coded(130, 320, 8, 32)}, kRows, nullptr, 9, 0, 4);
}

// Long rows: x passes through shared memory in pieces; few outputs: k is split over warps and
// parts.
TEST_F(CudaMatMulTest, LongRows) {
  uint32_t seed = 300;
  for (int64_t k : {8192 + 40, 27000}) {
    ExpectProducts({Dense(10, k, DType::kF32)}, {1, 3, 8, 40, 70}, nullptr, seed++);
    ExpectProducts({Dense(10, k, DType::kF16)}, {1, 3, 8, 40, 70}, nullptr, seed++);
    ExpectProducts({Dense(10, k, DType::kBF16)}, {2, 8, 9, 70}, nullptr, seed++);
    ExpectProducts({Coded(10, k, 4, 32)}, {1, 3, 8, 40, 70}, nullptr, seed++);
    ExpectProducts({Coded(10, k, 8, 32, ZeroPoints::kPacked)}, {1, 4, 8, 40, 70}, nullptr, seed++);
  }
}

// Enough outputs that k is not split.
TEST_F(CudaMatMulTest, ManyOutputs) {
  ExpectProducts({Dense(4200, 96, DType::kF16)}, {1, 8, 16}, nullptr, 1);
  ExpectProducts({Coded(4200, 96, 4, 32), Coded(300, 96, 4, 32)}, {1, 8, 16}, nullptr, 2);
  ExpectProducts({Coded(4200, 96, 8, 32)}, {1, 8, 16}, nullptr, 3);
  ExpectProducts({Dense(20000, 32, DType::kF16)}, {12}, nullptr, 4);
}

// Each row of a step of up to 8 gives the bits that it gives alone.
TEST_F(CudaMatMulTest, RowsOfSmallStepsDoNotMatter) {
  for (const Case& c : {Dense(100, 1000, DType::kF16), Dense(100, 1000, DType::kF32),
                        Coded(100, 1000, 4, 32), Coded(100, 1000, 8, 32, ZeroPoints::kFloat)}) {
    SCOPED_TRACE(Name(c));
    Inputs in(5);
    const Source source(c, in);
    const auto matrix = Upload(source);
    ASSERT_NE(matrix, nullptr);
    const std::vector<float> a = in.Floats(8 * c.k);
    const cuda::Buffer device_a = Put(a);
    std::vector<cuda::Buffer> no_bias(1);
    Call all = Prepare(device_a, c.k, 8, {matrix}, no_bias, 0);
    Run(all, nullptr);
    ExpectRan();
    const std::vector<float> expected = Result(all, 0);
    for (int64_t m : {1, 2, 3, 4, 6}) {
      Call some = Prepare(device_a, c.k, m, {matrix}, no_bias, 0);
      Run(some, nullptr);
      ExpectRan();
      EXPECT_TRUE(SameBits(Result(some, 0), {expected.begin(), expected.begin() + m * c.n}))
          << m << " rows";
    }
  }
}

// fp16 operands saturate instead of becoming infinite, and a NaN stays one.
TEST_F(CudaMatMulTest, LargeValuesSaturate) {
  const int64_t n = 16, k = 32, m = 16;
  std::vector<float> w(n * k, 0.0f);
  for (int64_t i = 0; i < n; ++i) w[i * k + i] = i == 3 ? 1e6f : 1.0f;
  std::vector<float> a(m * k, 0.0f);
  a[0 * k + 0] = 1e9f;
  a[1 * k + 1] = -1e9f;
  a[2 * k + 2] = std::numeric_limits<float>::quiet_NaN();
  a[3 * k + 3] = 1.0f;
  auto matrix =
      CudaMatrix::Upload(launcher(), *staging_, DenseWeights{n, k, w.data(), DType::kF32, true});
  ASSERT_TRUE(matrix.ok()) << matrix.status().message();
  const cuda::Buffer device_a = Put(a);
  std::vector<cuda::Buffer> no_bias(1);
  Call call = Prepare(device_a, k, m, {*matrix}, no_bias, 0);
  Run(call, nullptr);
  ExpectRan();
  const std::vector<float> y = Result(call, 0);
  EXPECT_EQ(y[0 * n + 0], 65504.0f);
  EXPECT_EQ(y[1 * n + 1], -65504.0f);
  EXPECT_TRUE(std::isnan(y[2 * n + 2]));
  EXPECT_EQ(y[3 * n + 3], 65504.0f);
}

TEST_F(CudaMatMulTest, BlasAgainstDoubles) {
  OpenBlas();
  if (IsSkipped()) return;
  const std::vector<int64_t> rows = {64, 65, 200, 513};
  uint32_t seed = 500;
  for (auto [n, k] : {std::pair<int64_t, int64_t>{7, 33}, {67, 129}, {130, 576}}) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      ExpectProducts({Dense(n, k, dtype)}, rows, blas_.get(), seed++);
      ExpectProducts({Dense(n, k, dtype, false)}, rows, blas_.get(), seed++, 0, 0);
    }
    for (int bits : {4, 8}) {
      ExpectProducts({Coded(n, k, bits, 32)}, rows, blas_.get(), seed++);
      ExpectProducts({Coded(n, k, bits, 16, ZeroPoints::kPacked, DType::kF16)}, rows, blas_.get(),
                     seed++);
      ExpectProducts({Coded(n, k, bits, 64, ZeroPoints::kFloat)}, rows, blas_.get(), seed++, 0, 0);
    }
    if (HasFatalFailure()) return;
  }
  ExpectProducts({Coded(70, 160, 4, 32), Dense(40, 160, DType::kBF16), Dense(9, 160, DType::kF32),
                  Coded(50, 160, 8, 32, ZeroPoints::kPacked), Dense(65, 160, DType::kF16)},
                 {64, 100}, blas_.get(), seed);
}

TEST_F(CudaMatMulTest, BlasIsNotRecorded) {
  OpenBlas();
  if (IsSkipped()) return;
  Inputs in(1);
  const Source source(Dense(32, 64, DType::kF16), in);
  const auto matrix = Upload(source);
  ASSERT_NE(matrix, nullptr);
  const cuda::Buffer a = Put(in.Floats(64 * 64));
  std::vector<cuda::Buffer> no_bias(1);
  Call call = Prepare(a, 64, 64, {matrix}, no_bias, 0);
  cuda::GraphHandle graph = nullptr;
  ASSERT_EQ(device().driver().GraphCreate(&graph, 0), cuda::kSuccess);
  launcher().RecordInto(graph);
  Run(call, blas_.get());
  EXPECT_EQ(launcher().status().code(), Code::kInternal);
  launcher().RecordInto(nullptr);
  launcher().ClearStatus();
  device().driver().GraphDestroy(graph);
  // 63 rows, and 64 without the library, do not fail (RecordedEqualsLaunched).
}

TEST_F(CudaMatMulTest, RecordedEqualsLaunched) {
  const std::vector<Case> cases = {Dense(70, 1000, DType::kF16), Coded(50, 1000, 4, 32),
                                   Dense(33, 1000, DType::kBF16),
                                   Coded(90, 1000, 8, 64, ZeroPoints::kFloat)};
  Inputs in(11);
  std::vector<std::shared_ptr<const CudaMatrix>> matrices;
  std::vector<cuda::Buffer> biases;
  for (const Case& c : cases) {
    matrices.push_back(Upload(Source(c, in)));
    ASSERT_NE(matrices.back(), nullptr);
    biases.push_back(Put(in.Floats(c.n)));
  }
  const cuda::Buffer a = Put(in.Floats(70 * 1000));
  const cuda::Driver& driver = device().driver();
  for (int64_t m : {1, 2, 4, 8, 9, 40, 63, 70}) {
    SCOPED_TRACE(m);
    Call launched = Prepare(a, 1000, m, matrices, biases, 1);
    Run(launched, nullptr);
    ExpectRan();
    Call recorded = Prepare(a, 1000, m, matrices, biases, 1);
    cuda::GraphHandle graph = nullptr;
    cuda::GraphExecHandle exec = nullptr;
    ASSERT_EQ(driver.GraphCreate(&graph, 0), cuda::kSuccess);
    launcher().RecordInto(graph);
    Run(recorded, nullptr);
    launcher().RecordInto(nullptr);
    ExpectRan();
    for (size_t i = 0; i < cases.size(); ++i)
      ASSERT_EQ(Result(recorded, i)[0], kPoison) << "recording ran something";
    ASSERT_EQ(driver.GraphInstantiate(&exec, graph, 0), cuda::kSuccess);
    for (int replay = 0; replay < 2; ++replay) {
      ASSERT_EQ(driver.GraphLaunch(exec, device().stream()), cuda::kSuccess);
      ExpectRan();
      for (size_t i = 0; i < cases.size(); ++i)
        EXPECT_TRUE(SameBits(Result(recorded, i), Result(launched, i))) << "output " << i;
    }
    driver.GraphExecDestroy(exec);
    driver.GraphDestroy(graph);
  }
}

TEST_F(CudaMatMulTest, StagingMovesBytesOfAnySize) {
  Inputs in(3);
  uint64_t last = 0;
  staging_->progress = [&](uint64_t bytes) {
    EXPECT_GT(bytes, last);
    last = bytes;
  };
  uint64_t total = 0;
  for (size_t bytes : {size_t{1}, size_t{4097}, size_t{32} << 20, (size_t{70} << 20) + 13}) {
    std::vector<uint32_t> from(bytes / 4 + 1);
    for (size_t i = 0; i < from.size(); ++i)
      from[i] = static_cast<uint32_t>(i * 2654435761u + bytes);
    auto to = cuda::Buffer::Allocate(device(), from.size() * 4, "a test");
    ASSERT_TRUE(to.ok());
    ASSERT_TRUE(device().ZeroAsync(to->address(), from.size() * 4).ok());
    const auto* source = reinterpret_cast<const std::byte*>(from.data());
    ASSERT_TRUE(staging_->Upload(to->address(), {source, bytes}).ok());
    ASSERT_TRUE(staging_->Finish().ok());
    total += bytes;
    EXPECT_EQ(last, total);
    const std::vector<uint8_t> back = Get<uint8_t>(to->address(), from.size() * 4);
    EXPECT_EQ(std::memcmp(back.data(), source, bytes), 0) << bytes;
    for (size_t i = bytes; i < back.size(); ++i) EXPECT_EQ(back[i], 0) << "wrote beyond the end";
  }
  ASSERT_TRUE(staging_->Upload(0, {}).ok());  // nothing
}

TEST_F(CudaMatMulTest, NoDeviceMemory) {
  // 2^44 bytes of a sparse, never touched source.
  DenseWeights weights{int64_t{1} << 22, int64_t{1} << 21, this, DType::kF16, true};
  auto matrix = CudaMatrix::Upload(launcher(), *staging_, weights);
  ASSERT_FALSE(matrix.ok());
  EXPECT_EQ(matrix.status().code(), Code::kExhausted) << matrix.status().message();
}

// ---- Speed: medians of 20, weights beyond the L2 through copies of the matrix.

class SpeedCudaMatMul : public CudaMatMulTest {
 protected:
  void Measure(const char* what, const std::vector<Case>& cases, int64_t m, const CublasLt* blas) {
    Inputs in(1);
    uint64_t bytes = 0;
    for (const Case& c : cases) bytes += WeightBytes(c);
    // Enough copies that the caches hold none of them by the time of its turn.
    const auto copies =
        static_cast<size_t>(std::clamp<uint64_t>((uint64_t{160} << 20) / bytes + 1, 1, 64));
    std::vector<std::vector<std::shared_ptr<const CudaMatrix>>> sets(m <= 64 ? copies : 1);
    for (auto& set : sets) {
      for (const Case& c : cases) set.push_back(UploadFast(c));
    }
    const int64_t k = cases[0].k;
    const cuda::Buffer a = Put(in.Floats(m * k));
    std::vector<cuda::Buffer> no_bias(cases.size());
    std::vector<Call> calls;
    for (const auto& set : sets) calls.push_back(Prepare(a, k, m, set, no_bias, 0));
    cuda::EventHandle start = nullptr, end = nullptr;
    const cuda::Driver& driver = device().driver();
    ASSERT_EQ(driver.EventCreate(&start, 0), cuda::kSuccess);
    ASSERT_EQ(driver.EventCreate(&end, 0), cuda::kSuccess);
    std::vector<float> times;
    for (int repeat = 0; repeat < 23; ++repeat) {
      driver.EventRecord(start, device().stream());
      for (Call& call : calls) Run(call, blas);
      driver.EventRecord(end, device().stream());
      ExpectRan();
      float ms = 0;
      driver.EventElapsedTime(&ms, start, end);
      if (repeat >= 3) times.push_back(ms / static_cast<float>(calls.size()));
    }
    driver.EventDestroy(start);
    driver.EventDestroy(end);
    std::sort(times.begin(), times.end());
    const double seconds = times[times.size() / 2] * 1e-3;
    double operations = 0;
    for (const Case& c : cases) operations += 2.0 * m * c.n * c.k;
    std::printf("%-28s m %4lld %-9s %9.1f us  %6.3f TB/s (%4.1f %% of 4.68)  %7.1f TFLOP/s\n", what,
                static_cast<long long>(m), blas ? "cuBLASLt" : "own", seconds * 1e6,
                static_cast<double>(bytes) / seconds * 1e-12,
                static_cast<double>(bytes) / seconds / 4.68e12 * 100, operations / seconds * 1e-12);
  }

  // Host memory of one piece of random bytes serves all.
  std::shared_ptr<const CudaMatrix> UploadFast(const Case& c) {
    const size_t bytes = static_cast<size_t>(c.n * c.k) * (c.bits == 0 ? 2 : c.bits == 8 ? 1 : 1);
    if (bytes_.size() < bytes) {
      bytes_.resize(bytes);
      uint32_t state = 12345;
      for (size_t i = 0; i + 4 <= bytes; i += 4) {
        state = state * 1664525u + 1013904223u;
        const uint32_t word = (state & 0x8fff8fffu) | 0x20002000u;  // small fp16 values
        std::memcpy(&bytes_[i], &word, 4);
      }
    }
    if (c.bits == 0) {
      auto matrix = CudaMatrix::Upload(launcher(), *staging_,
                                       DenseWeights{c.n, c.k, bytes_.data(), c.dtype, true});
      EXPECT_TRUE(matrix.ok()) << matrix.status().message();
      return *matrix;
    }
    scales_.resize(std::max(scales_.size(), static_cast<size_t>(c.n * (c.k / c.block + 1))), 0.01f);
    auto matrix = CudaMatrix::Upload(
        launcher(), *staging_,
        QuantizedWeights{c.n, c.k, c.bits, c.block, bytes_.data(), scales_.data(), DType::kF32,
                         ZeroPoints::kDefault, nullptr, DType::kF32});
    EXPECT_TRUE(matrix.ok()) << matrix.status().message();
    return *matrix;
  }
  static uint64_t WeightBytes(const Case& c) {
    if (c.bits == 0) return static_cast<uint64_t>(c.n * c.k * 2);
    return static_cast<uint64_t>(c.n * c.k * c.bits / 8 + c.n * (c.k / c.block) * 4);
  }

  std::vector<uint8_t> bytes_;
  std::vector<float> scales_;
};

struct SpeedShape {
  const char* name;
  std::vector<int64_t> n;
  int64_t k;
};
const std::vector<SpeedShape> kSpeedShapes = {
    {"7b qkv 4608x3584", {3584, 512, 512}, 3584},
    {"7b o 3584x3584", {3584}, 3584},
    {"7b gate up 37888x3584", {18944, 18944}, 3584},
    {"7b down 3584x18944", {3584}, 18944},
    {"7b head 152064x3584", {38016, 38016, 38016, 38016}, 3584},  // in pieces: host memory
    {"0.5b gate up 9728x896", {4864, 4864}, 896},
    {"0.5b down 896x4864", {896}, 4864},
    {"135m qkv 960x576", {576, 192, 192}, 576},
    {"135m gate up 3072x576", {1536, 1536}, 576},
    {"135m down 576x1536", {576}, 1536},
    {"135m head 49152x576", {49152}, 576},
};

std::vector<Case> SpeedCases(const SpeedShape& shape, int bits) {
  std::vector<Case> cases;
  for (int64_t n : shape.n)
    cases.push_back(bits == 16 ? Dense(n, shape.k, DType::kF16) : Coded(n, shape.k, bits, 32));
  return cases;
}

TEST_F(SpeedCudaMatMul, Decode) {
  for (int bits : {16, 8, 4}) {
    for (const SpeedShape& shape : kSpeedShapes) {
      const std::string name = std::string(shape.name) + (bits == 16  ? " f16"
                                                          : bits == 8 ? " q8"
                                                                      : " q4");
      Measure(name.c_str(), SpeedCases(shape, bits), 1, nullptr);
    }
  }
}

TEST_F(SpeedCudaMatMul, FewRows) {
  for (int bits : {16, 4}) {
    for (int64_t m : {2, 4, 8, 16, 32, 63})
      Measure(bits == 16 ? "7b gate up f16" : "7b gate up q4", SpeedCases(kSpeedShapes[2], bits), m,
              nullptr);
  }
}

TEST_F(SpeedCudaMatMul, Prompt) {
  OpenBlas();
  if (IsSkipped()) return;
  for (int bits : {16, 4}) {
    const std::string kind = bits == 16 ? " f16" : " q4";
    for (const bool library : {false, true}) {
      const CublasLt* blas = library ? blas_.get() : nullptr;
      for (int64_t m : {512, 4096})
        Measure(("4096x4096" + kind).c_str(), SpeedCases({"", {4096}, 4096}, bits), m, blas);
      Measure((kSpeedShapes[2].name + kind).c_str(), SpeedCases(kSpeedShapes[2], bits), 512, blas);
      Measure((kSpeedShapes[3].name + kind).c_str(), SpeedCases(kSpeedShapes[3], bits), 512, blas);
    }
  }
}

}  // namespace
}  // namespace granule::kernels
