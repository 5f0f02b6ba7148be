// Builds small models in memory for tests: of this layer and of those above it. Only *_test.cc
// files include it.
//
//   TestModel m;
//   m.Input("x", DType::kF32, {"batch", 4});
//   m.Constant<float>("w", DType::kF32, {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
//   m.Node("MatMul", {"x", "w"}, {"y"});
//   m.Output("y", DType::kF32, {"batch", 2});
//   Model model = m.Read();
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnx/reader.h"
#include "onnx/serialize.h"

namespace granule::onnx {

// For EXPECT_TRUE: does a message contain these words?
inline testing::AssertionResult Says(const std::string& message, const std::string& words) {
  if (message.find(words) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "expected \"" << words << "\" in:\n  \"" << message << "\"";
}

class TestModel {
 public:
  ModelWriter::Options options;

  TestModel& Input(const std::string& name, DType dtype, const std::vector<WriterDim>& dims) {
    structure_.AddInput(name, dtype, dims);
    return *this;
  }
  TestModel& Output(const std::string& name, DType dtype, const std::vector<WriterDim>& dims) {
    structure_.AddOutput(name, dtype, dims);
    return *this;
  }
  // `name` "op" or "domain:op". The node is called after its first output.
  TestModel& Node(const std::string& name, const std::vector<std::string>& inputs,
                  const std::vector<std::string>& outputs,
                  const std::vector<NamedAttribute>& attributes = {}) {
    const size_t colon = name.find(':');
    const std::string domain = colon == std::string::npos ? "" : name.substr(0, colon);
    const std::string op = colon == std::string::npos ? name : name.substr(colon + 1);
    structure_.AddNode(op, domain, outputs.empty() ? "" : "n_" + outputs.front(), inputs, outputs,
                       attributes);
    return *this;
  }
  template <class T>
  TestModel& Constant(const std::string& name, DType dtype, const std::vector<int64_t>& dims,
                      std::initializer_list<T> values) {
    const std::vector<T> list(values);
    return ConstantBytes(name, dtype, dims,
                         {reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T)});
  }
  TestModel& ConstantBytes(const std::string& name, DType dtype, const std::vector<int64_t>& dims,
                           std::string_view bytes) {
    structure_.AddInlineTensor(name, dtype, dims, bytes);
    return *this;
  }

  // The .onnx file as a string.
  std::string Bytes() const {
    std::string bytes;
    const Status written = structure_.Write(options, [&](std::string_view piece) {
      bytes += piece;
      return Status();
    });
    GRANULE_CHECK(written.ok());
    return bytes;
  }

  // What the reader says about it. The model keeps the bytes alive.
  Result<Model> TryRead() const {
    std::string bytes = Bytes();
    auto model = ReadModelFromBytes(nullptr, std::as_bytes(std::span(bytes)), {});
    if (model.ok()) KeepAlive(*model, std::move(bytes));
    return model;
  }
  Model Read() const {
    auto model = TryRead();
    if (!model.ok()) CheckFailed(__FILE__, __LINE__, model.status().message().c_str());
    return std::move(*model);
  }

 private:
  // Views point into the characters, which a move of a long string does not move.
  static void KeepAlive(Model& model, std::string bytes) {
    GRANULE_CHECK(bytes.size() > 32);
    model.owned.push_back(std::move(bytes));
  }

  ModelStructure structure_;
};

}  // namespace granule::onnx
