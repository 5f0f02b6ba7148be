#include "package/synth.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "package/package.h"
#include "package/synth_graph.h"
#include "package/synth_memory.h"
#include "package/synth_tokenizer.h"
#include "package/synth_values.h"

namespace granule::package {
namespace {

namespace fs = std::filesystem;

SynthModel Model(const std::string& text) {
  Result<SynthModel> model = ParseSynth(text);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *model;
}

TEST(ParseSynth, KnowsTheNamedGeometries) {
  const struct {
    const char* name;
    uint64_t kv_bytes_per_token;
    int64_t parameters_in_millions;  // with an embedding and a head
  } expected[] = {
      {"qwen2.5-0.5b", 2 * 24 * 2 * 64 * 2, 630},
      {"qwen2.5-7b", 2 * 28 * 4 * 128 * 2, 7615},
      {"qwen2.5-14b", 196608, 14769},
      {"llama-3.1-8b", 2 * 32 * 8 * 128 * 2, 8029},
      {"llama-3.2-1b", 2 * 16 * 8 * 64 * 2, 1498},
      {"smollm2-135m", 2 * 30 * 3 * 64 * 4, 162},
      {"tiny", 2 * 2 * 2 * 32 * 4, 1},
  };
  for (const auto& e : expected) {
    const SynthModel m = Model(e.name);
    EXPECT_EQ(2 * m.layers * m.kv_heads * m.head_dim * BitsOf(m.kv) / 8, e.kv_bytes_per_token)
        << e.name;
    const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
    const int64_t parameters =
        m.layers * m.hidden * (2 * q + 2 * kv + 3 * m.feed_forward) + 2 * m.vocab * m.hidden;
    EXPECT_EQ(parameters / 1'000'000, e.parameters_in_millions) << e.name;
    EXPECT_EQ(m.format, SynthFormat::kInt4);
    EXPECT_EQ(m.context, m.name == "tiny" ? 4096 : 131072);
  }
}

TEST(ParseSynth, TakesKeysAFormatAndThePrefix) {
  const SynthModel one =
      Model("synth:layers=1,heads=8,kv_heads=4,head_dim=128,kv=fp16,seed=7:fp32");
  EXPECT_EQ(one.layers, 1);
  EXPECT_EQ(one.heads, 8);
  EXPECT_EQ(one.kv_heads, 4);
  EXPECT_EQ(one.hidden, 1024);
  EXPECT_EQ(one.feed_forward, 4096);
  EXPECT_EQ(one.vocab, 32768);
  EXPECT_EQ(one.context, 131072);
  EXPECT_EQ(one.kv, DType::kF16);
  EXPECT_EQ(one.format, SynthFormat::kFp32);
  EXPECT_EQ(one.seed, 7u);
  EXPECT_EQ(Model("layers=1,heads=4,head_dim=32").kv_heads, 4);
  const SynthModel changed = Model("qwen2.5-0.5b,layers=2,kv=fp32,context=512:int8");
  EXPECT_EQ(changed.layers, 2);
  EXPECT_EQ(changed.heads, 14);
  EXPECT_EQ(changed.context, 512);
  EXPECT_TRUE(changed.qkv_bias);
  EXPECT_EQ(changed.format, SynthFormat::kInt8);
}

TEST(ParseSynth, RefusesInWords) {
  const struct {
    const char* text;
    std::vector<std::string> words;
  } bad[] = {
      {"", {"there is no geometry \"\"", "qwen2.5-0.5b"}},
      {"gpt-5", {"synth:gpt-5", "there is no geometry \"gpt-5\"", "smollm2-135m", "layers="}},
      {"tiny:int2", {"\"int2\"", "int4, int8, fp16 and fp32"}},
      {"tiny:", {"format \"\""}},
      {"tiny,depth=3", {"no key \"depth\"", "layers", "kv_heads", "seed"}},
      {"tiny,", {"\"\" is no KEY=VALUE"}},
      {"tiny,layers", {"\"layers\" is no KEY=VALUE"}},
      {"tiny,layers=2,layers=3", {"layers is given twice"}},
      {"tiny,layers=0", {"layers=0 is not accepted", "1 to 4096"}},
      {"tiny,layers=-1", {"layers=-1"}},
      {"tiny,layers=2x", {"layers=2x"}},
      {"tiny,layers=99999999999999999999", {"not accepted"}},
      {"tiny,vocab=512", {"vocab=512", "1024"}},
      {"tiny,kv=int8", {"kv=int8", "fp16 and fp32"}},
      {"tiny,seed=-1", {"seed=-1"}},
      {"tiny,kv_heads=3", {"kv_heads=3 does not divide heads=8"}},
      {"tiny,head_dim=20", {"head_dim=20 is no multiple of 8"}},
      {"tiny,hidden=100", {"hidden = 100 is no multiple of 32"}},
      {"tiny,ffn=33", {"ffn = 33"}},
      {"layers=1,heads=1,head_dim=40", {"heads * head_dim = 40"}},
      {"tiny,heads=65536,head_dim=65536", {"heads * head_dim = 4294967296 is more than"}},
      {"layers=1,heads=8", {"head_dim=N is missing"}},
      {"heads=8,head_dim=64", {"layers=N is missing"}},
  };
  for (const auto& b : bad) {
    const Result<SynthModel> model = ParseSynth(b.text);
    ASSERT_FALSE(model.ok()) << b.text;
    EXPECT_EQ(model.status().code(), Code::kInvalidInput);
    for (const std::string& word : b.words) {
      EXPECT_NE(model.status().message().find(word), std::string::npos)
          << word << "\nin: " << model.status().message();
    }
    EXPECT_FALSE(Open("synth:" + std::string(b.text)).ok());
  }
}

TEST(SynthValues, AnyPieceAloneIsThePieceOfTheWhole) {
  const SynthValues values(Model("tiny"));
  const SynthMatrix matrices[] = {values.Table(), values.Head(), values.Of(Projection::kDown, 1)};
  for (const SynthMatrix& m : matrices) {
    std::vector<int8_t> whole(static_cast<size_t>(m.columns)), piece(32);
    for (const int64_t row : {int64_t{0}, int64_t{77}, m.rows - 1}) {
      values.Codes(m, row, 0, whole);
      for (int64_t begin = 0; begin < m.columns; begin += 32) {
        values.Codes(m, row, begin, piece);
        EXPECT_EQ(0, std::memcmp(piece.data(), whole.data() + begin, 32)) << row << " " << begin;
      }
      EXPECT_LE(*std::max_element(whole.begin(), whole.end()), 7);
      EXPECT_GE(*std::min_element(whole.begin(), whole.end()), -7);
    }
  }
}

TEST(SynthValues, EveryValueIsExactInFp16) {
  for (const char* name : {"tiny", "smollm2-135m", "qwen2.5-14b", "llama-3.1-8b"}) {
    const SynthModel model = Model(name);
    const SynthValues values(model);
    std::vector<SynthMatrix> matrices = {values.Table(), values.Head()};
    for (const Projection p : {Projection::kQuery, Projection::kValue, Projection::kOutput,
                               Projection::kGate, Projection::kDown})
      matrices.push_back(values.Of(p, model.layers - 1));
    for (const SynthMatrix& m : matrices) {
      for (int64_t block = 0; block < 4; ++block) {
        for (int code = -7; code <= 7; ++code) {
          const float value = static_cast<float>(code) * values.Scale(m, 3, block);
          EXPECT_EQ(F16ToF32(F32ToF16(value)), value) << name;
        }
      }
    }
  }
}

// A projection of inputs with a deviation of 1 gives the deviation that the design counts on.
TEST(SynthValues, ProjectionsKeepTheirScale) {
  const SynthModel model = Model("qwen2.5-0.5b");
  const SynthValues values(model);
  const std::pair<Projection, double> expected[] = {
      {Projection::kQuery, 1.7}, {Projection::kValue, 1.0}, {Projection::kUp, 1.0}};
  for (const auto& [projection, deviation] : expected) {
    const SynthMatrix m = values.Of(projection, 5);
    std::vector<int8_t> codes(static_cast<size_t>(m.columns));
    double squares = 0, sum = 0;
    for (int64_t row = 0; row < 64; ++row) {
      values.Codes(m, row, 0, codes);
      for (int64_t i = 0; i < m.columns; ++i) {
        const double value = codes[static_cast<size_t>(i)] * values.Scale(m, row, i / kSynthBlock);
        squares += value * value;
        sum += value;
      }
    }
    EXPECT_NEAR(std::sqrt(squares / 64), deviation, 0.12 * deviation);
    EXPECT_NEAR(sum / (64.0 * m.columns), 0, 0.01);
  }
}

TEST(SynthValues, SeedsLayersAndProjectionsDiffer) {
  const auto row = [](const std::string& name, Projection projection, int64_t layer) {
    const SynthValues values(Model(name));
    std::vector<int8_t> codes(128);
    values.Codes(values.Of(projection, layer), 0, 0, codes);
    return codes;
  };
  const std::set<std::vector<int8_t>> rows = {
      row("tiny", Projection::kQuery, 0), row("tiny", Projection::kQuery, 1),
      row("tiny", Projection::kKey, 0), row("tiny,seed=2", Projection::kQuery, 0)};
  EXPECT_EQ(rows.size(), 4u);
}

TEST(SynthTokenizer, NamesEveryIdOnce) {
  const auto file = nlohmann::json::parse(SynthTokenizerJson(1024));
  const auto& vocab = file["model"]["vocab"];
  ASSERT_EQ(vocab.size(), 1024u);
  std::set<int> ids;
  for (const auto& [token, id] : vocab.items()) ids.insert(id.get<int>());
  EXPECT_EQ(ids.size(), 1024u);
  EXPECT_EQ(*ids.rbegin(), 1023);
  EXPECT_EQ(vocab["A"], 65);
  EXPECT_EQ(vocab["\u0120"], 32);   // space
  EXPECT_EQ(vocab["\u010a"], 10);   // line feed
  EXPECT_EQ(vocab["\u0143"], 173);  // the last of those without a character of their own
  EXPECT_EQ(vocab["\u00ff"], 255);
  EXPECT_EQ(vocab["<|im_end|>"], 258);
  EXPECT_EQ(vocab["\u0120t1000"], 1000);
}

class SynthFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "granule-synth-XXXXXX").native();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
  }
  void TearDown() override { fs::remove_all(dir_); }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_))
      names.insert(entry.path().filename().native());
    return names;
  }

  fs::path dir_;
};

