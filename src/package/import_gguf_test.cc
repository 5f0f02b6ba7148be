#include "package/import_gguf.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <set>

#include "base/file.h"
#include "package/gguf_test_files.h"
#include "package/package.h"
#include "package/staged_folder.h"

namespace granule::package {
namespace {

using namespace testing;  // NOLINT
namespace fs = std::filesystem;

class ImportGgufTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "granule-import-XXXXXX").native();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
  }
  void TearDown() override { fs::remove_all(dir_); }

  Result<ImportReport> Import(const GgufBuilder& builder, ImportOptions options = {}) {
    Write("x.gguf", builder.Build());
    return ImportGguf(dir_ / "x.gguf", dir_ / "model", options);
  }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(dir_ / name, text).ok());
  }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_))
      names.insert(entry.path().filename().native());
    return names;
  }
  void ExpectRefused(const GgufBuilder& builder, const std::vector<std::string>& words) {
    Result<ImportReport> report = Import(builder);
    ASSERT_FALSE(report.ok()) << words[0];
    EXPECT_EQ(report.status().code(), Code::kInvalidInput);
    for (const std::string& word : words) {
      EXPECT_NE(report.status().message().find(word), std::string::npos)
          << word << "\nin: " << report.status().message();
    }
    EXPECT_EQ(Names(), std::set<std::string>{"x.gguf"});
  }

  fs::path dir_;
};

TEST_F(ImportGgufTest, MakesAFolderThatOpens) {
  std::vector<uint64_t> progress;
  ImportOptions options;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_LE(done, total);
    progress.push_back(done);
  };
  Result<ImportReport> report = Import(TinyLlama(), options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->tensors, 11);
  EXPECT_EQ(progress.size(), 11u);
  EXPECT_EQ(progress.back(), report->source_bytes);
  EXPECT_EQ(Names(), (std::set<std::string>{"model", "x.gguf"}));
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(dir_ / "model")) bytes += entry.file_size();
  EXPECT_EQ(report->written_bytes, bytes);

  Result<Package> package = Open(dir_ / "model");
  ASSERT_TRUE(package.ok()) << package.status().message();
  EXPECT_TRUE(package->warnings.empty()) << package->warnings[0];
  EXPECT_EQ(package->source_weight_bytes, report->source_bytes);
  EXPECT_EQ(package->vocab_size, 12);
  EXPECT_EQ(package->eos_ids, std::vector<int32_t>{11});
  ASSERT_EQ(package->roles.kv.size(), 1u);
  EXPECT_EQ(package->roles.kv[0].kv_heads, 1);
  EXPECT_EQ(package->roles.kv[0].head_dim, 16);
  EXPECT_EQ(package->context_length->source, "genai_config.json model.context_length");
  EXPECT_EQ(package->context_length->value, 64);
  EXPECT_EQ(package->table_rows->source, "cos_cache rows");
  EXPECT_EQ(package->table_rows->value, 64);
}

TEST_F(ImportGgufTest, NeverReplacesWhatItShouldNot) {
  fs::create_directory(dir_ / "model");
  Write("model/notes.txt", "mine");
  Result<ImportReport> report = Import(TinyLlama());
  EXPECT_EQ(report.status().code(), Code::kUsage);
  ImportOptions overwrite;
  overwrite.overwrite = true;
  report = Import(TinyLlama(), overwrite);
  EXPECT_EQ(report.status().code(), Code::kUsage);
  EXPECT_NE(report.status().message().find("not a model folder"), std::string::npos);
  EXPECT_TRUE(fs::exists(dir_ / "model/notes.txt"));
  EXPECT_EQ(Names(), (std::set<std::string>{"model", "x.gguf"}));
}

TEST_F(ImportGgufTest, ReplacesAModelWholeAndKeepsTheOldOneOnFailure) {
  ASSERT_TRUE(Import(TinyLlama()).ok());
  Write("model/old.txt", "old");
  ImportOptions overwrite;
  overwrite.overwrite = true;
  ASSERT_FALSE(Import(TinyLlama("blk.0.ffn_up.weight"), overwrite).ok());
  EXPECT_TRUE(fs::exists(dir_ / "model/old.txt"));
  ASSERT_TRUE(Import(TinyLlama(), overwrite).ok());
  EXPECT_FALSE(fs::exists(dir_ / "model/old.txt"));
  EXPECT_TRUE(Open(dir_ / "model").ok());
  EXPECT_EQ(Names(), (std::set<std::string>{"model", "x.gguf"}));
}

TEST_F(ImportGgufTest, AnInterruptLeavesNothing) {
  ImportOptions options;
  int tensors = 0;
  options.interrupted = [&] { return ++tensors == 5; };
  Result<ImportReport> report = Import(TinyLlama(), options);
  EXPECT_EQ(report.status().code(), Code::kInterrupted);
  EXPECT_EQ(tensors, 5);
  EXPECT_EQ(Names(), std::set<std::string>{"x.gguf"});
}

TEST_F(ImportGgufTest, RemovesLeftoversOfDeadImportsOnly) {
  fs::create_directory(dir_ / ".model.partial-dead");
  Write(".model.partial-dead/model.onnx.data", "half");
  fs::create_directory(dir_ / ".other.partial-dead");
  Result<StagedFolder> alive = StagedFolder::Create(dir_ / "model", false);
  ASSERT_TRUE(alive.ok());
  ASSERT_TRUE(Import(TinyLlama()).ok());
  EXPECT_FALSE(fs::exists(dir_ / ".model.partial-dead"));
  EXPECT_TRUE(fs::exists(dir_ / ".other.partial-dead"));
  EXPECT_TRUE(fs::exists(alive->path()));
  EXPECT_EQ(alive->Commit().code(), Code::kUsage);  // the other import was first
}

