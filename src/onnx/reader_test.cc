#include "onnx/reader.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <protozero/pbf_writer.hpp>

#include "onnx/model_for_test.h"
#include "onnx/proto.h"
#include "onnx/wire.h"

namespace granule::onnx {
namespace {

namespace fs = std::filesystem;
using protozero::pbf_writer;

// A folder of its own for each test.
class ReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(GRANULE_BINARY_DIR) / "onnx_reader_test" / info->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path Write(const fs::path& name, std::string_view bytes) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }

  fs::path folder_;
};

// Messages that the writer would never write. Each appends to the fields of a GraphProto.
std::string ModelWith(const std::string& graph, const std::string& more = "") {
  std::string out;
  pbf_writer model(out);
  model.add_int64(proto::model::kIrVersion, 8);
  model.add_message(proto::model::kGraph, graph);
  return out + more;
}

struct RawTensor {
  std::string name = "w";
  int64_t type = 1;
  std::vector<int64_t> dims;
  std::string fields = {};  // data, already encoded
};

std::string TensorBytes(const RawTensor& t) {
  std::string out;
  pbf_writer tensor(out);
  for (int64_t dim : t.dims) tensor.add_int64(proto::tensor::kDims, dim);
  tensor.add_int64(proto::tensor::kDataType, t.type);
  tensor.add_string(proto::tensor::kName, t.name);
  return out + t.fields;
}

std::string GraphWithTensor(const RawTensor& t) {
  std::string out;
  pbf_writer(out).add_message(proto::graph::kInitializer, TensorBytes(t));
  return out;
}

std::string Raw(std::string_view bytes) {
  std::string out;
  pbf_writer(out).add_bytes(proto::tensor::kRawData, bytes.data(), bytes.size());
  return out;
}

std::string External(std::initializer_list<std::pair<std::string, std::string>> entries) {
  std::string out;
  pbf_writer tensor(out);
  for (const auto& [key, value] : entries) {
    pbf_writer entry(tensor, proto::tensor::kExternalData);
    entry.add_string(proto::string_entry::kKey, key);
    entry.add_string(proto::string_entry::kValue, value);
  }
  tensor.add_int64(proto::tensor::kDataLocation, proto::tensor::kLocationExternal);
  return out;
}

std::string NodeWithAttribute(const std::string& attribute) {
  std::string out;
  pbf_writer graph(out);
  pbf_writer node(graph, proto::graph::kNode);
  node.add_string(proto::node::kOutput, "y");
  node.add_string(proto::node::kName, "n");
  node.add_string(proto::node::kOpType, "Custom");
  node.add_string(proto::node::kDomain, "x");
  node.add_message(proto::node::kAttribute, attribute);
  return out;
}

struct Read {
  explicit Read(std::string from, const ReadOptions& options = {})
      : bytes(std::move(from)),
        model(ReadModelFromBytes(nullptr, std::as_bytes(std::span(bytes)), options)) {}
  std::string words() const { return model.status().message(); }
  std::string bytes;
  Result<Model> model;
};

std::string WordsFor(const RawTensor& tensor) {
  return Read(ModelWith(GraphWithTensor(tensor))).words();
}

template <class T>
std::vector<T> Values(const Model& model, std::string_view name) {
  const Tensor* tensor = model.graph.FindConstant(model.graph.FindValue(name));
  if (tensor == nullptr) return {};
  const auto values = tensor->As<T>();
  return {values.begin(), values.end()};
}

