// Random use of several sequences over one memory, with canaries in some of their tokens: grow,
// rewind, trim, reset, fork, park and prepare, with calls that fail. The memory may be the host's
// or a GPU's: content goes through TokenBytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kv/sequence_for_test.h"

namespace granule::kv {

// Reads and writes the memory of sequences.
class TokenBytes {
 public:
  virtual ~TokenBytes() = default;
  virtual void Write(std::byte* to, const std::vector<uint8_t>& bytes) = 0;
  virtual std::vector<uint8_t> Read(const std::byte* from, size_t bytes) = 0;
};

class HostBytes final : public TokenBytes {
 public:
  void Write(std::byte* to, const std::vector<uint8_t>& bytes) override {
    std::memcpy(to, bytes.data(), bytes.size());
  }
  std::vector<uint8_t> Read(const std::byte* from, size_t bytes) override {
    std::vector<uint8_t> read(bytes);
    std::memcpy(read.data(), from, bytes);
    return read;
  }
};

// Every element of a token has bytes of its own: a swapped plane or head shows, as a lost one does.
inline void Canary(TokenBytes& access, const Sequence& s, const Group& group, uint64_t token,
                   uint8_t mark, bool check) {
  for (int32_t l = 0; l < static_cast<int32_t>(group.layers.size()); ++l) {
    const KvView view = s.View(l);
    const LayerGeometry& g = group.layers[static_cast<size_t>(l)];
    for (int64_t h = 0; h < g.kv_heads; ++h) {
      for (int plane = 0; plane < 2; ++plane) {
        std::byte* p = plane == 0 ? view.k + static_cast<int64_t>(token) * view.k_token_stride +
                                        h * view.k_head_stride
                                  : view.v + static_cast<int64_t>(token) * view.v_token_stride +
                                        h * view.v_head_stride;
        std::vector<uint8_t> bytes(static_cast<size_t>(g.head_dim * BitsOf(g.dtype) / 8));
        for (size_t i = 0; i < bytes.size(); ++i) {
          bytes[i] = static_cast<uint8_t>(mark + 37 * l + 101 * h + 13 * plane + 7 * i);
        }
        if (!check) {
          access.Write(p, bytes);
        } else {
          ASSERT_TRUE(access.Read(p, bytes.size()) == bytes)
              << "token " << token << " layer " << l << " head " << h << (plane ? " V" : " K");
        }
      }
    }
  }
}

struct RandomUseOptions {
  Group group = TestGroup();
  std::vector<uint64_t> hard_maxes = {1, 70, 333, 700};
  uint64_t longest_step = 90;  // tokens
  bool faults = true;
  uint64_t operations = 80;
  unsigned seed = 0;
};

class RandomUse {
 public:
  RandomUse(Fixture& fixture, TokenBytes& access, RandomUseOptions options)
      : f_(fixture), access_(access), o_(std::move(options)), random_(o_.seed) {}

  // Fails the test at the first difference, and says at which operation. Everything is closed and
  // counted at the end.
  void Run() {
    Open();
    for (uint64_t i = 0; i < o_.operations && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("seed " + std::to_string(o_.seed) + " operation " + std::to_string(i));
      Operate();
      f_.fault->Heal();
      f_.buffers->fail_at = 0;
      CheckBooks();
      if (i % 8 == 0) CheckContent(all_[Pick(all_.size())]);
    }
    if (testing::Test::HasFailure()) return;
    for (const Tracked& t : all_) CheckContent(t);
    all_.clear();
    f_.parking->Release(0);
    f_.pool->Trim(0);
    const memory::HandleCounters c = f_.pool->counters();
    EXPECT_EQ(c.live_handles, 0u);
    EXPECT_EQ(c.creates, c.releases);
    EXPECT_EQ(*f_.fault->ResidentBytes(), 0u);
    EXPECT_EQ(f_.buffers->live, 0);
  }

 private:
  struct Tracked {
    std::unique_ptr<Sequence> sequence;
    std::map<uint64_t, uint8_t> canaries;  // by token
  };

  uint64_t Pick(uint64_t end) { return random_() % end; }