// Same values, graph and statements, whichever way a model came about.
void ExpectSame(const Package& a, const Package& b) {
  const onnx::Graph &x = a.model.graph, &y = b.model.graph;
  ASSERT_EQ(x.tensors.size(), y.tensors.size());
  std::map<std::string_view, const onnx::Tensor*> tensors;
  for (const onnx::Value& value : x.values) {
    if (value.tensor >= 0) tensors[value.name] = &x.tensors[static_cast<size_t>(value.tensor)];
  }
  for (const onnx::Value& value : y.values) {
    if (value.tensor < 0) continue;
    ASSERT_TRUE(tensors.contains(value.name)) << value.name;
    const onnx::Tensor& one = *tensors[value.name];
    const onnx::Tensor& two = y.tensors[static_cast<size_t>(value.tensor)];
    EXPECT_EQ(one.dims, two.dims) << value.name;
    EXPECT_EQ(one.dtype, two.dtype) << value.name;
    ASSERT_EQ(one.bytes.size(), two.bytes.size()) << value.name;
    EXPECT_EQ(0, std::memcmp(one.bytes.data(), two.bytes.data(), one.bytes.size())) << value.name;
  }
  ASSERT_EQ(x.nodes.size(), y.nodes.size());
  for (size_t i = 0; i < x.nodes.size(); ++i) {
    EXPECT_EQ(x.nodes[i].op, y.nodes[i].op);
    EXPECT_EQ(x.nodes[i].attributes.size(), y.nodes[i].attributes.size());
  }
  EXPECT_EQ(a.model_type, b.model_type);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.eos_ids, b.eos_ids);
  EXPECT_EQ(a.pad_id, b.pad_id);
  EXPECT_EQ(a.chat_template, b.chat_template);
  EXPECT_EQ(a.source_weight_bytes, b.source_weight_bytes);
  EXPECT_EQ(a.context_length->value, b.context_length->value);
  EXPECT_EQ(a.table_rows->value, b.table_rows->value);
  EXPECT_EQ(a.roles.kv.size(), b.roles.kv.size());
  EXPECT_EQ(a.roles.kv[0].dtype, b.roles.kv[0].dtype);
}

