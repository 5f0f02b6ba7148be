#include <gtest/gtest.h>

#include "onnx/checks.h"
#include "onnx/model_for_test.h"
#include "onnx/words.h"

namespace granule::onnx {
namespace {

// A model with inputs x [batch,seq,32], y [batch,seq,32], ids [batch,seq] int64, mask [batch,total]
// int64, m [4,6], s [2,3,4], flag bool [], one float, and constants as tests add them.
class Inference {
 public:
  Inference() {
    m.Input("x", DType::kF32, {"batch", "seq", int64_t{32}})
        .Input("y", DType::kF32, {"batch", "seq", int64_t{32}});
    m.Input("ids", DType::kI64, {"batch", "seq"}).Input("mask", DType::kI64, {"batch", "total"});
    m.Input("m", DType::kF32, {int64_t{4}, int64_t{6}})
        .Input("s", DType::kF32, {int64_t{2}, int64_t{3}, int64_t{4}});
    m.Input("flag", DType::kBool, {})
        .Input("h", DType::kF16, {"batch", "seq", int64_t{32}})
        .Input("n", DType::kI64, {});
  }
  Inference& Ints(const std::string& name, std::initializer_list<int64_t> values) {
    m.Constant<int64_t>(name, DType::kI64, {static_cast<int64_t>(values.size())}, values);
    return *this;
  }
  Inference& Scalar(const std::string& name, int64_t value) {
    m.Constant<int64_t>(name, DType::kI64, {}, {value});
    return *this;
  }
  Inference& Node(const std::string& op, const std::vector<std::string>& in,
                  const std::vector<std::string>& out,
                  const std::vector<NamedAttribute>& attributes = {}) {
    m.Node(op, in, out, attributes);
    return *this;
  }
  // What is inferred for a value, or the error.
  std::string Of(const std::string& name) {
    auto model = m.TryRead();
    if (!model.ok()) return model.status().message();
    if (Status s = InferShapes(*model); !s.ok()) return s.message();
    return Describe(model->graph.values[static_cast<size_t>(model->graph.FindValue(name))]);
  }
  TestModel m;
};

std::string One(const std::string& op, const std::vector<std::string>& in,
                const std::vector<NamedAttribute>& attributes = {}) {
  return Inference().Node(op, in, {"out"}, attributes).Of("out");
}

using Ints = std::vector<int64_t>;

TEST(InferTest, ElementWise) {
  EXPECT_EQ(One("Sigmoid", {"x"}), "float32[batch,seq,32]");
  EXPECT_EQ(One("Softmax", {"x"}, {{"axis", int64_t{-1}}}), "float32[batch,seq,32]");
  EXPECT_EQ(One("Add", {"x", "y"}), "float32[batch,seq,32]");
  EXPECT_EQ(One("Pow", {"x", "n"}), "float32[batch,seq,32]");
  EXPECT_EQ(One("Less", {"x", "y"}), "bool[batch,seq,32]");
  EXPECT_EQ(One("Not", {"flag"}), "bool[]");
  EXPECT_EQ(One("And", {"flag", "flag"}), "bool[]");
  EXPECT_EQ(One("Where", {"flag", "x", "y"}), "float32[batch,seq,32]");
  EXPECT_EQ(One("Max", {"x", "y", "x"}), "float32[batch,seq,32]");
  EXPECT_EQ(One("Cast", {"x"}, {{"to", int64_t{10}}}), "float16[batch,seq,32]");
  EXPECT_EQ(One("Cast", {"x"}, {{"to", int64_t{11}}}), "?[batch,seq,32]")
      << "float64 is not in Graph";
  EXPECT_TRUE(
      Says(One("Add", {"x", "h"}), "node Add \"n_out\": inputs 0 and 1 are float32 and float16"));
  EXPECT_TRUE(Says(One("Max", {"x", "h"}), "are float32 and float16"));
  EXPECT_TRUE(Says(One("Where", {"flag", "x", "h"}), "are float32 and float16"));
  EXPECT_TRUE(Says(One("Not", {"x"}), "input 0 is float32, not bool"));
  EXPECT_TRUE(Says(One("Add", {"m", "s"}), "shapes [4,6] and [2,3,4] do not fit together"));
}

TEST(InferTest, BroadcastingOfSymbols) {
  const auto add = [](std::vector<WriterDim> a, std::vector<WriterDim> b) {
    Inference i;
    i.m.Input("a", DType::kF32, a).Input("b", DType::kF32, b);
    return i.Node("Add", {"a", "b"}, {"out"}).Of("out");
  };
  EXPECT_EQ(add({"p", int64_t{1}}, {int64_t{1}, "q"}), "float32[p,q]");
  EXPECT_EQ(add({"p"}, {int64_t{5}}), "float32[5]");
  EXPECT_EQ(add({"p"}, {"q"}), "float32[?]");
  EXPECT_EQ(add({"p"}, {"p"}), "float32[p]");
  EXPECT_EQ(add({int64_t{1}}, {int64_t{0}}), "float32[0]");
  EXPECT_EQ(add({}, {"q", int64_t{3}}), "float32[q,3]");
}

TEST(InferTest, Reductions) {
  EXPECT_EQ(Inference().Ints("ax", {1}).Node("ReduceSum", {"x", "ax"}, {"out"}).Of("out"),
            "float32[batch,1,32]");
  EXPECT_EQ(Inference()
                .Ints("ax", {-1})
                .Node("ReduceSum", {"mask", "ax"}, {"out"}, {{"keepdims", int64_t{0}}})
                .Of("out"),
            "int64[batch]");
  EXPECT_EQ(One("ReduceMean", {"x"}, {{"axes", Ints{-1}}}), "float32[batch,seq,1]");
  EXPECT_EQ(One("ReduceMax", {"x"}, {{"keepdims", int64_t{0}}}), "float32[]");
  EXPECT_EQ(One("ReduceSum", {"x"}, {{"noop_with_empty_axes", int64_t{1}}}),
            "float32[batch,seq,32]");
  EXPECT_EQ(One("ReduceSum", {"x", "ids"}), "float32[...]") << "axes that are not constant";
  EXPECT_TRUE(
      Says(One("ReduceMax", {"m"}, {{"axes", Ints{2}}}), "axis 2 of a tensor with 2 dimensions"));
}

TEST(InferTest, MatrixProducts) {
  Inference i;
  i.m.Input("w", DType::kF32, {int64_t{32}, int64_t{7}}).Input("v", DType::kF32, {int64_t{32}});
  i.Node("MatMul", {"x", "w"}, {"xw"})
      .Node("MatMul", {"x", "v"}, {"xv"})
      .Node("MatMul", {"v", "w"}, {"vw"})
      .Node("MatMul", {"v", "v"}, {"vv"});
  EXPECT_EQ(i.Of("xw"), "float32[batch,seq,7]");
  EXPECT_EQ(i.Of("xv"), "float32[batch,seq]");
  EXPECT_EQ(i.Of("vw"), "float32[7]");
  EXPECT_EQ(i.Of("vv"), "float32[]");
  EXPECT_TRUE(Says(One("MatMul", {"x", "m"}), "the inner sizes 32 and 4 differ"));
  EXPECT_EQ(One("Gemm", {"m", "m"}, {{"transB", int64_t{1}}}), "float32[4,4]");
  EXPECT_EQ(One("Gemm", {"m", "m"}, {{"transA", int64_t{1}}}), "float32[6,6]");
  EXPECT_TRUE(Says(One("Gemm", {"m", "m"}), "the inner sizes 6 and 4 differ"));
  EXPECT_TRUE(Says(One("Gemm", {"m", "s"}), "not matrices"));
  Inference nbits;
  nbits.m.ConstantBytes("b", DType::kU8, {7, 1, 16}, std::string(112, 0))
      .ConstantBytes("sc", DType::kF32, {7, 1}, std::string(28, 0));
  const auto matmul = [&](int64_t k) {
    Inference copy = nbits;
    copy.Node("com.microsoft:MatMulNBits", {"x", "b", "sc"}, {"out"},
              {{"K", k}, {"N", int64_t{7}}, {"block_size", int64_t{32}}});
    return copy.Of("out");
  };
  EXPECT_EQ(matmul(32), "float32[batch,seq,7]");
  EXPECT_TRUE(Says(matmul(31), "the inner sizes 32 and 31 differ"));
  EXPECT_TRUE(Says(matmul(0), "K is 0 and N is 7; both must be positive"));
}

TEST(InferTest, NormsAndRotary) {
  Inference i;
  i.m.ConstantBytes("g", DType::kF32, {32}, std::string(128, 0))
      .ConstantBytes("cos", DType::kF32, {8, 4}, std::string(128, 0));
  i.Node("SimplifiedLayerNormalization", {"x", "g"}, {"a"})
      .Node("RMSNormalization", {"x", "g"}, {"b"});
  i.Node("com.microsoft:SkipSimplifiedLayerNormalization", {"x", "y", "g"}, {"c", "", "", "sum"});
  i.Node("com.microsoft:RotaryEmbedding", {"x", "ids", "cos", "cos"}, {"r"});
  i.Node("RotaryEmbedding", {"x", "cos", "cos", "ids"}, {"r23"});
  for (const char* name : {"a", "b", "c", "sum", "r", "r23"})
    EXPECT_EQ(i.Of(name), "float32[batch,seq,32]") << name;
}

TEST(InferTest, GroupQueryAttention) {
  const auto gqa = [](std::vector<std::string> in, int64_t heads, int64_t kv) {
    Inference i;
    i.m.Input("k", DType::kF32, {"batch", "seq", int64_t{16}})
        .Input("past", DType::kF16, {"batch", int64_t{2}, "past_len", int64_t{8}});
    i.m.Input("lens", DType::kI32, {"batch"})
        .Input("total_len", DType::kI32, {})
        .Input("qkv", DType::kF32, {"batch", "seq", int64_t{64}});
    i.Node("com.microsoft:GroupQueryAttention", in, {"out", "pk", "pv"},
           {{"num_heads", heads}, {"kv_num_heads", kv}});
    return i.Of("out") + " " + i.Of("pk");
  };
  EXPECT_EQ(gqa({"x", "k", "k", "past", "past", "lens", "total_len"}, 4, 2),
            "float32[batch,seq,32] float16[batch,2,?,8]");
  EXPECT_EQ(gqa({"qkv", "", "", "past", "past", "lens", "total_len"}, 4, 2),
            "float32[batch,seq,32] float16[batch,2,?,8]");
  EXPECT_EQ(gqa({"x", "k", "k", "", "", "lens", "total_len"}, 4, 2),
            "float32[batch,seq,32] ?[...]");
  EXPECT_TRUE(Says(gqa({"x", "k", "k", "past", "past", "lens", "total_len"}, 4, 3),
                   "num_heads is 4 and kv_num_heads is 3"));
  EXPECT_TRUE(Says(gqa({"qkv", "", "", "past", "past", "lens", "total_len"}, 5, 5),
                   "its packed query is 64 wide, no multiple of 15 heads"));
  EXPECT_TRUE(Says(gqa({"m", "k", "k", "past", "past", "lens", "total_len"}, 4, 2),
                   "its query is [4,6], not"));
  EXPECT_TRUE(Says(gqa({"x", "k", "k", "k", "k", "lens", "total_len"}, 4, 2),
                   "its past is [batch,seq,16], not"));
}

TEST(InferTest, Views) {
  const auto reshape = [](const std::string& from, std::initializer_list<int64_t> to) {
    return Inference().Ints("to", to).Node("Reshape", {from, "to"}, {"out"}).Of("out");
  };
  EXPECT_EQ(reshape("x", {0, 0, 4, 8}), "float32[batch,seq,4,8]");
  EXPECT_EQ(reshape("x", {0, -1, 4, 8}), "float32[batch,seq,4,8]");
  EXPECT_EQ(reshape("x", {0, -1, 4, 4}), "float32[batch,?,4,4]");
  EXPECT_EQ(reshape("x", {-1, 32}), "float32[?,32]");
  EXPECT_EQ(reshape("s", {-1, 6}), "float32[4,6]");
  EXPECT_EQ(reshape("m", {24}), "float32[24]");
  EXPECT_TRUE(Says(reshape("m", {5, -1}), "24 elements do not fit into [5,?]"));
  EXPECT_TRUE(Says(reshape("m", {25}), "24 elements do not fit into [25]"));
  EXPECT_TRUE(Says(reshape("m", {-1, -1}), "has -1 twice"));
  EXPECT_TRUE(Says(reshape("m", {-2}), "has the dimension -2"));
  EXPECT_TRUE(Says(reshape("m", {1, 1, 0}), "copies dimension 2 of [4,6]"));
  EXPECT_EQ(One("Transpose", {"x"}), "float32[32,seq,batch]");
  EXPECT_EQ(One("Transpose", {"x"}, {{"perm", Ints{1, 0, 2}}}), "float32[seq,batch,32]");
  EXPECT_TRUE(Says(One("Transpose", {"x"}, {{"perm", Ints{1, 1, 2}}}),
                   "perm [1,1,2] is no order of the 3 dimensions"));
  EXPECT_TRUE(Says(One("Transpose", {"x"}, {{"perm", Ints{0, 1}}}), "no order"));
  EXPECT_EQ(Inference().Ints("ax", {0, -1}).Node("Unsqueeze", {"m", "ax"}, {"out"}).Of("out"),
            "float32[1,4,6,1]");
  EXPECT_EQ(One("Unsqueeze", {"m"}, {{"axes", Ints{1}}}), "float32[4,1,6]");
  EXPECT_TRUE(Says(One("Unsqueeze", {"m"}, {{"axes", Ints{1, 1}}}), "axis 1 is given twice"));
  EXPECT_TRUE(Says(One("Unsqueeze", {"m"}, {{"axes", Ints(40, 1)}}), "would have 42 dimensions"));
  EXPECT_TRUE(Says(One("Squeeze", {"m"}, {{"axes", Ints{0}}}), "dimension 0 of [4,6] is not 1"));
  EXPECT_EQ(One("Squeeze", {"x"}, {{"axes", Ints{0}}}), "float32[seq,32]");
  EXPECT_EQ(One("Squeeze", {"m"}), "float32[4,6]");
  EXPECT_EQ(One("Squeeze", {"x"}), "float32[...]") << "batch may be 1";
  EXPECT_EQ(One("Flatten", {"s"}, {{"axis", int64_t{2}}}), "float32[6,4]");
  EXPECT_EQ(One("Flatten", {"x"}, {{"axis", int64_t{-1}}}), "float32[?,32]");
  EXPECT_TRUE(Says(One("Flatten", {"m"}, {{"axis", int64_t{3}}}), "axis 3"));
}

TEST(InferTest, JoinsAndCuts) {
  EXPECT_EQ(One("Concat", {"x", "y"}, {{"axis", int64_t{-1}}}), "float32[batch,seq,64]");
  EXPECT_EQ(One("Concat", {"x", "y"}, {{"axis", int64_t{1}}}), "float32[batch,?,32]");
  EXPECT_TRUE(
      Says(One("Concat", {"m", "s"}, {{"axis", int64_t{0}}}), "cannot be joined along axis 0"));
  EXPECT_TRUE(Says(One("Concat", {"x", "h"}, {{"axis", int64_t{0}}}),
                   "its inputs are float32 and float16"));
  Inference split;
  split.Node("Split", {"x"}, {"a", "b", "c"}, {{"axis", int64_t{2}}})
      .Ints("sizes", {20, 12})
      .Node("Split", {"x", "sizes"}, {"d", "e"}, {{"axis", int64_t{-1}}});
  EXPECT_EQ(split.Of("a"), "float32[batch,seq,11]");
  EXPECT_EQ(split.Of("c"), "float32[batch,seq,10]");
  EXPECT_EQ(split.Of("e"), "float32[batch,seq,12]");
  EXPECT_TRUE(Says(One("Split", {"m"}, {{"split", Ints{3, 1}}}), "2 sizes for 1 outputs"));
  EXPECT_TRUE(Says(One("Split", {"m"}, {{"split", Ints{3}}}), "its sizes [3] do not add up to 4"));
  EXPECT_TRUE(Says(One("Split", {"m"}, {{"split", Ints{-4}}}), "are no sizes"));
  const auto slice = [](const std::string& from, int64_t start, int64_t end, int64_t axis,
                        int64_t step) {
    return Inference()
        .Ints("st", {start})
        .Ints("en", {end})
        .Ints("ax", {axis})
        .Ints("sp", {step})
        .Node("Slice", {from, "st", "en", "ax", "sp"}, {"out"})
        .Of("out");
  };
  EXPECT_EQ(slice("m", 1, INT64_MAX, 1, 2), "float32[4,3]");
  EXPECT_EQ(slice("m", -1, INT64_MIN, 1, -1), "float32[4,6]");
  EXPECT_EQ(slice("m", INT64_MIN, -3, 1, 1), "float32[4,3]");
  EXPECT_EQ(slice("m", 5, 2, 1, 1), "float32[4,0]");
  EXPECT_EQ(slice("m", 5, 0, 1, INT64_MIN), "float32[4,1]");
  EXPECT_EQ(slice("x", 0, INT64_MAX, 1, 1), "float32[batch,seq,32]");
  EXPECT_EQ(slice("x", -1, INT64_MAX, 1, 1), "float32[batch,?,32]");
  EXPECT_TRUE(Says(slice("m", 0, 1, 1, 0), "its step is 0"));
  EXPECT_TRUE(Says(slice("m", 0, 1, 2, 1), "axis 2"));
  EXPECT_EQ(One("Slice", {"m"}, {{"starts", Ints{1}}, {"ends", Ints{3}}}), "float32[2,6]");
  EXPECT_TRUE(Says(One("Slice", {"m"}), "no starts or no ends"));
  EXPECT_TRUE(Says(One("Slice", {"m"}, {{"starts", Ints{1}}, {"ends", Ints{3, 4}}}),
                   "of different lengths"));
}

TEST(InferTest, Lookups) {
  Inference i;
  i.m.ConstantBytes("table", DType::kF32, {5, 32}, std::string(640, 0))
      .ConstantBytes("packed", DType::kU8, {5, 16}, std::string(80, 0));
  i.m.ConstantBytes("nibbles", DType::kU4, {5, 32}, std::string(80, 0))
      .ConstantBytes("scales", DType::kF16, {5, 1}, std::string(10, 0));
  i.Node("Gather", {"table", "ids"}, {"e"})
      .Node("Gather", {"m", "n"}, {"col"}, {{"axis", int64_t{1}}});
  i.Node("com.microsoft:GatherBlockQuantized", {"packed", "ids", "scales"}, {"q4"},
         {{"bits", int64_t{4}}, {"quantize_axis", int64_t{1}}});
  i.Node("com.microsoft:GatherBlockQuantized", {"packed", "ids", "scales"}, {"q8"},
         {{"bits", int64_t{8}}});
  i.Node("com.microsoft:GatherBlockQuantized", {"nibbles", "ids", "scales"}, {"q"});
  EXPECT_EQ(i.Of("e"), "float32[batch,seq,32]");
  EXPECT_EQ(i.Of("col"), "float32[4]");
  EXPECT_EQ(i.Of("q4"), "float16[batch,seq,32]");
  EXPECT_EQ(i.Of("q8"), "float16[batch,seq,16]");
  EXPECT_EQ(i.Of("q"), "float16[batch,seq,32]");
  EXPECT_TRUE(Says(One("Gather", {"n", "ids"}), "axis 0 of a tensor with 0 dimensions"));
  i.Node("com.microsoft:GatherBlockQuantized", {"packed", "ids", "scales"}, {"bad"},
         {{"bits", int64_t{3}}});
  EXPECT_TRUE(Says(i.Of("bad"), "bits is 3; 2, 4 or 8"));
}

TEST(InferTest, ShapeSubgraphsAreFollowed) {
  Inference i;
  i.Scalar("one", 1)
      .Ints("zero", {0})
      .Ints("ax0", {0})
      .Ints("heads", {4, 8})
      .Scalar("z", 0)
      .Scalar("neutral", 1);
  i.Node("Shape", {"x"}, {"shape"})
      .Node("Gather", {"shape", "one"}, {"S"})
      .Node("Unsqueeze", {"S", "ax0"}, {"S1"});
  i.Node("Slice", {"shape", "zero", "ax1", "ax0"}, {"B1"}).Ints("ax1", {1});
  i.Node("Concat", {"B1", "S1", "heads"}, {"to"}, {{"axis", int64_t{0}}})
      .Node("Reshape", {"x", "to"}, {"r"});
  i.Node("Cast", {"S"}, {"S32"}, {{"to", int64_t{6}}}).Node("Range", {"z", "S", "one"}, {"range"});
  i.Node("Mul", {"S", "neutral"}, {"S_times_1"})
      .Node("Sub", {"S_times_1", "z"}, {"same"})
      .Node("Range", {"z", "same", "one"}, {"range2"});
  i.Node("ConstantOfShape", {"shape"}, {"zeros"}).Node("Expand", {"m0", "shape"}, {"ex"});
  i.m.ConstantBytes("m0", DType::kF32, {1}, std::string(4, 0));
  i.Node("Shape", {"x"}, {"tail"}, {{"start", int64_t{-2}}})
      .Node("Squeeze", {"S1", "ax0"}, {"back"})
      .Node("Range", {"z", "back", "one"}, {"range3"});
  EXPECT_EQ(i.Of("shape"), "int64[3]");
  EXPECT_EQ(i.Of("S"), "int64[]");
  EXPECT_EQ(i.Of("r"), "float32[batch,seq,4,8]");
  EXPECT_EQ(i.Of("S32"), "int32[]");
  EXPECT_EQ(i.Of("range"), "int64[seq]");
  EXPECT_EQ(i.Of("range2"), "int64[seq]");
  EXPECT_EQ(i.Of("range3"), "int64[seq]");
  EXPECT_EQ(i.Of("zeros"), "float32[batch,seq,32]");
  EXPECT_EQ(i.Of("ex"), "float32[batch,seq,32]");
  EXPECT_EQ(i.Of("tail"), "int64[2]");
  EXPECT_TRUE(Says(Inference()
                       .Scalar("nine", 9)
                       .Node("Shape", {"x"}, {"sh"})
                       .Node("Gather", {"sh", "nine"}, {"o"})
                       .Of("o"),
                   "index 9 of 3 elements"));
}

TEST(InferTest, SymbolsOnBothSidesOfAReshapeCancelOnce) {
  const auto reshape = [](std::vector<WriterDim> from) {
    Inference i;
    i.m.Input("sq", DType::kF32, from);
    i.Ints("zero", {0}).Ints("one", {1}).Ints("open", {-1});
    i.Node("Shape", {"sq"}, {"shape"}).Node("Slice", {"shape", "zero", "one"}, {"first"});
    i.Node("Concat", {"first", "open"}, {"to"}, {{"axis", int64_t{0}}});
    return i.Node("Reshape", {"sq", "to"}, {"out"}).Of("out");
  };
  EXPECT_EQ(reshape({"n", "n"}), "float32[n,n]");
  EXPECT_EQ(reshape({"n", int64_t{4}, int64_t{3}}), "float32[n,12]");
  EXPECT_EQ(reshape({"n", "m", int64_t{3}}), "float32[n,?]");
  EXPECT_EQ(reshape({"n", "m", "n"}), "float32[n,?]");
}

TEST(InferTest, MadeTensors) {
  EXPECT_EQ(One("Constant", {}, {{"value_ints", Ints{1, 2}}}), "int64[2]");
  EXPECT_EQ(One("Constant", {}, {{"value_int", int64_t{1}}}), "int64[]");
  EXPECT_EQ(One("Constant", {}, {{"value_float", 1.0f}}), "float32[]");
  EXPECT_EQ(One("Constant", {}, {{"value_floats", std::vector<float>{1}}}), "float32[1]");
  EXPECT_EQ(
      One("Constant", {}, {{"value", TensorAttribute{DType::kF16, {2, 1}, std::string(4, 0)}}}),
      "float16[2,1]");
  EXPECT_EQ(One("Size", {"x"}), "int64[]");
  EXPECT_EQ(Inference()
                .Scalar("a", 3)
                .Scalar("b", 9)
                .Scalar("c", 1)
                .Node("Range", {"a", "b", "c"}, {"out"})
                .Of("out"),
            "int64[6]");
  EXPECT_TRUE(Says(Inference()
                       .Scalar("a", 3)
                       .Scalar("b", 9)
                       .Scalar("c", 0)
                       .Node("Range", {"a", "b", "c"}, {"out"})
                       .Of("out"),
                   "its step is 0"));
  EXPECT_EQ(Inference().Ints("r", {2, 1}).Node("Tile", {"m", "r"}, {"out"}).Of("out"),
            "float32[8,6]");
  EXPECT_TRUE(Says(Inference().Ints("r", {2}).Node("Tile", {"m", "r"}, {"out"}).Of("out"),
                   "1 repeats for 2 dimensions"));
  EXPECT_TRUE(Says(Inference().Ints("r", {5, 5}).Node("Expand", {"m", "r"}, {"out"}).Of("out"),
                   "[4,6] cannot be expanded to [5,5]"));
  EXPECT_EQ(Inference()
                .Ints("r", {2})
                .Node("ConstantOfShape", {"r"}, {"out"},
                      {{"value", TensorAttribute{DType::kI64, {1}, std::string(8, 0)}}})
                .Of("out"),
            "int64[2]");
}

TEST(InferTest, ContradictionsWithTheFile) {
  const auto out = [](DType dtype, std::vector<WriterDim> dims) {
    Inference i;
    i.m.Output("out", dtype, dims);
    return i.Node("Neg", {"x"}, {"out"}).Of("out");
  };
  EXPECT_EQ(out(DType::kF32, {"other", "names", "here"}), "float32[batch,seq,32]");
  EXPECT_EQ(out(DType::kF32, {int64_t{1}, "s", int64_t{32}}), "float32[1,seq,32]")
      << "a declared number is kept";
  EXPECT_TRUE(Says(out(DType::kF16, {"batch", "seq", int64_t{32}}),
                   "node Neg \"n_out\": its output \"out\" is declared as float16[batch,seq,32], "
                   "its inputs give float32[batch,seq,32]"));
  EXPECT_TRUE(Says(out(DType::kF32, {"batch", "seq", int64_t{31}}),
                   "declared as float32[batch,seq,31], its inputs give float32[batch,seq,32]"));
  EXPECT_TRUE(
      Says(out(DType::kF32, {"batch", "seq"}), "declared as float32[batch,seq], its inputs give"));
}

TEST(InferTest, UnknownOperatorsStayUnknown) {
  Inference i;
  i.Node("other:Neg", {"x"}, {"a"}).Node("Neg", {"a"}, {"b"}).Node("Reshape", {"x", "ids"}, {"c"});
  EXPECT_EQ(i.Of("a"), "?[...]");
  EXPECT_EQ(i.Of("b"), "?[...]");
  EXPECT_EQ(i.Of("c"), "float32[...]");
}

}  // namespace
}  // namespace granule::onnx
