// Sequences over the real host memory, and over faults.
#include "kv/sequence.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>

#include "memory/fault/fault_vmm.h"
#include "memory/host/host_vmm.h"

namespace granule::kv {
namespace {

constexpr size_t kGranule = 4096;

struct Fixture {
  explicit Fixture(uint64_t retained_bytes = 0) {
    memory::HostVmmOptions options;
    options.granule_bytes = kGranule;
    auto opened = memory::HostVmm::Open(options);
    EXPECT_TRUE(opened.ok());
    host = std::move(*opened);
    fault = std::make_unique<memory::FaultVmm>(*host);
    space = std::make_unique<memory::AddressSpace>(*fault);
    pool = std::make_unique<memory::HandlePool>(*fault, retained_bytes);
    table = std::make_unique<memory::MappingTable>(*fault, *pool);
  }
  Store store() const { return {fault.get(), space.get(), pool.get(), table.get()}; }

  std::unique_ptr<memory::HostVmm> host;
  std::unique_ptr<memory::FaultVmm> fault;
  std::unique_ptr<memory::AddressSpace> space;
  std::unique_ptr<memory::HandlePool> pool;
  std::unique_ptr<memory::MappingTable> table;
};

Group TestGroup() {
  Group group;
  group.layers = {{3, 20, DType::kF32}, {1, 80, DType::kF16}};
  return group;
}

SequenceOptions Options(const LayoutChoice& layout, CapacityPolicy policy, uint64_t hard_max) {
  SequenceOptions options;
  options.layout = layout;
  options.policy = policy;
  if (hard_max != 0) {
    options.hard_max.tokens = hard_max;
    options.hard_max.source = "--ctx-size";
  }
  return options;
}

const LayoutChoice kLayouts[] = {{LayoutKind::kHeadMajor, 0},
                                 {LayoutKind::kSeqMajor, 0},
                                 {LayoutKind::kStripe, 1},
                                 {LayoutKind::kTokenMajor, 0}};
const CapacityPolicy kPolicies[] = {
    {Rounding::kGranule, 256}, {Rounding::kBucket, 4}, {Rounding::kBucket, 256}};

class Sequences : public testing::TestWithParam<std::tuple<LayoutChoice, CapacityPolicy>> {
 protected:
  std::unique_ptr<Sequence> Make(const Fixture& f, uint64_t hard_max) {
    auto s = Sequence::Create(f.store(), TestGroup(),
                              Options(std::get<0>(GetParam()), std::get<1>(GetParam()), hard_max));
    EXPECT_TRUE(s.ok()) << s.status().message();
    return std::move(*s);
  }
};

// Writes a mark into every element of a token, and checks it later: a lost, moved or shared slot
// shows.
void Mark(const Sequence& s, const Group& group, uint64_t token, uint8_t mark, bool check) {
  for (int32_t l = 0; l < static_cast<int32_t>(group.layers.size()); ++l) {
    const KvView view = s.View(l);
    const LayerGeometry& g = group.layers[static_cast<size_t>(l)];
    for (int64_t h = 0; h < g.kv_heads; ++h) {
      for (std::byte* p :
           {view.k + static_cast<int64_t>(token) * view.k_token_stride + h * view.k_head_stride,
            view.v + static_cast<int64_t>(token) * view.v_token_stride + h * view.v_head_stride}) {
        const size_t bytes = static_cast<size_t>(g.head_dim * BitsOf(g.dtype) / 8);
        if (!check) {
          std::memset(p, mark, bytes);
        } else {
          for (size_t i = 0; i < bytes; ++i)
            ASSERT_EQ(static_cast<uint8_t>(p[i]), mark) << "token " << token << " layer " << l;
        }
      }
    }
  }
}

TEST_P(Sequences, MemoryFollowsTheTokens) {
  Fixture f;
  auto s = Make(f, 1000);
  const uint64_t granule = kGranule;
  EXPECT_EQ(f.table->unique_bytes(), 0u);
  for (uint64_t n = 1; n <= 1000; n += 1 + n / 3) {
    ASSERT_TRUE(s->Ensure(n).ok());
    EXPECT_GE(s->committed_length(), n);
    ASSERT_TRUE(s->IsValid());
    for (uint64_t t = s->live_length(); t < n; ++t)
      Mark(*s, TestGroup(), t, static_cast<uint8_t>(t + 1), false);
    s->Advance(n - s->live_length());
    const uint64_t expected =
        TouchedGranules(LiveRanges(s->layout(), 0, s->committed_length()), granule) * granule;
    EXPECT_EQ(s->counters().unique_physical_bytes, expected);
    EXPECT_EQ(*f.fault->ResidentBytes(), expected);
    if (std::get<1>(GetParam()).rounding == Rounding::kBucket) {
      EXPECT_EQ(s->committed_length(), Bucket(n, 1000, std::get<1>(GetParam()).min_bucket));
    }
  }
  for (uint64_t t = 0; t < s->live_length(); ++t)
    Mark(*s, TestGroup(), t, static_cast<uint8_t>(t + 1), true);
  EXPECT_EQ(s->counters().kv_bytes_moved, 0u);
  EXPECT_EQ(s->counters().growth_keeps, s->counters().growth_events);

  ASSERT_TRUE(s->Reset().ok());
  EXPECT_EQ(*f.fault->ResidentBytes(), 0u);
  ASSERT_TRUE(s->Ensure(5).ok());
  s.reset();
  EXPECT_EQ(*f.fault->ResidentBytes(), 0u);
  EXPECT_EQ(f.space->carved_bytes(), 0u);
  EXPECT_EQ(f.pool->counters().creates, f.pool->counters().releases);
}

TEST_P(Sequences, ReusedMemoryIsZeroedExactlyWhereItIsCommitted) {
  Fixture f(/*retained_bytes=*/64 << 20);
  {
    auto s = Make(f, 500);
    ASSERT_TRUE(s->Ensure(500).ok());
    for (uint64_t t = 0; t < 500; ++t) Mark(*s, TestGroup(), t, 0xee, false);
  }
  ASSERT_GT(f.pool->counters().pooled_bytes, 0u);
  EXPECT_EQ(*f.fault->ResidentBytes(), f.pool->counters().pooled_bytes);
  auto s = Make(f, 500);
  ASSERT_TRUE(s->Ensure(3).ok());
  for (uint64_t t = 0; t < 3; ++t) Mark(*s, TestGroup(), t, 0x11, false);
  s->Advance(3);
  ASSERT_TRUE(s->Ensure(400).ok());
  for (uint64_t t = 0; t < 3; ++t) Mark(*s, TestGroup(), t, 0x11, true);
  for (uint64_t t = 3; t < s->committed_length(); ++t) Mark(*s, TestGroup(), t, 0, true);
}

TEST_P(Sequences, TheHardMaximumIsExact) {
  Fixture f;
  auto s = Make(f, 70);
  ASSERT_TRUE(s->Ensure(70).ok());
  EXPECT_EQ(s->committed_length(), 70u);
  const Status status = s->Ensure(71);
  EXPECT_EQ(status.code(), Code::kCapacityExceeded);
  EXPECT_NE(
      status.message().find("requested context length 71, hard maximum 70 (source: --ctx-size)"),
      std::string::npos);
}

TEST_P(Sequences, WithoutALimitTheReservationBoundsAndTheErrorNamesTheSource) {
  Fixture f;
  auto s = Make(f, 0);
  EXPECT_FALSE(s->hard_max().tokens.has_value());
  ASSERT_TRUE(s->Ensure(300).ok());
  const Status status = s->Ensure(s->capacity() + 1);
  EXPECT_EQ(status.code(), Code::kCapacityExceeded);
  EXPECT_NE(status.message().find("unbounded (the model states no context length)"),
            std::string::npos);
  EXPECT_EQ(s->Ensure(UINT64_MAX).code(), Code::kCapacityExceeded);
  ASSERT_TRUE(s->Ensure(301).ok());
}

TEST_P(Sequences, RewindForgetsTokensAndKeepsMemory) {
  Fixture f;
  auto s = Make(f, 500);
  ASSERT_TRUE(s->Ensure(100).ok());
  s->Advance(100);
  const uint64_t bytes = s->counters().unique_physical_bytes;
  EXPECT_EQ(s->Rewind(101).status().code(), Code::kInvalidInput);
  EXPECT_EQ(*s->Rewind(100), 100u);
  EXPECT_EQ(s->counters().invalidations, 0u);
  EXPECT_EQ(*s->Rewind(40), 40u);
  EXPECT_EQ(s->counters().invalidations, 1u);
  EXPECT_EQ(s->live_length(), 40u);
  EXPECT_EQ(s->counters().unique_physical_bytes, bytes);
  EXPECT_TRUE(s->IsValid());
}

// Fails every call of every verb in turn, from reserving to closing.
TEST_P(Sequences, AnyCallMayFail) {
  using memory::Verb;
  for (const Verb verb : memory::kAllVerbs) {
    for (uint64_t nth = 1;; ++nth) {
      Fixture f;
      f.fault->FailCall(verb, nth);
      bool failed = false;
      const auto attempt = [&](auto call) {
        const Status s = call();
        if (s.ok()) return;
        failed = true;
        EXPECT_TRUE(s.code() == Code::kExhausted) << s.message();
        const Status retry = call();
        EXPECT_TRUE(retry.ok()) << retry.message();
      };
      std::unique_ptr<Sequence> s;
      attempt([&]() -> Status {
        auto made = Sequence::Create(
            f.store(), TestGroup(), Options(std::get<0>(GetParam()), std::get<1>(GetParam()), 600));
        if (!made.ok()) return made.status();
        s = std::move(*made);
        return {};
      });
      for (const uint64_t n : {3, 90, 91, 400}) {
        const uint64_t live = s->live_length();
        const uint64_t committed = s->committed_length();
        attempt([&]() -> Status {
          Status status = s->Ensure(n);
          if (!status.ok()) {
            EXPECT_EQ(s->live_length(), live);
            EXPECT_EQ(s->committed_length(), committed);
            EXPECT_TRUE(s->IsValid());
          }
          return status;
        });
        for (uint64_t t = live; t < n; ++t)
          Mark(*s, TestGroup(), t, static_cast<uint8_t>(t * 7 + 1), false);
        s->Advance(n - live);
      }
      for (uint64_t t = 0; t < 400; ++t)
        Mark(*s, TestGroup(), t, static_cast<uint8_t>(t * 7 + 1), true);
      s.reset();
      const Status freed = f.space->FreeUnused();
      if (!freed.ok()) failed = true;
      const memory::HandleCounters c = f.pool->counters();
      EXPECT_EQ(c.creates, c.releases + c.quarantined_handles);
      if (c.quarantined_handles > 0) {
        failed = true;
        EXPECT_TRUE(verb == Verb::kUnmap || verb == Verb::kRelease);
      }
      EXPECT_TRUE(f.table->IsValid());
      ASSERT_GT(f.fault->calls(verb), 0u) << "verb never called: the test proves nothing about it";
      if (f.fault->calls(verb) < nth) break;
      // A refused reservation is no failure: the ladder asks for less.
      EXPECT_TRUE(failed || verb == Verb::kReserve)
          << "call " << nth << " of " << memory::VerbName(verb) << " failed unseen";
    }
  }
}

RC_GTEST_PROP(SequenceProperties, RandomUseKeepsContentAndBooks, ()) {
  Fixture f(*rc::gen::element<uint64_t>(0, 1 << 20));
  const LayoutChoice layout =
      *rc::gen::elementOf(std::vector<LayoutChoice>(std::begin(kLayouts), std::end(kLayouts)));
  const auto policy = kPolicies[*rc::gen::inRange(0, 3)];
  const uint64_t hard_max = *rc::gen::inRange<uint64_t>(1, 700);
  auto made = Sequence::Create(f.store(), TestGroup(), Options(layout, policy, hard_max));
  RC_ASSERT(made.ok());
  auto& s = *made;
  std::vector<uint8_t> marks;
  const int operations = *rc::gen::inRange(1, 60);
  for (int i = 0; i < operations; ++i) {
    switch (*rc::gen::inRange(0, 6)) {
      case 0:
      case 1:
      case 2: {
        const uint64_t n = s->live_length() + *rc::gen::inRange<uint64_t>(1, 90);
        const bool fault = *rc::gen::inRange(0, 4) == 0;
        if (fault)
          f.fault->FailCall(*rc::gen::element(memory::Verb::kCreate, memory::Verb::kMap),
                            *rc::gen::inRange<uint64_t>(1, 5));
        const uint64_t committed = s->committed_length();
        const Status status = s->Ensure(n);
        f.fault->Heal();
        if (!status.ok()) {
          RC_ASSERT(s->committed_length() == committed);
          RC_ASSERT(n > hard_max || fault);
          break;
        }
        RC_ASSERT(n <= hard_max);
        for (uint64_t t = s->live_length(); t < n; ++t) {
          marks.push_back(static_cast<uint8_t>(*rc::gen::inRange(1, 255)));
          Mark(*s, TestGroup(), t, marks.back(), false);
        }
        s->Advance(n - s->live_length());
        break;
      }
      case 3: {
        const uint64_t to = *rc::gen::inRange<uint64_t>(0, s->live_length() + 1);
        RC_ASSERT(s->Rewind(to).ok());
        marks.resize(to);
        break;
      }
      case 4:
        if (*rc::gen::inRange(0, 3) == 0) {
          RC_ASSERT(s->Reset().ok());
          marks.clear();
        }
        break;
      default:
        f.pool->Trim(0);
    }
    RC_ASSERT(s->IsValid());
    RC_ASSERT(f.table->IsValid());
    RC_ASSERT(f.pool->IsValid());
    RC_ASSERT(*f.fault->ResidentBytes() ==
              f.table->unique_bytes() + f.pool->counters().pooled_bytes);
  }
  for (uint64_t t = 0; t < marks.size(); ++t) Mark(*s, TestGroup(), t, marks[t], true);
}

TEST(Sequence, NoAddressesAtAllIsATypedErrorAndTheRetryWorks) {
  Fixture f;
  f.fault->FailFrom(memory::Verb::kReserve, 1);
  const auto refused =
      Sequence::Create(f.store(), TestGroup(), Options({LayoutKind::kSeqMajor, 0}, {}, 600));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kExhausted);
  f.fault->Heal();
  const auto made =
      Sequence::Create(f.store(), TestGroup(), Options({LayoutKind::kSeqMajor, 0}, {}, 600));
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE((*made)->Ensure(600).ok());
}

TEST(Sequence, GroupsThatAreNotBuiltAreRefusedByName) {
  Fixture f;
  Group group = TestGroup();
  group.retention = Retention::kWindow;
  const auto s = Sequence::Create(f.store(), group, {});
  ASSERT_FALSE(s.ok());
  EXPECT_NE(s.status().message().find("window"), std::string::npos);
}

TEST(Sequence, SeedsGrowthCountsOfTheForcedArm) {
  // Prompt of 5, 47 single steps, floor 8, hard maximum 512: growths at 9, 17 and 33, all kept,
  // nothing moved.
  Fixture f;
  Group group;
  group.layers.assign(24, {2, 64, DType::kF16});
  auto s = *Sequence::Create(f.store(), group,
                             Options({LayoutKind::kSeqMajor, 0}, {Rounding::kBucket, 8}, 512));
  for (uint64_t n = 5; n <= 52; ++n) {
    ASSERT_TRUE(s->Ensure(n).ok());
    s->Advance(n - s->live_length());
  }
  EXPECT_EQ(s->counters().growth_events, 3u);
  EXPECT_EQ(s->counters().growth_keeps, 3u);
  EXPECT_EQ(s->counters().kv_bytes_moved, 0u);
  EXPECT_EQ(s->committed_length(), 64u);
}

std::string ParamName(
    const testing::TestParamInfo<std::tuple<LayoutChoice, CapacityPolicy>>& info) {
  std::string name = LayoutName(std::get<0>(info.param)) + "_" +
                     RoundingName(std::get<1>(info.param).rounding) +
                     std::to_string(std::get<1>(info.param).min_bucket);
  for (char& c : name) c = c == '-' || c == ':' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Sequences,
                         testing::Combine(testing::ValuesIn(kLayouts),
                                          testing::ValuesIn(kPolicies)),
                         ParamName);

}  // namespace
}  // namespace granule::kv
