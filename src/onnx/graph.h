// An ONNX model as plain data. Names and tensor bytes are views into the files that Model keeps
// mapped, or into `owned` storage; nothing is copied that need not be.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/status.h"

namespace granule::onnx {

// A value of the graph: index into Graph::values. kNone stands for an optional input or output that
// is left out.
using ValueId = int32_t;
inline constexpr ValueId kNone = -1;

// One dimension: a number, a symbol ("batch"), or neither.
struct Dim {
  int64_t size = -1;        // -1: not a known number
  std::string_view symbol;  // empty: none
  bool known() const { return size >= 0; }
};

// Constant tensor data. `dims` are >= 0 and the product of dims times the element size was checked
// against the bytes. Elements are little-endian, row-major, aligned for their type; 4-bit ones two
// to a byte, low half first.
struct Tensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;
  std::span<const std::byte> bytes;

  int64_t elements() const;
  template <class T>
  std::span<const T> As() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

struct Value {
  std::string_view name;
  std::optional<DType> dtype;  // known for inputs, outputs, initializers, and after inference
  std::optional<std::vector<Dim>> shape;  // likewise
  int32_t tensor = -1;                    // >= 0: a constant, index into Graph::tensors
};

struct Attribute {
  std::string_view name;
  std::variant<std::monostate, int64_t, float, std::string_view, std::vector<int64_t>,
               std::vector<float>, std::vector<std::string_view>, Tensor>
      value;
};

struct Node {
  std::string_view op;
  std::string_view domain;  // "" is ONNX's own ("ai.onnx" is read as "")
  std::string_view name;    // may be empty
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::vector<Attribute> attributes;

  const Attribute* FindAttribute(std::string_view name) const;
  // The attribute's value, or `fallback` where it is absent. A different type counts as absent: the
  // checks refused it before.
  int64_t Int(std::string_view name, int64_t fallback) const;
  float Float(std::string_view name, float fallback) const;
  std::string_view String(std::string_view name, std::string_view fallback) const;
  ValueId input(size_t i) const { return i < inputs.size() ? inputs[i] : kNone; }
  ValueId output(size_t i) const { return i < outputs.size() ? outputs[i] : kNone; }
};

struct OpsetImport {
  std::string_view domain;
  int64_t version = 0;
};

// After reading: nodes are in topological order (the reader sorts, and names a cycle), every value
// has at most one producer, every node input is a graph input, a constant, or an earlier node's
// output.
struct Graph {
  std::string_view name;
  std::vector<Value> values;
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;
  std::vector<ValueId> inputs;  // without initializers
  std::vector<ValueId> outputs;

  ValueId FindValue(std::string_view name) const;  // kNone when absent; linear, not for hot paths
  bool IsConstant(ValueId v) const { return v >= 0 && values[static_cast<size_t>(v)].tensor >= 0; }
  const Tensor* FindConstant(ValueId v) const;  // nullptr when v is not a constant (or kNone)
};

// Moves, but does not copy: a copy's views would point into the original's `owned`.
struct Model {
  Model() = default;
  Model(Model&&) = default;
  Model& operator=(Model&&) = default;

  int64_t ir_version = 0;
  std::string_view producer;
  std::vector<OpsetImport> opsets;
  Graph graph;

  // What the views point into.
  std::vector<std::shared_ptr<MappedFile>> files;  // [0] = the model file, then external data
  std::deque<std::string> owned;  // converted typed fields, folded constants, made-up names

  // Storage of n bytes, zeroed and aligned to 16, that lives as long as the model.
  std::span<std::byte> Own(size_t n);
};

}  // namespace granule::onnx
