// Prints what the reader makes of an .onnx file as JSON, for reader_oracle_test.py.
//   onnx_dump_model MODEL.onnx [infer] [simplify] [write=OUT.onnx]...
// Exit code 0 and one JSON object on stdout, or 3 and the refusal on stderr. write=OUT.onnx writes
// the model as it is then through ModelWriter.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "onnx/checks.h"
#include "onnx/reader.h"
#include "onnx/writer.h"

namespace granule::onnx {
namespace {

using nlohmann::json;

std::string Text(std::string_view text) { return std::string(text); }

// FNV-1a: the few lines that the Python side needs too.
std::string Hash(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (std::byte b : bytes) hash = (hash ^ std::to_integer<uint64_t>(b)) * 0x100000001b3;
  return Format("{:016x}", hash);
}

json Names(const Graph& graph, const std::vector<ValueId>& ids) {
  json names = json::array();
  for (ValueId id : ids)
    names.push_back(id == kNone ? "" : Text(graph.values[static_cast<size_t>(id)].name));
  return names;
}

json TensorJson(const Tensor& tensor) {
  json out{
      {"type", DTypeName(tensor.dtype)}, {"dims", tensor.dims}, {"bytes", tensor.bytes.size()}};
  out["fnv"] = Hash(tensor.bytes);
  return out;
}

struct AttributeJson {
  json operator()(std::monostate) const { return nullptr; }
  json operator()(std::string_view text) const { return {{"string", Text(text)}}; }
  json operator()(const std::vector<std::string_view>& texts) const {
    json out = json::array();
    for (std::string_view text : texts) out.push_back(Text(text));
    return {{"strings", out}};
  }
  json operator()(const Tensor& tensor) const { return {{"tensor", TensorJson(tensor)}}; }
  json operator()(int64_t value) const { return {{"int", value}}; }
  json operator()(float value) const { return {{"float", value}}; }
  json operator()(const std::vector<int64_t>& values) const { return {{"ints", values}}; }
  json operator()(const std::vector<float>& values) const { return {{"floats", values}}; }
};

json ValueJson(const Value& value) {
  json out{{"name", Text(value.name)}};
  if (value.dtype) out["type"] = DTypeName(*value.dtype);
  if (!value.shape) return out;
  out["shape"] = json::array();
  for (const Dim& dim : *value.shape) {
    if (dim.known()) {
      out["shape"].push_back(dim.size);
    } else {
      out["shape"].push_back(dim.symbol.empty() ? json(nullptr) : json(Text(dim.symbol)));
    }
  }
  return out;
}

json ModelJson(const Model& model) {
  const Graph& graph = model.graph;
  json out{{"ir_version", model.ir_version},
           {"producer", Text(model.producer)},
           {"graph", Text(graph.name)}};
  out["inputs"] = Names(graph, graph.inputs);
  out["outputs"] = Names(graph, graph.outputs);
  out["nodes"] = json::array();
  out["values"] = json::array();
  out["tensors"] = json::object();
  for (const OpsetImport& import : model.opsets)
    out["opsets"][Text(import.domain)] = import.version;
  for (const Node& node : graph.nodes) {
    json attributes = json::object();
    for (const Attribute& attribute : node.attributes) {
      attributes[Text(attribute.name)] = std::visit(AttributeJson{}, attribute.value);
    }
    out["nodes"].push_back({{"op", Text(node.op)},
                            {"domain", Text(node.domain)},
                            {"name", Text(node.name)},
                            {"inputs", Names(graph, node.inputs)},
                            {"outputs", Names(graph, node.outputs)},
                            {"attributes", attributes}});
  }
  for (const Value& value : graph.values) {
    out["values"].push_back(ValueJson(value));
    if (value.tensor >= 0)
      out["tensors"][Text(value.name)] =
          TensorJson(graph.tensors[static_cast<size_t>(value.tensor)]);
  }
  return out;
}

std::vector<std::string> NameList(const Graph& graph, const std::vector<ValueId>& ids) {
  std::vector<std::string> names;
  for (ValueId id : ids)
    names.push_back(id == kNone ? "" : Text(graph.values[static_cast<size_t>(id)].name));
  return names;
}

std::vector<WriterDim> WriterDims(const Value& value) {
  std::vector<WriterDim> dims;
  for (const Dim& dim : value.shape.value_or(std::vector<Dim>())) {
    if (dim.known()) {
      dims.emplace_back(dim.size);
    } else {
      dims.emplace_back(dim.symbol.empty() ? "unknown_" + std::to_string(dims.size())
                                           : Text(dim.symbol));
    }
  }
  return dims;
}

struct AttributeForWriter {
  AttributeValue operator()(std::monostate) const { return int64_t{0}; }
  AttributeValue operator()(std::string_view text) const { return Text(text); }
  AttributeValue operator()(const std::vector<std::string_view>& texts) const {
    return std::vector<std::string>(texts.begin(), texts.end());
  }
  AttributeValue operator()(const Tensor& tensor) const {
    return TensorAttribute{
        tensor.dtype, tensor.dims,
        std::string(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size())};
  }
  template <class T>
  AttributeValue operator()(const T& value) const {
    return value;
  }
};

Status Write(const Model& model, const std::string& path) {
  const Graph& graph = model.graph;
  ModelWriter::Options options;
  options.ir_version = model.ir_version;
  for (const OpsetImport& import : model.opsets)
    (import.domain.empty() ? options.opset : options.ms_opset) = import.version;
  auto writer = ModelWriter::Create(path, options);
  if (!writer.ok()) return writer.status();
  for (ValueId id : graph.inputs) {
    const Value& value = graph.values[static_cast<size_t>(id)];
    (*writer)->AddInput(Text(value.name), *value.dtype, WriterDims(value));
  }
  for (ValueId id : graph.outputs) {
    const Value& value = graph.values[static_cast<size_t>(id)];
    (*writer)->AddOutput(Text(value.name), *value.dtype, WriterDims(value));
  }
  for (const Node& node : graph.nodes) {
    std::vector<NamedAttribute> attributes;
    for (const Attribute& a : node.attributes)
      attributes.push_back({Text(a.name), std::visit(AttributeForWriter{}, a.value)});
    (*writer)->AddNode(Text(node.op), Text(node.domain), Text(node.name),
                       NameList(graph, node.inputs), NameList(graph, node.outputs), attributes);
  }
  for (const Value& value : graph.values) {
    if (value.tensor < 0) continue;
    const Tensor& tensor = graph.tensors[static_cast<size_t>(value.tensor)];
    if (Status s = (*writer)->AddTensor(Text(value.name), tensor.dtype, tensor.dims, tensor.bytes);
        !s.ok())
      return s;
  }
  return (*writer)->Finish();
}

int Main(int argc, char** argv) {
  if (argc < 2) return 2;
  Result<Model> model = ReadModel(argv[1], {});
  Status status = model.status();
  for (int i = 2; i < argc && status.ok(); ++i) {
    const std::string_view pass = argv[i];
    if (pass == "infer") status = InferShapes(*model);
    if (pass == "simplify") status = Simplify(*model, {});
    if (pass.starts_with("write=")) status = Write(*model, Text(pass.substr(6)));
  }
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 3;
  }
  std::puts(ModelJson(*model).dump(-1, ' ', false, json::error_handler_t::replace).c_str());
  return 0;
}

}  // namespace
}  // namespace granule::onnx

int main(int argc, char** argv) { return granule::onnx::Main(argc, argv); }
