// Random sequences of commit, share, decommit and injected failures against a plain model of what
// every granule must show, with the walkers and the system's own count after each step.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>
#include <map>
#include <vector>

#include "memory/memory_stack_for_test.h"

namespace granule::memory {
namespace {

constexpr size_t kG = 64 << 10;
constexpr size_t kGranules = 24;

struct Cell {
  bool backed = false;
  bool poisoned = false;
  bool read_only = false;
  uint64_t tag = 0;  // what the first bytes hold; shares have equal tags
  friend bool operator==(const Cell&, const Cell&) = default;
};

class Machine {
 public:
  explicit Machine(uint64_t retained_bytes)
      : stack_({}, retained_bytes), area_(*stack_.space.Carve(kGranules * kG)), cells_(kGranules) {}

  ~Machine() {
    stack_.vmm.Heal();
    (void)stack_.table.Decommit(area_);
    stack_.pool.Trim(0);
    const HandleCounters c = stack_.pool.counters();
    EXPECT_EQ(c.creates, c.releases + c.quarantined_handles);
    EXPECT_TRUE(c.quarantined_handles == 0 || may_quarantine_);
  }

  void Fault(Verb verb, uint64_t nth, bool from_then_on) {
    may_quarantine_ |= verb == Verb::kUnmap || verb == Verb::kRelease;
    if (from_then_on) {
      stack_.vmm.FailFrom(verb, nth);
    } else {
      stack_.vmm.FailCall(verb, nth);
    }
  }
  void Heal() { stack_.vmm.Heal(); }

  void Commit(const std::vector<std::pair<size_t, size_t>>& spans) {
    std::vector<AddressRange> ranges;
    std::vector<bool> wanted(kGranules, false);
    bool refused = false;
    for (const auto& [first, bytes] : spans) {
      const size_t end = std::min(first + bytes, kGranules * kG);
      ranges.push_back({area_.base + first, end - first});
      for (size_t g = first / kG; g * kG < end && end > first; ++g) {
        wanted[g] = true;
        refused |= cells_[g].poisoned || cells_[g].read_only;
      }
    }
    uint64_t would = 0;
    for (size_t g = 0; g < kGranules; ++g)
      would += wanted[g] && !cells_[g].backed && !cells_[g].poisoned ? kG : 0;
    RC_ASSERT(stack_.table.WouldCommitBytes(ranges) == would);
    const auto done = stack_.table.Commit(ranges);
    RC_ASSERT(!refused || !done.ok());
    if (!done.ok()) return LearnPoison();
    RC_ASSERT(done->new_bytes == would);
    for (const AddressRange& stale : done->stale) std::memset(Bytes(stale.base), 0, stale.bytes);
    for (size_t g = 0; g < kGranules; ++g) {
      if (!wanted[g] || cells_[g].backed) continue;
      RC_ASSERT(*Word(g) == 0u);  // fresh, or zeroed as stale
      cells_[g] = {.backed = true, .tag = ++last_tag_};
      *Word(g) = last_tag_;
    }
  }

  void Share(size_t source, size_t target, size_t granules, Access access) {
    bool possible = source + granules <= kGranules && target + granules <= kGranules;
    if (!possible) return;
    possible = source < target ? target - source >= granules : source - target >= granules;
    for (size_t i = 0; i < granules; ++i) {
      possible &= cells_[source + i].backed;
      possible &= !cells_[target + i].backed && !cells_[target + i].poisoned;
    }
    const Status done = stack_.table.Share(At(source), At(target), granules * kG, access);
    RC_ASSERT(possible || granules == 0 || !done.ok());
    if (!done.ok()) return LearnPoison();
    for (size_t i = 0; i < granules; ++i) {
      cells_[target + i] = {
          .backed = true, .read_only = access == Access::kReadOnly, .tag = cells_[source + i].tag};
    }
  }

