// Packages whose weights are described instead of made.
#include "package/synth_content.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string>
#include <vector>

#include "package/package.h"

namespace granule::package {
namespace {

using Form = SynthTensor::Form;

template <class T>
void Push(std::vector<std::byte>* bytes, T value) {
  const auto* first = reinterpret_cast<const std::byte*>(&value);
  bytes->insert(bytes->end(), first, first + sizeof(T));
}

// The tensor's bytes, one number after the other, as its description has them.
std::vector<std::byte> BytesOf(const SynthTensor& tensor, const SynthValues& values) {
  const SynthMatrix& m = tensor.matrix;
  std::vector<std::vector<int8_t>> codes(static_cast<size_t>(m.rows));
  for (int64_t row = 0; row < m.rows; ++row) {
    codes[static_cast<size_t>(row)].resize(static_cast<size_t>(m.columns));
    values.Codes(m, row, 0, codes[static_cast<size_t>(row)]);
  }
  const auto code = [&](int64_t row, int64_t column) {
    return static_cast<int>(codes[static_cast<size_t>(row)][static_cast<size_t>(column)]);
  };
  std::vector<std::byte> bytes;
  const auto number = [&](int64_t row, int64_t column) {
    const float value =
        static_cast<float>(code(row, column)) * values.Scale(m, row, column / kSynthBlock);
    if (tensor.dtype == DType::kF32) return Push(&bytes, value);
    Push(&bytes, F32ToF16(value));
  };
  for (int64_t row = 0; row < m.rows && tensor.form != Form::kTransposed; ++row) {
    for (int64_t column = 0; column < m.columns; ++column) {
      if (tensor.form == Form::kRows) number(row, column);
      if (tensor.form == Form::kScales && column % kSynthBlock == 0)
        Push(&bytes, values.Scale(m, row, column / kSynthBlock));
      if (tensor.form == Form::kCodes && tensor.bits == 8)
        Push(&bytes, static_cast<uint8_t>(code(row, column) + 128));
      if (tensor.form == Form::kCodes && tensor.bits == 4 && column % 2 == 0) {
        Push(&bytes,
             static_cast<uint8_t>(code(row, column) + 8 + 16 * (code(row, column + 1) + 8)));
      }
    }
  }
  for (int64_t column = 0; column < m.columns && tensor.form == Form::kTransposed; ++column) {
    for (int64_t row = 0; row < m.rows; ++row) number(row, column);
  }
  return bytes;
}

class SynthContentTest : public testing::TestWithParam<const char*> {};

TEST_P(SynthContentTest, DescribesWhatIsLeftOut) {
  const std::string text = GetParam();
  Result<Package> all = Open(text);
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_EQ(all->on_demand, nullptr);
  Result<Package> package = Open(text, Weights::kOnDemand);
  ASSERT_TRUE(package.ok()) << package.status().message();
  ASSERT_NE(package->on_demand, nullptr);
  EXPECT_EQ(package->source_weight_bytes, all->source_weight_bytes);

  const onnx::Graph &expected = all->model.graph, &graph = package->model.graph;
  ASSERT_EQ(graph.nodes.size(), expected.nodes.size());
  ASSERT_EQ(graph.tensors.size(), expected.tensors.size());
  ASSERT_EQ(graph.values.size(), expected.values.size());
  size_t left_out = 0;
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const onnx::Value& value = graph.values[i];
    ASSERT_EQ(value.name, expected.values[i].name);
    if (value.tensor < 0) continue;
    const onnx::Tensor& tensor = graph.tensors[static_cast<size_t>(value.tensor)];
    const onnx::Tensor& want = expected.tensors[static_cast<size_t>(expected.values[i].tensor)];
    EXPECT_EQ(tensor.dims, want.dims) << value.name;
    EXPECT_EQ(tensor.dtype, want.dtype) << value.name;
    ASSERT_EQ(tensor.bytes.size(), want.bytes.size()) << value.name;
    const SynthTensor* made = package->on_demand->FindOrNull(tensor.bytes.data());
    if (made == nullptr) {
      EXPECT_EQ(0, std::memcmp(tensor.bytes.data(), want.bytes.data(), want.bytes.size()))
          << value.name;
      // Large tensors that are there belong to no matrix.
      EXPECT_TRUE(want.bytes.size() <= (64 << 10) || value.name.ends_with("_cache")) << value.name;
      continue;
    }
    ++left_out;
    EXPECT_GT(want.bytes.size(), size_t{64} << 10) << value.name;
    EXPECT_TRUE(std::all_of(tensor.bytes.begin(), tensor.bytes.end(), [](std::byte b) {
      return b == std::byte{0};
    })) << value.name;
    const std::vector<std::byte> bytes = BytesOf(*made, package->on_demand->values());
    ASSERT_EQ(bytes.size(), want.bytes.size()) << value.name;
    EXPECT_EQ(0, std::memcmp(bytes.data(), want.bytes.data(), bytes.size())) << value.name;
  }
  EXPECT_EQ(left_out, package->on_demand->size());
  EXPECT_GE(left_out, 2u);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, SynthContentTest,
    testing::Values("synth:tiny:int4", "synth:tiny:int8", "synth:tiny:fp16", "synth:tiny:fp32",
                    "synth:layers=2,heads=12,kv_heads=3,head_dim=40,hidden=352,ffn=1056,vocab=1051,"
                    "context=64,seed=9,kv=fp16:int4",
                    "synth:layers=1,heads=12,kv_heads=3,head_dim=40,hidden=352,ffn=1056,vocab=1051,"
                    "context=64,seed=9:fp16"),
    [](const auto& info) {
      std::string name = info.param;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
      return name;
    });

TEST(SynthContent, KnowsNothingOfOtherAddresses) {
  Result<Package> package = Open("synth:tiny", Weights::kOnDemand);
  ASSERT_TRUE(package.ok()) << package.status().message();
  EXPECT_EQ(package->on_demand->FindOrNull(nullptr), nullptr);
  EXPECT_EQ(package->on_demand->FindOrNull(&package), nullptr);
}

// 14.8 billion parameters in fp16 are described in less time and memory than they would take.
TEST(SynthContent, LeavesOutALargeModel) {
  Result<Package> package = Open("synth:qwen2.5-14b,context=4096:fp16", Weights::kOnDemand);
  ASSERT_TRUE(package.ok()) << package.status().message();
  EXPECT_EQ(package->on_demand->size(), 48u * 7 + 2);
  uint64_t bytes = 0;
  for (const onnx::Tensor& tensor : package->model.graph.tensors) {
    if (package->on_demand->FindOrNull(tensor.bytes.data()) != nullptr)
      bytes += tensor.bytes.size();
  }
  EXPECT_NEAR(static_cast<double>(bytes), 2 * 14.77e9, 0.02e9);
}

}  // namespace
}  // namespace granule::package
