// What a device's memory adds to growth: content that goes through the Vmm and may fail, handles of
// several granules, memory that runs out, a context that breaks, handles made ahead of a step.
#include <gtest/gtest.h>

#include <thread>

#include "base/cuda_device.h"
#include "kv/cuda_buffers.h"
#include "kv/random_use_for_test.h"
#include "memory/cuda/cuda_vmm.h"
#include "memory/cuda/fake_driver_for_test.h"

namespace granule::kv {
namespace {

using memory::Verb;

void MarkAll(const Sequence& s, uint64_t first, uint64_t end, bool check) {
  for (uint64_t t = first; t < end; ++t)
    Mark(s, TestGroup(), t, static_cast<uint8_t>(t * 7 + 1), check);
}

struct Kind {
  GrowthKind growth;
  LayoutChoice layout;
};

std::string KindName(const testing::TestParamInfo<Kind>& info) {
  std::string name =
      std::string(GrowthName(info.param.growth)) + "_" + LayoutName(info.param.layout);
  for (char& c : name) c = c == '-' || c == ':' ? '_' : c;
  return name;
}

class ContentFaults : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Sequence> Make(const Fixture& f, uint64_t hard_max) {
    SequenceOptions options = Options(GetParam().layout, {Rounding::kBucket, 4}, hard_max);
    options.growth = GetParam().growth;
    auto s = Sequence::Create(f.store(), TestGroup(), options);
    EXPECT_TRUE(s.ok()) << s.status().message();
    return std::move(*s);
  }
  // Memory that was used before, so that a commit has to zero it.
  static void Soil(Fixture& f) {
    auto s = *Sequence::Create(f.store(), TestGroup(),
                               Options({LayoutKind::kSeqMajor, 0}, {Rounding::kGranule, 4}, 3000));
    ASSERT_TRUE(s->Ensure(3000).ok());
    MarkAll(*s, 0, 3000, false);
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, ContentFaults,
                         testing::Values(Kind{GrowthKind::kCommit, {LayoutKind::kHeadMajor, 0}},
                                         Kind{GrowthKind::kCommit, {LayoutKind::kTokenMajor, 0}},
                                         Kind{GrowthKind::kRestride, {LayoutKind::kHeadMajor, 0}},
                                         Kind{GrowthKind::kRealloc, {LayoutKind::kHeadMajor, 0}},
                                         Kind{GrowthKind::kRealloc, {LayoutKind::kTokenMajor, 0}}),
                         KindName);

// 2048 -> 3000 is the growth whose heads overlap their own old places.
TEST_P(ContentFaults, AnyContentCallMayFailAndTheRetryWorks) {
  for (const Verb verb : {Verb::kZero, Verb::kCopy}) {
    const bool copies = GetParam().growth != GrowthKind::kCommit;
    uint64_t nth = 0;
    for (bool reached = true; reached;) {
      ++nth;
      SCOPED_TRACE(std::string(memory::VerbName(verb)) + " " + std::to_string(nth));
      Fixture f(64 << 20);
      Soil(f);
      auto s = Make(f, 3000);
      ASSERT_TRUE(s->Ensure(1500).ok());
      MarkAll(*s, 0, 1500, false);
      s->Advance(1500);
      const uint64_t mapped = f.table->mapped_bytes();
      const void* base = s->base();
      f.fault->ResetCounts();
      f.fault->FailCall(verb, nth);
      const Status failed = s->Ensure(2500);
      reached = f.fault->failures(verb) > 0;
      ASSERT_EQ(failed.ok(), !reached) << failed.message();
      if (!reached) break;
      EXPECT_EQ(failed.code(), Code::kExhausted);
      EXPECT_NE(failed.message().find("injected failure of"), std::string::npos);
      EXPECT_EQ(s->committed_length(), 2048u);
      EXPECT_EQ(s->base(), base);
      EXPECT_EQ(f.table->mapped_bytes(), mapped);
      EXPECT_EQ(f.buffers->live, GetParam().growth == GrowthKind::kRealloc ? 1 : 0);
      EXPECT_TRUE(s->IsValid());
      MarkAll(*s, 0, 1500, true);
      ASSERT_TRUE(s->Ensure(2500).ok());
      MarkAll(*s, 0, 1500, true);
      for (uint64_t t = 1500; t < s->committed_length(); t += 97) Mark(*s, TestGroup(), t, 0, true);
    }
    EXPECT_TRUE(nth > 1 || (verb == Verb::kCopy && !copies)) << "the verb was never called";
  }
}

TEST_P(ContentFaults, WhatCannotBeUndonePoisonsByName) {
  Fixture f(64 << 20);
  Soil(f);
  auto other = *Sequence::Create(f.store(), TestGroup(),
                                 Options({LayoutKind::kSeqMajor, 0}, {Rounding::kGranule, 4}, 900));
  ASSERT_TRUE(other->Ensure(200).ok());
  MarkAll(*other, 0, 200, false);
  other->Advance(200);
  auto s = Make(f, 3000);
  ASSERT_TRUE(s->Ensure(1500).ok());
  s->Advance(1500);
  f.fault->ResetCounts();
  if (GetParam().growth == GrowthKind::kCommit) {
    f.fault->FailCall(Verb::kZero, 1);
    f.fault->FailCall(Verb::kUnmap, 1);
  } else {
    f.fault->FailFrom(Verb::kCopy, GetParam().growth == GrowthKind::kRealloc ? 1 : 3);
  }
  const Status failed = s->Ensure(2500);
  f.fault->Heal();
  if (GetParam().growth == GrowthKind::kRealloc) {  // always undone: the old buffer is untouched
    EXPECT_EQ(failed.code(), Code::kExhausted);
    EXPECT_TRUE(s->Ensure(2500).ok());
    return;
  }
  EXPECT_EQ(failed.code(), Code::kPoisoned) << failed.message();
  EXPECT_NE(failed.message().find("this sequence can only be closed"), std::string::npos);
  EXPECT_EQ(s->Ensure(1).code(), Code::kPoisoned);
  EXPECT_EQ(s->Trim().code(), Code::kPoisoned);
  EXPECT_EQ(s->Prepare(2500).code(), Code::kPoisoned);
  EXPECT_TRUE(s->IsValid());
  s.reset();
  EXPECT_TRUE(f.table->IsValid() && f.pool->IsValid());
  ASSERT_TRUE(other->Ensure(900).ok());
  MarkAll(*other, 0, 200, true);
}

TEST(ForkFaults, ACopyThatFailsLeavesTheParentAndTheRetryWorks) {
  for (const LayoutChoice& layout : kLayouts) {
    for (uint64_t nth = 1;; ++nth) {
      Fixture f;
      auto parent =
          *Sequence::Create(f.store(), TestGroup(), Options(layout, {Rounding::kGranule, 4}, 900));
      ASSERT_TRUE(parent->Ensure(500).ok());
      MarkAll(*parent, 0, 500, false);
      parent->Advance(500);
      const uint64_t resident = *f.fault->ResidentBytes();
      f.fault->FailCall(Verb::kCopy, nth);
      auto child = parent->Fork();
      if (child.ok()) {
        EXPECT_GT(nth, 1u);
        break;
      }
      EXPECT_EQ(child.status().code(), Code::kExhausted);
      EXPECT_EQ(*f.fault->ResidentBytes(), resident);
      child = parent->Fork();
      ASSERT_TRUE(child.ok());
      MarkAll(**child, 0, 500, true);
      // The same for a write into what both show.
      ASSERT_TRUE((*child)->Rewind(10).ok());
      f.fault->FailCall(Verb::kCopy, 1);
      EXPECT_EQ((*child)->Ensure(200).code(), Code::kExhausted);
      ASSERT_TRUE((*child)->Ensure(200).ok());
      for (uint64_t t = 10; t < 200; ++t) Mark(**child, TestGroup(), t, 0xbb, false);
      MarkAll(*parent, 0, 500, true);
      MarkAll(**child, 0, 10, true);
    }
  }
}

// ---- handles of several granules

Group OneSpan() {  // token-major records of a quarter of a granule
  Group group;
  group.layers = {{1, kGranule / 16, DType::kF16}, {1, kGranule / 16, DType::kF16}};
  EXPECT_EQ(group.BytesPerToken(), kGranule / 2);
  return group;
}

TEST(LargeHandleSequence, TrimKeepsAHandleThatIsPartlyLiveAndTheLengthSaysSo) {
  Fixture f(0, 8 * kGranule);
  auto s = *Sequence::Create(f.store(), OneSpan(),
                             Options({LayoutKind::kTokenMajor, 0}, {Rounding::kGranule, 4}, 1000));
  ASSERT_TRUE(s->Ensure(50).ok());  // 25 granules: 8, 8, 8, 1
  EXPECT_EQ(s->committed_length(), 50u);
  EXPECT_EQ(f.fault->calls(Verb::kMap), 4u);
  s->Advance(50);
  ASSERT_TRUE(s->Rewind(17).ok());
  ASSERT_TRUE(s->Trim().ok());
  EXPECT_EQ(s->committed_length(), 32u);  // 16 in the first, the second whole
  EXPECT_EQ(*f.fault->ResidentBytes(), 16 * kGranule);
  EXPECT_TRUE(s->IsValid());
  f.fault->ResetCounts();
  ASSERT_TRUE(s->Ensure(32).ok());
  EXPECT_EQ(f.fault->calls(Verb::kMap), 0u);
  ASSERT_TRUE(s->Ensure(33).ok());
  EXPECT_EQ(s->committed_length(), 34u);
  EXPECT_EQ(*f.fault->ResidentBytes(), 17 * kGranule);
  ASSERT_TRUE(s->Reset().ok());
  EXPECT_EQ(*f.fault->ResidentBytes(), 0u);
  EXPECT_EQ(s->committed_length(), 0u);
}

TEST(LargeHandleSequence, AForkSharesWholeHandlesAndCopiesTheRest) {
  Fixture f(0, 8 * kGranule);
  const Group group = OneSpan();
  auto parent = *Sequence::Create(
      f.store(), group, Options({LayoutKind::kTokenMajor, 0}, {Rounding::kGranule, 4}, 1000));
  ASSERT_TRUE(parent->Ensure(50).ok());
  HostBytes access;
  for (uint64_t t = 0; t < 50; ++t)
    Canary(access, *parent, group, t, static_cast<uint8_t>(t), false);
  parent->Advance(50);
  ASSERT_TRUE(parent->Rewind(41).ok());  // into the third handle: 4 full granules of it, and a half
  auto child = parent->Fork();
  ASSERT_TRUE(child.ok());
  EXPECT_EQ((*child)->counters().shared_bytes, 16 * kGranule);
  EXPECT_EQ((*child)->counters().unique_physical_bytes, 5 * kGranule);
  EXPECT_TRUE((*child)->IsValid());
  EXPECT_EQ((*child)->committed_length(), 42u);
  for (uint64_t t = 0; t < 41; ++t)
    Canary(access, **child, group, t, static_cast<uint8_t>(t), true);
  // A write into a shared handle takes a copy of all of it.
  ASSERT_TRUE((*child)->Rewind(20).ok());
  ASSERT_TRUE((*child)->Ensure(21).ok());
  Canary(access, **child, group, 20, 0xcc, false);
  EXPECT_EQ((*child)->counters().shared_bytes, 8 * kGranule);
  for (uint64_t t = 0; t < 41; ++t)
    Canary(access, *parent, group, t, static_cast<uint8_t>(t), true);
}

// ---- a GPU's memory, by the fake driver

struct FakeDevice {
  explicit FakeDevice(const cuda::FakeGpu& gpu, uint64_t retained_bytes = 0,
                      size_t max_handle_bytes = kGranule)
      : fake(gpu),
        device(*cuda::Device::Open(fake.driver(), 0)),
        buffers(MakeCudaBuffers(*device)) {
    auto vmm = memory::CudaVmm::Open(*device, {.max_handle_bytes = max_handle_bytes});
    f = std::make_unique<Fixture>(std::move(*vmm), *buffers, retained_bytes);
  }
  std::unique_ptr<Sequence> Make(const SequenceOptions& options) {
    auto s = Sequence::Create(f->store(), TestGroup(), options);
    EXPECT_TRUE(s.ok()) << s.status().message();
    return std::move(*s);
  }

