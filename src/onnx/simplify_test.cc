#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "onnx/checks.h"
#include "onnx/model_for_test.h"
#include "onnx/words.h"

namespace granule::onnx {
namespace {

using Ints = std::vector<int64_t>;

Model Simplified(const TestModel& m, const SimplifyOptions& options = {}) {
  Model model = m.Read();
  EXPECT_TRUE(Simplify(model, options).ok());
  EXPECT_TRUE(CheckAndSort(model).ok()) << CheckAndSort(model).message();
  return model;
}

std::vector<std::string> Ops(const Model& model) {
  std::vector<std::string> ops;
  for (const Node& node : model.graph.nodes) ops.emplace_back(node.op);
  return ops;
}

// The folded constant as text: type, dims and values; "-" when it is none.
std::string Folded(const Model& model, const std::string& name) {
  const Tensor* tensor = model.graph.FindConstant(model.graph.FindValue(name));
  if (tensor == nullptr) return "-";
  std::string out = std::string(DTypeName(tensor->dtype)) + Describe(tensor->dims);
  for (int64_t i = 0; i < tensor->elements(); ++i) {
    if (tensor->dtype == DType::kF32)
      out += Format(" {}", tensor->As<float>()[static_cast<size_t>(i)]);
    if (tensor->dtype == DType::kF16)
      out += Format(" {}", F16ToF32(tensor->As<uint16_t>()[static_cast<size_t>(i)]));
    if (tensor->dtype == DType::kBF16)
      out += Format(" {}", BF16ToF32(tensor->As<uint16_t>()[static_cast<size_t>(i)]));
    if (tensor->dtype == DType::kI64)
      out += Format(" {}", tensor->As<int64_t>()[static_cast<size_t>(i)]);
    if (tensor->dtype == DType::kI32)
      out += Format(" {}", tensor->As<int32_t>()[static_cast<size_t>(i)]);
    if (tensor->dtype == DType::kI8)
      out += Format(" {}", tensor->As<int8_t>()[static_cast<size_t>(i)]);
    if (tensor->dtype == DType::kU8 || tensor->dtype == DType::kBool)
      out += Format(" {}", tensor->As<uint8_t>()[static_cast<size_t>(i)]);
  }
  return out;
}

// Constants a [2,3] = 1..6, b [3] = 10 20 30, i64 versions ia and ib, and one node "out".
class Folding {
 public:
  Folding() {
    m.Constant<float>("a", DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6})
        .Constant<float>("b", DType::kF32, {3}, {10, 20, 30});
    m.Constant<int64_t>("ia", DType::kI64, {2, 3}, {1, 2, 3, 4, 5, 6})
        .Constant<int64_t>("ib", DType::kI64, {3}, {3, -2, 0});
    m.Constant<uint8_t>("t", DType::kBool, {3}, {1, 0, 1})
        .Constant<uint8_t>("f", DType::kBool, {}, {0});
  }
  Folding& List(const std::string& name, std::initializer_list<int64_t> values) {
    m.Constant<int64_t>(name, DType::kI64, {static_cast<int64_t>(values.size())}, values);
    return *this;
  }
  Folding& Scalar(const std::string& name, int64_t value) {
    m.Constant<int64_t>(name, DType::kI64, {}, {value});
    return *this;
  }
  std::string Of(const std::string& op, const std::vector<std::string>& in,
                 const std::vector<NamedAttribute>& attributes = {}) {
    m.Node(op, in, {"out"}, attributes);
    return Folded(Simplified(m), "out");
  }
  TestModel m;
};

TEST(SimplifyTest, Arithmetic) {
  EXPECT_EQ(Folding().Of("Add", {"a", "b"}), "float32[2,3] 11 22 33 14 25 36");
  EXPECT_EQ(Folding().Of("Sub", {"b", "a"}), "float32[2,3] 9 18 27 6 15 24");
  EXPECT_EQ(Folding().Of("Mul", {"ia", "ib"}), "int64[2,3] 3 -4 0 12 -10 0");
  EXPECT_EQ(Folding().Of("Div", {"b", "a"}), "float32[2,3] 10 10 10 2.5 4 5");
  EXPECT_EQ(Folding().Of("Max", {"ia", "ib"}), "int64[2,3] 3 2 3 4 5 6");
  EXPECT_EQ(Folding().Of("Min", {"a", "b"}), "float32[2,3] 1 2 3 4 5 6");
  EXPECT_EQ(Folding().Of("Pow", {"a", "a"}), "float32[2,3] 1 4 27 256 3125 46656");
  EXPECT_EQ(Folding().Of("Div", {"ia", "ib"}), "-") << "a division by zero is left to the run";
  EXPECT_EQ(Folding().Scalar("x", INT64_MIN).Scalar("y", -1).Of("Div", {"x", "y"}), "-");
  EXPECT_EQ(Folding().Scalar("x", -7).Scalar("y", 2).Of("Div", {"x", "y"}), "int64[] -3")
      << "towards zero";
  EXPECT_EQ(Folding().Scalar("x", INT64_MAX).Scalar("y", 1).Of("Add", {"x", "y"}),
            "int64[] -9223372036854775808")
      << "wraps";
  EXPECT_EQ(Folding().Of("Neg", {"ib"}), "int64[3] -3 2 0");
  EXPECT_EQ(Folding().Of("Abs", {"ib"}), "int64[3] 3 2 0");
  EXPECT_EQ(Folding().Of("Sqrt", {"ib"}), "-") << "integers have none";
  EXPECT_EQ(Folding().Of("Reciprocal", {"a"}), "float32[2,3] 1 0.5 0.33333334 0.25 0.2 0.16666667");
  EXPECT_EQ(Folding().Of("Not", {"t"}), "bool[3] 0 1 0");
  EXPECT_EQ(Folding().Of("And", {"t", "f"}), "bool[3] 0 0 0");
  EXPECT_EQ(Folding().Of("Or", {"t", "f"}), "bool[3] 1 0 1");
  EXPECT_EQ(Folding().Of("Xor", {"t", "t"}), "bool[3] 0 0 0");
  EXPECT_EQ(Folding().Of("Equal", {"ia", "ib"}), "bool[2,3] 0 0 0 0 0 0");
  EXPECT_EQ(Folding().Of("Less", {"ib", "ia"}), "bool[2,3] 0 1 1 1 1 1");
  EXPECT_EQ(Folding().Of("GreaterOrEqual", {"a", "a"}), "bool[2,3] 1 1 1 1 1 1");
  EXPECT_EQ(Folding().Of("Add", {"a", "ia"}), "-") << "mixed types";
  EXPECT_EQ(Folding().Of("Add", {"t", "t"}), "-") << "bools do not add";
  EXPECT_EQ(Folding().List("two", {1, 2}).Of("Add", {"ia", "two"}), "-")
      << "shapes that do not fit";
}

TEST(SimplifyTest, HalfTypesRoundOnce) {
  Folding f;
  f.m.Constant<uint16_t>("h", DType::kF16, {2}, {0x3c00, 0x3c01})
      .Constant<uint16_t>("g", DType::kBF16, {1}, {0x3f80});
  f.m.Node("Add", {"h", "h"}, {"hh"}).Node("Sqrt", {"g"}, {"gg"});
  const Model model = Simplified(f.m);
  EXPECT_EQ(Folded(model, "hh"), "float16[2] 2 2.0019531");
  EXPECT_EQ(Folded(model, "gg"), "bfloat16[1] 1");
}

TEST(SimplifyTest, Casts) {
  Folding f;
  f.m.Constant<float>("x", DType::kF32, {4}, {-1.5f, 0, 2.5f, 300})
      .Constant<float>("big", DType::kF32, {1}, {1e20f});
  f.m.Constant<float>("nan", DType::kF32, {1}, {std::nanf("")})
      .Constant<int64_t>("i", DType::kI64, {3}, {-1, 0, 258});
  const auto cast = [&](const std::string& from, int64_t to) {
    return Folding(f).Of("Cast", {from}, {{"to", to}});
  };
  EXPECT_EQ(cast("x", 7), "int64[4] -1 0 2 300");
  EXPECT_EQ(cast("x", 6), "int32[4] -1 0 2 300");
  EXPECT_EQ(cast("x", 9), "bool[4] 1 0 1 1");
  EXPECT_EQ(cast("x", 10), "float16[4] -1.5 0 2.5 300");
  EXPECT_EQ(cast("x", 16), "bfloat16[4] -1.5 0 2.5 300");
  EXPECT_EQ(cast("x", 1), "float32[4] -1.5 0 2.5 300");
  EXPECT_EQ(cast("x", 2), "-") << "out of range";
  EXPECT_EQ(cast("big", 7), "-");
  EXPECT_EQ(cast("nan", 6), "-");
  EXPECT_EQ(cast("nan", 9), "bool[1] 1");
  EXPECT_EQ(cast("i", 1), "float32[3] -1 0 258");
  EXPECT_EQ(cast("i", 2), "uint8[3] 255 0 2");
  EXPECT_EQ(cast("i", 3), "int8[3] -1 0 2");
  EXPECT_EQ(cast("i", 9), "bool[3] 1 0 1");
  EXPECT_EQ(cast("t", 7), "int64[3] 1 0 1");
  EXPECT_EQ(cast("x", 11), "-") << "float64";
  EXPECT_EQ(cast("x", 22), "-") << "int4";
}

TEST(SimplifyTest, Movement) {
  EXPECT_EQ(Folding().Of("Transpose", {"ia"}), "int64[3,2] 1 4 2 5 3 6");
  EXPECT_EQ(Folding().Of("Transpose", {"ia"}, {{"perm", Ints{0, 2}}}), "-");
  EXPECT_EQ(Folding().Of("Transpose", {"ia"}, {{"perm", Ints{0}}}), "-");
  EXPECT_EQ(Folding().Of("Concat", {"ia", "ia"}, {{"axis", int64_t{1}}}),
            "int64[2,6] 1 2 3 1 2 3 4 5 6 4 5 6");
  EXPECT_EQ(Folding().Of("Concat", {"ia", "ia"}, {{"axis", int64_t{-2}}}),
            "int64[4,3] 1 2 3 4 5 6 1 2 3 4 5 6");
  EXPECT_EQ(Folding().Of("Concat", {"ia", "ib"}, {{"axis", int64_t{0}}}), "-");
  EXPECT_EQ(Folding().Of("Concat", {"ia"}, {{"axis", int64_t{2}}}), "-");
  EXPECT_EQ(Folding().List("e", {}).Of("Concat", {"e", "e"}, {{"axis", int64_t{0}}}), "int64[0]");
  EXPECT_EQ(Folding()
                .List("e", {})
                .List("two", {7, 8})
                .Of("Concat", {"e", "two"}, {{"axis", int64_t{0}}}),
            "int64[2] 7 8");
  EXPECT_EQ(Folding().List("at", {2, -3}).Of("Gather", {"ia", "at"}, {{"axis", int64_t{1}}}),
            "int64[2,2] 3 1 6 4");
  EXPECT_EQ(Folding().Scalar("at", 1).Of("Gather", {"ia", "at"}), "int64[3] 4 5 6");
  EXPECT_EQ(Folding().Scalar("at", 2).Of("Gather", {"ia", "at"}), "-") << "index out of range";
  EXPECT_EQ(Folding().Of("Gather", {"ia", "a"}), "-") << "indices that are no integers";
}

TEST(SimplifyTest, Slices) {
  const auto slice = [](std::initializer_list<int64_t> st, std::initializer_list<int64_t> en,
                        std::initializer_list<int64_t> ax, std::initializer_list<int64_t> sp) {
    return Folding().List("st", st).List("en", en).List("ax", ax).List("sp", sp).Of(
        "Slice", {"ia", "st", "en", "ax", "sp"});
  };
  EXPECT_EQ(slice({1}, {3}, {1}, {1}), "int64[2,2] 2 3 5 6");
  EXPECT_EQ(slice({-1}, {INT64_MIN}, {1}, {-2}), "int64[2,2] 3 1 6 4");
  EXPECT_EQ(slice({0, 0}, {INT64_MAX, 1}, {1, 0}, {2, 1}), "int64[1,2] 1 3");
  EXPECT_EQ(slice({2}, {1}, {1}, {1}), "int64[2,0]");
  EXPECT_EQ(slice({0}, {1}, {2}, {1}), "-");
  EXPECT_EQ(slice({0}, {1}, {1}, {0}), "-");
  EXPECT_EQ(slice({0}, {1}, {1}, {INT64_MIN}), "-");
  EXPECT_EQ(slice({0}, {3}, {1}, {int64_t{1} << 32}), "int64[2,1] 1 4");
  EXPECT_EQ(slice({0, 0}, {1, 1}, {1, 1}, {1, 1}), "-") << "an axis twice";
  EXPECT_EQ(slice({0}, {1, 2}, {1}, {1}), "-");
  EXPECT_EQ(Folding().List("st", {1}).List("en", {2}).Of("Slice", {"ia", "st", "en"}),
            "int64[1,3] 4 5 6");
}

TEST(SimplifyTest, ShapesAndMadeTensors) {
  EXPECT_EQ(Folding().Of("Shape", {"a"}), "int64[2] 2 3");
  EXPECT_EQ(Folding().Of("Shape", {"a"}, {{"start", int64_t{-1}}}), "int64[1] 3");
  EXPECT_EQ(Folding().Of("Size", {"a"}), "int64[] 6");
  EXPECT_EQ(Folding().Scalar("x", 5).Scalar("y", 0).Scalar("z", -2).Of("Range", {"x", "y", "z"}),
            "int64[3] 5 3 1");
  EXPECT_EQ(Folding().Scalar("x", 5).Scalar("y", 0).Scalar("z", 0).Of("Range", {"x", "y", "z"}),
            "-");
  EXPECT_EQ(Folding()
                .Scalar("x", INT64_MIN)
                .Scalar("y", INT64_MAX)
                .Scalar("z", 1)
                .Of("Range", {"x", "y", "z"}),
            "-");
  EXPECT_EQ(Folding().List("n", {2}).Of("ConstantOfShape", {"n"}), "float32[2] 0 0");
  EXPECT_EQ(Folding().List("n", {2}).Of(
                "ConstantOfShape", {"n"},
                {{"value", TensorAttribute{DType::kI32, {1}, std::string("\7\0\0\0", 4)}}}),
            "int32[2] 7 7");
  EXPECT_EQ(Folding().List("n", {-2}).Of("ConstantOfShape", {"n"}), "-");
  EXPECT_EQ(Folding().List("n", {2, 1, 3}).Of("Expand", {"ib", "n"}), "int64[2,1,3] 3 -2 0 3 -2 0");
  EXPECT_EQ(Folding().List("n", {4}).Of("Expand", {"ib", "n"}), "-");
  EXPECT_EQ(Folding().Of("Constant", {}, {{"value_ints", Ints{4, 5}}}), "int64[2] 4 5");
  EXPECT_EQ(Folding().Of("Constant", {}, {{"value_int", int64_t{4}}}), "int64[] 4");
  EXPECT_EQ(Folding().Of("Constant", {}, {{"value_float", 0.5f}}), "float32[] 0.5");
  EXPECT_EQ(Folding().Of("Constant", {}, {{"value_floats", std::vector<float>{1, 2}}}),
            "float32[2] 1 2");
  EXPECT_EQ(Folding().Of("Constant", {}, {{"value", TensorAttribute{DType::kBool, {1}, "\1"}}}),
            "bool[1] 1");
  EXPECT_EQ(Folding().Of("Constant", {}, {{"value_string", std::string("s")}}), "-");
  Folding where;
  where.m.Constant<int64_t>("zero", DType::kI64, {}, {0});
  EXPECT_EQ(where.Of("Where", {"t", "ib", "zero"}), "int64[3] 3 0 0");
}

TEST(SimplifyTest, ViewsShareTheirBytes) {
  TestModel m;
  m.ConstantBytes("table", DType::kU8, {4, 2, 16}, std::string(128, 'x'))
      .Constant<int64_t>("to", DType::kI64, {2}, {0, -1});
  m.ConstantBytes("nibbles", DType::kU4, {3, 5}, std::string(8, 'y'))
      .Constant<int64_t>("flat", DType::kI64, {1}, {-1});
  m.Constant<int64_t>("ax", DType::kI64, {1}, {0});
  m.Node("Reshape", {"table", "to"}, {"rows"})
      .Node("Reshape", {"nibbles", "flat"}, {"line"})
      .Node("Unsqueeze", {"table", "ax"}, {"up"});
  m.Node("Squeeze", {"up", "ax"}, {"down"})
      .Node("Flatten", {"table"}, {"fl"}, {{"axis", int64_t{2}}})
      .Node("Squeeze", {"up"}, {"all"});
  const SimplifyOptions no_allocation{.dead_outputs = {}, .max_folded_bytes = 0};
  const Model model = Simplified(m, no_allocation);
  const auto tensor = [&](const char* name) {
    return model.graph.FindConstant(model.graph.FindValue(name));
  };
  for (const char* name : {"rows", "up", "down", "fl", "all"}) {
    ASSERT_NE(tensor(name), nullptr) << name;
    EXPECT_EQ(tensor(name)->bytes.data(), tensor("table")->bytes.data()) << name;
  }
  EXPECT_EQ(tensor("rows")->dims, (Ints{4, 32}));
  EXPECT_EQ(tensor("fl")->dims, (Ints{8, 16}));
  EXPECT_EQ(tensor("line")->dims, (Ints{15}));
  EXPECT_EQ(tensor("line")->bytes.data(), tensor("nibbles")->bytes.data());
  EXPECT_TRUE(model.graph.nodes.empty());
}

TEST(SimplifyTest, ReshapesThatAreWrongStay) {
  const auto reshape = [](std::initializer_list<int64_t> to) {
    return Folding().List("to", to).Of("Reshape", {"ia", "to"});
  };
  EXPECT_EQ(reshape({3, 2}), "int64[3,2] 1 2 3 4 5 6");
  EXPECT_EQ(reshape({0, -1}), "int64[2,3] 1 2 3 4 5 6");
  EXPECT_EQ(reshape({4, -1}), "-");
  EXPECT_EQ(reshape({7}), "-");
  EXPECT_EQ(reshape({-1, -1}), "-");
  EXPECT_EQ(reshape({1, 2, 0}), "-");
  EXPECT_EQ(reshape({INT64_MAX, INT64_MAX}), "-");
}

TEST(SimplifyTest, IdentitiesDisappear) {
  TestModel m;
  m.Input("x", DType::kF32, {int64_t{2}})
      .Output("out", DType::kF32, {int64_t{2}})
      .Output("copy", DType::kF32, {int64_t{2}})
      .Output("c2", DType::kF32, {int64_t{2}});
  m.Constant<float>("c", DType::kF32, {2}, {1, 2});
  m.Node("Identity", {"x"}, {"i1"})
      .Node("Identity", {"i1"}, {"i2"})
      .Node("Add", {"i2", "c"}, {"out"})
      .Node("Identity", {"i2"}, {"copy"});
  m.Node("Identity", {"c"}, {"c2"});
  const Model model = Simplified(m);
  EXPECT_EQ(Ops(model), (std::vector<std::string>{"Add", "Identity"}));
  EXPECT_EQ(model.graph.nodes[0].inputs[0], model.graph.FindValue("x"));
  EXPECT_EQ(model.graph.nodes[1].inputs[0], model.graph.FindValue("x"));
  EXPECT_TRUE(model.graph.IsConstant(model.graph.FindValue("c2")))
      << "a constant graph output has no producer";
  EXPECT_EQ(model.graph.outputs.size(), 3u);
}

TEST(SimplifyTest, DeadNodesAndDeadOutputs) {
  TestModel m;
  m.Input("x", DType::kF32, {int64_t{2}})
      .Output("out", DType::kF32, {int64_t{2}})
      .Output("extra", DType::kF32, {int64_t{2}});
  m.Node("Neg", {"x"}, {"a"})
      .Node("Neg", {"a"}, {"unused"})
      .Node("Abs", {"a"}, {"out"})
      .Node("Sqrt", {"x"}, {"b"})
      .Node("Exp", {"b"}, {"extra"});
  EXPECT_EQ(Ops(Simplified(m)), (std::vector<std::string>{"Neg", "Abs", "Sqrt", "Exp"}));
  const SimplifyOptions options{.dead_outputs = {m.Read().graph.FindValue("extra")}};
  const Model model = Simplified(m, options);
  EXPECT_EQ(Ops(model), (std::vector<std::string>{"Neg", "Abs"}));
  EXPECT_EQ(model.graph.outputs, std::vector<ValueId>{model.graph.FindValue("out")});
  // One that a remaining node makes anyway stays an output.
  const SimplifyOptions first{.dead_outputs = {m.Read().graph.FindValue("out")}};
  EXPECT_EQ(Simplified(m, first).graph.outputs.size(), 1u);
  TestModel split;
  split.Input("x", DType::kF32, {int64_t{2}})
      .Output("l", DType::kF32, {int64_t{1}})
      .Output("r", DType::kF32, {int64_t{1}})
      .Node("Split", {"x"}, {"l", "r"});
  EXPECT_EQ(
      Simplified(split, {.dead_outputs = {split.Read().graph.FindValue("r")}}).graph.outputs.size(),
      2u);
}

TEST(SimplifyTest, KnownShapesOfVaryingValuesFold) {
  TestModel m;
  m.Input("x", DType::kF32, {int64_t{2}, int64_t{3}})
      .Input("y", DType::kF32, {"n"})
      .Output("s", DType::kI64, {int64_t{2}})
      .Output("sn", DType::kI64, {int64_t{1}});
  m.Node("Neg", {"x"}, {"nx"}).Node("Shape", {"nx"}, {"s"}).Node("Shape", {"y"}, {"sn"});
  Model model = m.Read();
  ASSERT_TRUE(InferShapes(model).ok());
  ASSERT_TRUE(Simplify(model, {}).ok());
  EXPECT_EQ(Ops(model), std::vector<std::string>{"Shape"});
  EXPECT_EQ(Folded(model, "s"), "int64[2] 2 3");
}

TEST(SimplifyTest, TheBudgetHolds) {
  TestModel m;
  m.Constant<int64_t>("huge", DType::kI64, {2}, {int64_t{1} << 40, int64_t{1} << 20})
      .Constant<int64_t>("n", DType::kI64, {1}, {100});
  m.Node("ConstantOfShape", {"huge"}, {"h"}).Output("h", DType::kF32, {"a", "b"});
  for (int i = 0; i < 20; ++i) {
    m.Node("ConstantOfShape", {"n"}, {"v" + std::to_string(i)})
        .Output("v" + std::to_string(i), DType::kF32, {int64_t{100}});
  }
  EXPECT_EQ(Simplified(m, {.dead_outputs = {}, .max_folded_bytes = 400}).graph.nodes.size(), 13u)
      << "1 is too large, 8 of 20 fit";
  EXPECT_EQ(Simplified(m, {.dead_outputs = {}, .max_folded_bytes = 399}).graph.nodes.size(), 21u);
  EXPECT_EQ(Simplified(m).graph.nodes.size(), 1u);
}

TEST(SimplifyTest, OperatorsOfOtherDomainsAreLeftAlone) {
  Folding f;
  EXPECT_EQ(f.Of("other:Add", {"a", "b"}), "-");
}

}  // namespace
}  // namespace granule::onnx
