// The engine on a GPU: against the CPU, and against itself over layouts, kinds of growth, and being
// launched or replayed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "base/cuda_for_test.h"
#include "engine/cuda/gpu.h"
#include "engine/engine.h"
#include "engine/tiny_model_for_test.h"
#include "kernels/cuda/cuda_rowwise.h"

namespace granule::engine {
namespace {

using Rows = std::vector<std::vector<float>>;

std::vector<TinyShape> CudaShapes() {
  return {
      {.name = "int4",
       .layers = 3,
       .heads = 6,
       .kv_heads = 2,
       .head_dim = 64,
       .hidden = 160,
       .ffn = 224,
       .vocab = 1003,
       .context = 4096},
      {.name = "float_zeros",
       .layers = 2,
       .heads = 3,
       .kv_heads = 3,
       .head_dim = 80,
       .hidden = 96,
       .ffn = 144,
       .vocab = 517,
       .context = 4096,
       .float_zero_points = true,
       .kv = DType::kF16},
      {.name = "int8_packed_qkv",
       .layers = 2,
       .heads = 8,
       .kv_heads = 1,
       .head_dim = 96,
       .hidden = 128,
       .ffn = 160,
       .vocab = 257,
       .context = 4096,
       .bits = 8,
       .packed_qkv = true,
       .kv = DType::kF16},
      {.name = "dense",
       .layers = 2,
       .heads = 4,
       .kv_heads = 4,
       .head_dim = 128,
       .hidden = 72,
       .ffn = 100,
       .vocab = 333,
       .context = 4096,
       .bits = 32,
       .position_table = true},
      // Nothing bounds its length: the reservation alone does.
      {.name = "no_context",
       .layers = 2,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 64,
       .hidden = 64,
       .ffn = 96,
       .vocab = 257,
       .state_context = false},
  };
}

struct Place {
  bool cuda = true;
  kv::LayoutChoice layout = {kv::LayoutKind::kTokenMajor, 0};
  kv::GrowthKind growth = kv::GrowthKind::kCommit;
  kv::CapacityPolicy policy = {};
  kv::CaptureMode capture = kv::CaptureMode::kAuto;
  kv::CapturePolicy capture_policy = kv::CapturePolicy::kDefault;
  std::optional<kv::Limit> limit = {};
};

struct Loaded {
  Loaded(const std::filesystem::path& folder, const Place& place) {
    auto d = place.cuda ? DeviceContext::CreateCuda({}, 0) : DeviceContext::CreateCpu({});
    EXPECT_TRUE(d.ok()) << d.status().message();
    device = std::move(*d);
    auto package = package::Open(folder);
    EXPECT_TRUE(package.ok()) << package.status().message();
    auto m = Model::Load(*device, std::move(*package));
    EXPECT_TRUE(m.ok()) << m.status().message();
    model = std::move(*m);
    KvOptions kv;
    kv.layout = place.layout;
    kv.growth = place.growth;
    kv.policy = place.policy;
    kv.explicit_limit = place.limit;
    kv.capture = place.capture;
    kv.capture_policy = place.capture_policy;
    engine = std::make_unique<Engine>(*device, *model, kv);
  }
  std::unique_ptr<DeviceContext> device;
  std::unique_ptr<Model> model;
  std::unique_ptr<Engine> engine;
};

class CudaEngine : public cuda::GpuTest, public testing::WithParamInterface<TinyShape> {
 protected:
  void SetUp() override {
    cuda::GpuTest::SetUp();
    if (device_ == nullptr) return;
    device_.reset();  // the engine opens its own
    folder_ = std::filesystem::temp_directory_path() /
              Format("granule-cuda-engine-{}-{}", GetParam().name, getpid());
    TinyModelWriter(folder_, GetParam());
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  std::vector<TokenId> Prompt(size_t n, uint32_t seed = 5) {
    std::mt19937 random(seed);
    std::vector<TokenId> ids(n);
    for (TokenId& id : ids)
      id = static_cast<TokenId>(random() % static_cast<uint32_t>(GetParam().vocab));
    return ids;
  }
  std::filesystem::path folder_;
};

// Logits of all tokens: the first `prefill` in one step, the others one by one.
Rows RunAll(Engine& engine, kv::Sequence& sequence, const std::vector<TokenId>& tokens,
            size_t prefill) {
  Rows rows;
  for (size_t at = 0; at < tokens.size();) {
    const size_t count = at == 0 ? prefill : 1;
    std::vector<int32_t> wanted(count);
    std::iota(wanted.begin(), wanted.end(), 0);
    const StepItem item{&sequence, std::span(tokens).subspan(at, count), wanted};
    auto output = engine.Step({&item, 1});
    EXPECT_TRUE(output.ok()) << output.status().message();
    if (!output.ok()) return rows;
    for (int64_t r = 0; r < output->rows; ++r)
      rows.emplace_back(output->Row(r).begin(), output->Row(r).end());
    at += count;
  }
  return rows;
}

bool SameBits(const Rows& a, const Rows& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](auto& x, auto& y) {
           return x.size() == y.size() &&
                  std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
         });
}

// Top-1 agreement and the largest difference, counted only where the CPU's margin says something.
struct Agreement {
  double max_difference = 0;
  int64_t rows = 0, agree = 0, sure = 0, sure_agree = 0;
};
Agreement Compare(const Rows& expected, const Rows& found) {
  Agreement a;
  EXPECT_EQ(expected.size(), found.size());
  for (size_t r = 0; r < std::min(expected.size(), found.size()); ++r) {
    for (size_t i = 0; i < expected[r].size(); ++i) {
      const double difference = std::abs(double{expected[r][i]} - double{found[r][i]});
      a.max_difference = std::isnan(difference) ? INFINITY : std::max(a.max_difference, difference);
    }
    std::vector<float> sorted = expected[r];
    std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<>());
    const auto best = [](const std::vector<float>& row) {
      return std::max_element(row.begin(), row.end()) - row.begin();
    };
    const bool same = best(expected[r]) == best(found[r]);
    ++a.rows;
    a.agree += same;
    a.sure += sorted[0] - sorted[1] > 0.1f;
    a.sure_agree += same && sorted[0] - sorted[1] > 0.1f;
  }
  return a;
}

