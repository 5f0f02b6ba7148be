#include "kv/layout.h"

#include <gtest/gtest.h>

#include <set>

namespace granule::kv {
namespace {

constexpr uint64_t kGranule = uint64_t{2} << 20;

// The geometries of the reference's worked examples: qwen2.5-14b and -0.5b, fp16.
const LayerGeometry kQwen14b{8, 128, DType::kF16};
const LayerGeometry kQwen05b{2, 64, DType::kF16};

SpanShape HeadMajor(const LayerGeometry& g) {
  return {static_cast<uint64_t>(g.kv_heads),
          g.BindingBytesPerToken() / static_cast<uint64_t>(g.kv_heads)};
}
SpanShape SeqMajor(const LayerGeometry& g) { return {1, g.BindingBytesPerToken()}; }

uint64_t Granules(const SpanShape& shape, uint64_t batch, uint64_t capacity, uint64_t end) {
  return TouchedGranules(LiveRanges(shape, batch, capacity, 0, end).value(), kGranule);
}

TEST(LiveRanges, HeadMajorCostsKvHeadsTimesTheFloor) {
  EXPECT_EQ(Granules(HeadMajor(kQwen14b), 1, 32768, 1), 8u);
  EXPECT_EQ(Granules(SeqMajor(kQwen14b), 1, 32768, 1), 1u);
  EXPECT_EQ(Granules(HeadMajor(kQwen14b), 1, 32768, 8192), 8u);
  EXPECT_EQ(Granules(SeqMajor(kQwen14b), 1, 32768, 8192), 8u);
  EXPECT_EQ(Granules(HeadMajor(kQwen05b), 1, 32768, 1), 2u);
  EXPECT_EQ(Granules(SeqMajor(kQwen05b), 1, 32768, 1), 1u);
}

TEST(LiveRanges, LengthIsLoweredToTheCapacity) {
  const auto ranges = LiveRanges(SeqMajor(kQwen14b), 1, 256, 0, 100000).value();
  EXPECT_EQ(ranges, (std::vector<ByteRange>{{0, 524288}}));
}

TEST(LiveRanges, BatchIsTheOutermostAxis) {
  const auto seq = LiveRanges(SeqMajor(kQwen14b), 3, 32768, 0, 100).value();
  ASSERT_EQ(seq.size(), 3u);
  for (uint64_t b = 0; b < 3; ++b) {
    EXPECT_EQ(seq[b], (ByteRange{b * 67108864, b * 67108864 + 204800}));
  }
  const auto head = LiveRanges(HeadMajor(kQwen14b), 3, 32768, 0, 100).value();
  ASSERT_EQ(head.size(), 24u);
  for (uint64_t i = 0; i < 24; ++i) {
    EXPECT_EQ(head[i], (ByteRange{i * 8388608, i * 8388608 + 25600}));
  }
}

TEST(LiveRanges, NothingIsAnEmptyListAndOverflowIsNone) {
  EXPECT_TRUE(LiveRanges(SeqMajor(kQwen14b), 1, 256, 0, 0)->empty());
  EXPECT_TRUE(LiveRanges(SeqMajor(kQwen14b), 0, 256, 0, 10)->empty());
  EXPECT_TRUE(LiveRanges(SeqMajor(kQwen14b), 1, 256, 10, 10)->empty());
  EXPECT_FALSE(LiveRanges(SeqMajor(kQwen14b), 1, UINT64_MAX, 0, 1).has_value());
  EXPECT_FALSE(LiveRanges(HeadMajor(kQwen14b), UINT64_MAX / 4, 32768, 0, 1).has_value());
}

TEST(LiveRanges, StartInTheMiddle) {
  const auto ranges = LiveRanges(HeadMajor(kQwen05b), 1, 100, 10, 20).value();
  EXPECT_EQ(ranges, (std::vector<ByteRange>{{1280, 2560}, {14080, 15360}}));
}

TEST(TouchedGranules, SharedWindowsCountOnce) {
  EXPECT_EQ(TouchedGranules({{0, 1024}, {4096, 8192}}, kGranule), 1u);
  EXPECT_EQ(TouchedGranules({{0, kGranule + 10}, {kGranule, kGranule + 20}}, kGranule), 2u);
  EXPECT_EQ(TouchedGranules({{5, 5}}, kGranule), 0u);
  EXPECT_EQ(TouchedGranules({}, kGranule), 0u);
}

Group Uniform(int layers, LayerGeometry geometry) {
  Group group;
  group.layers.assign(static_cast<size_t>(layers), geometry);
  return group;
}

TEST(Layout, SeedsTableCommittedBytes) {
  // 48 bindings of 128 KiB at capacity 512: one granule under each span, four granules in all.
  const Group group = Uniform(24, kQwen05b);
  for (const LayoutKind kind : {LayoutKind::kHeadMajor, LayoutKind::kSeqMajor}) {
    const Layout layout = *MakeLayout({kind, 0}, group, 512, kGranule);
    EXPECT_EQ(SpanwiseGranules(layout, 64, kGranule) * kGranule, 100663296u);
    EXPECT_EQ(TouchedGranules(LiveRanges(layout, 0, 64), kGranule), 3u);
    EXPECT_EQ(layout.bytes, 3 * kGranule);
  }
  const Layout token = *MakeLayout({LayoutKind::kTokenMajor, 0}, group, 512, kGranule);
  EXPECT_EQ(SpanwiseGranules(token, 64, kGranule) * kGranule, 2097152u);
}

TEST(Layout, LargeSpansStartOnAGranule) {
  // qwen14b: 96 bindings with reservations of 16 MiB at capacity 8192.
  const Group group = Uniform(48, kQwen14b);
  const Layout layout = *MakeLayout({LayoutKind::kSeqMajor, 0}, group, 8192, kGranule);
  for (const Span& span : layout.spans) EXPECT_EQ(span.offset % kGranule, 0u);
  EXPECT_EQ(SpanwiseGranules(layout, 512, kGranule) * kGranule, 201326592u);
  EXPECT_EQ(SpanwiseGranules(layout, 1024, kGranule) * kGranule, 201326592u);
  EXPECT_EQ(SpanwiseGranules(layout, 2048, kGranule) * kGranule, 402653184u);
  EXPECT_EQ(SpanwiseGranules(layout, 8192, kGranule) * kGranule, 1610612736u);
}

TEST(Layout, KvHeadsTimesFloorOfOneLayer) {
  const Group group = Uniform(1, kQwen14b);
  const auto granules = [&](LayoutKind kind, uint64_t tokens) {
    return TouchedGranules(LiveRanges(*MakeLayout({kind, 0}, group, 32768, kGranule), 0, tokens),
                           kGranule);
  };
  EXPECT_EQ(granules(LayoutKind::kHeadMajor, 1), 16u);
  EXPECT_EQ(granules(LayoutKind::kSeqMajor, 1), 2u);
  EXPECT_EQ(granules(LayoutKind::kTokenMajor, 1), 1u);
  for (const LayoutKind kind :
       {LayoutKind::kHeadMajor, LayoutKind::kSeqMajor, LayoutKind::kTokenMajor}) {
    EXPECT_EQ(granules(kind, 8192), 16u);
  }
}

TEST(Layout, OverflowIsRefused) {
  const auto layout =
      MakeLayout({LayoutKind::kSeqMajor, 0}, Uniform(24, kQwen05b), UINT64_MAX / 8, kGranule);
  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(layout.status().code(), Code::kExhausted);
}

TEST(Layout, NamesRoundTripAndBadOnesAreRefused) {
  for (const char* name : {"head-major", "seq-major", "stripe:3", "token-major"}) {
    EXPECT_EQ(LayoutName(*ParseLayout(name)), name);
  }
  EXPECT_EQ(LayoutName(*ParseLayout("auto")), "token-major");
  for (const char* name :
       {"", "stripe", "stripe:", "stripe:0", "stripe:-1", "stripe:2x", "Seq-Major"}) {
    const auto parsed = ParseLayout(name);
    ASSERT_FALSE(parsed.ok()) << name;
    EXPECT_EQ(parsed.status().code(), Code::kUsage);
    EXPECT_NE(parsed.status().message().find("token-major"), std::string::npos);
  }
}

// Every element of every (layer, role, head, token) has a place of its own, inside LiveRanges of
// its token.
class LayoutPlaces : public testing::TestWithParam<LayoutChoice> {};

TEST_P(LayoutPlaces, AreDisjointAndInsideTheirLiveRanges) {
  Group group;
  group.layers = {{2, 3, DType::kF32}, {1, 80, DType::kF16}, {3, 5, DType::kF32}};
  constexpr uint64_t kCapacity = 37;
  constexpr uint64_t kSmallGranule = 4096;
  const Layout layout = *MakeLayout(GetParam(), group, kCapacity, kSmallGranule);
  std::set<uint64_t> used;
  for (uint64_t t = 0; t < kCapacity; ++t) {
    std::set<uint64_t> of_token;
    for (int32_t l = 0; l < 3; ++l) {
      const LayerGeometry& g = group.layers[static_cast<size_t>(l)];
      const KvView view = layout.View(nullptr, l);
      EXPECT_EQ(view.dtype, g.dtype);
      const int element = BitsOf(g.dtype) / 8;
      for (int64_t h = 0; h < g.kv_heads; ++h) {
        for (int64_t b = 0; b < g.head_dim * element; ++b) {
          const auto k = reinterpret_cast<uint64_t>(view.k) +
                         t * static_cast<uint64_t>(view.k_token_stride) +
                         static_cast<uint64_t>(h * view.k_head_stride + b);
          const auto v = reinterpret_cast<uint64_t>(view.v) +
                         t * static_cast<uint64_t>(view.v_token_stride) +
                         static_cast<uint64_t>(h * view.v_head_stride + b);
          EXPECT_TRUE(used.insert(k).second);
          EXPECT_TRUE(used.insert(v).second);
          of_token.insert(k);
          of_token.insert(v);
        }
      }
    }
    uint64_t bytes = 0;
    for (const ByteRange& range : LiveRanges(layout, t, t + 1)) {
      bytes += range.end - range.begin;
      for (uint64_t a = range.begin; a < range.end; ++a) EXPECT_TRUE(of_token.contains(a)) << a;
    }
    EXPECT_EQ(bytes, layout.bytes_per_token);
  }
  EXPECT_LE(*used.rbegin(), layout.bytes);
}

TEST_P(LayoutPlaces, LengthHeldIsTheLongestThatNeedsNoMoreGranules) {
  const Group group = Uniform(3, {3, 40, DType::kF32});
  constexpr uint64_t kCapacity = 300;
  constexpr uint64_t kSmallGranule = 4096;
  const Layout layout = *MakeLayout(GetParam(), group, kCapacity, kSmallGranule);
  const auto touched = [&](uint64_t n) {
    return TouchedGranules(LiveRanges(layout, 0, n), kSmallGranule);
  };
  for (const uint64_t n : {1, 2, 5, 17, 99, 150, 299, 300}) {
    const uint64_t held = LengthHeldByGranules(layout, n, kSmallGranule);
    EXPECT_GE(held, n);
    EXPECT_EQ(touched(held), touched(n));
    if (held < kCapacity) {
      EXPECT_GT(touched(held + 1), touched(n));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LayoutPlaces,
                         testing::Values(LayoutChoice{LayoutKind::kHeadMajor, 0},
                                         LayoutChoice{LayoutKind::kSeqMajor, 0},
                                         LayoutChoice{LayoutKind::kStripe, 1},
                                         LayoutChoice{LayoutKind::kStripe, 2},
                                         LayoutChoice{LayoutKind::kTokenMajor, 0}));

}  // namespace
}  // namespace granule::kv