TEST_F(ReaderTest, ReadsGraphInputsOutputsNodesAndConstants) {
  TestModel m;
  m.Input("x", DType::kF32, {"batch", int64_t{2}}).Output("y", DType::kF32, {"batch", int64_t{3}});
  m.Constant<float>("w", DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6});
  m.Node("MatMul", {"x", "w"}, {"y"});
  m.Node("com.microsoft:Custom", {"x", "", "w"}, {"z", ""},
         {{"i", int64_t{-7}},
          {"f", 0.5f},
          {"s", std::string("text")},
          {"is", std::vector<int64_t>{1, -2}},
          {"fs", std::vector<float>{1.5f}},
          {"ss", std::vector<std::string>{"a", "b"}},
          {"t", TensorAttribute{DType::kI64, {1}, std::string(8, '\1')}},
          {"none", std::vector<int64_t>{}}});
  const Model model = m.Read();
  const Graph& g = model.graph;
  EXPECT_EQ(model.ir_version, 10);
  EXPECT_EQ(model.producer, "granule");
  ASSERT_EQ(model.opsets.size(), 2u);
  EXPECT_EQ(model.opsets[0].domain, "");
  EXPECT_EQ(model.opsets[0].version, 21);
  EXPECT_EQ(g.name, "main_graph");
  ASSERT_EQ(g.inputs.size(), 1u);
  const Value& x = g.values[g.inputs[0]];
  EXPECT_EQ(x.name, "x");
  EXPECT_EQ(x.dtype, DType::kF32);
  ASSERT_EQ(x.shape->size(), 2u);
  EXPECT_EQ((*x.shape)[0].symbol, "batch");
  EXPECT_FALSE((*x.shape)[0].known());
  EXPECT_EQ((*x.shape)[1].size, 2);
  EXPECT_EQ(g.outputs, std::vector<ValueId>{g.FindValue("y")});
  EXPECT_EQ(Values<float>(model, "w"), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(g.IsConstant(g.FindValue("w")));
  EXPECT_FALSE(g.IsConstant(g.FindValue("x")));
  EXPECT_EQ(g.FindConstant(kNone), nullptr);
  EXPECT_EQ(g.FindValue("absent"), kNone);
  ASSERT_EQ(g.nodes.size(), 2u);
  const Node& node = g.nodes[1];
  EXPECT_EQ(node.domain, "com.microsoft");
  EXPECT_EQ(node.inputs, (std::vector<ValueId>{g.FindValue("x"), kNone, g.FindValue("w")}));
  EXPECT_EQ(node.output(1), kNone);
  EXPECT_EQ(node.output(9), kNone);
  EXPECT_EQ(node.Int("i", 0), -7);
  EXPECT_EQ(node.Float("f", 0), 0.5f);
  EXPECT_EQ(node.String("s", ""), "text");
  EXPECT_EQ(node.Int("f", 3), 3) << "a different type counts as absent";
  EXPECT_EQ(node.Float("absent", 2), 2);
  EXPECT_EQ(std::get<std::vector<int64_t>>(node.FindAttribute("is")->value),
            (std::vector<int64_t>{1, -2}));
  EXPECT_EQ(std::get<std::vector<float>>(node.FindAttribute("fs")->value),
            std::vector<float>{1.5f});
  EXPECT_EQ(std::get<std::vector<std::string_view>>(node.FindAttribute("ss")->value),
            (std::vector<std::string_view>{"a", "b"}));
  EXPECT_EQ(std::get<Tensor>(node.FindAttribute("t")->value).elements(), 1);
  EXPECT_TRUE(std::get<std::vector<int64_t>>(node.FindAttribute("none")->value).empty());
}

TEST_F(ReaderTest, ViewsTheFileWithoutCopyingWhatIsAligned) {
  const std::string bytes(64, '\5');
  TestModel m;
  m.ConstantBytes("w", DType::kU8, {64}, bytes).Output("w", DType::kU8, {int64_t{64}});
  const Read read(m.Bytes());
  ASSERT_TRUE(read.model.ok()) << read.words();
  const Tensor* w = read.model->graph.FindConstant(read.model->graph.FindValue("w"));
  const auto* data = reinterpret_cast<const char*>(w->bytes.data());
  EXPECT_GE(data, read.bytes.data());
  EXPECT_LT(data, read.bytes.data() + read.bytes.size());
  EXPECT_TRUE(read.model->owned.empty());
}

TEST_F(ReaderTest, MisalignedDataIsCopiedToAlignedStorage) {
  for (size_t shift = 0; shift < 8; ++shift) {  // the name moves the data through all alignments
    TestModel m;
    m.Constant<int64_t>("w" + std::string(shift, '_'), DType::kI64, {2}, {1, -2});
    const Model model = m.Read();
    const auto values = model.graph.tensors[0].As<int64_t>();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(values.data()) % 8, 0u);
    EXPECT_EQ(values[1], -2);
  }
}

