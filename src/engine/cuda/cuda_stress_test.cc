// Random life of many sequences under one captured graph: they grow, fork, rewind, give memory
// back, are parked and closed, while every step's logits must be the bits that the same tokens gave
// before.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "base/cuda_for_test.h"
#include "engine/cuda/gpu.h"
#include "engine/engine.h"
#include "engine/tiny_model_for_test.h"

namespace granule::engine {
namespace {

// 32 KiB of KV a token: a granule of 2 MiB holds 64.
const TinyShape kShape{.name = "stress",
                       .layers = 4,
                       .heads = 8,
                       .kv_heads = 8,
                       .head_dim = 128,
                       .hidden = 64,
                       .ffn = 96,
                       .vocab = 257,
                       .context = 4096};
constexpr uint64_t kMostTokens = 700;
constexpr uint32_t kStreams = 3;  // a sequence reads the tokens of one stream, wherever it is

TokenId TokenOf(uint32_t stream, uint64_t position) {
  return static_cast<TokenId>((position * 7919 + stream * 104729 + position * position % 31) % 257);
}

class CudaStress : public cuda::GpuTest {
 protected:
  void SetUp() override {
    cuda::GpuTest::SetUp();
    device_.reset();  // the engine opens its own
  }
};

TEST_F(CudaStress, EveryStepGivesTheBitsOfItsTokens) {
  const bool nightly = std::getenv("GRANULE_NIGHTLY") != nullptr;
  const int operations = nightly ? 100'000 : 4'000;
  const auto folder =
      std::filesystem::temp_directory_path() / Format("granule-cuda-stress-{}", getpid());
  TinyModelWriter(folder, kShape);
  auto device = DeviceContext::CreateCuda({}, 0);
  ASSERT_TRUE(device.ok()) << device.status().message();
  auto package = package::Open(folder);
  ASSERT_TRUE(package.ok()) << package.status().message();
  auto model = Model::Load(**device, std::move(*package));
  ASSERT_TRUE(model.ok()) << model.status().message();
  {
    Engine engine(**device, **model, KvOptions{});
    struct Live {
      uint32_t stream = 0;
      std::unique_ptr<kv::Sequence> sequence;
    };
    std::vector<Live> live;
    std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> known;
    std::map<std::string, int> done;
    std::mt19937 random(7);
    const auto step = [&](Live& l) {
      const uint64_t at = l.sequence->live_length();
      const TokenId token = TokenOf(l.stream, at);
      const int32_t row = 0;
      const StepItem item{l.sequence.get(), {&token, 1}, {&row, 1}};
      auto output = engine.Step({&item, 1});
      ASSERT_TRUE(output.ok()) << output.status().message();
      const auto logits = output->Row(0);
      auto [it, first] = known.try_emplace({l.stream, at}, logits.begin(), logits.end());
      ASSERT_TRUE(first || std::memcmp(it->second.data(), logits.data(), logits.size_bytes()) == 0)
          << "stream " << l.stream << " position " << at;
    };
    for (int i = 0; i < operations; ++i) {
      const auto dice = static_cast<uint32_t>(random() % 1000);
      if (live.empty() || (dice < 4 && live.size() < 12)) {
        live.push_back({static_cast<uint32_t>(random() % kStreams), *engine.NewSequence()});
        ++done["opened"];
        continue;
      }
      const size_t which = random() % live.size();
      Live& l = live[which];
      const uint64_t length = l.sequence->live_length();
      if (dice < 8 && live.size() < 12) {
        auto child = l.sequence->Fork();
        ASSERT_TRUE(child.ok()) << child.status().message();
        live.push_back({l.stream, std::move(*child)});
        ++done["forked"];
      } else if (dice < 14) {
        ASSERT_TRUE(l.sequence->Rewind(length == 0 ? 0 : random() % length).ok());
        ++done["rewound"];
      } else if (dice < 18) {
        ASSERT_TRUE(l.sequence->Trim().ok());
        ++done["trimmed"];
      } else if (dice < 20) {
        ASSERT_TRUE(l.sequence->Reset().ok());
        ++done["reset"];
      } else if (dice < 22) {
        kv::Sequence::Park(std::move(l.sequence));
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
        ++done["parked"];
      } else if (dice < 24 || length >= kMostTokens) {
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
        ++done["closed"];
      } else {
        ASSERT_NO_FATAL_FAILURE(step(l));
        ++done["stepped"];
      }
      if (i % 1000 == 0) {
        for (const Live& each : live) ASSERT_TRUE(each.sequence->IsValid());
      }
    }
    std::string text;
    for (const auto& [name, count] : done) text += Format("{} {}, ", name, count);
    std::printf("%d operations: %s%zu different steps\n", operations, text.c_str(), known.size());
    EXPECT_GT(done["forked"], 0);
    EXPECT_GT(done["parked"], 0);
  }
  kv::Store store = (*device)->store();
  store.parking->Release(0);
  store.pool->Trim(0);
  const memory::HandleCounters counters = store.pool->counters();
  EXPECT_EQ(counters.creates, counters.releases);
  EXPECT_EQ(counters.quarantined_handles, 0u);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace granule::engine