TEST_P(CudaEngine, LogitsAgreeWithTheCpu) {
  const auto tokens = Prompt(700);
  Loaded cpu(folder_, {.cuda = false});
  Loaded gpu(folder_, {});
  for (const size_t prefill : {size_t{1}, size_t{5}, size_t{40}, size_t{600}}) {
    const std::vector<TokenId> part(tokens.begin(),
                                    tokens.begin() + static_cast<std::ptrdiff_t>(prefill + 30));
    auto a = *cpu.engine->NewSequence();
    auto b = *gpu.engine->NewSequence();
    const Agreement agreement =
        Compare(RunAll(*cpu.engine, *a, part, prefill), RunAll(*gpu.engine, *b, part, prefill));
    std::printf(
        "%s, %zu rows at once: max difference %.2g, top-1 %lld of %lld, sure %lld of %lld\n",
        GetParam().name.c_str(), prefill, agreement.max_difference,
        static_cast<long long>(agreement.agree), static_cast<long long>(agreement.rows),
        static_cast<long long>(agreement.sure_agree), static_cast<long long>(agreement.sure));
    EXPECT_EQ(agreement.sure_agree, agreement.sure);
    // Small steps multiply in fp32; larger ones round activations to fp16 for the tensor cores.
    EXPECT_LT(agreement.max_difference, prefill <= 8 ? 4e-3 : 5e-2);
  }
}

TEST_P(CudaEngine, SameBitsOverLayoutsGrowthAndCapture) {
  const auto tokens = Prompt(150);
  Rows baseline;
  const kv::LayoutChoice layouts[] = {{kv::LayoutKind::kTokenMajor, 0},
                                      {kv::LayoutKind::kHeadMajor, 0},
                                      {kv::LayoutKind::kSeqMajor, 0},
                                      {kv::LayoutKind::kStripe, 2}};
  for (const kv::LayoutChoice& layout : layouts) {
    for (const kv::GrowthKind growth :
         {kv::GrowthKind::kCommit, kv::GrowthKind::kRestride, kv::GrowthKind::kRealloc}) {
      if (growth == kv::GrowthKind::kRestride && layout.kind != kv::LayoutKind::kHeadMajor)
        continue;
      for (const kv::CaptureMode capture : {kv::CaptureMode::kOff, kv::CaptureMode::kOn}) {
        Loaded gpu(folder_, {.layout = layout,
                             .growth = growth,
                             .policy = {kv::Rounding::kBucket, 4},
                             .capture = capture,
                             .limit = kv::Limit{1000, "a test"}});
        auto s = *gpu.engine->NewSequence();
        const Rows rows = RunAll(*gpu.engine, *s, tokens, 6);
        if (baseline.empty()) baseline = rows;
        EXPECT_TRUE(SameBits(rows, baseline))
            << kv::LayoutName(layout) << " " << kv::GrowthName(growth) << " capture "
            << (capture == kv::CaptureMode::kOn);
        const kv::Counters c = s->counters();
        EXPECT_EQ(c.growth_events, 6u);  // 4, 8, .. 256
        if (capture == kv::CaptureMode::kOn) {
          EXPECT_TRUE(c.graph_existed);
          EXPECT_EQ(c.fallbacks, 0u) << s->capture().last_reason();
          EXPECT_GT(c.replays, 100u);
          if (growth == kv::GrowthKind::kCommit) {
            EXPECT_EQ(c.captures, 1u);
            EXPECT_EQ(c.replays, tokens.size() - 6 - 2);
            EXPECT_EQ(c.growth_keeps, 6u);
            EXPECT_EQ(c.kv_bytes_moved, 0u);
          } else {
            EXPECT_GT(c.captures, 3u);
          }
        } else {
          EXPECT_EQ(c.captures + c.replays, 0u);
        }
        EXPECT_TRUE(s->IsValid());
      }
    }
  }
}

