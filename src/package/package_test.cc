#include "package/package.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "onnx/writer.h"
#include "package/gguf_test_files.h"
#include "package/import_gguf.h"

namespace granule::package {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Each test gets a folder "m" as the import writes it and spoils it.
class PackageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "granule-package-XXXXXX").native();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
    m_ = dir_ / "m";
    ASSERT_TRUE(WriteFileAtomically(dir_ / "x.gguf", testing::TinyLlama().Build()).ok());
    Result<ImportReport> report = ImportGguf(dir_ / "x.gguf", m_, {});
    ASSERT_TRUE(report.ok()) << report.status().message();
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string Read(const std::string& name) { return *ReadFile(m_ / name, 1 << 20); }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(m_ / name, text).ok());
  }
  void Edit(const std::string& name, const std::function<void(Json&)>& edit) {
    Json json = Json::parse(Read(name));
    edit(json);
    Write(name, json.dump());
  }
  void ExpectRefused(const std::vector<std::string>& words, fs::path path = {}) {
    Result<Package> package = Open(path.empty() ? m_ : path);
    ASSERT_FALSE(package.ok()) << words[0];
    EXPECT_EQ(package.status().code(), Code::kInvalidInput);
    for (const std::string& word : words) {
      EXPECT_NE(package.status().message().find(word), std::string::npos)
          << word << "\nin: " << package.status().message();
    }
  }
  void ExpectWarning(const std::vector<std::string>& words) {
    Result<Package> package = Open(m_);
    ASSERT_TRUE(package.ok()) << package.status().message();
    std::string all;
    for (const std::string& warning : package->warnings) all += warning + "\n";
    for (const std::string& word : words)
      EXPECT_NE(all.find(word), std::string::npos) << word << "\nin: " << all;
  }

  fs::path dir_, m_;
};

TEST_F(PackageTest, FindsTheFolderFromAnyOfItsFiles) {
  for (const fs::path& path : {m_, m_ / "genai_config.json", m_ / "model.onnx", dir_}) {
    Result<Package> package = Open(path);
    ASSERT_TRUE(package.ok()) << package.status().message();
    EXPECT_EQ(package->name, "m");
    EXPECT_EQ(package->model_type, "llama");
    EXPECT_EQ(package->tokenizer_json.filename(), "tokenizer.json");
  }
  fs::create_directories(dir_ / "two/levels");
  fs::copy(m_, dir_ / "two/levels", fs::copy_options::recursive);
  ExpectRefused({"several models", "two/levels", "/m"}, dir_);
  EXPECT_TRUE(Open(dir_ / "two").ok());
}

TEST_F(PackageTest, RefusesOtherPaths) {
  ExpectRefused({"there is no such file"}, dir_ / "absent");
  ExpectRefused({"granule import"}, dir_ / "x.gguf");
  ExpectRefused({"neither a model folder"}, m_ / "tokenizer.json");
  fs::create_directory(dir_ / "empty");
  ExpectRefused({"holds no model"}, dir_ / "empty");
}

