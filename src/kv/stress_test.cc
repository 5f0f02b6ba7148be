// Random use of several sequences over one memory, with faults: contents and books stay right.
// `make nightly` runs 10^6 operations: RC_PARAMS="max_success=5000", 200 or more each, counted.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "kv/sequence_for_test.h"

namespace granule::kv {
namespace {

// Of [low, high), all of it in every case: inRange alone starts every property with its first
// values and comes to the last ones at the end.
template <class T = int>
T Pick(T low, T high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(low, high));
}

bool Nightly() { return std::getenv("GRANULE_NIGHTLY") != nullptr; }

uint64_t operations_done = 0;  // by the property, in all its cases

struct Tracked {
  std::unique_ptr<Sequence> sequence;
  std::vector<uint8_t> marks;  // one per live token
};

SequenceOptions RandomOptions() {
  SequenceOptions options;
  const auto growth = Pick(0, 6);
  options.growth = growth == 0   ? GrowthKind::kRestride
                   : growth == 1 ? GrowthKind::kRealloc
                                 : GrowthKind::kCommit;
  options.layout = options.growth == GrowthKind::kRestride ? LayoutChoice{LayoutKind::kHeadMajor, 0}
                                                           : kLayouts[Pick<size_t>(0, 4)];
  options.policy =
      kPolicies[options.growth == GrowthKind::kCommit ? Pick<size_t>(0, 3) : Pick<size_t>(1, 3)];
  options.hard_max.tokens = *rc::gen::elementOf(std::vector<uint64_t>{1, 70, 333, 700});
  options.hard_max.source = "--ctx-size";
  options.mask_bytes_per_token = 8;
  return options;
}

void CheckContent(const Tracked& t) {
  for (uint64_t i = 0; i < t.marks.size(); ++i) Mark(*t.sequence, TestGroup(), i, t.marks[i], true);
}

void UseAtRandom() {
  Fixture f(*rc::gen::element<uint64_t>(0, 1 << 20));
  std::vector<Tracked> all;
  const auto open = [&] {
    auto made = Sequence::Create(f.store(), TestGroup(), RandomOptions());
    RC_ASSERT(made.ok());
    all.push_back({std::move(*made), {}});
    all.back().marks.clear();
  };
  open();
  const int operations = Nightly() ? Pick(200, 220) : Pick(1, 80);
  for (int i = 0; i < operations; ++i) {
    const size_t at = Pick<size_t>(0, all.size());
    Tracked& t = all[at];
    Sequence& s = *t.sequence;
    const bool fault = Pick(0, 5) == 0;
    if (fault) {
      f.fault->FailCall(*rc::gen::element(memory::Verb::kCreate, memory::Verb::kMap),
                        Pick<uint64_t>(1, 6));
      f.buffers->fail_at = f.buffers->calls + Pick<uint64_t>(1, 3);
    }
    switch (Pick(0, 10)) {
      case 0:
      case 1:
      case 2:
      case 3: {
        const uint64_t n = s.live_length() + Pick<uint64_t>(1, 90);
        const uint64_t committed = s.committed_length();
        const Status status = s.Ensure(n);
        if (!status.ok()) {
          RC_ASSERT(n > *s.hard_max().tokens || fault);
          RC_ASSERT(status.code() != Code::kPoisoned && status.code() != Code::kInternal);
          // Memory may have grown before making it private failed; what is live stays.
          RC_ASSERT(s.committed_length() >= committed);
          break;
        }
        RC_ASSERT(n <= *s.hard_max().tokens);
        for (uint64_t k = s.live_length(); k < n; ++k) {
          t.marks.push_back(static_cast<uint8_t>(Pick(1, 255)));
          Mark(s, TestGroup(), k, t.marks.back(), false);
        }
        s.Advance(n - s.live_length());
        break;
      }
      case 4:
      case 5: {
        const uint64_t to = Pick<uint64_t>(0, s.live_length() + 1);
        RC_ASSERT(s.Rewind(to).ok());
        t.marks.resize(to);
        break;
      }
      case 6:
        RC_ASSERT(s.Trim().ok());
        break;
      case 7:
        if (Pick(0, 3) == 0) {
          RC_ASSERT(s.Reset().ok());
          t.marks.clear();
        } else if (s.options().growth == GrowthKind::kCommit && all.size() < 4) {
          auto child = s.Fork();
          RC_ASSERT(child.ok() || fault);
          if (child.ok()) {
            std::vector<uint8_t> marks = t.marks;
            all.push_back({std::move(*child), std::move(marks)});
          }
        }
        break;
      case 8: {
        Sequence::Park(std::move(t.sequence));
        all.erase(all.begin() + static_cast<long>(at));
        f.fault->Heal();
        f.buffers->fail_at = 0;
        open();
        break;
      }
      default:
        f.pool->Trim(0);
        if (Pick(0, 3) == 0) f.parking->Release(*rc::gen::element<uint64_t>(0, 100000));
    }
    f.fault->Heal();
    f.buffers->fail_at = 0;
    for (const Tracked& each : all) {
      RC_ASSERT(each.sequence->IsValid());
      RC_ASSERT(each.sequence->live_length() == each.marks.size());
    }
    RC_ASSERT(f.table->IsValid());
    RC_ASSERT(f.pool->IsValid());
    RC_ASSERT(f.space->IsValid());
    RC_ASSERT(*f.fault->ResidentBytes() ==
              f.table->unique_bytes() + f.pool->counters().pooled_bytes);
    ++operations_done;
    if (i % 8 == 0) CheckContent(all[Pick<size_t>(0, all.size())]);
  }
  for (const Tracked& t : all) CheckContent(t);
  all.clear();
  f.parking->Release(0);
  const memory::HandleCounters c = f.pool->counters();
  RC_ASSERT(c.live_handles == 0u);
  RC_ASSERT(c.creates == c.releases + c.pooled_handles);
}

TEST(Stress, RandomUseKeepsContentAndBooks) {
  operations_done = 0;
  EXPECT_TRUE(rc::check("random use keeps content and books", UseAtRandom));
  std::printf("%llu operations\n", static_cast<unsigned long long>(operations_done));
  if (Nightly()) {
    EXPECT_GE(operations_done, 1000000u) << "RC_PARAMS=\"max_success=5000\" is wanted";
  }
}

// Sequences of one memory on threads of their own (the thread sanitizer watches).
TEST(Stress, SequencesOnThreadsShareOneMemory) {
  Fixture f(1 << 20);
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&f, n] {
      for (int round = 0; round < 15; ++round) {
        SequenceOptions options =
            Options(kLayouts[static_cast<size_t>(n)], {Rounding::kGranule, 256}, 700);
        auto s = *Sequence::Create(f.store(), TestGroup(), options);
        for (const uint64_t length : {5, 60, 300, 700}) {
          ASSERT_TRUE(s->Ensure(length).ok());
          for (uint64_t t = s->live_length(); t < length; ++t)
            Mark(*s, TestGroup(), t, static_cast<uint8_t>(n + 1), false);
          s->Advance(length - s->live_length());
        }
        auto child = s->Fork();
        ASSERT_TRUE(child.ok());
        for (uint64_t t = 0; t < 700; t += 13)
          Mark(**child, TestGroup(), t, static_cast<uint8_t>(n + 1), true);
        ASSERT_TRUE(s->IsValid());
        if (round % 2 == 0) Sequence::Park(std::move(s));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  f.parking->Release(0);
  EXPECT_EQ(f.pool->counters().live_handles, 0u);
  EXPECT_TRUE(f.table->IsValid());
}

}  // namespace
}  // namespace granule::kv
