#include "onnx/attribute_reader.h"

#include <array>
#include <optional>

#include "onnx/proto.h"
#include "onnx/tensor_reader.h"
#include "onnx/words.h"

namespace granule::onnx {
namespace {

namespace fields = proto::attribute;

struct Kind {
  uint32_t field;
  int64_t type;
  std::string_view name;
};
// In the order of the AttributeType values.
constexpr std::array<Kind, 14> kKinds = {
    {{fields::kF, fields::kTypeFloat, "FLOAT"},
     {fields::kI, fields::kTypeInt, "INT"},
     {fields::kS, fields::kTypeString, "STRING"},
     {fields::kT, fields::kTypeTensor, "TENSOR"},
     {fields::kG, fields::kTypeGraph, "GRAPH"},
     {fields::kFloats, fields::kTypeFloats, "FLOATS"},
     {fields::kInts, fields::kTypeInts, "INTS"},
     {fields::kStrings, fields::kTypeStrings, "STRINGS"},
     {fields::kTensors, fields::kTypeTensors, "TENSORS"},
     {fields::kGraphs, fields::kTypeGraphs, "GRAPHS"},
     {fields::kSparseTensor, fields::kTypeSparseTensor, "SPARSE_TENSOR"},
     {fields::kSparseTensors, fields::kTypeSparseTensors, "SPARSE_TENSORS"},
     {fields::kTp, fields::kTypeTypeProto, "TYPE_PROTO"},
     {fields::kTypeProtos, fields::kTypeTypeProtos, "TYPE_PROTOS"}}};

// Every value that the message holds; a well-formed one holds one.
struct Values {
  std::string_view name;
  std::string_view ref_attr_name;
  int64_t type = fields::kTypeUndefined;
  int64_t i = 0;
  float f = 0;
  std::string_view s;
  std::optional<Fields> t;
  std::vector<int64_t> ints;
  std::vector<float> floats;
  std::vector<std::string_view> strings;
  std::array<bool, kKinds.size()> present{};
};

void MarkPresent(Values& values, uint32_t field) {
  for (size_t k = 0; k < kKinds.size(); ++k) {
    if (kKinds[k].field == field) values.present[k] = true;
  }
}

Values ScanAttribute(Fields message) {
  Values values;
  while (message.Next()) {
    const uint32_t field = message.field();
    switch (message.key()) {
      case AsBytes(fields::kName):
        values.name = message.Bytes();
        break;
      case AsBytes(fields::kRefAttrName):
        values.ref_attr_name = message.Bytes();
        break;
      case AsVarint(fields::kType):
        values.type = message.Varint();
        break;
      case AsVarint(fields::kI):
        values.i = message.Varint();
        MarkPresent(values, field);
        break;
      case AsFixed32(fields::kF):
        values.f = message.Fixed32();
        MarkPresent(values, field);
        break;
      case AsBytes(fields::kS):
        values.s = message.Bytes();
        MarkPresent(values, field);
        break;
      case AsBytes(fields::kT):
        values.t = message.Message();
        MarkPresent(values, field);
        break;
      case AsVarint(fields::kInts):
      case AsBytes(fields::kInts):
        message.AppendInts(values.ints);
        MarkPresent(values, field);
        break;
      case AsFixed32(fields::kFloats):
      case AsBytes(fields::kFloats):
        message.AppendFloats(values.floats);
        MarkPresent(values, field);
        break;
      case AsBytes(fields::kStrings):
        values.strings.push_back(message.Bytes());
        MarkPresent(values, field);
        break;
      case AsBytes(fields::kG):
      case AsBytes(fields::kGraphs):
      case AsBytes(fields::kTensors):
      case AsBytes(fields::kSparseTensor):
      case AsBytes(fields::kSparseTensors):
      case AsBytes(fields::kTp):
      case AsBytes(fields::kTypeProtos):
        MarkPresent(values, field);
        message.Skip();
        break;
      default:
        message.Skip();
    }
  }
  return values;
}

// The declared type, or where a file of an early IR version declares none, the one value that is
// there.
Result<const Kind*> FindKind(const Values& values) {
  const Kind* declared = nullptr;
  const Kind* held = nullptr;
  for (size_t k = 0; k < kKinds.size(); ++k) {
    if (kKinds[k].type == values.type) declared = &kKinds[k];
    if (!values.present[k]) continue;
    if (held != nullptr) {
      return InvalidInput("attribute {} holds a value of type {} and one of type {}",
                          Quoted(values.name), held->name, kKinds[k].name);
    }
    held = &kKinds[k];
  }
  if (values.type == fields::kTypeUndefined) {
    if (held == nullptr) return InvalidInput("attribute {} has no value", Quoted(values.name));
    return held;
  }
  if (declared == nullptr)
    return InvalidInput("attribute {} has the unknown type {}", Quoted(values.name), values.type);
  // A value equal to its default (0, "") may be left out of the file.
  if (held != nullptr && held != declared) {
    return InvalidInput("attribute {} says that it is of type {} and holds a value of type {}",
                        Quoted(values.name), declared->name, held->name);
  }
  return declared;
}

}  // namespace

Result<ReadAttributeResult> ReadAttribute(Fields message, ExternalData& external, Model& model) {
  Values values = ScanAttribute(message);
  if (!values.ref_attr_name.empty()) {
    return InvalidInput(
        "attribute {} refers to the attribute {} of a function, outside of any function",
        Quoted(values.name), Quoted(values.ref_attr_name));
  }
  const Result<const Kind*> kind = FindKind(values);
  if (!kind.ok()) return kind.status();

  ReadAttributeResult result;
  result.attribute.name = values.name;
  auto& value = result.attribute.value;
  switch ((*kind)->type) {
    case fields::kTypeInt:
      value = values.i;
      break;
    case fields::kTypeFloat:
      value = values.f;
      break;
    case fields::kTypeString:
      value = values.s;
      break;
    case fields::kTypeInts:
      value = std::move(values.ints);
      break;
    case fields::kTypeFloats:
      value = std::move(values.floats);
      break;
    case fields::kTypeStrings:
      value = std::move(values.strings);
      break;
    case fields::kTypeTensor: {
      if (!values.t) return InvalidInput("attribute {} has no value", Quoted(values.name));
      const TensorHeader header = ScanTensor(*values.t);
      if (!proto::DTypeOf(header.data_type)) {
        result.unsupported_type = proto::DataTypeName(header.data_type);
        break;
      }
      Result<Tensor> tensor = DecodeTensor(header, *values.t, external, model);
      if (!tensor.ok()) return tensor.status().In("attribute " + Quoted(values.name));
      value = std::move(*tensor);
      break;
    }
    case fields::kTypeGraph:
    case fields::kTypeGraphs:
      result.is_subgraph = true;
      break;
    case fields::kTypeSparseTensor:
    case fields::kTypeSparseTensors:
      result.is_sparse = true;
      break;
    default:
      result.unsupported_type = std::string((*kind)->name);
  }
  return result;
}

}  // namespace granule::onnx
