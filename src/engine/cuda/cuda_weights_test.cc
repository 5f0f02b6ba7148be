// Weights in device memory: synthetic models made there are those that the host makes and uploads.
#include "engine/cuda/cuda_weights.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cstring>
#include <string>
#include <vector>

#include "base/cuda_for_test.h"
#include "engine/engine.h"
#include "engine/native/build_plan.h"
#include "kernels/cuda/matmul_matrix.h"
#include "package/synth_content.h"

namespace granule::engine {
namespace {

// Sizes that are no multiples of more than they must be; most matrices are large enough to be left
// out, some are not.
constexpr const char* kOdd =
    "synth:layers=2,heads=12,kv_heads=3,head_dim=40,hidden=352,ffn=1056,vocab=1051,context=64,"
    "seed=9";

std::vector<std::string> Models() {
  std::vector<std::string> models;
  for (const char* format : {":int4", ":int8", ":fp16", ":fp32"}) {
    models.push_back("synth:tiny" + std::string(format));
    models.push_back(kOdd + std::string(format));
  }
  models.push_back("synth:tiny,vocab=1027,kv=fp16:int4");
  return models;
}

struct Loaded {
  package::Package package;
  std::unique_ptr<Plan> plan;
  CudaWeights weights;
};

class CudaWeightsTest : public cuda::GpuTest, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    cuda::GpuTest::SetUp();
    if (device_ == nullptr) return;
    device_.reset();
    auto gpu = OpenGpu(0);
    ASSERT_TRUE(gpu.ok()) << gpu.status().message();
    gpu_ = std::move(*gpu);
  }

  Loaded Load(package::Weights weights) {
    Loaded loaded;
    auto package = package::Open(GetParam(), weights);
    EXPECT_TRUE(package.ok()) << package.status().message();
    loaded.package = std::move(*package);
    auto built = BuildPlan(loaded.package, nullptr);
    EXPECT_TRUE(built.ok()) << built.status().message();
    EXPECT_NE(built->plan, nullptr);
    loaded.plan = std::move(built->plan);
    uint64_t last = 0, all = 0;
    auto on_device = PutOnDevice(*gpu_, *loaded.plan, loaded.package.on_demand.get(),
                                 [&](uint64_t done, uint64_t total) {
                                   EXPECT_LE(last, done);
                                   EXPECT_LE(done, total);
                                   last = done;
                                   all = total;
                                 });
    EXPECT_TRUE(on_device.ok()) << on_device.status().message();
    loaded.weights = std::move(*on_device);
    EXPECT_EQ(all, loaded.weights.bytes);
    return loaded;
  }

  std::vector<uint8_t> Download(const void* from, uint64_t bytes) {
    std::vector<uint8_t> to(bytes);
    Status s =
        gpu_->device->DownloadAsync(to.data(), reinterpret_cast<cuda::DevicePtr>(from), bytes);
    EXPECT_TRUE(s.ok()) << s.message();
    s = gpu_->device->Synchronize();
    EXPECT_TRUE(s.ok()) << s.message();
    return to;
  }
  void ExpectSameBytes(const void* made, const void* uploaded, uint64_t bytes,
                       const std::string& what) {
    const std::vector<uint8_t> a = Download(made, bytes), b = Download(uploaded, bytes);
    int shown = 0;
    for (size_t i = 0; i < a.size() && shown < 5; ++i) {
      if (a[i] == b[i]) continue;
      ++shown;
      ADD_FAILURE() << what << ": byte " << i << " of " << bytes << " is " << +a[i]
                    << " where it was made, " << +b[i] << " where it was uploaded";
    }
  }

  std::unique_ptr<Gpu> gpu_;
};

