// Picking tokens on a GPU against the rules in double precision.
#include "kernels/cuda/cuda_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "kernels/cuda/graph_for_test.h"
#include "kernels/cuda/kernels_for_test.h"
#include "kernels/ref/reference.h"
#include "kernels/test_inputs.h"

namespace granule::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The token that the rules of SampleParams pick from a row, as sample/sampler.h has them.
int32_t Pick(const std::vector<float>& logits, double temperature, int32_t top_k, double top_p,
             double min_p, double uniform) {
  struct Candidate {
    double logit, weight;
    int32_t id;
  };
  std::vector<Candidate> left;
  double largest = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > -kInf)) continue;
    const double logit = std::min(logits[i], std::numeric_limits<float>::max());
    left.push_back({logit, 0, static_cast<int32_t>(i)});
    largest = std::max(largest, logit);
  }
  if (left.empty() || !(temperature > 0))
    return static_cast<int32_t>(ref::ArgMax(logits.data(), static_cast<int64_t>(logits.size())));
  for (Candidate& c : left) c.weight = std::exp(c.logit - largest);
  const bool cut = top_k > 0 && static_cast<size_t>(top_k) < left.size();
  if (cut || top_p < 1) {
    std::sort(left.begin(), left.end(), [](const Candidate& a, const Candidate& b) {
      return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    });
  }
  if (cut) left.resize(static_cast<size_t>(top_k));
  if (top_p < 1) {
    double total = 0, held = 0;
    for (const Candidate& c : left) total += c.weight;
    size_t kept = 0;
    while (kept < left.size() && held < top_p * total) held += left[kept++].weight;
    left.resize(std::max<size_t>(kept, 1));
  }
  if (min_p > 0) std::erase_if(left, [&](const Candidate& c) { return c.weight < min_p; });
  double total = 0;
  for (Candidate& c : left) total += c.weight = std::exp((c.logit - largest) / temperature);
  double rest = uniform * total;
  int32_t chosen = left.front().id;
  for (const Candidate& c : left) {
    if (c.weight <= 0) continue;
    chosen = c.id;
    rest -= c.weight;
    if (rest < 0) break;
  }
  return chosen;
}

// Whether this is what the rules pick when their limits are right to within 1e-5.
bool Acceptable(const std::vector<float>& logits, const CudaSampleRow& s, int32_t id) {
  for (const double m : {0.0, -1e-5, 1e-5}) {
    for (const double p : {0.0, -1e-7, 1e-7, -1e-6, 1e-6, -1e-5, 1e-5}) {
      for (const double u : {0.0, -1e-7, 1e-7, -1e-6, 1e-6, -1e-5, 1e-5}) {
        if ((s.top_p == 1 && p != 0) || (s.min_p == 0 && m != 0)) continue;
        const double top_p = s.top_p < 1 ? std::min(s.top_p + p, 1.0 - 1e-12) : 1.0;
        const double min_p = std::min(s.min_p * (1 + m), 1.0);
        const double uniform = std::clamp(s.uniform + u, 0.0, 1.0 - 1e-12);
        if (Pick(logits, s.temperature, s.top_k, top_p, min_p, uniform) == id) return true;
      }
    }
  }
  return false;
}

class CudaSampleTest : public CudaKernelTest {
 protected:
  // Rows one after the other; no settings: greedy.
  std::vector<int32_t> Run(const std::vector<std::vector<float>>& rows,
                           const std::vector<CudaSampleRow>& settings) {
    std::vector<float> logits;
    for (const auto& row : rows) logits.insert(logits.end(), row.begin(), row.end());
    const auto dlogits = Put(logits);
    const auto dids = Put(std::vector<int32_t>(rows.size(), -7));
    CudaSampleArgs args;
    args.logits = dlogits.as<float>();
    args.rows = static_cast<int64_t>(rows.size());
    args.vocab_size = static_cast<int64_t>(rows[0].size());
    args.ids = dids.as<int32_t>();
    args.workspace_bytes = SampleWorkspaceBytes(args.rows, args.vocab_size);
    const auto workspace = Put(std::vector<uint8_t>(args.workspace_bytes, 0xff));
    args.workspace = workspace.as<std::byte>();
    cuda::Buffer dsettings;
    if (!settings.empty()) {
      dsettings = Put(settings);
      args.settings = dsettings.as<CudaSampleRow>();
    }
    Sample(launcher(), args);
    ExpectRan();
    return Get<int32_t>(dids.address(), rows.size());
  }

  void ExpectPicked(const std::vector<std::vector<float>>& rows,
                    const std::vector<CudaSampleRow>& settings, const std::string& what) {
    const std::vector<int32_t> got = Run(rows, settings);
    for (size_t r = 0; r < rows.size(); ++r) {
      const CudaSampleRow& s = settings[r];
      EXPECT_TRUE(Acceptable(rows[r], s, got[r]))
          << what << " row " << r << " of " << rows[r].size() << ": " << got[r] << ", expected "
          << Pick(rows[r], s.temperature, s.top_k, s.top_p, s.min_p, s.uniform) << "; temperature "
          << s.temperature << " top-k " << s.top_k << " top-p " << s.top_p << " min-p " << s.min_p
          << " uniform " << s.uniform;
    }
  }
};

