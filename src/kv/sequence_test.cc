// Sequences over the real host memory, and over faults.
#include "kv/sequence.h"

#include <gtest/gtest.h>

#include "kv/sequence_for_test.h"

namespace granule::kv {
namespace {

class Sequences : public testing::TestWithParam<std::tuple<LayoutChoice, CapacityPolicy>> {
 protected:
  std::unique_ptr<Sequence> Make(const Fixture& f, uint64_t hard_max) {
    auto s = Sequence::Create(f.store(), TestGroup(),
                              Options(std::get<0>(GetParam()), std::get<1>(GetParam()), hard_max));
    EXPECT_TRUE(s.ok()) << s.status().message();
    return std::move(*s);
  }
};

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
  EXPECT_EQ(s->counters().invalidations, 0u);  // nothing that is baked into a graph has changed
  EXPECT_EQ(s->live_length(), 40u);
  EXPECT_EQ(s->counters().unique_physical_bytes, bytes);
  EXPECT_TRUE(s->IsValid());
}

// Fails every call of every verb in turn, from reserving to closing (content: device_storage_test).
TEST_P(Sequences, AnyCallMayFail) {
  using memory::Verb;
  for (const Verb verb : memory::kMemoryVerbs) {
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

// ---- growth that moves

struct MovingCase {
  GrowthKind growth;
  LayoutChoice layout;
};

class Moving : public testing::TestWithParam<MovingCase> {
 protected:
  Result<std::unique_ptr<Sequence>> TryMake(const Fixture& f, uint64_t hard_max, uint64_t floor) {
    SequenceOptions options = Options(GetParam().layout, {Rounding::kBucket, floor}, hard_max);
    options.growth = GetParam().growth;
    options.mask_bytes_per_token = 8;
    return Sequence::Create(f.store(), TestGroup(), options);
  }
  std::unique_ptr<Sequence> Make(const Fixture& f, uint64_t hard_max, uint64_t floor) {
    auto s = TryMake(f, hard_max, floor);
    EXPECT_TRUE(s.ok()) << s.status().message();
    return std::move(*s);
  }
};

TEST_P(Moving, LiveTokensSurviveEveryGrowthAndTheRestIsZero) {
  // 3000 is no power of two: the last growth overlaps itself (2048 -> 3000).
  Fixture f;
  auto s = Make(f, 3000, 4);
  const uint64_t per_token = s->bytes_per_token();
  uint64_t nominal = 0;
  for (uint64_t n = 1; n <= 3000; n += 1 + n / 2) {
    const uint64_t before = s->committed_length();
    ASSERT_TRUE(s->Ensure(n).ok());
    if (s->committed_length() != before) nominal += s->live_length() * (per_token + 8);
    ASSERT_EQ(s->committed_length(), Bucket(n, 3000, 4));
    ASSERT_EQ(s->capacity(), s->committed_length());
    ASSERT_TRUE(s->IsValid());
    for (uint64_t t = 0; t < s->live_length(); ++t)
      Mark(*s, TestGroup(), t, static_cast<uint8_t>(t % 251 + 1), true);
    for (uint64_t t = s->live_length(); t < s->committed_length(); ++t)
      Mark(*s, TestGroup(), t, 0, true);
    for (uint64_t t = s->live_length(); t < n; ++t)
      Mark(*s, TestGroup(), t, static_cast<uint8_t>(t % 251 + 1), false);
    s->Advance(n - s->live_length());
  }
  const Counters c = s->counters();
  EXPECT_EQ(c.kv_bytes_moved, nominal);
  EXPECT_LE(c.kv_bytes_copied, nominal);
  EXPECT_EQ(c.growth_keeps, 0u);
  EXPECT_EQ(c.invalidations, c.growth_events);
  if (GetParam().growth == GrowthKind::kRealloc) {
    EXPECT_EQ(c.committed_bytes, s->committed_length() * per_token);
    EXPECT_EQ(f.buffers->live, 1);
  } else {
    EXPECT_EQ(*f.fault->ResidentBytes(), c.unique_physical_bytes);
  }
  ASSERT_TRUE(s->Reset().ok());
  EXPECT_EQ(s->counters().unique_physical_bytes, 0u);
  ASSERT_TRUE(s->Ensure(9).ok());
  s.reset();
  EXPECT_EQ(f.buffers->live, 0);
  EXPECT_EQ(*f.fault->ResidentBytes(), 0u);
}

TEST_P(Moving, AFailedGrowthLeavesTheOldStateAndTheRetryWorks) {
  using memory::Verb;
  for (uint64_t nth = 1; nth < 200; ++nth) {
    Fixture f;
    auto s = Make(f, 3000, 4);
    ASSERT_TRUE(s->Ensure(100).ok());
    for (uint64_t t = 0; t < 100; ++t) Mark(*s, TestGroup(), t, static_cast<uint8_t>(t + 1), false);
    s->Advance(100);
    f.buffers->fail_at = f.buffers->calls + nth;
    f.fault->FailCall(nth % 2 != 0 ? Verb::kCreate : Verb::kMap, (nth + 1) / 2);
    const Status status = s->Ensure(1000);
    if (status.ok()) {
      if (nth > 1) break;
      FAIL() << "nothing failed";
    }
    EXPECT_EQ(status.code(), Code::kExhausted);
    for (const char* part :
         {"growing from 128 to 1024 tokens", "injected", "transient peak is approximately",
          "session is unchanged",
          GetParam().growth == GrowthKind::kRealloc ? "old and the new buffer at once"
                                                    : "moves live tokens in place"}) {
      EXPECT_NE(status.message().find(part), std::string::npos)
          << part << " in " << status.message();
    }
    EXPECT_EQ(s->committed_length(), 128u);
    EXPECT_TRUE(s->IsValid());
    for (uint64_t t = 0; t < 100; ++t) Mark(*s, TestGroup(), t, static_cast<uint8_t>(t + 1), true);
    f.fault->Heal();
    ASSERT_TRUE(s->Ensure(1000).ok());
    for (uint64_t t = 0; t < 100; ++t) Mark(*s, TestGroup(), t, static_cast<uint8_t>(t + 1), true);
    EXPECT_TRUE(s->IsValid());
  }
}

TEST_P(Moving, RefusesWhatNeedsCommitGrowth) {
  Fixture f;
  auto s = Make(f, 300, 4);
  ASSERT_TRUE(s->Ensure(10).ok());
  s->Advance(10);
  const auto fork = s->Fork();
  ASSERT_FALSE(fork.ok());
  EXPECT_EQ(fork.status().code(), Code::kUsage);
  EXPECT_NE(fork.status().message().find(GrowthName(GetParam().growth)), std::string::npos);
  SequenceOptions options = Options(GetParam().layout, {Rounding::kGranule, 4}, 300);
  options.growth = GetParam().growth;
  EXPECT_EQ(Sequence::Create(f.store(), TestGroup(), options).status().code(), Code::kUsage);
}

TEST(Moving, RestrideIsForHeadMajorOnly) {
  Fixture f;
  SequenceOptions options = Options({LayoutKind::kTokenMajor, 0}, {Rounding::kBucket, 4}, 300);
  options.growth = GrowthKind::kRestride;
  const auto s = Sequence::Create(f.store(), TestGroup(), options);
  ASSERT_FALSE(s.ok());
  EXPECT_NE(s.status().message().find("token-major"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Moving,
    testing::Values(MovingCase{GrowthKind::kRestride, {LayoutKind::kHeadMajor, 0}},
                    MovingCase{GrowthKind::kRealloc, {LayoutKind::kHeadMajor, 0}},
                    MovingCase{GrowthKind::kRealloc, {LayoutKind::kSeqMajor, 0}},
                    MovingCase{GrowthKind::kRealloc, {LayoutKind::kStripe, 1}},
                    MovingCase{GrowthKind::kRealloc, {LayoutKind::kTokenMajor, 0}}));

// ---- the seeds' table, capture-off rows, to the number

TEST(SeedsTable, CaptureOffRows) {
  struct Row {
    LayoutKind layout;
    GrowthKind growth;
    uint64_t moved, copied, invalidations, keeps, committed;
  };
  const Row rows[] = {
      {LayoutKind::kHeadMajor, GrowthKind::kRestride, 688576, 344064, 4, 0, 100663296},
      {LayoutKind::kSeqMajor, GrowthKind::kCommit, 0, 0, 1, 3, 100663296},
      {LayoutKind::kHeadMajor, GrowthKind::kRealloc, 688576, 688128, 4, 0, 786432},
      {LayoutKind::kSeqMajor, GrowthKind::kRealloc, 688576, 688128, 4, 0, 786432},
      {LayoutKind::kTokenMajor, GrowthKind::kCommit, 0, 0, 1, 3, 2097152},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(LayoutName({row.layout, 0}) + std::string(" ") + GrowthName(row.growth));
    memory::HostVmmOptions host_options;
    host_options.granule_bytes = 2 << 20;
    auto host = *memory::HostVmm::Open(host_options);
    memory::AddressSpace space(*host);
    memory::HandlePool pool(*host, 0);
    memory::MappingTable table(*host, pool);
    Group group;
    group.layers.assign(24, {2, 64, DType::kF16});
    SequenceOptions options = Options({row.layout, 0}, {Rounding::kBucket, 8}, 512);
    options.growth = row.growth;
    options.mask_bytes_per_token = 8;
    options.capture_policy = CapturePolicy::kSeed;
    auto s = *Sequence::Create({host.get(), &space, &pool, &table}, group, options);
    for (uint64_t n = 5; n <= 52; ++n) {
      ASSERT_TRUE(s->Ensure(n).ok());
      s->capture().Finished(n == 5 ? 5 : 1, StepAction::kEager, StepResult::kDone, "");
      s->Advance(n - s->live_length());
    }
    const Counters c = s->counters();
    EXPECT_EQ(c.growth_events, 3u);
    EXPECT_EQ(c.kv_bytes_moved, row.moved);
    EXPECT_EQ(c.kv_bytes_copied, row.copied);
    EXPECT_EQ(c.invalidations, row.invalidations);
    EXPECT_EQ(c.growth_keeps, row.keeps);
    EXPECT_EQ(c.captures + c.replays, 0u);
    EXPECT_FALSE(c.graph_existed);
    EXPECT_EQ(c.committed_bytes, row.committed);
    EXPECT_EQ(s->committed_length(), 64u);
  }
}

// The capture rows on a device that always can: 4/39/4 where strides move, 1/45/1 where they do
// not.
TEST(SeedsTable, CaptureOnRowsOnAFakeDevice) {
  struct Row {
    LayoutKind layout;
    GrowthKind growth;
    uint64_t floor, prompt, captures, replays, invalidations, keeps;
  };
  const Row rows[] = {
      {LayoutKind::kHeadMajor, GrowthKind::kRestride, 8, 5, 4, 39, 4, 0},
      {LayoutKind::kSeqMajor, GrowthKind::kCommit, 8, 5, 1, 45, 1, 3},
      {LayoutKind::kHeadMajor, GrowthKind::kRestride, 64, 5, 1, 45, 1, 0},
      {LayoutKind::kSeqMajor, GrowthKind::kCommit, 64, 5, 1, 45, 1, 0},
      {LayoutKind::kHeadMajor, GrowthKind::kRestride, 8, 1, 4, 39, 4, 0},
      {LayoutKind::kHeadMajor, GrowthKind::kRestride, 8, 6, 4, 39, 4, 0},
      {LayoutKind::kHeadMajor, GrowthKind::kRestride, 8, 7, 3, 40, 4, 0},
      {LayoutKind::kHeadMajor, GrowthKind::kRestride, 8, 8, 3, 41, 4, 0},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(LayoutName({row.layout, 0}) +
                 Format(" floor {} prompt {}", row.floor, row.prompt));
    Fixture f;
    Group group;
    group.layers.assign(24, {2, 64, DType::kF16});
    SequenceOptions options = Options({row.layout, 0}, {Rounding::kBucket, row.floor}, 512);
    options.growth = row.growth;
    options.capture_policy = CapturePolicy::kSeed;
    options.capture_enabled = true;
    auto s = *Sequence::Create(f.store(), group, options);
    for (uint64_t step = 0; step < 48; ++step) {
      const uint64_t n = row.prompt + step;
      const int64_t step_rows = step == 0 ? static_cast<int64_t>(row.prompt) : 1;
      ASSERT_TRUE(s->Ensure(n).ok());
      // A prompt of one token is still the prefill: it runs as a step of several rows does.
      const int64_t shape = step == 0 ? std::max<int64_t>(step_rows, 2) : 1;
      const StepAction action = s->capture().Next(shape);
      EXPECT_FALSE(s->capture().Finished(shape, action, StepResult::kDone, "").has_value());
      s->Advance(n - s->live_length());
    }
    const Counters c = s->counters();
    EXPECT_EQ(c.captures, row.captures);
    EXPECT_EQ(c.replays, row.replays);
    EXPECT_EQ(c.invalidations, row.invalidations);
    EXPECT_EQ(c.growth_keeps, row.keeps);
    EXPECT_TRUE(c.graph_existed);
  }
}

// ---- trim, fork, park

TEST_P(Sequences, TrimGivesBackWhatHoldsNoLiveToken) {
  Fixture f;
  auto s = Make(f, 1000);
  ASSERT_TRUE(s->Ensure(900).ok());
  for (uint64_t t = 0; t < 900; ++t)
    Mark(*s, TestGroup(), t, static_cast<uint8_t>(t % 250 + 1), false);
  s->Advance(900);
  ASSERT_TRUE(s->Rewind(33).ok());
  const uint64_t before = *f.fault->ResidentBytes();
  ASSERT_TRUE(s->Trim().ok());
  EXPECT_TRUE(s->IsValid());
  EXPECT_LT(*f.fault->ResidentBytes(), before);
  EXPECT_EQ(*f.fault->ResidentBytes(),
            TouchedGranules(LiveRanges(s->layout(), 0, 33), kGranule) * kGranule);
  ASSERT_TRUE(s->Ensure(300).ok());
  for (uint64_t t = 0; t < 33; ++t)
    Mark(*s, TestGroup(), t, static_cast<uint8_t>(t % 250 + 1), true);
}

TEST_P(Sequences, AForkSharesFullGranulesAndNeitherSideSeesTheOthersWrites) {
  Fixture f;
  auto parent = Make(f, 3000);
  ASSERT_TRUE(parent->Ensure(2500).ok());
  for (uint64_t t = 0; t < 2500; ++t)
    Mark(*parent, TestGroup(), t, static_cast<uint8_t>(t % 250 + 1), false);
  parent->Advance(2500);
  const uint64_t before = *f.fault->ResidentBytes();
  auto forked = parent->Fork();
  ASSERT_TRUE(forked.ok()) << forked.status().message();
  auto& child = *forked;
  EXPECT_EQ(child->live_length(), 2500u);
  EXPECT_TRUE(child->IsValid());
  EXPECT_GT(child->counters().shared_bytes, 0u);
  // Only the granules at the ragged ends cost memory.
  const uint64_t ragged =
      2 * child->layout().spans.size() * child->layout().spans[0].shape.fragments * kGranule;
  EXPECT_LE(*f.fault->ResidentBytes(), before + ragged);
  EXPECT_EQ(*f.fault->ResidentBytes(),
            parent->counters().unique_physical_bytes + child->counters().unique_physical_bytes);

  ASSERT_TRUE(child->Ensure(2600).ok());
  for (uint64_t t = 2500; t < 2600; ++t) Mark(*child, TestGroup(), t, 0xc1, false);
  child->Advance(100);
  // The parent goes back and writes other tokens over what both show.
  ASSERT_TRUE(parent->Rewind(100).ok());
  ASSERT_TRUE(parent->Ensure(1500).ok());
  for (uint64_t t = 100; t < 1500; ++t) Mark(*parent, TestGroup(), t, 0xaa, false);
  parent->Advance(1400);
  for (uint64_t t = 0; t < 2500; ++t)
    Mark(*child, TestGroup(), t, static_cast<uint8_t>(t % 250 + 1), true);
  for (uint64_t t = 2500; t < 2600; ++t) Mark(*child, TestGroup(), t, 0xc1, true);
  // And the child does, after the parent is gone.
  parent.reset();
  for (uint64_t t = 0; t < 2500; ++t)
    Mark(*child, TestGroup(), t, static_cast<uint8_t>(t % 250 + 1), true);
  ASSERT_TRUE(child->Rewind(50).ok());
  ASSERT_TRUE(child->Ensure(400).ok());
  for (uint64_t t = 50; t < 400; ++t) Mark(*child, TestGroup(), t, 0xbb, false);
  for (uint64_t t = 0; t < 50; ++t)
    Mark(*child, TestGroup(), t, static_cast<uint8_t>(t % 250 + 1), true);
  child.reset();
  EXPECT_EQ(*f.fault->ResidentBytes(), 0u);
  EXPECT_EQ(f.pool->counters().creates, f.pool->counters().releases);
}

// After a trim the first new slot of a fragment may lie in a granule that is shared read-only.
TEST_P(Sequences, AForkThatWasTrimmedGrowsAgain) {
  for (uint64_t keep = 1; keep < 700; keep += 41) {
    Fixture f;
    auto parent = Make(f, 900);
    ASSERT_TRUE(parent->Ensure(700).ok());
    for (uint64_t t = 0; t < 700; ++t) {
      Mark(*parent, TestGroup(), t, static_cast<uint8_t>(t % 250 + 1), false);
    }
    parent->Advance(700);
    auto child = parent->Fork();
    ASSERT_TRUE(child.ok());
    ASSERT_TRUE((*child)->Rewind(keep).ok());
    ASSERT_TRUE((*child)->Trim().ok());
    const Status status = (*child)->Ensure(800);
    ASSERT_TRUE(status.ok()) << keep << ": " << status.message();
    for (uint64_t t = keep; t < 800; ++t) Mark(**child, TestGroup(), t, 0xbb, false);
    for (uint64_t t = 0; t < keep; ++t) {
      Mark(**child, TestGroup(), t, static_cast<uint8_t>(t % 250 + 1), true);
    }
    for (uint64_t t = 0; t < 700; ++t) {
      Mark(*parent, TestGroup(), t, static_cast<uint8_t>(t % 250 + 1), true);
    }
  }
}

TEST_P(Sequences, AnyCallMayFailInAForkAndInTheWritesAfterIt) {
  using memory::Verb;
  for (const Verb verb : {Verb::kCreate, Verb::kMap, Verb::kUnmap, Verb::kRelease}) {
    for (uint64_t nth = 1; nth < 400; nth += 1 + nth / 4) {
      Fixture f;
      auto parent = Make(f, 900);
      ASSERT_TRUE(parent->Ensure(700).ok());
      for (uint64_t t = 0; t < 700; ++t)
        Mark(*parent, TestGroup(), t, static_cast<uint8_t>(t % 250 + 1), false);
      parent->Advance(700);
      f.fault->ResetCounts();
      f.fault->FailCall(verb, nth);
      auto child = parent->Fork();
      if (!child.ok()) {
        EXPECT_NE(child.status().code(), Code::kInternal) << child.status().message();
        EXPECT_TRUE(parent->IsValid());
        child = parent->Fork();
      }
      ASSERT_TRUE(child.ok()) << child.status().message();
      ASSERT_TRUE((*child)->Rewind(10).ok());
      Status status = (*child)->Ensure(300);
      if (!status.ok() && status.code() != Code::kPoisoned) status = (*child)->Ensure(300);
      if (status.ok()) {
        for (uint64_t t = 10; t < 300; ++t) Mark(**child, TestGroup(), t, 0xbb, false);
      } else {
        EXPECT_EQ(status.code(), Code::kPoisoned) << status.message();
        EXPECT_EQ((*child)->Ensure(1).code(), Code::kPoisoned);
      }
      for (uint64_t t = 0; t < 700; ++t)
        Mark(*parent, TestGroup(), t, static_cast<uint8_t>(t % 250 + 1), true);
      EXPECT_TRUE(f.table->IsValid());
      const bool reached = f.fault->calls(verb) >= nth;
      child->reset();
      parent.reset();
      const auto c = f.pool->counters();
      EXPECT_EQ(c.creates, c.releases + c.quarantined_handles);
      if (!reached) break;
    }
  }
}

TEST_P(Sequences, AParkedRangeServesTheNextSequenceWithoutNewMemory) {
  Fixture f;
  auto s = Make(f, 900);
  ASSERT_TRUE(s->Ensure(500).ok());
  s->Advance(500);
  const uint64_t committed = s->committed_length();
  Sequence::Park(std::move(s));
  EXPECT_GT(f.parking->parked_bytes(), 0u);
  EXPECT_EQ(*f.fault->ResidentBytes(), f.parking->parked_bytes());
  auto other = Make(f, 800);  // other strides: not this one
  EXPECT_TRUE(std::get<0>(GetParam()).kind != LayoutKind::kHeadMajor ||
              other->committed_length() == 0u);
  other.reset();
  const uint64_t creates = f.fault->calls(memory::Verb::kCreate);
  auto next = Make(f, 900);
  EXPECT_EQ(next->committed_length(), committed);
  EXPECT_EQ(next->live_length(), 0u);
  EXPECT_EQ(f.parking->parked_bytes(), 0u);
  ASSERT_TRUE(next->Ensure(committed).ok());
  EXPECT_EQ(f.fault->calls(memory::Verb::kCreate), creates);
  EXPECT_TRUE(next->IsValid());
  Sequence::Park(std::move(next));
  EXPECT_GT(f.parking->Release(0), 0u);
  EXPECT_EQ(*f.fault->ResidentBytes(), 0u);
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
