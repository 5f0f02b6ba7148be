#include "onnx/graph.h"

namespace granule::onnx {

int64_t Tensor::elements() const {
  int64_t n = 1;
  for (int64_t dim : dims) n *= dim;
  return n;
}

const Attribute* Node::FindAttribute(std::string_view wanted) const {
  for (const Attribute& attribute : attributes) {
    if (attribute.name == wanted) return &attribute;
  }
  return nullptr;
}

int64_t Node::Int(std::string_view wanted, int64_t fallback) const {
  const Attribute* attribute = FindAttribute(wanted);
  const auto* value = attribute ? std::get_if<int64_t>(&attribute->value) : nullptr;
  return value ? *value : fallback;
}

float Node::Float(std::string_view wanted, float fallback) const {
  const Attribute* attribute = FindAttribute(wanted);
  const auto* value = attribute ? std::get_if<float>(&attribute->value) : nullptr;
  return value ? *value : fallback;
}

std::string_view Node::String(std::string_view wanted, std::string_view fallback) const {
  const Attribute* attribute = FindAttribute(wanted);
  const auto* value = attribute ? std::get_if<std::string_view>(&attribute->value) : nullptr;
  return value ? *value : fallback;
}

ValueId Graph::FindValue(std::string_view wanted) const {
  if (wanted.empty()) return kNone;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].name == wanted) return static_cast<ValueId>(i);
  }
  return kNone;
}

const Tensor* Graph::FindConstant(ValueId v) const {
  return IsConstant(v) ? &tensors[static_cast<size_t>(values[static_cast<size_t>(v)].tensor)]
                       : nullptr;
}

std::span<std::byte> Model::Own(size_t n) {
  std::string& storage = owned.emplace_back(n, '\0');
  return {reinterpret_cast<std::byte*>(storage.data()), n};
}

}  // namespace granule::onnx