TEST_F(SynthFolderTest, HoldsWhatTheModelInMemoryHolds) {
  for (const char* text : {"tiny", "tiny,kv=fp16:int8", "tiny,vocab=1027:fp16", "tiny:fp32",
                           "qwen2.5-0.5b,layers=1,hidden=64,vocab=1024,ffn=64,context=64"}) {
    SynthOptions options;
    options.overwrite = true;
    uint64_t last = 0, all = 0;
    options.progress = [&](uint64_t done, uint64_t total) {
      EXPECT_LE(last, done);
      last = done;
      all = total;
    };
    const Result<SynthReport> report = WriteSynth(Model(text), dir_ / "m", options);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(last, all) << text;
    EXPECT_EQ(report->weight_bytes, all);
    EXPECT_GE(report->written_bytes, all);
    Result<Package> folder = Open(dir_ / "m");
    ASSERT_TRUE(folder.ok()) << folder.status().message();
    EXPECT_TRUE(folder->warnings.empty()) << folder->warnings[0];
    Result<Package> memory = Open("synth:" + std::string(text));
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    EXPECT_TRUE(memory->warnings.empty()) << memory->warnings[0];
    ExpectSame(*folder, *memory);
    std::string file = *ReadFile(dir_ / "m/tokenizer.json", 1 << 24);
    EXPECT_EQ(file, memory->tokenizer_text + "\n");
  }
  EXPECT_EQ(Names(), std::set<std::string>{"m"});
}