TEST_P(CudaWeightsTest, MadeOnTheDeviceAreThoseOfTheHost) {
  const uint64_t before = gpu_->device->allocated_bytes();
  {
    const Loaded made = Load(package::Weights::kOnDemand);
    const Loaded uploaded = Load(package::Weights::kAll);
    ASSERT_NE(made.package.on_demand, nullptr);
    EXPECT_EQ(uploaded.package.on_demand, nullptr);
    EXPECT_EQ(made.weights.bytes, uploaded.weights.bytes);
    ASSERT_EQ(made.plan->steps.size(), uploaded.plan->steps.size());
    ASSERT_EQ(made.weights.tables.size(), uploaded.weights.tables.size());
    for (size_t i = 0; i < made.weights.tables.size(); ++i) {
      const cuda::Buffer &a = made.weights.tables[i], &b = uploaded.weights.tables[i];
      ASSERT_EQ(a.bytes(), b.bytes());
      ExpectSameBytes(a.as<void>(), b.as<void>(), a.bytes(), Format("table {}", i));
    }
    int matrices = 0;
    for (size_t i = 0; i < made.plan->steps.size(); ++i) {
      const auto* step = std::get_if<MatMulStep>(&made.plan->steps[i]);
      if (step == nullptr) continue;
      const auto& other = std::get<MatMulStep>(uploaded.plan->steps[i]);
      ASSERT_EQ(step->outputs.size(), other.outputs.size());
      for (size_t o = 0; o < step->outputs.size(); ++o) {
        const auto& a = step->outputs[o].cuda_weights->data().view;
        const auto& b = other.outputs[o].cuda_weights->data().view;
        const std::string what = made.plan->labels[i] + Format(", output {}", o);
        ASSERT_EQ(a.n, b.n) << what;
        ASSERT_EQ(a.row_bytes, b.row_bytes) << what;
        ASSERT_EQ(a.blocks, b.blocks) << what;
        ExpectSameBytes(a.data, b.data, static_cast<uint64_t>(a.n * a.row_bytes), what);
        if (a.scales != nullptr) {
          ExpectSameBytes(a.scales, b.scales, static_cast<uint64_t>(a.n * a.blocks) * sizeof(float),
                          what + " scales");
        }
        ++matrices;
      }
    }
    EXPECT_EQ(matrices, 2 * 7 + 1);
  }
  // The memory that they were made in is gone, too.
  EXPECT_EQ(gpu_->device->allocated_bytes(), before);
}

INSTANTIATE_TEST_SUITE_P(Synth, CudaWeightsTest, testing::ValuesIn(Models()), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

TEST(OnDemandWeights, AreNothingForACpu) {
  auto device = DeviceContext::CreateCpu({});
  ASSERT_TRUE(device.ok()) << device.status().message();
  for (const BackendKind backend : {BackendKind::kNative, BackendKind::kOrt}) {
    auto package = package::Open("synth:tiny", package::Weights::kOnDemand);
    ASSERT_TRUE(package.ok()) << package.status().message();
    const auto model = Model::Load(**device, *std::move(package), backend);
    ASSERT_FALSE(model.ok());
    EXPECT_EQ(model.status().code(), Code::kInternal);
    EXPECT_NE(model.status().message().find("without its weights"), std::string::npos)
        << model.status().message();
  }
}

// What planning evaluates over constants must not have been left out: the plan is the same, whether
// the weights are there or not.
TEST(OnDemandWeights, AreNotReadByPlanning) {
  for (const std::string& name : Models()) {
    auto made = package::Open(name, package::Weights::kOnDemand);
    auto all = package::Open(name);
    ASSERT_TRUE(made.ok() && all.ok()) << name;
    auto of_made = BuildPlan(*made, nullptr);
    auto of_all = BuildPlan(*all, nullptr);
    ASSERT_TRUE(of_made.ok() && of_all.ok()) << name;
    const onnx::Graph &x = made->model.graph, &y = all->model.graph;
    ASSERT_EQ(x.tensors.size(), y.tensors.size()) << name;
    size_t left_out = 0;
    for (size_t i = 0; i < x.tensors.size(); ++i) {
      ASSERT_EQ(x.tensors[i].bytes.size(), y.tensors[i].bytes.size());
      if (made->on_demand->FindOrNull(x.tensors[i].bytes.data()) != nullptr) {
        ++left_out;
        continue;
      }
      EXPECT_EQ(0, std::memcmp(x.tensors[i].bytes.data(), y.tensors[i].bytes.data(),
                               x.tensors[i].bytes.size()))
          << name << ", tensor " << i;
    }
    EXPECT_EQ(left_out, made->on_demand->size()) << name;
  }
}

}  // namespace
}  // namespace granule::engine