// R14 of the public trials.
TEST_F(PackageTest, WeightsThatAreNotAllThere) {
  const std::string model = Read("model.onnx");
  Write("model.onnx", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 18958888\n");
  ExpectRefused({"model.onnx", "is a Git LFS pointer, the real file is 18958888 bytes"});
  Write("model.onnx", model.substr(0, model.size() / 2));
  ExpectRefused({"model.onnx", "ends early"});
  Write("model.onnx", "");
  ExpectRefused({"model.onnx", "is empty"});
  Write("model.onnx", "<!doctype html><title>404</title>");
  ExpectRefused({"model.onnx", "HTML page"});
  fs::remove(m_ / "model.onnx");
  ExpectRefused({"missing model.onnx"});
  fs::create_directory(m_ / "model.onnx");
  ExpectRefused({"model.onnx", "a directory"});
  fs::remove(m_ / "model.onnx");
  Write("model.onnx", model);

  const fs::path data = m_ / "model.onnx.data";
  const uint64_t size = fs::file_size(data);
  fs::resize_file(data, size + 5000);
  EXPECT_TRUE(Open(m_).ok());
  fs::resize_file(data, size - 4096);
  ExpectRefused({"model.onnx.data", "needs"});
  fs::remove(data);
  ExpectRefused({"missing model.onnx.data"});
}

TEST_F(PackageTest, BrokenTextFiles) {
  const std::string tokenizer = Read("tokenizer.json");
  Write("tokenizer.json", tokenizer.substr(0, tokenizer.size() / 2));
  ExpectRefused({"tokenizer.json", "ends early"});
  Write("tokenizer.json", tokenizer);
  const std::string config = Read("genai_config.json");
  for (const auto& [text, word] : std::vector<std::pair<std::string, std::string>>{
           {"", "is empty"},
           {"[1]", "not a JSON object"},
           {"{\"model\": 5}", "model.decoder is missing"},
           {"{} trailing", "not valid JSON at byte"},
           {"{\"a\": " + std::string(1000, '[') + std::string(1000, ']') + "}",
            "nests 1001 levels"},
           {std::string("{\"\xff\": 1}"), "genai_config.json"}}) {
    Write("genai_config.json", text);
    ExpectRefused({"genai_config.json", word});
  }
  Write("genai_config.json", config);
  EXPECT_TRUE(Open(m_).ok());
}

TEST_F(PackageTest, ConfiguredValuesOfTheWrongKind) {
  const std::string config = Read("genai_config.json");
  const auto with = [&](const std::function<void(Json&)>& edit,
                        const std::vector<std::string>& words) {
    Edit("genai_config.json", edit);
    ExpectRefused(words);
    Write("genai_config.json", config);
  };
  with([](Json& c) { c["model"]["context_length"] = "long"; },
       {"model.context_length", "\"long\""});
  with([](Json& c) { c["model"]["context_length"] = -4; }, {"model.context_length", "-4"});
  with([](Json& c) { c["model"]["eos_token_id"] = {1, "x"}; }, {"model.eos_token_id", "[1,\"x\"]"});
  with([](Json& c) { c["model"]["decoder"]["filename"] = 7; }, {"model.decoder.filename", "7"});
  with([](Json& c) { c["model"]["decoder"].erase("filename"); }, {"model.decoder.filename"});
  with([](Json& c) { c["model"]["decoder"]["filename"] = "../m/model.onnx"; },
       {"../m/model.onnx", "leads out"});
  with([](Json& c) { c["model"]["decoder"]["filename"] = "/etc/passwd"; },
       {"/etc/passwd", "leads out"});
  with([](Json& c) { c["model"]["decoder"]["pipeline"] = Json::array(); }, {"pipeline"});
  with([](Json& c) { c["model"]["vision"] = Json::object(); }, {"model.vision"});
  with([](Json& c) { c["search"]["temperature"] = "hot"; }, {"search.temperature", "hot"});
  with([](Json& c) { c["search"]["top_k"] = -1; }, {"search.top_k", "-1"});
  with([](Json& c) { c["search"]["do_sample"] = 1; }, {"search.do_sample", "1"});
}

TEST_F(PackageTest, LinksOutOfTheFolderAreRefusedAndTheCacheIsNot) {
  fs::rename(m_ / "model.onnx", dir_ / "elsewhere.onnx");
  fs::create_symlink(dir_ / "elsewhere.onnx", m_ / "model.onnx");
  ExpectRefused({"model.onnx", "link", "elsewhere.onnx"});

  const fs::path cache = dir_ / "models--a--b";
  fs::create_directories(cache / "blobs");
  fs::create_directories(cache / "snapshots/rev");
  fs::rename(dir_ / "elsewhere.onnx", cache / "blobs/0123");
  fs::remove(m_ / "model.onnx");
  fs::rename(m_ / "model.onnx.data", cache / "blobs/4567");
  for (const auto& entry : fs::directory_iterator(m_)) fs::copy(entry, cache / "snapshots/rev");
  fs::create_symlink("../../blobs/0123", cache / "snapshots/rev/model.onnx");
  fs::create_symlink("../../blobs/4567", cache / "snapshots/rev/model.onnx.data");
  Result<Package> package = Open(cache / "snapshots/rev");
  EXPECT_TRUE(package.ok()) << package.status().message();
}

TEST_F(PackageTest, TheGraphWinsOverTheConfiguration) {
  Edit("genai_config.json", [](Json& c) {
    Json& decoder = c["model"]["decoder"];
    decoder["head_size"] = 64;
    decoder["num_key_value_heads"] = 3;
    decoder["inputs"]["position_ids"] = "where";
    c["model"]["vocab_size"] = 13;
    c["model"]["eos_token_id"] = {11, 500};
    c["something"]["new"] = 1;
  });
  ExpectWarning({"head_size is 64", "is 16", "num_key_value_heads is 3", "\"where\"",
                 "vocab_size is 13", "12 wide", "500"});
  Result<Package> package = Open(m_);
  EXPECT_EQ(package->roles.kv[0].head_dim, 16);
  EXPECT_EQ(package->vocab_size, 12);
  EXPECT_EQ(package->eos_ids, std::vector<int32_t>{11});
}

TEST_F(PackageTest, EndIdsAreTheUnionOfAllFiles) {
  Edit("genai_config.json", [](Json& c) { c["model"]["eos_token_id"] = {3, 1}; });
  Edit("generation_config.json", [](Json& c) { c["eos_token_id"] = {2, 3}; });
  Edit("tokenizer_config.json", [](Json& c) { c["eos_token"] = {{"content", "<|end|>"}}; });
  EXPECT_EQ(Open(m_)->eos_ids, (std::vector<int32_t>{1, 2, 3, 11}));
}

TEST_F(PackageTest, WithoutGenaiConfig) {
  fs::remove(m_ / "genai_config.json");
  Write(
      "config.json",
      R"({"model_type": "smol", "max_position_embeddings": 48, "head_dim": 64, "eos_token_id": 5, "bos_token_id": null,
                          "transformers.js_config": {"kv_cache_dtype": "float16"}})");
  Write("generation_config.json",
        R"({"do_sample": true, "temperature": 0.5, "top_k": 7, "eos_token_id": 4})");
  Result<Package> package = Open(m_);
  ASSERT_TRUE(package.ok()) << package.status().message();
  EXPECT_EQ(package->context_length->value, 48);
  EXPECT_EQ(package->context_length->source, "config.json max_position_embeddings");
  EXPECT_EQ(package->model_type, "smol");
  EXPECT_EQ(package->eos_ids, (std::vector<int32_t>{4, 11}));
  EXPECT_TRUE(*package->generation.do_sample);
  EXPECT_EQ(*package->generation.temperature, 0.5f);
  EXPECT_EQ(*package->generation.top_k, 7);
  EXPECT_EQ(package->generation.source, "generation_config.json");
  ExpectWarning({"head_dim is 64", "kv_cache_dtype is float16", "float32"});

  fs::remove(m_ / "config.json");
  fs::remove(m_ / "granule.json");
  package = Open(m_);
  ASSERT_TRUE(package.ok()) << package.status().message();
  EXPECT_FALSE(package->context_length.has_value());
  EXPECT_EQ(package->table_rows->value, 64);
  uint64_t bytes = 0;
  for (const onnx::Tensor& tensor : package->model.graph.tensors) bytes += tensor.bytes.size();
  EXPECT_EQ(package->source_weight_bytes, bytes);
}