TEST_F(ImportGgufTest, NamesMissingThings) {
  for (const char* name :
       {"general.architecture", "llama.block_count", "llama.context_length",
        "llama.embedding_length", "llama.feed_forward_length", "llama.attention.head_count",
        "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges",
        "token_embd.weight", "output_norm.weight", "blk.0.attn_k.weight"}) {
    ExpectRefused(TinyLlama(name), {name, "is missing", "x.gguf"});
  }
}

TEST_F(ImportGgufTest, RefusesByName) {
  ExpectRefused(TinyLlama("general.architecture").Add(Str("general.architecture", "gemma")),
                {"\"gemma\"", "\"llama\""});
  ExpectRefused(TinyLlama().Add(Str("llama.rope.scaling.type", "yarn")), {"yarn", "linear"});
  ExpectRefused(TinyLlama().Add(U32("llama.rope.dimension_count", 8)), {"8", "16"});
  ExpectRefused(TinyLlama().Add(U32("llama.attention.value_length", 8)), {"8", "16"});
  ExpectRefused(TinyLlama().Add(U32("llama.expert_count", 8)), {"expert_count is 8"});
  ExpectRefused(TinyLlama().Add(Bool("llama.attention.causal", false)), {"causal"});
  ExpectRefused(TinyLlama().Add(F32("llama.rope.freq_base", -1)), {"freq_base", "-1"});
  ExpectRefused(
      TinyLlama("llama.attention.head_count_kv").Add(I32s("llama.attention.head_count_kv", {1, 2})),
      {"layer to layer"});
  ExpectRefused(TinyLlama("llama.context_length").Add(U32("llama.context_length", 1u << 31)),
                {"context_length", "2147483648"});
  ExpectRefused(TinyLlama().Tensor("blk.0.attn_q.bias", {32}, 0, Floats(32)),
                {"blk.0.attn_q.bias"});
  ExpectRefused(
      TinyLlama("output_norm.weight").Tensor("output_norm.weight", {32}, 8, std::string(34, '\0')),
      {"Q8_0"});
  ExpectRefused(TinyLlama()
                    .Tensor("a", {32}, 6, std::string(22, '\0'))
                    .Tensor("b", {256}, 12, std::string(144, '\0')),
                {"Q4_K (1 tensors)", "Q5_0 (1 tensors)"});
  ExpectRefused(TinyLlama().Tensor("rope_freqs.weight", {8}, 0, std::string(32, '\0')),
                {"rope_freqs.weight", "0"});
  ExpectRefused(TinyLlama("tokenizer.ggml.model").Add(Str("tokenizer.ggml.model", "llama")),
                {"\"llama\"", "gpt2"});
  ExpectRefused(TinyLlama("tokenizer.ggml.pre").Add(Str("tokenizer.ggml.pre", "martian")),
                {"martian", "smollm"});
  ExpectRefused(
      TinyLlama("tokenizer.ggml.eos_token_id").Add(U32("tokenizer.ggml.eos_token_id", 12)),
      {"12", "12 tokens"});
  ExpectRefused(TinyLlama("tokenizer.ggml.token_type").Add(I32s("tokenizer.ggml.token_type", {1})),
                {"12 integers"});
  ExpectRefused(
      TinyLlama("tokenizer.ggml.merges").Add(Strings("tokenizer.ggml.merges", {"a \xff"})),
      {"merges[0]", "UTF-8"});
  ExpectRefused(TinyLlama("tokenizer.ggml.tokens")
                    .Add(Strings("tokenizer.ggml.tokens", std::vector<std::string>(13, "x"))),
                {"13 tokens", "12 rows"});
  ExpectRefused(TinyLlama("tokenizer.ggml.tokens")
                    .Add(Strings("tokenizer.ggml.tokens", std::vector<std::string>(12, "x"))),
                {"same token at 0 and 1"});
  const std::string infinite = Raw<uint16_t>(0x7c00) + std::string(32, '\1');
  std::string blocks;
  for (int i = 0; i < 32; ++i) blocks += infinite;
  ExpectRefused(TinyLlama("blk.0.ffn_up.weight").Tensor("blk.0.ffn_up.weight", {32, 32}, 8, blocks),
                {"blk.0.ffn_up.weight", "finite"});
}

TEST_F(ImportGgufTest, WarnsAboutWhatIsIgnored) {
  Result<ImportReport> report =
      Import(TinyLlama("tokenizer.ggml.merges")
                 .Add(Strings("tokenizer.ggml.merges", {"a b", "a zz", "nospace"}))
                 .Add(U32("llama.vocab_size", 99))
                 .Add(U32("llama.surprise", 1)));
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->warnings.size(), 3u);
  EXPECT_NE(report->warnings[0].find("99"), std::string::npos);
  EXPECT_NE(report->warnings[1].find("llama.surprise"), std::string::npos);
  EXPECT_NE(report->warnings[2].find("2 of 3 merges"), std::string::npos);
}

TEST_F(ImportGgufTest, PathsThatCannotBeUsed) {
  Write("x.gguf", TinyLlama().Build());
  Result<ImportReport> report = ImportGguf(dir_ / "x.gguf", "/proc/granule/model", {});
  EXPECT_FALSE(report.ok());
  EXPECT_FALSE(ImportGguf(dir_ / "absent.gguf", dir_ / "model", {}).ok());
  EXPECT_FALSE(ImportGguf(dir_, dir_ / "model", {}).ok());
  EXPECT_EQ(Names(), std::set<std::string>{"x.gguf"});
}

}  // namespace
}  // namespace granule::package