TEST_P(CudaEngine, SequencesJoinLeaveAndGrowUnderOneGraph) {
  Loaded gpu(folder_, {.policy = {kv::Rounding::kBucket, 4}});
  constexpr size_t kCount = 5;
  std::array<std::vector<TokenId>, kCount> tokens;
  std::array<Rows, kCount> alone;
  for (size_t i = 0; i < kCount; ++i) {
    tokens[i] = Prompt(60 + 7 * i, static_cast<uint32_t>(i) + 1);
    auto s = *gpu.engine->NewSequence();
    alone[i] = RunAll(*gpu.engine, *s, tokens[i], 3);
  }
  std::array<std::unique_ptr<kv::Sequence>, kCount> sequences;
  std::array<Rows, kCount> together;
  std::mt19937 random(3);
  while (std::any_of(together.begin(), together.end(),
                     [&](const Rows& rows) { return rows.size() < 60; })) {
    std::vector<StepItem> items;
    std::vector<size_t> who;
    const int32_t row = 0;
    for (size_t i = 0; i < kCount; ++i) {
      if (sequences[i] == nullptr) sequences[i] = *gpu.engine->NewSequence();
      const size_t at = together[i].size();
      if (at >= tokens[i].size() || random() % 3 == 0) continue;
      items.push_back({sequences[i].get(), std::span(tokens[i]).subspan(at, 1), {&row, 1}});
      who.push_back(i);
    }
    if (items.empty()) continue;
    auto output = gpu.engine->Step(items);
    ASSERT_TRUE(output.ok()) << output.status().message();
    for (size_t r = 0; r < who.size(); ++r) {
      const auto logits = output->Row(static_cast<int64_t>(r));
      together[who[r]].emplace_back(logits.begin(), logits.end());
    }
  }
  for (size_t i = 0; i < kCount; ++i) {
    alone[i].resize(together[i].size());
    // The same rows in other company: another size class may round otherwise.
    const Agreement agreement = Compare(alone[i], together[i]);
    EXPECT_LT(agreement.max_difference, 5e-3) << i;
    EXPECT_EQ(agreement.sure_agree, agreement.sure) << i;
    EXPECT_TRUE(sequences[i]->IsValid());
  }
}

TEST_P(CudaEngine, APromptInChunksWithFewWantedRows) {
  const auto tokens = Prompt(300);
  Loaded gpu(folder_, {});
  auto whole = *gpu.engine->NewSequence();
  const Rows expected = RunAll(*gpu.engine, *whole, tokens, tokens.size());
  auto s = *gpu.engine->NewSequence();
  for (size_t at = 0; at < tokens.size(); at += 100) {
    const std::vector<int32_t> wanted =
        at == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{7, 50, 99};
    const StepItem item{s.get(), std::span(tokens).subspan(at, 100), wanted};
    auto output = gpu.engine->Step({&item, 1});
    ASSERT_TRUE(output.ok()) << output.status().message();
    ASSERT_EQ(output->rows, static_cast<int64_t>(wanted.size()));
    for (size_t i = 0; i < wanted.size(); ++i) {
      const auto row = output->Row(static_cast<int64_t>(i));
      const auto& want = expected[at + static_cast<size_t>(wanted[i])];
      double most = 0;
      for (size_t j = 0; j < want.size(); ++j)
        most = std::max(most, std::abs(double{want[j]} - double{row[j]}));
      EXPECT_LT(most, 5e-2) << at << " " << wanted[i];
    }
  }
}