TEST_F(ReaderTest, TypedFieldsPackedAndUnpacked) {
  const auto floats = [](bool packed) {
    std::string out;
    pbf_writer w(out);
    const std::vector<float> v = {1.5f, -2};
    if (packed) w.add_packed_float(proto::tensor::kFloatData, v.begin(), v.end());
    for (float f : packed ? std::vector<float>{} : v) w.add_float(proto::tensor::kFloatData, f);
    return out;
  };
  const auto ints = [](uint32_t field, bool packed, std::vector<int64_t> v) {
    std::string out;
    pbf_writer w(out);
    if (packed) w.add_packed_int64(field, v.begin(), v.end());
    for (int64_t i : packed ? std::vector<int64_t>{} : v) w.add_int64(field, i);
    return out;
  };
  for (bool packed : {false, true}) {
    const auto read = [&](int64_t type, std::vector<int64_t> dims, const std::string& fields) {
      return Read(
          ModelWith(GraphWithTensor({.type = type, .dims = std::move(dims), .fields = fields})));
    };
    const uint32_t i32 = proto::tensor::kInt32Data;
    EXPECT_EQ(Values<float>(*read(1, {2}, floats(packed)).model, "w"),
              (std::vector<float>{1.5f, -2}));
    EXPECT_EQ(
        Values<int64_t>(
            *read(7, {2}, ints(proto::tensor::kInt64Data, packed, {-1, INT64_MAX})).model, "w"),
        (std::vector<int64_t>{-1, INT64_MAX}));
    EXPECT_EQ(Values<int32_t>(*read(6, {2}, ints(i32, packed, {-5, INT32_MAX})).model, "w"),
              (std::vector<int32_t>{-5, INT32_MAX}));
    EXPECT_EQ(Values<uint8_t>(*read(2, {2}, ints(i32, packed, {0, 255})).model, "w"),
              (std::vector<uint8_t>{0, 255}));
    EXPECT_EQ(Values<int8_t>(*read(3, {2}, ints(i32, packed, {-128, 127})).model, "w"),
              (std::vector<int8_t>{-128, 127}));
    EXPECT_EQ(Values<uint8_t>(*read(9, {2}, ints(i32, packed, {0, 1})).model, "w"),
              (std::vector<uint8_t>{0, 1}));
    EXPECT_EQ(Values<uint16_t>(*read(10, {1}, ints(i32, packed, {0x3c00})).model, "w"),
              std::vector<uint16_t>{0x3c00});
    EXPECT_EQ(Values<uint16_t>(*read(16, {1}, ints(i32, packed, {0xbf80})).model, "w"),
              std::vector<uint16_t>{0xbf80});
    EXPECT_EQ(Values<uint8_t>(*read(21, {3}, ints(i32, packed, {0xf1, 0x02})).model, "w"),
              (std::vector<uint8_t>{0xf1, 2}));
    EXPECT_EQ(Values<uint8_t>(*read(22, {3}, ints(i32, packed, {-15, 0x02})).model, "w"),
              (std::vector<uint8_t>{0xf1, 2}));
    EXPECT_TRUE(Says(read(2, {1}, ints(i32, packed, {256})).words(),
                     "element 0 of int32_data is 256, which no uint8 can be"));
    EXPECT_TRUE(Says(read(9, {2}, ints(i32, packed, {1, 2})).words(),
                     "element 1 of int32_data is 2, which no bool can be"));
    EXPECT_TRUE(Says(read(10, {1}, ints(i32, packed, {-1})).words(), "which no float16 can be"));
    EXPECT_TRUE(
        Says(read(6, {1}, ints(i32, packed, {int64_t{1} << 31})).words(), "which no int32 can be"));
    EXPECT_TRUE(Says(read(1, {1}, floats(packed)).words(), "needs 1 entries in float_data, has 2"));
    EXPECT_TRUE(Says(read(3, {2}, ints(i32, packed, {1, 2, 3})).words(),
                     "needs 2 entries in int32_data, has 3"));
    EXPECT_TRUE(Says(read(1, {2}, floats(packed) + ints(i32, packed, {1})).words(),
                     "has 2, and 1 in other fields"));
    EXPECT_TRUE(Says(read(1, {3}, floats(packed)).words(),
                     "tensor \"w\": float32[3] needs 3 entries in float_data, has 2"));
    EXPECT_TRUE(Says(read(7, {1}, ints(i32, packed, {1})).words(),
                     "needs 1 entries in int64_data, has 0, and 1 in other fields"));
    EXPECT_TRUE(Says(read(1, {2}, floats(packed) + Raw(std::string(8, 0))).words(),
                     "data in more than one place"));
  }
}

TEST_F(ReaderTest, SizesThatDoNotMatch) {
  EXPECT_TRUE(Says(WordsFor({.dims = {4, 4}, .fields = Raw(std::string(60, 0))}),
                   "tensor \"w\": float32[4,4] needs 64 bytes, has 60"));
  EXPECT_TRUE(Says(WordsFor({.dims = {2, 2}, .fields = Raw(std::string(64, 0))}),
                   "needs 16 bytes, has 64"));
  EXPECT_TRUE(Says(WordsFor({.dims = {2}, .fields = ""}), "needs 8 bytes, has 0"));
  EXPECT_TRUE(Says(WordsFor({.dims = {-1, 4}, .fields = Raw(std::string(16, 0))}),
                   "its dims [-1,4] have a negative one"));
  EXPECT_TRUE(Says(WordsFor({.dims = {int64_t{1} << 62, 4}, .fields = Raw("")}),
                   "does not fit into 63 bits"));
  EXPECT_TRUE(Says(WordsFor({.dims = {int64_t{1} << 32, int64_t{1} << 32}, .fields = Raw("")}),
                   "does not fit into 63 bits"));
  EXPECT_TRUE(Says(WordsFor({.dims = {0, int64_t{1} << 62, 4}, .fields = Raw("")}),
                   "does not fit into 63 bits"));
  EXPECT_TRUE(Says(WordsFor({.type = 7, .dims = {INT64_MAX}, .fields = Raw("")}),
                   "need more than 2^61 bytes"));
  EXPECT_TRUE(
      Says(WordsFor({.dims = std::vector<int64_t>(33, 1), .fields = Raw(std::string(4, 0))}),
           "33 dimensions; at most 32"));
  EXPECT_TRUE(Says(WordsFor({.type = 9, .dims = {2}, .fields = Raw(std::string("\1\2"))}),
                   "element 1 is 2, which no bool can be"));
  EXPECT_TRUE(Read(ModelWith(GraphWithTensor({.dims = {0, 5}, .fields = Raw("")}))).model.ok());
  EXPECT_TRUE(Read(ModelWith(GraphWithTensor({.dims = {0, 5}, .fields = ""}))).model.ok());
}