  void Decommit(size_t first, size_t granules) {
    granules = std::min(granules, kGranules - first);
    const Status done = stack_.table.Decommit({At(first), granules * kG});
    for (size_t g = first; g < first + granules; ++g) {
      if (cells_[g].poisoned) continue;
      const bool poisoned = stack_.table.IsPoisoned({At(g), kG});
      RC_ASSERT(!poisoned || !done.ok());
      cells_[g] = {.poisoned = poisoned};
    }
  }

  void Check() const {
    std::map<uint64_t, int> tags;
    uint64_t mapped = 0;
    uint64_t poisoned = 0;
    for (size_t g = 0; g < kGranules; ++g) {
      const Cell& cell = cells_[g];
      RC_ASSERT(stack_.table.BackedBytes({At(g), kG}) == (cell.backed ? kG : 0));
      RC_ASSERT(stack_.table.IsPoisoned({At(g), kG}) == cell.poisoned);
      poisoned += cell.poisoned ? kG : 0;
      if (!cell.backed) continue;
      RC_ASSERT(*Word(g) == cell.tag);
      ++tags[cell.tag];
      mapped += kG;
    }
    RC_ASSERT(stack_.table.IsValid());
    RC_ASSERT(stack_.pool.IsValid());
    RC_ASSERT(stack_.table.mapped_bytes() == mapped);
    RC_ASSERT(stack_.table.unique_bytes() == tags.size() * kG);
    RC_ASSERT(stack_.table.poisoned_bytes() == poisoned);
    const HandleCounters c = stack_.pool.counters();
    RC_ASSERT(c.live_bytes == tags.size() * kG);
    RC_ASSERT(*stack_.vmm.ResidentBytes() == c.live_bytes + c.pooled_bytes + c.quarantined_bytes);
  }

 private:
  Address At(size_t granule) const { return area_.base + granule * kG; }
  uint64_t* Word(size_t granule) const { return reinterpret_cast<uint64_t*>(At(granule)); }

  // A failed commit or share may only poison granules that were empty.
  void LearnPoison() {
    for (size_t g = 0; g < kGranules; ++g) {
      const bool poisoned = stack_.table.IsPoisoned({At(g), kG});
      RC_ASSERT(!poisoned || cells_[g].poisoned || (!cells_[g].backed && may_quarantine_));
      cells_[g].poisoned = poisoned;
    }
  }

  MemoryStack stack_;
  AddressRange area_;
  std::vector<Cell> cells_;
  uint64_t last_tag_ = 0;
  bool may_quarantine_ = false;
};

TEST(MappingTableProperty, RandomSequencesStaySound) {
  const bool sound = rc::check("commit, share, decommit, faults", [] {
    Machine machine(*rc::gen::element<uint64_t>(0, 3 * kG, 100 * kG));
    const int steps = *rc::gen::inRange(1, 60);
    for (int step = 0; step < steps; ++step) {
      const size_t a = *rc::gen::inRange<size_t>(0, kGranules);
      const size_t b = *rc::gen::inRange<size_t>(0, kGranules);
      const size_t n = *rc::gen::inRange<size_t>(0, 7);
      switch (*rc::gen::weightedElement<int>({{5, 0}, {3, 1}, {3, 2}, {2, 3}, {2, 4}})) {
        case 0: {
          const size_t shift = *rc::gen::inRange<size_t>(0, kG);
          machine.Commit({{a * kG + shift, n * kG}, {b * kG, (n + 1) * kG - shift}, {a * kG, 1}});
          break;
        }
        case 1:
          machine.Share(a, b, n, *rc::gen::element(Access::kReadOnly, Access::kReadWrite));
          break;
        case 2:
          machine.Decommit(a, n);
          break;
        case 3:
          machine.Fault(*rc::gen::element(Verb::kCreate, Verb::kMap, Verb::kUnmap, Verb::kRelease),
                        n + 1, *rc::gen::inRange(0, 4) == 0);
          break;
        default:
          machine.Heal();
      }
      machine.Check();
    }
  });
  EXPECT_TRUE(sound);
}

}  // namespace
}  // namespace granule::memory