TEST_F(PackageTest, ChatTemplates) {
  EXPECT_FALSE(Open(m_)->chat_template.has_value());
  Edit("tokenizer_config.json", [](Json& c) { c["chat_template"] = "plain"; });
  EXPECT_EQ(*Open(m_)->chat_template, "plain");
  Edit("tokenizer_config.json", [](Json& c) {
    c["chat_template"] = {{{"name", "rag"}, {"template", "r"}},
                          {{"name", "default"}, {"template", "d"}}};
  });
  EXPECT_EQ(*Open(m_)->chat_template, "d");
  Write("chat_template.jinja", "file");
  EXPECT_EQ(*Open(m_)->chat_template, "file");
}

// Graphs of ports alone: what the roles are read from.
class RolesTest : public PackageTest {
 protected:
  using Dims = std::vector<onnx::WriterDim>;
  struct Ports {
    std::string key = "past_key_values.0.key", value = "past_key_values.0.value";
    std::string present_key = "present.0.key", present_value = "present.0.value";
    Dims key_dims = {"b", 1, "p", 16}, value_dims = {"b", 1, "p", 16};
    DType kv = DType::kF32;
    std::string ids = "input_ids", logits = "logits", extra = {};
    DType ids_type = DType::kI64;
  };

  // `key` becomes `present_key` through Identity, and so on; the logits come from a constant.
  void Make(const Ports& p) {
    for (const char* name : {"model.onnx", "model.onnx.data", "genai_config.json"})
      fs::remove(m_ / name);
    auto writer = onnx::ModelWriter::Create(m_ / "model.onnx", {});
    ASSERT_TRUE(writer.ok());
    onnx::ModelWriter& w = **writer;
    w.AddInput(p.ids, p.ids_type, {"b", "s"});
    w.AddInput(p.key, p.kv, p.key_dims);
    if (!p.value.empty()) w.AddInput(p.value, p.kv, p.value_dims);
    if (!p.extra.empty()) w.AddInput(p.extra, DType::kI64, {"b"});
    w.AddOutput(p.logits, DType::kF32, {"b", "s", 12});
    w.AddNode("Identity", "", "k", {p.key}, {p.present_key}, {});
    Dims present = p.key_dims;
    present[present.size() - 2] = "t";
    w.AddOutput(p.present_key, p.kv, present);
    if (!p.value.empty()) {
      w.AddNode("Identity", "", "v", {p.value}, {p.present_value}, {});
      w.AddOutput(p.present_value, p.kv, {"b", p.value_dims[1], "t", p.value_dims.back()});
    }
    const std::vector<float> table(48);
    ASSERT_TRUE(w.AddTensor("table", DType::kF32, {4, 12}, std::as_bytes(std::span(table))).ok());
    w.AddNode("Gather", "", "g", {"table", p.ids}, {p.logits}, {});
    ASSERT_TRUE(w.Finish().ok());
  }
};

