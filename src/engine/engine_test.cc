// The native engine against the double-precision interpreter, and against itself: same bits however
// a step is cut, laid out or shared.
#include "engine/engine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/reference_for_test.h"
#include "engine/tiny_model_for_test.h"
#include "memory/fault/fault_vmm.h"
#include "memory/host/host_vmm.h"

namespace granule::engine {
namespace {

std::filesystem::path Folder(const TinyShape& shape) {
  const auto folder = std::filesystem::temp_directory_path() /
                      Format("granule-engine-test-{}-{}", shape.name, getpid());
  TinyModelWriter(folder, shape);
  return folder;
}

package::Package OpenOrDie(const std::filesystem::path& folder) {
  auto package = package::Open(folder);
  EXPECT_TRUE(package.ok()) << package.status().message();
  return std::move(*package);
}

std::vector<TokenId> Prompt(size_t n, int64_t vocab, uint32_t seed = 5) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % static_cast<uint32_t>(vocab));
  return ids;
}

struct RunConfig {
  int threads = 1;
  kv::LayoutChoice layout = {};
  kv::CapacityPolicy policy = {};
  std::optional<kv::Limit> limit = {};
  kv::GrowthKind growth = kv::GrowthKind::kCommit;
  size_t granule_bytes = 4096;
  Isa isa = BestIsa();
};

// One loaded model on one device.
struct Loaded {
  Loaded(const std::filesystem::path& folder, const RunConfig& setup,
         std::unique_ptr<memory::Vmm> vmm = nullptr) {
    DeviceOptions options;
    options.threads = setup.threads;
    options.granule_bytes = setup.granule_bytes;
    options.isa = setup.isa;
    auto d =
        vmm ? DeviceContext::CreateCpu(options, std::move(vmm)) : DeviceContext::CreateCpu(options);
    EXPECT_TRUE(d.ok());
    device = std::move(*d);
    auto m = Model::Load(*device, OpenOrDie(folder));
    EXPECT_TRUE(m.ok()) << m.status().message();
    model = std::move(*m);
    engine = std::make_unique<Engine>(
        *device, *model, KvOptions{setup.layout, setup.policy, setup.limit, setup.growth});
  }
  std::unique_ptr<DeviceContext> device;
  std::unique_ptr<Model> model;
  std::unique_ptr<Engine> engine;
};

using Rows = std::vector<std::vector<float>>;

// Logits of all tokens, run in chunks.
Rows RunChunks(Engine& engine, kv::Sequence& sequence, const std::vector<TokenId>& tokens,
               size_t chunk) {
  Rows rows;
  for (size_t i = 0; i < tokens.size(); i += chunk) {
    const auto part = std::span(tokens).subspan(i, std::min(chunk, tokens.size() - i));
    std::vector<int32_t> wanted(part.size());
    std::iota(wanted.begin(), wanted.end(), 0);
    const StepItem item{&sequence, part, wanted};
    auto output = engine.Step({&item, 1});
    EXPECT_TRUE(output.ok()) << output.status().message();
    if (!output.ok()) return rows;
    for (int64_t r = 0; r < output->rows; ++r)
      rows.emplace_back(output->Row(r).begin(), output->Row(r).end());
  }
  return rows;
}

bool SameBits(const Rows& a, const Rows& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() ||
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0)
      return false;
  }
  return true;
}

class TinyModels : public testing::TestWithParam<TinyShape> {
 protected:
  void SetUp() override { folder_ = Folder(GetParam()); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  Rows Baseline(const std::vector<TokenId>& tokens) {
    Loaded l(folder_, {});
    auto sequence = l.engine->NewSequence();
    EXPECT_TRUE(sequence.ok());
    return RunChunks(*l.engine, **sequence, tokens, tokens.size());
  }
  std::filesystem::path folder_;
};

TEST_P(TinyModels, LogitsEqualTheInterpreter) {
  const auto tokens = Prompt(150, GetParam().vocab);
  package::Package package = OpenOrDie(folder_);
  const Matrix expected = ReferenceModel(package).Run(tokens);
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > BestIsa()) continue;
    Loaded l(folder_, {.isa = isa});
    auto sequence = l.engine->NewSequence();
    const Rows rows = RunChunks(*l.engine, **sequence, tokens, tokens.size());
    ASSERT_EQ(rows.size(), expected.size());
    // fp32 against double through a few layers of width ~100; logits are of order 1. fp16 KV may
    // round the other way where a value lies between two halves, which is 2^-11 of a value of
    // order 1.
    const double tolerance = GetParam().kv == DType::kF16 ? 4e-3 : 2e-4;
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t i = 0; i < rows[r].size(); ++i)
        ASSERT_NEAR(rows[r][i], expected[r][i], tolerance) << IsaName(isa) << " row " << r;
    }
  }
}