TEST_F(ReaderTest, BytesThatAreNoModel) {
  EXPECT_TRUE(Says(Read("").words(), "the model is empty"));
  EXPECT_TRUE(Says(Read("version https://git-lfs.github.com/spec/v1\noid sha256:" +
                        std::string(64, '0') + "\nsize 18958888\n")
                       .words(),
                   "is a Git LFS pointer, the real file is 18958888 bytes"));
  EXPECT_TRUE(Says(Read("<!doctype html><title>404</title>").words(), "is an HTML page"));
  EXPECT_TRUE(Says(Read("\x08\x08").words(), "is not an ONNX model: there is no graph in it"));
  EXPECT_TRUE(Says(Read("hello, world").words(), "is not an ONNX model, or is damaged"));
  EXPECT_TRUE(Says(Read(ModelWith("") + ModelWith("")).words(), "holds two graphs"));
  EXPECT_TRUE(Says(Read("\x08").words(), "ends early"));
}

TEST_F(ReaderTest, EveryTruncationIsRefused) {
  TestModel m;
  m.Input("x", DType::kF32, {"batch", int64_t{2}}).Output("y", DType::kF32, {"batch", int64_t{2}});
  m.Constant<float>("w", DType::kF32, {2}, {1, 2}).Node("Add", {"x", "w"}, {"y"});
  const std::string whole = m.Bytes();
  for (size_t n = 0; n < whole.size(); ++n) {
    const Read read(whole.substr(0, n));
    ASSERT_FALSE(read.model.ok()) << n;
    const bool named = read.words().find("ends early") != std::string::npos ||
                       read.words().find("there is no graph") != std::string::npos ||
                       read.words().find("is empty") != std::string::npos;
    ASSERT_TRUE(named) << n << ": " << read.words();
  }
  EXPECT_TRUE(Says(Read(whole.substr(0, whole.size() / 2)).words(), "ends early: field 7 at byte"));
}

TEST_F(ReaderTest, LengthsAreCheckedBeforeTheirCastTo32Bits) {
  // 2^32 + 2 would be read as 2.
  EXPECT_TRUE(Says(Read(std::string("\x3a\x82\x80\x80\x80\x10\x12\x00", 8)).words(),
                   "field 7 at byte 1 claims 4294967298 bytes, more than a message can have"));
  EXPECT_TRUE(
      Says(Read(std::string("\x3a\x81\x80\x80\x80\x08", 6)).words(), "claims 2147483649 bytes"));
  EXPECT_TRUE(Says(Read(std::string("\x3a\x05\x12", 3)).words(),
                   "ends early: field 7 at byte 1 needs 5 bytes, 1 are left"));
  std::string inner;  // a name that is longer than its graph, with bytes behind it
  pbf_writer(inner).add_message(proto::model::kGraph, std::string("\x12\x7f\x61", 3));
  EXPECT_TRUE(Says(Read(inner + std::string(200, '\x08')).words(),
                   "is damaged: field 2 at byte 3 needs 127 bytes, 1 are left"));
}

TEST_F(ReaderTest, DamagedListsAreRefused) {
  std::string floats, varints;
  pbf_writer(floats).add_bytes(proto::tensor::kFloatData, "12345");
  pbf_writer(varints).add_bytes(proto::tensor::kInt64Data, "\x01\x80");
  EXPECT_TRUE(Says(WordsFor({.dims = {1}, .fields = floats}),
                   "float_data of 5 bytes is no whole number of elements"));
  EXPECT_TRUE(Says(WordsFor({.type = 7, .dims = {1}, .fields = varints}),
                   "a packed list of integers ends inside one"));
  std::string list;
  pbf_writer attribute(list);
  attribute.add_string(proto::attribute::kName, "a");
  attribute.add_bytes(proto::attribute::kFloats, "123");
  EXPECT_TRUE(Says(Read(ModelWith(NodeWithAttribute(list))).words(),
                   "3 bytes of packed float32 are no whole number"));
}

TEST_F(ReaderTest, UnsupportedTypesAreAllNamed) {
  TestModel m;
  std::string graph =
      GraphWithTensor({.name = "d1", .type = 11, .dims = {1}, .fields = Raw(std::string(8, 0))}) +
      GraphWithTensor({.name = "d2", .type = 11, .dims = {1}, .fields = Raw(std::string(8, 0))}) +
      GraphWithTensor({.name = "s", .type = 8, .dims = {0}}) +
      GraphWithTensor({.name = "q", .type = 99, .dims = {0}});
  pbf_writer writer(graph);
  {
    pbf_writer info(writer, proto::graph::kInput);
    info.add_string(proto::value_info::kName, "in");
    pbf_writer type(info, proto::value_info::kType);
    pbf_writer tensor(type, proto::type::kTensor);
    tensor.add_int64(proto::tensor_type::kElemType, 17);
  }
  {
    pbf_writer info(writer, proto::graph::kOutput);
    info.add_string(proto::value_info::kName, "seq");
    pbf_writer type(info, proto::value_info::kType);
    type.add_message(proto::type::kSequence, std::string());
  }
  const std::string words = Read(ModelWith(graph)).words();
  EXPECT_TRUE(Says(words, "it uses what is not supported"));
  EXPECT_TRUE(Says(words, "the type float64 (2: tensor \"d1\", tensor \"d2\")"));
  EXPECT_TRUE(Says(words, "the type string (1: tensor \"s\")"));
  EXPECT_TRUE(Says(words, "the type type 99 (1: tensor \"q\")"));
  EXPECT_TRUE(Says(words, "the type float8e4m3fn (1: input \"in\")"));
  EXPECT_TRUE(Says(words, "the type sequence (1: output \"seq\")"));
}