TEST_F(SynthFolderTest, AppearsWholeOrNotAtAll) {
  SynthOptions options;
  int asked = 0;
  options.interrupted = [&] { return ++asked == 5; };
  const Result<SynthReport> stopped = WriteSynth(Model("tiny"), dir_ / "m", options);
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.status().code(), Code::kInterrupted);
  EXPECT_TRUE(Names().empty());
  ASSERT_TRUE(WriteSynth(Model("tiny"), dir_ / "m", {}).ok());
  const Result<SynthReport> again = WriteSynth(Model("tiny"), dir_ / "m", {});
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code(), Code::kUsage);
}

TEST(SynthSizes, AreKnownWithoutMakingWeights) {
  // 14.8 billion parameters: making them would take seconds and 8 GiB.
  Result<Package> package = Open("synth:qwen2.5-14b", Weights::kSizesOnly);
  ASSERT_TRUE(package.ok()) << package.status().message();
  uint64_t bytes = 0;
  for (const onnx::Tensor& tensor : package->model.graph.tensors) bytes += tensor.bytes.size();
  // int4 codes and a fp32 scale per 32 of them: 5 bits a parameter; 64 MiB of fp16 tables at D =
  // 128 are half of that.
  EXPECT_NEAR(static_cast<double>(bytes), 14.77e9 * 5 / 8, 0.01e9 * 8);
  EXPECT_EQ(package->roles.kv.size(), 48u);
  EXPECT_EQ(package->roles.kv[0].dtype, DType::kF16);
  EXPECT_EQ(package->table_rows->value, 131072);
  const Result<uint64_t> weights = SynthWeightBytes(Model("qwen2.5-14b"));
  ASSERT_TRUE(weights.ok());
  EXPECT_LT(*weights, bytes);
}

TEST(MemoryModelWriter, RefusesMoreBytesThanATensorTakes) {
  auto writer = MemoryModelWriter::Create();
  ASSERT_TRUE(writer.ok());
  const std::vector<float> numbers(3);
  EXPECT_FALSE((*writer)->Append(std::as_bytes(std::span(numbers))).ok());
  ASSERT_TRUE((*writer)->BeginTensor("a", DType::kF32, {2}).ok());
  EXPECT_FALSE((*writer)->Append(std::as_bytes(std::span(numbers))).ok());
  EXPECT_FALSE((*writer)->BeginTensor("b", DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}).ok());
}

}  // namespace
}  // namespace granule::package