TEST_P(TinyModels, SameBitsOverLayoutsRoundingContextThreadsAndChunks) {
  const auto tokens = Prompt(200, GetParam().vocab);
  const Rows baseline = Baseline(tokens);
  const kv::LayoutChoice layouts[] = {{kv::LayoutKind::kHeadMajor, 0},
                                      {kv::LayoutKind::kSeqMajor, 0},
                                      {kv::LayoutKind::kStripe, 1},
                                      {kv::LayoutKind::kStripe, 2},
                                      {kv::LayoutKind::kTokenMajor, 0}};
  const kv::CapacityPolicy policies[] = {
      {kv::Rounding::kGranule, 256}, {kv::Rounding::kBucket, 4}, {kv::Rounding::kBucket, 256}};
  const size_t chunks[] = {1, 7, 64, 200};
  size_t i = 0;
  for (const auto& layout : layouts) {
    for (const auto& policy : policies) {
      // Every layout and policy, with threads, chunks and limits turning with them.
      RunConfig setup{.threads = 1 + static_cast<int>(i % 2), .layout = layout, .policy = policy};
      if (i % 3 != 0) setup.limit = kv::Limit{i % 3 == 1 ? 200u : 333u, "--ctx-size"};
      const size_t chunk = chunks[i % 4];
      ++i;
      Loaded l(folder_, setup);
      auto sequence = l.engine->NewSequence();
      ASSERT_TRUE(sequence.ok());
      EXPECT_TRUE(SameBits(RunChunks(*l.engine, **sequence, tokens, chunk), baseline))
          << kv::LayoutName(layout) << " " << kv::RoundingName(policy.rounding) << " chunk "
          << chunk;
      // What was asked for is what ran.
      EXPECT_EQ(l.device->threads(), setup.threads);
      EXPECT_EQ(l.engine->largest_step_rows(), static_cast<int64_t>(chunk));
      EXPECT_EQ(l.engine->steps(), (tokens.size() + chunk - 1) / chunk);
      EXPECT_EQ((*sequence)->layout().choice, layout);
      EXPECT_TRUE((*sequence)->IsValid());
    }
  }
}

TEST_P(TinyModels, SameBitsOverGrowthKinds) {
  const auto tokens = Prompt(200, GetParam().vocab);
  const Rows baseline = Baseline(tokens);
  const struct {
    kv::GrowthKind growth;
    kv::LayoutKind layout;
  } cases[] = {{kv::GrowthKind::kRestride, kv::LayoutKind::kHeadMajor},
               {kv::GrowthKind::kRealloc, kv::LayoutKind::kHeadMajor},
               {kv::GrowthKind::kRealloc, kv::LayoutKind::kSeqMajor},
               {kv::GrowthKind::kRealloc, kv::LayoutKind::kTokenMajor}};
  for (const auto& c : cases) {
    Loaded l(folder_,
             {.layout = {c.layout, 0}, .policy = {kv::Rounding::kBucket, 4}, .growth = c.growth});
    auto s = *l.engine->NewSequence();
    EXPECT_TRUE(SameBits(RunChunks(*l.engine, *s, tokens, 3), baseline))
        << kv::GrowthName(c.growth);
    EXPECT_EQ(s->counters().growth_events, 6u);  // 8, 16, ... 256
    EXPECT_GT(s->counters().kv_bytes_moved, 0u);
  }
}

TEST_P(TinyModels, AForkGoesOnWithTheSameBits) {
  const auto tokens = Prompt(200, GetParam().vocab);
  const Rows baseline = Baseline(tokens);
  Loaded l(folder_, {});
  auto parent = *l.engine->NewSequence();
  RunChunks(*l.engine, *parent, {tokens.begin(), tokens.begin() + 150}, 150);
  auto child = parent->Fork();
  ASSERT_TRUE(child.ok());
  RunChunks(*l.engine, *parent, Prompt(30, GetParam().vocab, 99), 30);
  const Rows rest = RunChunks(*l.engine, **child, {tokens.begin() + 150, tokens.end()}, 7);
  EXPECT_TRUE(SameBits(rest, Rows(baseline.begin() + 150, baseline.end())));
}