TEST_F(CudaSampleTest, GreedyTakesTheLargestAndTheFirstAmongEquals) {
  for (const int64_t vocab : {1, 2, 5, 2047, 2048, 2049, 32'000, 49'152, 151'936, 152'065}) {
    Inputs in(static_cast<uint32_t>(vocab));
    std::vector<std::vector<float>> rows;
    const auto n = static_cast<size_t>(vocab);
    const auto row = [&] { return in.Floats(vocab, 5.0f); };
    rows.push_back(row());
    rows.push_back(std::vector<float>(n, -kInf));
    rows.push_back(std::vector<float>(n, kNaN));
    rows.push_back(std::vector<float>(n, -3.5f));  // all equal
    rows.push_back(row());
    rows.back()[n - 1] = 1e9f;  // the last
    rows.push_back(row());
    rows.back()[n / 2] = rows.back()[n / 3] = kInf;  // two equal infinities
    rows.push_back(row());
    for (float& x : rows.back()) x = -std::abs(x);
    rows.back()[n / 4] = -0.0f;
    rows.back()[n - 1] = 0.0f;  // equal to -0
    rows.push_back(row());
    for (size_t i = 0; i < n; i += 2) rows.back()[i] = kNaN;
    rows.push_back(std::vector<float>(n, kNaN));
    rows.back()[n - 1] = -kInf;
    const auto got = Run(rows, {});
    // With settings the same answers come from the other kernel.
    const auto drawn = Run(rows, std::vector<CudaSampleRow>(rows.size()));
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto want = static_cast<int32_t>(ref::ArgMax(rows[r].data(), vocab));
      EXPECT_EQ(got[r], want) << "vocab " << vocab << " row " << r;
      EXPECT_EQ(drawn[r], want) << "vocab " << vocab << " row " << r << " with settings";
    }
  }
}