std::string AttributeBytes(int64_t type, const std::function<void(pbf_writer&)>& value) {
  std::string out;
  pbf_writer attribute(out);
  attribute.add_string(proto::attribute::kName, "a");
  value(attribute);
  if (type != 0) attribute.add_int64(proto::attribute::kType, type);
  return out;
}

TEST_F(ReaderTest, SubgraphsSparseTensorsAndFunctionsAreNamed) {
  const auto nothing = [](pbf_writer&) {};
  const std::string graph =
      AttributeBytes(5, [](pbf_writer& w) { w.add_message(proto::attribute::kG, std::string()); });
  EXPECT_TRUE(Says(Read(ModelWith(NodeWithAttribute(graph))).words(),
                   "nodes with subgraphs (1: node x.Custom \"n\", attribute \"a\")"));
  const std::string sparse = AttributeBytes(11, nothing);
  EXPECT_TRUE(Says(Read(ModelWith(NodeWithAttribute(sparse))).words(),
                   "sparse tensors (1: node x.Custom \"n\", attribute \"a\")"));
  EXPECT_TRUE(Says(Read(ModelWith(NodeWithAttribute(AttributeBytes(9, nothing)))).words(),
                   "the type TENSORS (1:"));
  EXPECT_TRUE(Says(Read(ModelWith(NodeWithAttribute(AttributeBytes(13, nothing)))).words(),
                   "the type TYPE_PROTO (1:"));

  std::string initializer;
  {
    pbf_writer writer(initializer);
    pbf_writer tensor(writer, proto::graph::kSparseInitializer);
    tensor.add_message(proto::sparse_tensor::kValues, TensorBytes({.name = "sp", .dims = {0}}));
  }
  EXPECT_TRUE(Says(Read(ModelWith(initializer)).words(), "sparse tensors (1: tensor \"sp\")"));

  std::string function;
  {
    pbf_writer model(function);
    pbf_writer message(model, proto::model::kFunctions);
    message.add_string(proto::function::kName, "Custom");
    message.add_string(proto::function::kDomain, "x");
  }
  const std::string call = NodeWithAttribute(
      AttributeBytes(2, [](pbf_writer& w) { w.add_int64(proto::attribute::kI, 1); }));
  EXPECT_TRUE(Says(Read(ModelWith(call, function)).words(),
                   "the model-local function \"x.Custom\" (used by 1: x.Custom \"n\")"));
  EXPECT_TRUE(Read(ModelWith("", function)).model.ok())
      << "an unused function is no reason to refuse";
}