  cuda::FakeDriver fake;
  std::unique_ptr<cuda::Device> device;
  std::unique_ptr<BufferAllocator> buffers;
  std::unique_ptr<Fixture> f;
};

SequenceOptions CommitOptions(uint64_t hard_max) {
  return Options({LayoutKind::kTokenMajor, 0}, {Rounding::kGranule, 4}, hard_max);
}

TEST(FakeCudaSequence, FreshMemoryIsZeroedAndNothingIsReadByTheHost) {
  FakeDevice d({.granule_bytes = kGranule});
  for (const Kind& kind : {Kind{GrowthKind::kCommit, {LayoutKind::kSeqMajor, 0}},
                           Kind{GrowthKind::kRestride, {LayoutKind::kHeadMajor, 0}},
                           Kind{GrowthKind::kRealloc, {LayoutKind::kHeadMajor, 0}}}) {
    SequenceOptions options = Options(kind.layout, {Rounding::kBucket, 4}, 700);
    options.growth = kind.growth;
    auto s = d.Make(options);
    ASSERT_TRUE(s->Ensure(100).ok());
    for (uint64_t t = 0; t < 128; ++t) Mark(*s, TestGroup(), t, 0, true);
    MarkAll(*s, 0, 100, false);
    s->Advance(100);
    ASSERT_TRUE(s->Ensure(600).ok());
    MarkAll(*s, 0, 100, true);
    for (uint64_t t = 100; t < 700; t += 13) Mark(*s, TestGroup(), t, 0, true);
    EXPECT_TRUE(s->IsValid());
  }
  EXPECT_EQ(d.f->buffers->live, 0);
  EXPECT_EQ(d.fake.live_buffers(), 0u);
}

TEST(FakeCudaSequence, OutOfDeviceMemoryIsTypedAndOthersGoOn) {
  FakeDevice d({.granule_bytes = kGranule, .total_bytes = 100 * kGranule});
  auto first = d.Make(CommitOptions(5000));
  auto second = d.Make(CommitOptions(5000));
  ASSERT_TRUE(first->Ensure(300).ok());
  MarkAll(*first, 0, 300, false);
  first->Advance(300);
  ASSERT_TRUE(second->Ensure(1).ok());
  const uint64_t held = second->committed_length();
  const uint64_t used = d.fake.used_bytes();
  auto filler = cuda::Buffer::Allocate(*d.device, 100 * kGranule - used - 2 * kGranule, "a test");
  ASSERT_TRUE(filler.ok());

  const Status refused = first->Ensure(500);
  EXPECT_EQ(refused.code(), Code::kExhausted);
  for (const char* part : {"growing from", "device cuda:0 memory: free=8192 bytes", "--ctx-size",
                           "CUDA_ERROR_OUT_OF_MEMORY", "session is unchanged"}) {
    EXPECT_NE(refused.message().find(part), std::string::npos) << part << ": " << refused.message();
  }
  EXPECT_EQ(d.fake.used_bytes(), 98 * kGranule);
  EXPECT_TRUE(first->IsValid());
  MarkAll(*first, 0, 300, true);
  EXPECT_TRUE(second->Ensure(held).ok());
  ASSERT_TRUE(second->Ensure(held + 1).ok());

  // Reallocation asks before it allocates, and says whose memory it is.
  SequenceOptions options = Options({LayoutKind::kSeqMajor, 0}, {Rounding::kBucket, 4}, 5000);
  options.growth = GrowthKind::kRealloc;
  auto third = d.Make(options);
  const Status no_buffer = third->Ensure(400);
  EXPECT_EQ(no_buffer.code(), Code::kExhausted);
  EXPECT_NE(no_buffer.message().find("device cuda:0 memory"), std::string::npos);

  filler->Reset();
  ASSERT_TRUE(first->Ensure(300).ok());
  ASSERT_TRUE(first->Ensure(400).ok());
  MarkAll(*first, 0, 300, true);
  first.reset();
  second.reset();
  third.reset();
  EXPECT_EQ(d.fake.used_bytes(), 0u);
}

TEST(FakeCudaSequence, TheLastRungBoundsASequenceWithoutALimit) {
  FakeDevice d({.granule_bytes = kGranule, .largest_reservation_bytes = uint64_t{64} << 30});
  auto s = d.Make(CommitOptions(0));
  ASSERT_TRUE(s->Ensure(100).ok());
  const Status status = s->Ensure(s->capacity() + 1);
  EXPECT_EQ(status.code(), Code::kCapacityExceeded);
  EXPECT_NE(status.message().find("device cuda:0 memory"), std::string::npos);
}

// Whatever call meets the broken context, and whatever the kind of growth: one typed error from
// then on, no crash, and everything goes back when the device is thrown away.
TEST(FakeCudaSequence, ABrokenContextEndsTheSequenceWithOneTypedError) {
  for (const Kind& kind : {Kind{GrowthKind::kCommit, {LayoutKind::kHeadMajor, 0}},
                           Kind{GrowthKind::kRestride, {LayoutKind::kHeadMajor, 0}},
                           Kind{GrowthKind::kRealloc, {LayoutKind::kSeqMajor, 0}}}) {
    for (const char* entry : {"MemCreate", "MemSetAccess", "MemsetD8Async", "MemcpyDtoDAsync",
                              "StreamQuery", "MemAlloc"}) {
      for (uint64_t nth = 1; nth < 60; nth += 1 + nth / 2) {
        SCOPED_TRACE(std::string(GrowthName(kind.growth)) + " " + entry + " " +
                     std::to_string(nth));
        FakeDevice d({.granule_bytes = kGranule});
        SequenceOptions options = Options(kind.layout, {Rounding::kBucket, 4}, 700);
        options.growth = kind.growth;
        auto s = d.Make(options);
        auto other = d.Make(CommitOptions(700));
        ASSERT_TRUE(s->Ensure(60).ok());
        ASSERT_TRUE(other->Ensure(60).ok());
        s->Advance(60);
        d.fake.Fail(entry, nth, cuda::FakeDriver::kIllegalAddress, /*and_after=*/true);
        Status status = s->Ensure(300);
        if (status.ok()) status = s->Ensure(700);
        if (status.ok()) continue;  // the call does not happen here
        d.fake.Heal();
        d.fake.Break();
        EXPECT_EQ(status.code(), Code::kDeviceLost) << status.message();
        EXPECT_NE(status.message().find("load the model again"), std::string::npos);
        EXPECT_EQ(s->Ensure(1).code(), Code::kDeviceLost);
        EXPECT_EQ(s->Trim().code(), Code::kDeviceLost);
        EXPECT_EQ(other->Ensure(699).code(), Code::kDeviceLost);
        s.reset();
        other.reset();
        EXPECT_TRUE(d.f->table->IsValid() && d.f->pool->IsValid());
        d.f.reset();
        EXPECT_EQ(d.fake.live_handles(), 0u);
        EXPECT_EQ(d.fake.live_reservations(), 0u);
        // A new context on the same device works.
        d.device = *cuda::Device::Open(d.fake.driver(), 0);
        auto vmm = memory::CudaVmm::Open(*d.device, {});
        ASSERT_TRUE(vmm.ok());
        d.f = std::make_unique<Fixture>(std::move(*vmm), *d.buffers, 0);
        auto again = d.Make(CommitOptions(700));
        EXPECT_TRUE(again->Ensure(700).ok());
        again.reset();
        d.f.reset();
      }
    }
  }
}

TEST(FakeCudaSequence, ATrimThatMeetsABrokenContextSaysSo) {
  FakeDevice d({.granule_bytes = kGranule});
  auto s = d.Make(CommitOptions(700));
  ASSERT_TRUE(s->Ensure(700).ok());
  d.fake.Break();
  EXPECT_EQ(s->Trim().code(), Code::kDeviceLost);
  EXPECT_EQ(s->Ensure(1).code(), Code::kDeviceLost);
}

// ---- prepared ahead

TEST(Prepare, TheNextStepsHandlesWaitInThePoolAndTheCommitCreatesNone) {
  FakeDevice d({.granule_bytes = kGranule}, /*retained_bytes=*/1 << 20, 8 * kGranule);
  auto s = d.Make(CommitOptions(3000));
  ASSERT_TRUE(s->Ensure(1).ok());
  uint64_t next = s->committed_length() + 1;
  for (int step = 0; step < 3; ++step) {
    const uint64_t maps = d.f->fault->calls(Verb::kMap);
    Status prepared;
    std::thread([&] { prepared = s->Prepare(next); }).join();  // any thread
    ASSERT_TRUE(prepared.ok()) << prepared.message();
    ASSERT_TRUE(s->Prepare(next).ok());  // it is there
    EXPECT_EQ(d.f->fault->calls(Verb::kMap), maps);
    EXPECT_EQ(s->counters().pooled_bytes, d.f->pool->counters().pooled_bytes);
    EXPECT_GT(s->counters().pooled_bytes, 0u);
    const uint64_t creates = d.f->fault->calls(Verb::kCreate);
    ASSERT_TRUE(s->Ensure(next).ok());
    EXPECT_EQ(d.f->fault->calls(Verb::kCreate), creates);
    EXPECT_EQ(s->counters().pooled_bytes, 0u);
    MarkAll(*s, 0, next, false);
    s->Advance(next - s->live_length());
    next = s->committed_length() + 1 + 500 * (step + 1) * (step == 1);
  }
  // Nothing to do, nothing possible, nothing allowed: no error, no call.
  const uint64_t creates = d.f->fault->calls(Verb::kCreate);
  EXPECT_TRUE(s->Prepare(1).ok());
  EXPECT_TRUE(s->Prepare(3001).ok());
  EXPECT_EQ(d.f->fault->calls(Verb::kCreate), creates);
  // A refusal is no harm.
  d.f->fault->FailCall(Verb::kCreate, 1);
  EXPECT_EQ(s->Prepare(3000).code(), Code::kExhausted);
  EXPECT_TRUE(s->Ensure(3000).ok());
}

TEST(Prepare, DoesNothingWhereCreatingIsCheapOrGrowthMoves) {
  Fixture f(1 << 20);
  auto s = *Sequence::Create(f.store(), TestGroup(), CommitOptions(3000));
  EXPECT_TRUE(s->Prepare(1000).ok());
  EXPECT_EQ(f.pool->counters().creates, 0u);
  FakeDevice d({.granule_bytes = kGranule}, 1 << 20);
  SequenceOptions options = Options({LayoutKind::kHeadMajor, 0}, {Rounding::kBucket, 4}, 700);
  options.growth = GrowthKind::kRestride;
  EXPECT_TRUE(d.Make(options)->Prepare(500).ok());
  EXPECT_EQ(d.f->pool->counters().creates, 0u);
}

}  // namespace
}  // namespace granule::kv