TEST_P(TinyModels, SameBitsAloneAndInABatchWithOthers) {
  const auto tokens = Prompt(90, GetParam().vocab);
  const Rows baseline = Baseline(tokens);
  Loaded l(folder_, {.threads = 2});
  auto a = *l.engine->NewSequence(), b = *l.engine->NewSequence(), c = *l.engine->NewSequence();
  const auto other = Prompt(400, GetParam().vocab, 77);
  Rows rows;
  size_t at = 0, b_at = 0, c_at = 0;
  // a prefills and decodes while b prefills in chunks of its own and c decodes.
  for (const size_t part : {40, 1, 1, 20, 1, 27}) {
    std::vector<int32_t> wanted(part);
    std::iota(wanted.begin(), wanted.end(), 0);
    const int32_t last = 12;
    const std::vector<StepItem> items = {{b.get(), std::span(other).subspan(b_at, 13), {&last, 1}},
                                         {a.get(), std::span(tokens).subspan(at, part), wanted},
                                         {c.get(), std::span(other).subspan(c_at, 1), {}}};
    auto output = l.engine->Step(items);
    ASSERT_TRUE(output.ok()) << output.status().message();
    ASSERT_EQ(output->rows, static_cast<int64_t>(part) + 1);
    for (size_t r = 0; r < part; ++r) {
      const auto row = output->Row(static_cast<int64_t>(r) + 1);
      rows.emplace_back(row.begin(), row.end());
    }
    at += part;
    b_at += 13;
    c_at += 1;
  }
  EXPECT_TRUE(SameBits(rows, baseline));
  EXPECT_EQ(b->live_length(), b_at);
  EXPECT_EQ(c->live_length(), c_at);
}

TEST_P(TinyModels, WantedRowsAreARowsChoiceAndChangeNoBits) {
  const auto tokens = Prompt(60, GetParam().vocab);
  const Rows baseline = Baseline(tokens);
  Loaded l(folder_, {});
  auto s = *l.engine->NewSequence();
  const std::vector<int32_t> wanted = {3, 17, 18, 59};
  const StepItem item{s.get(), tokens, wanted};
  auto output = l.engine->Step({&item, 1});
  ASSERT_TRUE(output.ok());
  ASSERT_EQ(output->rows, 4);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto row = output->Row(static_cast<int64_t>(i));
    EXPECT_EQ(
        std::memcmp(row.data(), baseline[static_cast<size_t>(wanted[i])].data(), row.size_bytes()),
        0)
        << i;
  }
}

// K and V lie where live_ranges says, element for element, and nothing lies elsewhere.
TEST_P(TinyModels, KvLiesWhereLiveRangesPutsIt) {
  const auto tokens = Prompt(77, GetParam().vocab);
  std::vector<std::vector<std::byte>> first;  // [layer * 2 + role]: rows of all heads of all tokens
  for (const kv::LayoutChoice layout : {kv::LayoutChoice{kv::LayoutKind::kSeqMajor, 0},
                                        kv::LayoutChoice{kv::LayoutKind::kHeadMajor, 0},
                                        kv::LayoutChoice{kv::LayoutKind::kStripe, 2},
                                        kv::LayoutChoice{kv::LayoutKind::kTokenMajor, 0}}) {
    Loaded l(folder_, {.layout = layout});
    auto s = *l.engine->NewSequence();
    RunChunks(*l.engine, *s, tokens, 10);
    // Inside: the same elements in every layout.
    std::vector<std::vector<std::byte>> content;
    const auto& layers = l.model->kv_group().layers;
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      const KvView view = s->View(static_cast<int32_t>(layer));
      const size_t bytes =
          static_cast<size_t>(layers[layer].head_dim * BitsOf(layers[layer].dtype) / 8);
      for (const auto& [data, token_stride, head_stride] :
           {std::tuple(view.k, view.k_token_stride, view.k_head_stride),
            std::tuple(view.v, view.v_token_stride, view.v_head_stride)}) {
        std::vector<std::byte>& rows = content.emplace_back();
        for (int64_t t = 0; t < 77; ++t) {
          for (int64_t h = 0; h < layers[layer].kv_heads; ++h) {
            const std::byte* at = data + t * token_stride + h * head_stride;
            rows.insert(rows.end(), at, at + bytes);
          }
        }
      }
    }
    if (first.empty()) first = content;
    EXPECT_EQ(content, first) << kv::LayoutName(layout);
    // Outside: committed and never written.
    const auto live = kv::LiveRanges(s->layout(), 0, s->live_length());
    uint64_t inside = 0, written_inside = 0;
    for (const auto& range : kv::LiveRanges(s->layout(), 0, s->committed_length())) {
      for (uint64_t at = range.begin; at < range.end; ++at) {
        const bool is_live = std::any_of(live.begin(), live.end(), [&](const kv::ByteRange& r) {
          return r.begin <= at && at < r.end;
        });
        const bool written = s->base()[at] != std::byte{0};
        inside += is_live;
        written_inside += is_live && written;
        ASSERT_TRUE(is_live || !written) << kv::LayoutName(layout) << " byte " << at;
      }
    }
    EXPECT_EQ(inside, 77 * l.model->info().kv_bytes_per_token);
    EXPECT_GT(written_inside, inside / 2);
  }
}