TEST_F(CudaSampleTest, EverySettingPicksByTheRules) {
  for (const int64_t vocab : {1, 3, 17, 1000, 2048, 5001, 151'936}) {
    for (const float size : {0.0f, 0.5f, 3.0f, 20.0f}) {  // from flat to peaked
      Inputs in(static_cast<uint32_t>(vocab) + static_cast<uint32_t>(size));
      std::vector<std::vector<float>> rows;
      std::vector<CudaSampleRow> settings;
      const auto add = [&](float temperature, int32_t top_k, float top_p, float min_p) {
        rows.push_back(in.Floats(vocab, size));
        settings.push_back(
            {temperature, top_k, top_p, min_p, static_cast<float>(in.Below(1 << 24)) * 0x1p-24f});
      };
      add(1.0f, 0, 1.0f, 0.0f);
      add(0.3f, 0, 1.0f, 0.0f);
      add(3.0f, 0, 1.0f, 0.01f);
      add(1.0f, 1, 1.0f, 0.0f);
      add(0.8f, 40, 1.0f, 0.0f);
      add(0.8f, 3000, 1.0f, 0.0f);
      add(1.5f, 1 << 30, 1.0f, 0.0f);
      add(1.0f, 0, 0.95f, 0.0f);
      add(2.0f, 0, 0.5f, 0.0f);
      add(1.0f, 0, 1e-6f, 0.0f);
      add(0.7f, 50, 0.9f, 0.05f);
      add(1.3f, 2500, 0.99f, 0.001f);
      add(0.0f, 40, 0.9f, 0.1f);
      add(1e-30f, 0, 1.0f, 0.0f);
      add(1.0f, 0, 1.0f, 1.0f);
      ExpectPicked(rows, settings, Format("vocab {} size {}", vocab, size));
    }
  }
}

// Many draws of one row: each of its tokens comes where its share of [0, 1) is.
TEST_F(CudaSampleTest, DrawsCoverTheWholeInterval) {
  Inputs in(4);
  const auto logits = in.Floats(3000, 2.0f);
  for (const int32_t top_k : {0, 20}) {
    for (const float top_p : {1.0f, 0.8f}) {
      std::vector<std::vector<float>> rows;
      std::vector<CudaSampleRow> settings;
      for (int i = 0; i < 200; ++i) {
        rows.push_back(logits);
        settings.push_back({1.2f, top_k, top_p, 0.0f, static_cast<float>(i) / 200.0f});
      }
      settings.back().uniform = 0x1.fffffep-1f;  // the largest draw
      ExpectPicked(rows, settings, Format("top-k {} top-p {}", top_k, top_p));
    }
  }
}

// Logits with few values (as rounded ones have), infinities and NaN: ties go by id.
TEST_F(CudaSampleTest, TiesInfinitiesAndNan) {
  for (const int64_t vocab : {64, 4000, 40'000}) {
    Inputs in(static_cast<uint32_t>(vocab));
    std::vector<std::vector<float>> rows;
    std::vector<CudaSampleRow> settings;
    for (int i = 0; i < 60; ++i) {
      auto row = in.Floats(vocab, 2.0f);
      for (float& x : row) x = std::round(x);
      if (i % 3 == 1) {
        for (size_t j = 0; j < row.size(); j += 3) row[j] = j % 2 == 0 ? -kInf : kNaN;
      }
      if (i % 5 == 4) row[static_cast<size_t>(in.Below(static_cast<int>(vocab)))] = kInf;
      if (i == 7) std::fill(row.begin(), row.end(), -kInf);
      if (i == 8) std::fill(row.begin(), row.end(), kNaN);
      if (i == 9) {  // one candidate
        std::fill(row.begin(), row.end(), -kInf);
        row[row.size() - 2] = -1e30f;
      }
      rows.push_back(std::move(row));
      settings.push_back({1.0f, i % 2 == 0 ? 1 + in.Below(200) : 0, i % 4 < 2 ? 0.7f : 1.0f,
                          i % 7 == 0 ? 0.1f : 0.0f,
                          static_cast<float>(in.Below(1 << 24)) * 0x1p-24f});
    }
    ExpectPicked(rows, settings, Format("vocab {}", vocab));
  }
}

TEST_F(CudaSampleTest, RunsFromAGraphWithOtherSettings) {
  Inputs in(9);
  const int64_t vocab = 32'000;
  std::vector<std::vector<float>> rows = {in.Floats(vocab, 3.0f), in.Floats(vocab, 3.0f)};
  std::vector<float> flat;
  for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  const auto dlogits = Put(flat);
  const auto dsettings = Put(std::vector<CudaSampleRow>(2));
  const auto dids = Put(std::vector<int32_t>(2, -7));
  CudaSampleArgs args;
  args.logits = dlogits.as<float>();
  args.rows = 2;
  args.vocab_size = vocab;
  args.settings = dsettings.as<CudaSampleRow>();
  args.ids = dids.as<int32_t>();
  args.workspace_bytes = SampleWorkspaceBytes(2, vocab);
  const auto workspace = Put(std::vector<uint8_t>(args.workspace_bytes, 0xff));
  args.workspace = workspace.as<std::byte>();
  RecordedGraph graph(launcher(), [&] { Sample(launcher(), args); });
  for (int i = 0; i < 20; ++i) {
    std::vector<CudaSampleRow> settings(2);
    settings[0] = {0.9f, 40, 0.95f, 0.0f, static_cast<float>(i) / 20.0f};
    settings[1] = {i % 2 == 0 ? 0.0f : 1.0f, 0, 1.0f, 0.05f, static_cast<float>(i) / 20.0f};
    ASSERT_TRUE(device()
                    .UploadAsync(dsettings.address(), settings.data(),
                                 settings.size() * sizeof(CudaSampleRow))
                    .ok());
    graph.Run();
    ExpectRan();
    EXPECT_EQ(Get<int32_t>(dids.address(), 2), Run(rows, settings));
  }
}

TEST_F(CudaSampleTest, SpeedOfGreedyAndDraws) {
  for (const int64_t rows : {1, 16, 64}) {
    const int64_t vocab = 151'936;
    Inputs in(2);
    const auto one = in.Floats(vocab, 3.0f);
    std::vector<float> logits;
    for (int64_t r = 0; r < rows; ++r) logits.insert(logits.end(), one.begin(), one.end());
    const auto dlogits = Put(logits);
    const auto dids = Put(std::vector<int32_t>(static_cast<size_t>(rows), -7));
    CudaSampleArgs args;
    args.logits = dlogits.as<float>();
    args.rows = rows;
    args.vocab_size = vocab;
    args.ids = dids.as<int32_t>();
    args.workspace_bytes = SampleWorkspaceBytes(rows, vocab);
    const auto workspace = Put(std::vector<uint8_t>(args.workspace_bytes, 0xff));
    args.workspace = workspace.as<std::byte>();
    struct Case {
      const char* name;
      CudaSampleRow settings;
    };
    for (const Case& c : {Case{"greedy", {}}, Case{"temperature 1", {1.0f, 0, 1.0f, 0.0f, 0.4f}},
                          Case{"top-k 40, top-p 0.95", {0.8f, 40, 0.95f, 0.0f, 0.4f}},
                          Case{"top-p 0.95, min-p 0.05", {0.8f, 0, 0.95f, 0.05f, 0.4f}}}) {
      const auto dsettings = Put(std::vector<CudaSampleRow>(static_cast<size_t>(rows), c.settings));
      args.settings = c.settings.temperature > 0 ? dsettings.as<CudaSampleRow>() : nullptr;
      RecordedGraph graph(launcher(), [&] {
        for (int i = 0; i < 10; ++i) Sample(launcher(), args);
      });
      std::printf("sample %lld x %lld, %s: %.1f us\n", static_cast<long long>(rows),
                  static_cast<long long>(vocab), c.name, graph.Seconds() / 10 * 1e6);
    }
  }
  ExpectRan();
}

}  // namespace
}  // namespace granule::kernels