TEST_F(RolesTest, ReadsTheUsualSpellings) {
  const std::vector<std::array<std::string, 4>> spellings = {
      {"past_key_values.3.key", "past_key_values.3.value", "present.3.key", "present.3.value"},
      {"past_key_values.3.key", "past_key_values.3.value", "present_key_values.3.key",
       "present_key_values.3.value"},
      {"past_key_3", "past_value_3", "present_key_3", "present_value_3"},
      {"past_3_key", "past_3_value", "present_3_key", "present_3_value"},
      {"past.3.key", "past.3.value", "present.3.key", "present.3.value"}};
  for (const auto& names : spellings) {
    Make({.key = names[0],
          .value = names[1],
          .present_key = names[2],
          .present_value = names[3],
          .kv = DType::kF16});
    Result<Package> package = Open(m_);
    ASSERT_TRUE(package.ok()) << package.status().message();
    ASSERT_EQ(package->roles.kv.size(), 1u);
    EXPECT_EQ(package->roles.kv[0].layer, 3);
    EXPECT_EQ(package->roles.kv[0].dtype, DType::kF16);
    EXPECT_EQ(
        package->model.graph.values[static_cast<size_t>(package->roles.kv[0].present_value)].name,
        names[3]);
  }
}

// Which backend runs a past of a fixed number of tokens is not the reader's to decide.
TEST_F(RolesTest, ReadsHowManyTokensThePastIsFixedTo) {
  Make({.key_dims = {"b", 1, 128, 16}, .value_dims = {"b", 1, 128, 16}});
  Result<Package> package = Open(m_);
  ASSERT_TRUE(package.ok()) << package.status().message();
  EXPECT_EQ(package->roles.kv[0].fixed_past, 128);
  // Some exporters write 0 for "nothing yet".
  for (const onnx::WriterDim& grows : {onnx::WriterDim(0), onnx::WriterDim("p")}) {
    Make({.key_dims = {"b", 1, grows, 16}, .value_dims = {"b", 1, grows, 16}});
    package = Open(m_);
    ASSERT_TRUE(package.ok()) << package.status().message();
    EXPECT_EQ(package->roles.kv[0].fixed_past, 0);
  }
}

TEST_F(RolesTest, RefusesGraphsThatAreNoDecoders) {
  Make({.ids = "tokens"});
  ExpectRefused({"input_ids", "\"tokens\""});
  Make({.logits = "scores"});
  ExpectRefused({"logits", "\"scores\""});
  Make({.extra = "beam_table", .ids_type = DType::kI32});
  ExpectRefused({"beam_table"});
  Make({.key = "k", .value = "v"});
  ExpectRefused({"no KV inputs", "\"k\""});
  Make({.value = ""});
  ExpectRefused({"past_key_values.0.value"});
  Make({.present_value = "present.1.value"});
  ExpectRefused({"present.0.value"});
  Make({.key_dims = {"b", "p", 16}});
  ExpectRefused({"past_key_values.0.key", "3 dimensions"});
  Make({.key_dims = {"b", "h", "p", 16}});
  ExpectRefused({"past_key_values.0.key", "number of heads"});
  Make({.key_dims = {"b", 1, 128, 16}});
  ExpectRefused({"layer 0", "keys is fixed to 128 tokens", "values to 0"});
  Make({.value_dims = {"b", 1, "p", 32}});
  ExpectRefused({"1 x 16", "1 x 32"});
  Make({.kv = DType::kI8});
  ExpectRefused({"past_key_values.0.key", "int8"});
}

}  // namespace
}  // namespace granule::package
