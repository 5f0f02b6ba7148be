#include "onnx/serialize.h"

#include <protozero/pbf_writer.hpp>
#include <protozero/varint.hpp>

#include "onnx/proto.h"
#include "onnx/wire.h"
#include "onnx/words.h"

namespace granule::onnx {
namespace {

using protozero::pbf_writer;

void WriteValueInfo(pbf_writer& info, const std::string& name, DType dtype,
                    const std::vector<WriterDim>& dims) {
  info.add_string(proto::value_info::kName, name);
  // Made apart: a nested pbf_writer leaves an empty message out, and a scalar's empty shape is not
  // "no shape".
  std::string shape_bytes;
  pbf_writer shape(shape_bytes);
  for (const WriterDim& dim : dims) {
    pbf_writer message(shape, proto::shape::kDim);
    if (const auto* size = std::get_if<int64_t>(&dim)) {
      message.add_int64(proto::dim::kValue, *size);
    } else {
      message.add_string(proto::dim::kParam, std::get<std::string>(dim));
    }
  }
  pbf_writer type(info, proto::value_info::kType);
  pbf_writer tensor(type, proto::type::kTensor);
  tensor.add_int32(proto::tensor_type::kElemType, proto::DataTypeOf(dtype));
  tensor.add_message(proto::tensor_type::kShape, shape_bytes);
}

void WriteTensorHead(pbf_writer& tensor, const std::string& name, DType dtype,
                     const std::vector<int64_t>& dims) {
  for (int64_t dim : dims) tensor.add_int64(proto::tensor::kDims, dim);
  tensor.add_int32(proto::tensor::kDataType, proto::DataTypeOf(dtype));
  if (!name.empty()) tensor.add_string(proto::tensor::kName, name);
}

void WriteEntry(pbf_writer& tensor, const std::string& key, const std::string& value) {
  pbf_writer entry(tensor, proto::tensor::kExternalData);
  entry.add_string(proto::string_entry::kKey, key);
  entry.add_string(proto::string_entry::kValue, value);
}

// Writes the value and returns its AttributeType.
struct AttributeVisitor {
  pbf_writer& to;

