#include "onnx/checks.h"

#include <gtest/gtest.h>

#include "onnx/model_for_test.h"
#include "onnx/operators.h"

namespace granule::onnx {
namespace {

std::string Words(const TestModel& m) { return m.TryRead().status().message(); }

TEST(ChecksTest, SortsAndKeepsTheOrderOfWhatIsSorted) {
  TestModel m;
  m.Input("x", DType::kF32, {}).Output("d", DType::kF32, {});
  m.Node("Add", {"c", "a"}, {"d"})
      .Node("Neg", {"b"}, {"c"})
      .Node("Neg", {"a"}, {"b"})
      .Node("Neg", {"x"}, {"a"})
      .Node("Abs", {"x"}, {"e"});
  const Model model = m.Read();
  std::vector<std::string> order;
  for (const Node& node : model.graph.nodes)
    order.emplace_back(model.graph.values[node.outputs[0]].name);
  EXPECT_EQ(order, (std::vector<std::string>{"a", "b", "c", "d", "e"}));

  TestModel sorted;
  sorted.Input("x", DType::kF32, {});
  for (int i = 0; i < 20; ++i)
    sorted.Node("Neg", {i % 3 == 0 ? "x" : "v" + std::to_string(i - 1)}, {"v" + std::to_string(i)});
  const Model again = sorted.Read();
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(again.graph.values[again.graph.nodes[i].outputs[0]].name, "v" + std::to_string(i));
}

TEST(ChecksTest, CyclesAreNamed) {
  TestModel m;
  m.Input("x", DType::kF32, {}).Output("after", DType::kF32, {});
  m.Node("Add", {"x", "c"}, {"a"})
      .Node("Neg", {"a"}, {"b"})
      .Node("Neg", {"b"}, {"c"})
      .Node("Neg", {"c"}, {"after"});
  const std::string words = Words(m);
  EXPECT_TRUE(Says(words, "the graph has a cycle of 3 nodes: "));
  for (const char* name : {"Add \"n_a\"", "Neg \"n_b\"", "Neg \"n_c\""})
    EXPECT_TRUE(Says(words, name));
  EXPECT_EQ(words.find("n_after"), std::string::npos) << "it waits for the cycle and is not on it";
  TestModel self;
  self.Node("Neg", {"a"}, {"a"});
  EXPECT_TRUE(Says(Words(self), "a cycle of 1 node: Neg \"n_a\""));
}

TEST(ChecksTest, ALongCycleCostsNoStack) {
  TestModel m;
  constexpr int kNodes = 20000;
  for (int i = 0; i < kNodes; ++i)
    m.Node("Neg", {"v" + std::to_string((i + 1) % kNodes)}, {"v" + std::to_string(i)});
  EXPECT_TRUE(Says(Words(m), "and 19980 more"));
}

TEST(ChecksTest, WhatNothingProducesIsListed) {
  TestModel m;
  m.Input("x", DType::kF32, {}).Output("o1", DType::kF32, {}).Output("o2", DType::kF32, {});
  m.Node("Add", {"x", "lost"}, {"o1"}).Node("Add", {"lost", "gone"}, {"z"});
  const std::string words = Words(m);
  EXPECT_TRUE(Says(words,
                   "nothing produces \"lost\" (read by node Add \"n_o1\"), \"gone\" (read by node "
                   "Add \"n_z\"), \"o2\" (a graph output)"));
}

// The writer refuses names that are used twice; change the name in the bytes instead.
std::string Renamed(const TestModel& m, std::string_view from, std::string_view to) {
  std::string bytes = m.Bytes();
  const size_t at = bytes.find(from);
  bytes.replace(at, from.size(), to);
  return ReadModelFromBytes(nullptr, std::as_bytes(std::span(bytes)), {}).status().message();
}

TEST(ChecksTest, TwoProducers) {
  TestModel m;
  m.Input("xx", DType::kF32, {}).Constant<float>("ww", DType::kF32, {}, {1});
  m.Node("Neg", {"xx"}, {"aa"}).Node("Abs", {"xx"}, {"qq"});
  EXPECT_TRUE(Says(Renamed(m, "\x12\x02qq",
                           "\x12\x02"
                           "aa"),
                   "value \"aa\" has two producers: it is made by node Neg \"n_aa\", and node Abs "
                   "\"n_qq\" makes it as well"));
  EXPECT_TRUE(Says(Renamed(m, "\x12\x02qq", "\x12\x02xx"), "it is a graph input, and node Abs"));
  EXPECT_TRUE(Says(Renamed(m, "\x12\x02qq", "\x12\x02ww"), "it is an initializer, and node Abs"));
}

TEST(ChecksTest, NodesOfKnownOperators) {
  const auto words = [](const std::string& op, std::vector<std::string> inputs,
                        std::vector<std::string> outputs = {"y"},
                        std::vector<NamedAttribute> attributes = {}) {
    TestModel m;
    m.Input("a", DType::kF32, {}).Input("b", DType::kF32, {});
    m.Node(op, inputs, outputs, attributes);
    return Words(m);
  };
  EXPECT_TRUE(Says(words("Add", {"a"}), "node Add \"n_y\" has 1 inputs, Add takes 2"));
  EXPECT_TRUE(Says(words("Clip", {"a", "b", "a", "b"}), "has 4 inputs, Clip takes 1 to 3"));
  EXPECT_TRUE(Says(words("Concat", {}), "has 0 inputs, Concat takes 1 or more"));
  EXPECT_TRUE(Says(words("Add", {"a", ""}), "leaves out input 1, which Add needs"));
  EXPECT_TRUE(Says(words("Add", {"a", "b"}, {"y", "z"}), "has 2 outputs, Add gives 1 to 1"));
  EXPECT_TRUE(Says(words("Add", {"a", "b"}, {}), "has 0 outputs"));
  EXPECT_TRUE(Says(words("Gather", {"a", "b"}, {"y"}, {{"axis", 1.0f}}),
                   "attribute \"axis\" is of type FLOAT, Gather takes INT"));
  EXPECT_TRUE(Says(words("Transpose", {"a"}, {"y"}, {{"perm", int64_t{1}}}),
                   "attribute \"perm\" is of type INT, Transpose takes INTS"));
  EXPECT_TRUE(Says(words("Cast", {"a"}, {"y"}, {{"to", std::string("x")}}),
                   "attribute \"to\" is of type STRING, Cast takes INT"));
  EXPECT_TRUE(Says(words("Constant", {}, {"y"}, {{"value", std::vector<float>{}}}),
                   "is of type FLOATS, Constant takes TENSOR"));
  EXPECT_TRUE(Says(words("com.microsoft:MatMulNBits", {"a", "b"}),
                   "com.microsoft.MatMulNBits \"n_y\" has 2 inputs, MatMulNBits takes 3 to 6"));
  EXPECT_EQ(words("Add", {"a", "b"}, {"y"}, {{"unknown", int64_t{1}}}), "");
  EXPECT_EQ(words("other:Add", {"a"}), "") << "an operator of another domain is not known";
  EXPECT_EQ(words("SimplifiedLayerNormalization", {"a", "b"}), "");
  EXPECT_EQ(words("com.microsoft:SimplifiedLayerNormalization", {"a", "b"}), "");
  EXPECT_TRUE(Says(words("", {"a"}), "names no operator"));
  EXPECT_EQ(words("com.microsoft:GroupQueryAttention", {"a", "", "", "", "", "a", "b"}), "")
      << "packed, without a past";
  EXPECT_TRUE(Says(words("com.microsoft:GroupQueryAttention", {"a", "a", "a", "a", "a", "", "b"}),
                   "leaves out input 5"));
}

TEST(ChecksTest, OperatorTableIsSorted) {
  for (const char* op : {"Abs", "GroupQueryAttention", "RotaryEmbedding", "Xor"}) {
    EXPECT_TRUE(FindOperator("", op) != nullptr || FindOperator("com.microsoft", op) != nullptr)
        << op;
  }
  EXPECT_EQ(FindOperator("com.microsoft", "RotaryEmbedding")->min_inputs, 4);
  EXPECT_EQ(FindOperator("", "RotaryEmbedding")->min_inputs, 3);
  EXPECT_EQ(FindOperator("", "GroupQueryAttention"), nullptr);
  EXPECT_EQ(FindOperator("", "Zzz"), nullptr);
  EXPECT_EQ(FindOperator("", ""), nullptr);
}

}  // namespace
}  // namespace granule::onnx