// In a fresh engine each: nothing larger ran before, so that the memory is just what was planned.
TEST_P(CudaEngine, SmallStepsWithAnyNumberOfWantedRows) {
  const auto tokens = Prompt(17);
  for (const size_t count : {2, 7, 8, 9, 16, 17}) {
    for (const size_t wanted_count : {size_t{1}, count / 2, count - 1, count}) {
      Loaded gpu(folder_, {});
      auto s = *gpu.engine->NewSequence();
      std::vector<int32_t> wanted(wanted_count);
      std::iota(wanted.begin(), wanted.end(), static_cast<int32_t>(count - wanted_count));
      const StepItem item{s.get(), std::span(tokens).first(count), wanted};
      auto output = gpu.engine->Step({&item, 1});
      ASSERT_TRUE(output.ok()) << output.status().message();
      ASSERT_EQ(output->rows, static_cast<int64_t>(wanted_count));
      for (int64_t r = 0; r < output->rows; ++r) {
        for (const float x : output->Row(r)) ASSERT_TRUE(std::isfinite(x));
      }
    }
  }
}

TEST_P(CudaEngine, ALongBatchGivesTheSameBitsLaunchedAndReplayed) {
  constexpr size_t kCount = 5, kLength = 3100, kSteps = 6;
  Rows rows[2];
  for (const bool capture : {false, true}) {
    Loaded gpu(folder_, {.capture = capture ? kv::CaptureMode::kOn : kv::CaptureMode::kOff});
    std::vector<std::unique_ptr<kv::Sequence>> sequences;
    std::vector<std::vector<TokenId>> tokens;
    for (size_t i = 0; i < kCount; ++i) {
      tokens.push_back(Prompt(kLength + kSteps, static_cast<uint32_t>(i) + 50));
      sequences.push_back(*gpu.engine->NewSequence());
      for (size_t at = 0; at < kLength; at += 620) {
        const StepItem item{sequences.back().get(), std::span(tokens[i]).subspan(at, 620), {}};
        ASSERT_TRUE(gpu.engine->Step({&item, 1}).ok());
      }
    }
    for (size_t step = 0; step < kSteps; ++step) {
      const int32_t row = 0;
      std::vector<StepItem> items;
      for (size_t i = 0; i < kCount; ++i) {
        items.push_back(
            {sequences[i].get(), std::span(tokens[i]).subspan(kLength + step, 1), {&row, 1}});
      }
      auto output = gpu.engine->Step(items);
      ASSERT_TRUE(output.ok()) << output.status().message();
      for (int64_t r = 0; r < output->rows; ++r)
        rows[capture].emplace_back(output->Row(r).begin(), output->Row(r).end());
    }
  }
  EXPECT_TRUE(SameBits(rows[0], rows[1]));
}

TEST_P(CudaEngine, AForkAndARewindGoOnWithTheSameBits) {
  const auto tokens = Prompt(120);
  Loaded gpu(folder_, {.capture = kv::CaptureMode::kOn});
  auto straight = *gpu.engine->NewSequence();
  const Rows expected = RunAll(*gpu.engine, *straight, tokens, 6);
  auto parent = *gpu.engine->NewSequence();
  RunAll(*gpu.engine, *parent, {tokens.begin(), tokens.begin() + 80}, 6);
  auto child = parent->Fork();
  ASSERT_TRUE(child.ok()) << child.status().message();
  RunAll(*gpu.engine, *parent, Prompt(20, 99), 1);
  const Rows rest = RunAll(*gpu.engine, **child, {tokens.begin() + 80, tokens.end()}, 1);
  EXPECT_TRUE(SameBits(rest, Rows(expected.begin() + 80, expected.end())));
  ASSERT_TRUE((*child)->Rewind(80).ok());
  const Rows again = RunAll(*gpu.engine, **child, {tokens.begin() + 80, tokens.end()}, 1);
  EXPECT_TRUE(SameBits(again, rest));
}