  void Open() {
    SequenceOptions options;
    const uint64_t growth = Pick(6);
    options.growth = growth == 0   ? GrowthKind::kRestride
                     : growth == 1 ? GrowthKind::kRealloc
                                   : GrowthKind::kCommit;
    options.layout = options.growth == GrowthKind::kRestride
                         ? LayoutChoice{LayoutKind::kHeadMajor, 0}
                         : kLayouts[Pick(4)];
    options.policy = kPolicies[options.growth == GrowthKind::kCommit ? Pick(3) : 1 + Pick(2)];
    options.hard_max.tokens = o_.hard_maxes[Pick(o_.hard_maxes.size())];
    options.hard_max.source = "--ctx-size";
    auto made = Sequence::Create(f_.store(), o_.group, options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    all_.push_back({std::move(*made), {}});
  }

  void Operate() {
    const size_t at = Pick(all_.size());
    Tracked& t = all_[at];
    Sequence& s = *t.sequence;
    fault_ = o_.faults && Pick(5) == 0;
    if (fault_) {
      const memory::Verb verbs[] = {memory::Verb::kCreate, memory::Verb::kMap, memory::Verb::kZero,
                                    memory::Verb::kCopy};
      f_.fault->FailCall(verbs[Pick(4)], 1 + Pick(6));
      f_.buffers->fail_at = f_.buffers->calls + 1 + Pick(2);
    }
    switch (Pick(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        return Grow(t);
      case 5:
      case 6: {
        const uint64_t to = Pick(s.live_length() + 1);
        ASSERT_TRUE(s.Rewind(to).ok());
        t.canaries.erase(t.canaries.lower_bound(to), t.canaries.end());
        return;
      }
      case 7:
        ASSERT_TRUE(s.Trim().ok());
        return;
      case 8: {
        const Status status = s.Prepare(s.live_length() + 1 + Pick(o_.longest_step));
        ASSERT_TRUE(status.ok() || fault_) << status.message();
        return;
      }
      case 9:
        if (Pick(3) == 0) {
          ASSERT_TRUE(s.Reset().ok());
          t.canaries.clear();
        } else if (s.options().growth == GrowthKind::kCommit && all_.size() < 4) {
          auto child = s.Fork();
          ASSERT_TRUE(child.ok() || fault_) << child.status().message();
          if (child.ok()) all_.push_back({std::move(*child), std::map(t.canaries)});
        }
        return;
      case 10:
        Sequence::Park(std::move(t.sequence));
        all_.erase(all_.begin() + static_cast<long>(at));
        f_.fault->Heal();
        f_.buffers->fail_at = 0;
        return Open();
      default:
        f_.pool->Trim(Pick(2) * Pick(1 << 20));
        if (Pick(3) == 0) f_.parking->Release(Pick(2) * Pick(100000));
    }
  }

  void Grow(Tracked& t) {
    Sequence& s = *t.sequence;
    const uint64_t live = s.live_length();
    const uint64_t n = live + 1 + Pick(o_.longest_step);
    const uint64_t committed = s.committed_length();
    const Status status = s.Ensure(n);
    if (!status.ok()) {
      ASSERT_TRUE(n > *s.hard_max().tokens || fault_) << status.message();
      ASSERT_TRUE(status.code() == Code::kCapacityExceeded || status.code() == Code::kExhausted)
          << status.message();
      ASSERT_GE(s.committed_length(), committed);
      return;
    }
    ASSERT_LE(n, *s.hard_max().tokens);
    std::vector<uint64_t> tokens = {live, n - 1};
    for (int i = 0; i < 4; ++i) tokens.push_back(live + Pick(n - live));
    for (const uint64_t token : tokens) {
      const auto mark = static_cast<uint8_t>(random_());
      t.canaries[token] = mark;
      Canary(access_, s, o_.group, token, mark, /*check=*/false);
    }
    s.Advance(n - live);
  }

  void CheckContent(const Tracked& t) {
    for (const auto& [token, mark] : t.canaries) {
      Canary(access_, *t.sequence, o_.group, token, mark, /*check=*/true);
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  void CheckBooks() {
    for (const Tracked& t : all_) {
      ASSERT_TRUE(t.sequence->IsValid());
      ASSERT_TRUE(t.canaries.empty() || t.canaries.rbegin()->first < t.sequence->live_length());
    }
    ASSERT_TRUE(f_.table->IsValid());
    ASSERT_TRUE(f_.pool->IsValid());
    ASSERT_TRUE(f_.space->IsValid());
    ASSERT_EQ(*f_.fault->ResidentBytes(),
              f_.table->unique_bytes() + f_.pool->counters().pooled_bytes);
  }

  Fixture& f_;
  TokenBytes& access_;
  const RandomUseOptions o_;
  std::mt19937 random_;
  std::vector<Tracked> all_;
  bool fault_ = false;
};

}  // namespace granule::kv