TEST_F(ReaderTest, NestedGraphsAreRefusedWithoutDescending) {
  std::string graph;
  for (int i = 0; i < 5000; ++i) {
    graph = NodeWithAttribute(
        AttributeBytes(5, [&](pbf_writer& w) { w.add_message(proto::attribute::kG, graph); }));
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(Says(Read(ModelWith(graph)).words(), "nodes with subgraphs (1:"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

TEST_F(ReaderTest, AttributesThatContradictThemselves) {
  const auto words = [](const std::string& attribute) {
    return Read(ModelWith(NodeWithAttribute(attribute))).words();
  };
  const auto f = [](pbf_writer& w) { w.add_float(proto::attribute::kF, 1); };
  const auto f_and_i = [](pbf_writer& w) {
    w.add_float(proto::attribute::kF, 1), w.add_int64(proto::attribute::kI, 1);
  };
  const auto nothing = [](pbf_writer&) {};
  EXPECT_TRUE(Says(words(AttributeBytes(2, f)),
                   "node x.Custom \"n\": attribute \"a\" says that it is of type INT and "
                   "holds a value of type FLOAT"));
  EXPECT_TRUE(Says(words(AttributeBytes(1, f_and_i)),
                   "attribute \"a\" holds a value of type FLOAT and one of type INT"));
  EXPECT_TRUE(Says(words(AttributeBytes(0, nothing)), "attribute \"a\" has no value"));
  EXPECT_TRUE(Says(words(AttributeBytes(4, nothing)), "attribute \"a\" has no value"));
  EXPECT_TRUE(Says(words(AttributeBytes(77, nothing)), "attribute \"a\" has the unknown type 77"));
  EXPECT_TRUE(
      Says(words(AttributeBytes(
               2, [](pbf_writer& w) { w.add_string(proto::attribute::kRefAttrName, "q"); })),
           "refers to the attribute \"q\" of a function"));
  EXPECT_TRUE(Says(words(AttributeBytes(4,
                                        [](pbf_writer& w) {
                                          w.add_message(proto::attribute::kT,
                                                        TensorBytes({.dims = {2}}));
                                        })),
                   "attribute \"a\": float32[2] needs 8 bytes, has 0"));
  EXPECT_TRUE(Says(words(AttributeBytes(4,
                                        [](pbf_writer& w) {
                                          w.add_message(proto::attribute::kT,
                                                        TensorBytes({.type = 11, .dims = {0}}));
                                        })),
                   "the type float64 (1: node x.Custom \"n\", attribute \"a\")"));
  // Undeclared type (early IR versions) and a value left out because it is the default.
  EXPECT_EQ(
      Read(ModelWith(NodeWithAttribute(AttributeBytes(0, f)))).model->graph.nodes[0].Float("a", 0),
      1.0f);
  EXPECT_EQ(Read(ModelWith(NodeWithAttribute(AttributeBytes(2, nothing))))
                .model->graph.nodes[0]
                .Int("a", 5),
            0);
  TestModel twice;
  twice.Node("x:Custom", {}, {"y"}, {{"a", int64_t{1}}, {"a", int64_t{2}}});
  EXPECT_TRUE(Says(twice.TryRead().status().message(), "two attributes are called \"a\""));
}

TEST_F(ReaderTest, NamesTwice) {
  const std::string w = GraphWithTensor({.dims = {0}});
  EXPECT_TRUE(Says(Read(ModelWith(w + w)).words(), "two initializers are called \"w\""));
  EXPECT_TRUE(Says(WordsFor({.name = "", .dims = {0}}), "an initializer has no name"));
  const auto port = [](uint32_t field, const std::string& name, const std::vector<int64_t>& dims) {
    std::string out;
    pbf_writer graph(out);
    pbf_writer info(graph, field);
    info.add_string(proto::value_info::kName, name);
    pbf_writer type(info, proto::value_info::kType);
    pbf_writer tensor(type, proto::type::kTensor);
    tensor.add_int64(proto::tensor_type::kElemType, 1);
    pbf_writer shape(tensor, proto::tensor_type::kShape);
    for (int64_t dim : dims) {
      pbf_writer message(shape, proto::shape::kDim);
      message.add_int64(proto::dim::kValue, dim);
    }
    return out;
  };
  const std::string in = port(proto::graph::kInput, "x", {});
  EXPECT_TRUE(Says(Read(ModelWith(in + in)).words(), "two graph inputs are called \"x\""));
  const std::string out = port(proto::graph::kOutput, "x", {});
  EXPECT_TRUE(Says(Read(ModelWith(in + out + out)).words(), "two graph outputs are called \"x\""));
  EXPECT_TRUE(Says(Read(ModelWith(port(proto::graph::kInput, "", {}))).words(),
                   "a graph input has no name"));
  EXPECT_TRUE(Says(Read(ModelWith(port(proto::graph::kInput, "x", {2, -5}))).words(),
                   "input \"x\": dimension 1 is -5"));
  EXPECT_FALSE(Read(ModelWith(port(proto::graph::kInput, "x", {-1})))
                   .model->graph.values[0]
                   .shape->front()
                   .known());
  EXPECT_TRUE(
      Says(Read(ModelWith(port(proto::graph::kInput, "x", std::vector<int64_t>(33, 1)))).words(),
           "more than 32 dimensions"));
  EXPECT_TRUE(Says(Read(ModelWith(in + port(proto::graph::kOutput, "x", {3}) +
                                  port(proto::graph::kValueInfo, "x", {4})))
                       .words(),
                   "declared as [4], but it is "));
  std::string untyped;
  pbf_writer(untyped).add_message(proto::graph::kInput, std::string("\x0a\x01x", 3));
  EXPECT_TRUE(Says(Read(ModelWith(untyped)).words(), "input \"x\" has no type"));
}

TEST_F(ReaderTest, InitializersThatAreInputsAreConstants) {
  TestModel m;
  m.Input("x", DType::kF32, {int64_t{1}})
      .Input("w", DType::kF32, {int64_t{1}})
      .Output("y", DType::kF32, {int64_t{1}});
  m.Node("Add", {"x", "w"}, {"y"});
  std::string bytes = m.Bytes();
  std::string more;  // a second graph field would be refused: put the tensor into the first
  const Read plain(bytes);
  ASSERT_EQ(plain.model->graph.inputs.size(), 2u);
  const auto with = [&](const RawTensor& t) {
    std::string inside;
    for (Fields f(bytes, bytes); f.Next();) {
      if (f.key() == AsBytes(proto::model::kGraph)) {
        inside = f.Bytes();
      } else {
        f.Skip();
      }
    }
    return Read(ModelWith(inside + GraphWithTensor(t)));
  };
  const Read constant = with({.dims = {1}, .fields = Raw(std::string(4, 0))});
  ASSERT_TRUE(constant.model.ok()) << constant.words();
  EXPECT_EQ(constant.model->graph.inputs,
            std::vector<ValueId>{constant.model->graph.FindValue("x")});
  EXPECT_TRUE(constant.model->graph.IsConstant(constant.model->graph.FindValue("w")));
  EXPECT_TRUE(Says(with({.dims = {2}, .fields = Raw(std::string(8, 0))}).words(),
                   "input \"w\": declared as [1], but it is [2]"));
  EXPECT_TRUE(Says(with({.type = 7, .dims = {1}, .fields = Raw(std::string(8, 0))}).words(),
                   "input \"w\": declared as float32, but it is int64"));
}

TEST_F(ReaderTest, NamesFromOutsideCannotDriveATerminal) {
  EXPECT_TRUE(Says(WordsFor({.name = "a\x1b[2J\xff\xc2\x9b\u00e9\n", .dims = {-1}}),
                   "tensor \"a\\x1b[2J\\xff\\xc2\\x9b\u00e9\\x0a\""));
  EXPECT_TRUE(Says(WordsFor({.name = std::string(5000, 'n'), .dims = {-1}}), "... (5000 bytes)"));
}

TEST_F(ReaderTest, ExternalDataInSeveralFiles) {
  const auto model = [&](const std::string& entries) {
    return ModelWith(GraphWithTensor({.dims = {4}, .fields = entries}));
  };
  Write("w.bin", std::string("\0\0\x80\x3f", 4) + std::string(28, 0));
  Write("sub/v.bin", std::string(16, 0));
  const auto read = [&](const std::string& entries) {
    return ReadModel(Write("model.onnx", model(entries)));
  };
  const auto words = [&](const std::string& entries) { return read(entries).status().message(); };

  const auto good = read(External({{"location", "w.bin"}, {"checksum", "x"}}));
  ASSERT_TRUE(good.ok()) << good.status().message();
  EXPECT_EQ(Values<float>(*good, "w"), (std::vector<float>{1, 0, 0, 0}));
  ASSERT_EQ(good->files.size(), 2u);
  EXPECT_EQ(good->files[0]->path(), folder_ / "model.onnx");
  EXPECT_EQ(good->files[1]->path().filename(), "w.bin");
  EXPECT_TRUE(read(External({{"location", "w.bin"}, {"offset", "16"}, {"length", "16"}})).ok());
  const auto odd = read(External({{"location", "w.bin"}, {"offset", "1"}}));
  ASSERT_TRUE(odd.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(odd->graph.tensors[0].bytes.data()) % 4, 0u);
  EXPECT_TRUE(read(External({{"location", "sub/v.bin"}})).ok());

  EXPECT_TRUE(Says(words(External({{"location", "gone.bin"}})), "tensor \"w\": missing gone.bin"));
  EXPECT_TRUE(Says(words(External({{"location", "sub/v.bin"}, {"offset", "4"}})),
                   "\"sub/v.bin\" needs 20 bytes (offset 4 and 16 more), has 16"));
  EXPECT_TRUE(Says(words(External({{"location", "w.bin"}, {"offset", "9223372036854775807"}})),
                   "needs 9223372036854775823 bytes"));
  EXPECT_TRUE(Says(words(External({{"location", "w.bin"}, {"offset", "-16"}})),
                   "offset of its external data is \"-16\", not a number"));
  EXPECT_TRUE(Says(words(External({{"location", "w.bin"}, {"offset", "18446744073709551600"}})),
                   "not a number from 0 to 2^63-1"));
  EXPECT_TRUE(Says(words(External({{"location", "w.bin"}, {"offset", "1 "}})), "not a number"));
  EXPECT_TRUE(Says(words(External({{"location", "w.bin"}, {"length", ""}})),
                   "length of its external data is \"\", not a number"));
  EXPECT_TRUE(Says(words(External({{"location", "w.bin"}, {"length", "8"}})),
                   "its external data has length 8, its dims need 16 bytes"));
  EXPECT_TRUE(Says(words(External({})), "names no file"));
  EXPECT_TRUE(Says(words(External({{"location", "/etc/passwd"}})), "is an absolute path"));
  EXPECT_TRUE(Says(words(External({{"location", "../w.bin"}})),
                   "leaves the model's folder through \"..\""));
  EXPECT_TRUE(Says(words(External({{"location", "sub/../w.bin"}})), "through \"..\""));
  EXPECT_TRUE(Says(words(External({{"location", std::string("w.bin\0x", 7)}})), "has a NUL byte"));
  EXPECT_TRUE(Says(words(External({{"location", "sub"}})), "a directory"));
  EXPECT_TRUE(Says(words(External({{"location", "w.bin/x"}})), "cannot be opened"));
  EXPECT_TRUE(Says(words(External({{"location", "w.bin"}}) + Raw(std::string(16, 0))),
                   "data in more than one place"));
  Write("lfs.bin", "version https://git-lfs.github.com/spec/v1\nsize 77\n");
  EXPECT_TRUE(Says(words(External({{"location", "lfs.bin"}, {"offset", "999"}})),
                   "it is a Git LFS pointer"));
  EXPECT_TRUE(Says(Read(model(External({{"location", "w.bin"}}))).words(),
                   "a model read from memory has no folder to look in"));
  EXPECT_TRUE(Read(model(External({{"location", "w.bin"}})), {.root = folder_}).model.ok());
  EXPECT_TRUE(Says(ReadModel(folder_ / "none.onnx").status().message(), "none.onnx"));
  EXPECT_TRUE(Says(ReadModel(folder_ / "sub").status().message(), "a directory"));
}

TEST_F(ReaderTest, FilesAreMappedOnce) {
  Write("w.bin", std::string(64, 0));
  fs::create_symlink("w.bin", folder_ / "same.bin");
  std::string graph;
  for (int i = 0; i < 3; ++i) {
    graph += GraphWithTensor({.name = "w" + std::to_string(i),
                              .dims = {4},
                              .fields = External({{"location", i == 2 ? "same.bin" : "w.bin"}})});
  }
  const auto model = ReadModel(Write("model.onnx", ModelWith(graph)));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->files.size(), 2u);
}

TEST_F(ReaderTest, LinksMayNotLeaveTheRootExceptIntoTheBlobsOfACache) {
  const std::string bytes =
      ModelWith(GraphWithTensor({.dims = {4}, .fields = External({{"location", "w.bin"}})}));
  Write("outside/w.bin", std::string(16, 0));
  Write("inside/model.onnx", bytes);
  fs::create_symlink("../outside/w.bin", folder_ / "inside/w.bin");
  const auto refused = ReadModel(folder_ / "inside/model.onnx");
  EXPECT_TRUE(Says(refused.status().message(), "the external file \"w.bin\" is a link to"));
  EXPECT_TRUE(Says(refused.status().message(), "outside of the model's folder"));
  EXPECT_TRUE(ReadModel(folder_ / "inside/model.onnx", {.root = folder_}).ok())
      << "a wider root allows it";
  // A folder whose name only begins like the root's is not under it.
  Write("inside2/w.bin", std::string(16, 0));
  fs::remove(folder_ / "inside/w.bin");
  fs::create_symlink("../inside2/w.bin", folder_ / "inside/w.bin");
  EXPECT_FALSE(ReadModel(folder_ / "inside/model.onnx").ok());

  Write("cache/blobs/aaaa", bytes);
  Write("cache/blobs/bbbb", std::string(16, 0));
  fs::create_directories(folder_ / "cache/snapshots/main");
  fs::create_symlink("../../blobs/aaaa", folder_ / "cache/snapshots/main/model.onnx");
  fs::create_symlink("../../blobs/bbbb", folder_ / "cache/snapshots/main/w.bin");
  const auto cached = ReadModel(folder_ / "cache/snapshots/main/model.onnx");
  EXPECT_TRUE(cached.ok()) << cached.status().message();
  fs::remove(folder_ / "cache/snapshots/main/w.bin");
  fs::create_symlink("../../../outside/w.bin", folder_ / "cache/snapshots/main/w.bin");
  EXPECT_FALSE(ReadModel(folder_ / "cache/snapshots/main/model.onnx").ok());
}

TEST_F(ReaderTest, OffsetsBeyondFourGigabytes) {
  const uint64_t offset = (uint64_t{5} << 30) + 4;
  const fs::path data = Write("w.bin", "");
  fs::resize_file(data, offset + 16);  // sparse
  {
    std::fstream file(data, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    const float values[4] = {1, 2, 3, 4};
    file.write(reinterpret_cast<const char*>(values), sizeof(values));
  }
  const auto model = ReadModel(Write(
      "model.onnx",
      ModelWith(GraphWithTensor(
          {.dims = {4},
           .fields = External({{"location", "w.bin"}, {"offset", std::to_string(offset)}})}))));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(Values<float>(*model, "w"), (std::vector<float>{1, 2, 3, 4}));
}

TEST_F(ReaderTest, AiOnnxIsTheDefaultDomain) {
  TestModel m;
  m.Input("x", DType::kF32, {}).Output("y", DType::kF32, {}).Node("ai.onnx:Neg", {"x"}, {"y"});
  EXPECT_EQ(m.Read().graph.nodes[0].domain, "");
}

TEST_F(ReaderTest, SingleByteChangesAreReadOrRefused) {
  TestModel m;
  m.Input("x", DType::kF32, {"batch", int64_t{2}}).Output("y", DType::kF32, {"batch", int64_t{2}});
  m.Constant<float>("w", DType::kF32, {2}, {1, 2})
      .Node("Add", {"x", "w"}, {"y"}, {{"k", std::vector<int64_t>{1, 2}}});
  const std::string whole = m.Bytes();
  int read = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = whole;
      changed[at] = static_cast<char>(value);
      read += Read(std::move(changed)).model.ok() ? 1 : 0;
    }
  }
  EXPECT_GT(read, 0);
}

}  // namespace
}  // namespace granule::onnx