TEST_P(CudaEngine, WeightsThatDoNotFitGiveABillAndLeaveNothing) {
  auto device = DeviceContext::CreateCuda({}, 0);
  ASSERT_TRUE(device.ok());
  cuda::Device& gpu = *(*device)->gpu()->device;
  std::vector<cuda::Buffer> fill;
  for (uint64_t piece = uint64_t{8} << 30; piece >= (uint64_t{64} << 10);) {
    auto buffer = cuda::Buffer::Allocate(gpu, piece, "filling");
    if (buffer.ok()) {
      fill.push_back(std::move(*buffer));
    } else {
      piece /= 2;
    }
  }
  const uint64_t before = gpu.Memory()->free_bytes;
  auto package = package::Open(folder_);
  auto model = Model::Load(**device, std::move(*package));
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), Code::kExhausted);
  EXPECT_EQ(gpu.Memory()->free_bytes, before);
  fill.clear();
  auto again = package::Open(folder_);
  EXPECT_TRUE(Model::Load(**device, std::move(*again)).ok());
}

// What a process sees of a kernel that writes where nothing is. Returns 0, or the number of what
// was not as it should be.
int LoseTheDevice(const std::filesystem::path& folder, const std::vector<TokenId>& tokens) {
  {
    Loaded gpu(folder, {});
    auto a = *gpu.engine->NewSequence(), b = *gpu.engine->NewSequence();
    if (RunAll(*gpu.engine, *a, tokens, 6).size() != tokens.size()) return 1;
    if (RunAll(*gpu.engine, *b, tokens, 6).size() != tokens.size()) return 2;
    memory::Vmm& vmm = gpu.device->vmm();
    auto reserved = vmm.Reserve(vmm.capabilities().granule_bytes);
    if (!reserved.ok()) return 3;
    auto* nowhere = reinterpret_cast<float*>(reserved->base);
    kernels::SiluMul(*gpu.device->gpu()->launcher, nowhere, nowhere, 1024, nowhere);
    if (gpu.device->gpu()->device->Synchronize().code() != Code::kDeviceLost) return 4;
    for (kv::Sequence* s : {a.get(), b.get()}) {
      const TokenId id = 1;
      const int32_t row = 0;
      const StepItem item{s, {&id, 1}, {&row, 1}};
      const auto output = gpu.engine->Step({&item, 1});
      if (output.ok() || output.status().code() != Code::kDeviceLost) return 5;
      if (s->live_length() != tokens.size()) return 6;
    }
  }
  // CUDA may keep a process out after such a fault. Then a new context is refused in words; where
  // the driver lets the process go on, the model is there again.
  auto device = DeviceContext::CreateCuda({}, 0);
  if (!device.ok()) {
    std::fprintf(stderr, "no new context: %s\n", device.status().message().c_str());
    const bool said =
        device.status().message().find("start the program again") != std::string::npos;
    return device.status().code() == Code::kDeviceLost && said ? 0 : 7;
  }
  device->reset();
  Loaded gpu(folder, {});
  auto a = *gpu.engine->NewSequence();
  return RunAll(*gpu.engine, *a, tokens, 6).size() == tokens.size() ? 0 : 8;
}

// In a process of its own: the fault may be the end of CUDA in it.
TEST_P(CudaEngine, ALostDeviceEndsItsSequencesWithOneTypedError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto tokens = Prompt(20);
  EXPECT_EXIT(_exit(LoseTheDevice(folder_, tokens)), testing::ExitedWithCode(0), "");
}

// A kernel that writes where a fork shows its parent's tokens.
int WriteIntoASharedPrefix(const std::filesystem::path& folder,
                           const std::vector<TokenId>& tokens) {
  Loaded gpu(folder, {});
  auto parent = *gpu.engine->NewSequence();
  for (size_t at = 0; at < tokens.size(); at += 700) {
    const auto part = std::span(tokens).subspan(at, std::min<size_t>(700, tokens.size() - at));
    const StepItem item{parent.get(), part, {}};
    if (!gpu.engine->Step({&item, 1}).ok()) return 1;
  }
  auto child = parent->Fork();
  if (!child.ok()) return 2;
  if ((*child)->counters().shared_bytes == 0) return 3;
  auto* shared = reinterpret_cast<float*>((*child)->base());
  kernels::SiluMul(*gpu.device->gpu()->launcher, shared, shared, 64, shared);
  const Status status = gpu.device->gpu()->device->Synchronize();
  std::fprintf(stderr, "a kernel's write into a shared prefix: %s\n", status.message().c_str());
  return status.code() == Code::kDeviceLost ? 0 : 4;
}

TEST_P(CudaEngine, AStrayWriteIntoASharedPrefixIsRefusedByTheMap) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto tokens = Prompt(3000);
  EXPECT_EXIT(_exit(WriteIntoASharedPrefix(folder_, tokens)), testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaEngine, testing::ValuesIn(CudaShapes()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace granule::engine
