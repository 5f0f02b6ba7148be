#include "onnx/writer.h"

#include <gtest/gtest.h>

#include <fstream>

#include "onnx/model_for_test.h"

namespace granule::onnx {
namespace {

namespace fs = std::filesystem;

class WriterTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(GRANULE_BINARY_DIR) / "onnx_writer_test" / info->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::unique_ptr<ModelWriter> Create(const ModelWriter::Options& options = {}) const {
    auto writer = ModelWriter::Create(folder_ / "m.onnx", options);
    EXPECT_TRUE(writer.ok()) << writer.status().message();
    return std::move(*writer);
  }
  size_t FilesLeft() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string Pattern(size_t n, int seed) {
  std::string bytes(n, '\0');
  for (size_t i = 0; i < n; ++i)
    bytes[i] = static_cast<char>((i * 31 + static_cast<size_t>(seed)) % 251);
  return bytes;
}

TEST_F(WriterTest, WhatIsWrittenIsRead) {
  auto writer = Create();
  writer->AddInput("x", DType::kF32, {"batch", int64_t{256}});
  writer->AddOutput("y", DType::kF32, {"batch", int64_t{300}});
  const std::string large = Pattern(256 * 300 * 4, 1);
  const std::string small = Pattern(300 * 4, 2);
  const std::string tiny = Pattern(8, 3);
  ASSERT_TRUE(writer->AddTensor("tiny", DType::kI64, {1}, Bytes(tiny)).ok());
  ASSERT_TRUE(writer->AddTensor("bias", DType::kF32, {300}, Bytes(small)).ok());
  ASSERT_TRUE(writer->BeginTensor("w", DType::kF32, {256, 300}).ok());
  for (size_t at = 0; at < large.size(); at += 4096)
    ASSERT_TRUE(writer->Append(Bytes(large.substr(at, 4096))).ok());
  ASSERT_TRUE(writer->AddTensor("empty", DType::kF16, {0, 4}, {}).ok());
  ASSERT_TRUE(writer->AddTensor("nibbles", DType::kU4, {3}, Bytes("\x21\x03")).ok());
  writer->AddNode("MatMul", "", "mm", {"x", "w"}, {"xw"}, {});
  writer->AddNode("Add", "", "", {"xw", "bias"}, {"y"}, {});
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_EQ(FilesLeft(), 2u);

  const auto model = ReadModel(folder_ / "m.onnx");
  ASSERT_TRUE(model.ok()) << model.status().message();
  const Graph& g = model->graph;
  const auto bytes = [&](std::string_view name) {
    const Tensor* tensor = g.FindConstant(g.FindValue(name));
    return std::string(reinterpret_cast<const char*>(tensor->bytes.data()), tensor->bytes.size());
  };
  EXPECT_EQ(bytes("w"), large);
  EXPECT_EQ(bytes("bias"), small);
  EXPECT_EQ(bytes("tiny"), tiny);
  EXPECT_EQ(bytes("empty"), "");
  EXPECT_EQ(bytes("nibbles"), std::string("\x21\x03"));
  // The large one starts a page, the small one a cache line; the tiny one is inside.
  ASSERT_EQ(model->files.size(), 2u);
  const auto offset = [&](std::string_view name) {
    return g.FindConstant(g.FindValue(name))->bytes.data() - model->files[1]->bytes().data();
  };
  EXPECT_EQ(offset("w") % 4096, 0);
  EXPECT_EQ(offset("bias") % 64, 0);
  EXPECT_EQ(model->files[1]->bytes().size(), static_cast<size_t>(offset("w")) + large.size());
  EXPECT_EQ(model->files[1]->path().filename(), "m.onnx.data");
}

TEST_F(WriterTest, TheThresholdDecidesWhatIsExternal) {
  auto all = Create({.external_threshold_bytes = 0});
  ASSERT_TRUE(all->AddTensor("t", DType::kU8, {1}, Bytes("a")).ok());
  ASSERT_TRUE(all->Finish().ok());
  EXPECT_EQ(fs::file_size(folder_ / "m.onnx.data"), 1u);
  fs::remove(folder_ / "m.onnx.data");
  auto none = Create({.external_threshold_bytes = SIZE_MAX});
  ASSERT_TRUE(none->AddTensor("t", DType::kU8, {5000}, Bytes(Pattern(5000, 1))).ok());
  ASSERT_TRUE(none->Finish().ok());
  EXPECT_EQ(FilesLeft(), 1u) << "no data file without external tensors";
}

TEST_F(WriterTest, OptionsGoIntoTheFile) {
  auto writer =
      Create({.producer = "p", .ir_version = 8, .opset = 17, .ms_opset = 0, .graph_name = "g"});
  ASSERT_TRUE(writer->Finish().ok());
  const auto model = ReadModel(folder_ / "m.onnx");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->producer, "p");
  EXPECT_EQ(model->ir_version, 8);
  EXPECT_EQ(model->graph.name, "g");
  ASSERT_EQ(model->opsets.size(), 1u);
  EXPECT_EQ(model->opsets[0].version, 17);
}

TEST_F(WriterTest, NothingAppearsBeforeFinish) {
  {
    auto writer = Create();
    ASSERT_TRUE(writer->AddTensor("t", DType::kU8, {5000}, Bytes(Pattern(5000, 1))).ok());
    EXPECT_FALSE(fs::exists(folder_ / "m.onnx"));
    EXPECT_FALSE(fs::exists(folder_ / "m.onnx.data"));
  }
  EXPECT_EQ(FilesLeft(), 0u);
}

TEST_F(WriterTest, BytesMustAddUpToTheDims) {
  {
    auto writer = Create();
    ASSERT_TRUE(writer->AddTensor("short", DType::kF32, {3}, Bytes("12345678")).ok());
    EXPECT_TRUE(Says(writer->BeginTensor("next", DType::kF32, {}).message(),
                     "tensor \"short\": float32[3] takes 12 bytes, got 8"));
  }
  {
    auto writer = Create();
    ASSERT_TRUE(writer->AddTensor("short", DType::kF32, {3}, Bytes("12345678")).ok());
    EXPECT_TRUE(Says(writer->Finish().message(), "takes 12 bytes, got 8"));
  }
  auto writer = Create();
  ASSERT_TRUE(writer->BeginTensor("long", DType::kF32, {2}).ok());
  ASSERT_TRUE(writer->Append(Bytes("1234")).ok());
  EXPECT_TRUE(Says(writer->Append(Bytes("56789")).message(), "takes 8 bytes, got 4 and 5 more"));
  EXPECT_TRUE(Says(Create()->Append(Bytes("x")).message(), "appended to no tensor"));
  EXPECT_TRUE(Says(Create()->BeginTensor("n", DType::kF32, {-1}).message(),
                   "tensor \"n\": its dims [-1] have a negative one"));
  EXPECT_EQ(FilesLeft(), 1u) << "only the temporary file of the writer that is still open";
}

TEST_F(WriterTest, NamesAreWrittenOnce) {
  const auto finish = [&](const std::function<void(ModelWriter&)>& fill) {
    auto writer = Create();
    fill(*writer);
    return writer->Finish().message();
  };
  EXPECT_TRUE(Says(finish([](ModelWriter& w) {
                     w.AddInput("x", DType::kF32, {}), w.AddInput("x", DType::kF32, {});
                   }),
                   "the graph input \"x\" is written twice"));
  EXPECT_TRUE(Says(finish([](ModelWriter& w) {
                     w.AddOutput("x", DType::kF32, {}), w.AddOutput("x", DType::kF32, {});
                   }),
                   "the graph output \"x\" is written twice"));
  EXPECT_TRUE(
      Says(finish([](ModelWriter& w) {
             w.AddNode("A", "", "", {}, {"v", "", ""}, {}), w.AddNode("A", "", "", {}, {"v"}, {});
           }),
           "the value \"v\" is written twice"));
  EXPECT_TRUE(Says(finish([](ModelWriter& w) {
                     EXPECT_TRUE(w.AddTensor("t", DType::kF32, {0}, {}).ok() &&
                                 w.AddTensor("t", DType::kF32, {0}, {}).ok());
                   }),
                   "the tensor \"t\" is written twice"));
  EXPECT_TRUE(Says(finish([](ModelWriter& w) { w.AddInput("", DType::kF32, {}); }),
                   "a graph input has no name"));
  EXPECT_EQ(FilesLeft(), 0u);
}

TEST_F(WriterTest, AFinishedWriterIsDone) {
  auto writer = Create();
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_EQ(writer->Finish().code(), Code::kInternal);
  EXPECT_EQ(writer->BeginTensor("t", DType::kF32, {}).code(), Code::kInternal);
  EXPECT_FALSE(ModelWriter::Create(folder_ / "no/such/folder/m.onnx", {}).ok());
}

}  // namespace
}  // namespace granule::onnx