  int64_t operator()(int64_t value) const {
    to.add_int64(proto::attribute::kI, value);
    return proto::attribute::kTypeInt;
  }
  int64_t operator()(float value) const {
    to.add_float(proto::attribute::kF, value);
    return proto::attribute::kTypeFloat;
  }
  int64_t operator()(const std::string& value) const {
    to.add_bytes(proto::attribute::kS, value);
    return proto::attribute::kTypeString;
  }
  int64_t operator()(const std::vector<int64_t>& values) const {
    for (int64_t value : values) to.add_int64(proto::attribute::kInts, value);
    return proto::attribute::kTypeInts;
  }
  int64_t operator()(const std::vector<float>& values) const {
    for (float value : values) to.add_float(proto::attribute::kFloats, value);
    return proto::attribute::kTypeFloats;
  }
  int64_t operator()(const std::vector<std::string>& values) const {
    for (const std::string& value : values) to.add_bytes(proto::attribute::kStrings, value);
    return proto::attribute::kTypeStrings;
  }
  int64_t operator()(const TensorAttribute& value) const {
    pbf_writer tensor(to, proto::attribute::kT);
    WriteTensorHead(tensor, "", value.dtype, value.dims);
    tensor.add_bytes(proto::tensor::kRawData, value.bytes);
    return proto::attribute::kTypeTensor;
  }
};

}  // namespace

void ModelStructure::Claim(std::set<std::string>& names, const std::string& name,
                           std::string_view what) {
  if (!first_error_.ok()) return;
  if (name.empty()) first_error_ = InvalidInput("a {} has no name", what);
  if (!names.insert(name).second)
    first_error_ = InvalidInput("the {} {} is written twice", what, Quoted(name));
}

void ModelStructure::AddInput(const std::string& name, DType dtype,
                              const std::vector<WriterDim>& dims) {
  Claim(made_names_, name, "graph input");
  pbf_writer graph(inputs_);
  pbf_writer info(graph, proto::graph::kInput);
  WriteValueInfo(info, name, dtype, dims);
}

void ModelStructure::AddOutput(const std::string& name, DType dtype,
                               const std::vector<WriterDim>& dims) {
  Claim(output_names_, name, "graph output");
  pbf_writer graph(outputs_);
  pbf_writer info(graph, proto::graph::kOutput);
  WriteValueInfo(info, name, dtype, dims);
}

void ModelStructure::AddNode(const std::string& op, const std::string& domain,
                             const std::string& name, const std::vector<std::string>& inputs,
                             const std::vector<std::string>& outputs,
                             const std::vector<NamedAttribute>& attributes) {
  pbf_writer graph(nodes_);
  pbf_writer node(graph, proto::graph::kNode);
  for (const std::string& input : inputs) node.add_string(proto::node::kInput, input);
  for (const std::string& output : outputs) {
    if (!output.empty()) Claim(made_names_, output, "value");
    node.add_string(proto::node::kOutput, output);
  }
  if (!name.empty()) node.add_string(proto::node::kName, name);
  node.add_string(proto::node::kOpType, op);
  for (const NamedAttribute& attribute : attributes) {
    pbf_writer message(node, proto::node::kAttribute);
    message.add_string(proto::attribute::kName, attribute.name);
    const int64_t type = std::visit(AttributeVisitor{message}, attribute.value);
    message.add_int64(proto::attribute::kType, type);
  }
  if (!domain.empty()) node.add_string(proto::node::kDomain, domain);
}

void ModelStructure::AddInlineTensor(const std::string& name, DType dtype,
                                     const std::vector<int64_t>& dims, std::string_view bytes) {
  Claim(made_names_, name, "tensor");
  if (bytes.size() > Fields::kMaxFieldBytes - (1 << 20)) {
    if (first_error_.ok())
      first_error_ =
          InvalidInput("the tensor {} is too large to lie inside of the .onnx file", Quoted(name));
    return;
  }
  pbf_writer graph(tensors_);
  pbf_writer tensor(graph, proto::graph::kInitializer);
  WriteTensorHead(tensor, name, dtype, dims);
  tensor.add_bytes(proto::tensor::kRawData, bytes.data(), bytes.size());
}

void ModelStructure::AddExternalTensor(const std::string& name, DType dtype,
                                       const std::vector<int64_t>& dims,
                                       const std::string& location, uint64_t offset,
                                       uint64_t length) {
  Claim(made_names_, name, "tensor");
  pbf_writer graph(tensors_);
  pbf_writer tensor(graph, proto::graph::kInitializer);
  WriteTensorHead(tensor, name, dtype, dims);
  WriteEntry(tensor, "location", location);
  WriteEntry(tensor, "offset", std::to_string(offset));
  WriteEntry(tensor, "length", std::to_string(length));
  tensor.add_int64(proto::tensor::kDataLocation, proto::tensor::kLocationExternal);
}

Status ModelStructure::Write(const ModelWriter::Options& options,
                             const std::function<Status(std::string_view)>& write) const {
  if (!first_error_.ok()) return first_error_;
  std::string head;
  pbf_writer model(head);
  model.add_int64(proto::model::kIrVersion, options.ir_version);
  model.add_string(proto::model::kProducerName, options.producer);
  const auto import = [&](const char* domain, int64_t version) {
    pbf_writer opset(model, proto::model::kOpsetImport);
    opset.add_string(proto::opset::kDomain, domain);
    opset.add_int64(proto::opset::kVersion, version);
  };
  import("", options.opset);
  if (options.ms_opset > 0) import("com.microsoft", options.ms_opset);

  std::string name;
  pbf_writer(name).add_string(proto::graph::kName, options.graph_name);
  const std::string* parts[] = {&nodes_, &name, &tensors_, &inputs_, &outputs_};
  uint64_t graph_bytes = 0;
  for (const std::string* part : parts) graph_bytes += part->size();
  if (graph_bytes + head.size() + 16 >= Fields::kMaxFieldBytes) {
    return InvalidInput(
        "the structure of the model needs {} bytes, more than an .onnx file can have (2 GiB)",
        graph_bytes);
  }
  protozero::add_varint_to_buffer(&head, AsBytes(proto::model::kGraph));
  protozero::add_varint_to_buffer(&head, graph_bytes);
  if (Status s = write(head); !s.ok()) return s;
  for (const std::string* part : parts) {
    if (Status s = write(*part); !s.ok()) return s;
  }
  return {};
}

}  // namespace granule::onnx