TEST_P(TinyModels, RewindAndReplayGiveTheSameBits) {
  const auto tokens = Prompt(100, GetParam().vocab);
  const Rows baseline = Baseline(tokens);
  Loaded l(folder_, {});
  auto s = *l.engine->NewSequence();
  RunChunks(*l.engine, *s, Prompt(80, GetParam().vocab, 9), 33);
  ASSERT_TRUE(s->Rewind(0).ok());
  RunChunks(*l.engine, *s, {tokens.begin(), tokens.begin() + 64}, 64);
  RunChunks(*l.engine, *s, Prompt(20, GetParam().vocab, 11), 20);
  ASSERT_TRUE(s->Rewind(64).ok());
  const Rows rest = RunChunks(*l.engine, *s, {tokens.begin() + 64, tokens.end()}, 5);
  EXPECT_TRUE(SameBits(rest, Rows(baseline.begin() + 64, baseline.end())));
}

// Every call of every verb fails once, in prefill, in decode, and at the end: a typed error, a
// usable sequence, the right logits.
TEST_P(TinyModels, AnyMemoryCallMayFail) {
  using memory::Verb;
  const auto tokens = Prompt(120, GetParam().vocab);
  const Rows baseline = Baseline(tokens);
  std::array<uint64_t, memory::kAllVerbs.size()> calls{};
  for (const Verb verb : memory::kMemoryVerbs) {
    for (uint64_t nth = 1;; nth += 1 + nth / 8) {
      memory::HostVmmOptions host_options;
      host_options.granule_bytes = 4096;
      auto host = *memory::HostVmm::Open(host_options);
      auto owned = std::make_unique<memory::FaultVmm>(*host);
      memory::FaultVmm& fault = *owned;
      bool failed = false;
      {
        Loaded l(folder_, {.threads = 1, .layout = {kv::LayoutKind::kTokenMajor, 0}},
                 std::move(owned));
        fault.FailCall(verb, nth);
        std::unique_ptr<kv::Sequence> s;
        for (int attempt = 0; s == nullptr && attempt < 2; ++attempt) {
          auto made = l.engine->NewSequence();
          if (made.ok()) {
            s = std::move(*made);
          } else {
            failed = true;
            EXPECT_EQ(made.status().code(), Code::kExhausted) << made.status().message();
          }
        }
        ASSERT_NE(s, nullptr);
        std::vector<float> last;
        for (size_t at = 0; at < tokens.size();) {
          const size_t part = at < 100 ? 50 : 1;  // two prefill chunks, then decode
          const auto row = static_cast<int32_t>(part - 1);
          const StepItem item{s.get(), std::span(tokens).subspan(at, part), {&row, 1}};
          auto output = l.engine->Step({&item, 1});
          if (!output.ok()) {
            failed = true;
            EXPECT_EQ(output.status().code(), Code::kExhausted) << output.status().message();
            EXPECT_EQ(s->live_length(), at);
            EXPECT_TRUE(s->IsValid());
            output = l.engine->Step({&item, 1});
          }
          ASSERT_TRUE(output.ok()) << output.status().message();
          at += part;
          ASSERT_EQ(std::memcmp(output->logits, baseline[at - 1].data(),
                                baseline[at - 1].size() * sizeof(float)),
                    0)
              << "token " << at;
        }
        s.reset();
        if (!l.device->store().space->FreeUnused().ok()) failed = true;
        const memory::HandleCounters c = l.device->store().pool->counters();
        EXPECT_EQ(c.creates, c.releases + c.quarantined_handles);
        if (c.quarantined_handles > 0) {
          failed = true;
          EXPECT_TRUE(verb == Verb::kUnmap || verb == Verb::kRelease) << memory::VerbName(verb);
        }
        calls[static_cast<size_t>(verb)] = fault.calls(verb);
        EXPECT_TRUE(failed || fault.calls(verb) < nth || verb == Verb::kReserve)
            << memory::VerbName(verb) << " " << nth;
      }
      if (calls[static_cast<size_t>(verb)] < nth) break;
    }
    ASSERT_GT(calls[static_cast<size_t>(verb)], 0u)
        << memory::VerbName(verb) << " was never called";
    std::printf("calls of %s: %llu\n", memory::VerbName(verb),
                static_cast<unsigned long long>(calls[static_cast<size_t>(verb)]));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, TinyModels, testing::ValuesIn(TinyShapes()),
                         [](const auto& info) { return info.param.name; });

class OneModel : public testing::Test {
 protected:
  void SetUp() override { folder_ = Folder(shape_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  TinyShape shape_{.name = "one"};
  std::filesystem::path folder_;
};

TEST_F(OneModel, BadStepsAreRefusedAndChangeNothing) {
  Loaded l(folder_, {});
  auto s = *l.engine->NewSequence();
  const std::vector<TokenId> good = {1, 2, 3};
  const std::vector<int32_t> row = {2};
  const auto refused = [&](std::vector<StepItem> items) {
    const auto output = l.engine->Step(items);
    EXPECT_FALSE(output.ok());
    EXPECT_EQ(output.status().code(), Code::kInvalidInput);
    EXPECT_EQ(s->live_length(), 0u);
    return output.status().message();
  };
  const std::vector<TokenId> large = {1, 101}, negative = {-1};
  EXPECT_NE(
      refused({{s.get(), large, {}}}).find("token id 101 is outside the model's vocabulary of 101"),
      std::string::npos);
  refused({{s.get(), negative, {}}});
  refused({{s.get(), {}, {}}});
  refused({});
  refused({{s.get(), good, row}, {s.get(), good, row}});
  const std::vector<int32_t> descending = {2, 1}, outside = {3};
  refused({{s.get(), good, descending}});
  refused({{s.get(), good, outside}});
  const StepItem item{s.get(), good, row};
  EXPECT_TRUE(l.engine->Step({&item, 1}).ok());
}

TEST_F(OneModel, TheLimitIsTheSmallestOfUserConfigAndTables) {
  Loaded l(folder_, {.limit = kv::Limit{64, "--ctx-size"}});
  auto s = *l.engine->NewSequence();
  RunChunks(*l.engine, *s, Prompt(64, shape_.vocab), 64);
  const TokenId one = 1;
  const StepItem item{s.get(), {&one, 1}, {}};
  EXPECT_EQ(l.engine->Step({&item, 1}).status().code(), Code::kCapacityExceeded);
  EXPECT_EQ(s->live_length(), 64u);
  Loaded high(folder_, {.limit = kv::Limit{100000, "--ctx-size"}});
  EXPECT_EQ(high.engine->hard_max().tokens, 512u);
  EXPECT_FALSE(high.engine->hard_max().warning.empty());
}

TEST_F(OneModel, AModelThatStatesNoContextRuns) {
  TinyShape shape{.name = "no_context", .state_context = false};
  const auto folder = Folder(shape);
  Loaded l(folder, {});
  EXPECT_FALSE(l.engine->hard_max().tokens.has_value());
  auto s = *l.engine->NewSequence();
  EXPECT_EQ(RunChunks(*l.engine, *s, Prompt(700, shape.vocab), 100).size(), 700u);
  std::filesystem::remove_all(folder);
}

TEST_F(OneModel, ContextCostsNoMemory) {
  uint64_t bytes[2];
  for (int i = 0; i < 2; ++i) {
    Loaded l(folder_, {.limit = kv::Limit{i == 0 ? 32u : 512u, "--ctx-size"}});
    auto s = *l.engine->NewSequence();
    RunChunks(*l.engine, *s, Prompt(20, shape_.vocab), 20);
    bytes[i] = s->counters().unique_physical_bytes;
    EXPECT_EQ(*l.device->vmm().ResidentBytes(), bytes[i]);
  }
  EXPECT_EQ(bytes[0], bytes[1]);
}

TEST_F(OneModel, ProductsWithTheSameLeftSideAreOneStep) {
  Loaded l(folder_, {});
  const std::string plan = l.model->DescribePlan();
  EXPECT_NE(plan.find("l0_q_node + l0_k_node + l0_v_node"), std::string::npos) << plan;
  EXPECT_NE(plan.find("silu_mul"), std::string::npos);
  EXPECT_EQ(plan.find("seqlens"), std::string::npos);
}

}  // namespace
}  // namespace granule::engine
