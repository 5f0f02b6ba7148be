#include "onnx/reader.h"

#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "onnx/attribute_reader.h"
#include "onnx/checks.h"
#include "onnx/external_data.h"
#include "onnx/proto.h"
#include "onnx/tensor_reader.h"
#include "onnx/wire.h"
#include "onnx/words.h"

namespace granule::onnx {
namespace {

// "ai.onnx" is the long name of the default domain.
std::string_view Domain(std::string_view domain) {
  return domain == "ai.onnx" ? std::string_view() : domain;
}

// What a model has that Graph cannot say, gathered over the whole file so that one message names
// all of it.
struct Offenders {
  std::map<std::string, std::vector<std::string>> types;      // element type -> who has it
  std::vector<std::string> subgraphs;                         // nodes
  std::vector<std::string> sparse;                            // initializers, nodes
  std::map<std::string, std::vector<std::string>> functions;  // function -> nodes that call it

  Status ToStatus() const {
    std::vector<std::string> kinds;
    for (const auto& [type, who] : types)
      kinds.push_back(Format("the type {} ({}: {})", type, who.size(), Join(who)));
    if (!subgraphs.empty())
      kinds.push_back(Format("nodes with subgraphs ({}: {})", subgraphs.size(), Join(subgraphs)));
    if (!sparse.empty())
      kinds.push_back(Format("sparse tensors ({}: {})", sparse.size(), Join(sparse)));
    for (const auto& [name, who] : functions) {
      kinds.push_back(
          Format("the model-local function {} (used by {}: {})", name, who.size(), Join(who)));
    }
    if (kinds.empty()) return {};
    return InvalidInput("it uses what is not supported: {}", Join(kinds, kinds.size()));
  }
};

class ModelReader {
 public:
  ModelReader(std::string_view file, ExternalData& external) : file_(file), external_(external) {}

  // Throws WireError and protozero's exceptions.
  Status Read();
  Model& model() { return model_; }

 private:
  Status ReadGraph(Fields message);
  Status ReadNode(Fields message);
  Status ReadInitializer(Fields message);
  Status ReadSparseInitializer(Fields message);
  enum class Port { kInput, kOutput, kInner };
  Status ReadValueInfo(Fields message, Port port);
  Status ReadTensorType(Fields message, Port port, Value& declared);
  Status Declare(ValueId id, const Value& declared);
  void ReadFunction(Fields message);
  void FindFunctionCalls();

  ValueId Id(std::string_view name);
  Graph& graph() { return model_.graph; }
  Value& value(ValueId id) { return graph().values[static_cast<size_t>(id)]; }

  const std::string_view file_;
  ExternalData& external_;
  Model model_;
  Offenders offenders_;
  std::unordered_map<std::string_view, ValueId> ids_;
  std::set<std::pair<std::string_view, std::string_view>> functions_;  // domain, name
  std::set<ValueId> declared_inputs_, declared_outputs_;
};

ValueId ModelReader::Id(std::string_view name) {
  if (name.empty()) return kNone;
  const auto [at, is_new] = ids_.try_emplace(name, static_cast<ValueId>(graph().values.size()));
  if (is_new) graph().values.push_back(Value{.name = name, .dtype = {}, .shape = {}});
  return at->second;
}

Status ModelReader::Read() {
  Fields message(file_, file_);
  std::optional<Fields> graph_message;
  while (message.Next()) {
    switch (message.key()) {
      case AsVarint(proto::model::kIrVersion):
        model_.ir_version = message.Varint();
        break;
      case AsBytes(proto::model::kProducerName):
        model_.producer = message.Bytes();
        break;
      case AsBytes(proto::model::kOpsetImport): {
        OpsetImport import;
        for (Fields opset = message.Message(); opset.Next();) {
          if (opset.key() == AsBytes(proto::opset::kDomain)) {
            import.domain = Domain(opset.Bytes());
          } else if (opset.key() == AsVarint(proto::opset::kVersion)) {
            import.version = opset.Varint();
          } else {
            opset.Skip();
          }
        }
        model_.opsets.push_back(import);
        break;
      }
      case AsBytes(proto::model::kGraph):
        if (graph_message) throw WireError("is damaged: it holds two graphs");
        graph_message = message.Message();
        break;
      case AsBytes(proto::model::kFunctions):
        ReadFunction(message.Message());
        break;
      default:
        message.Skip();
    }
  }
  if (!graph_message) throw WireError("is not an ONNX model: there is no graph in it");
  if (Status s = ReadGraph(*graph_message); !s.ok()) return s;
  FindFunctionCalls();
  return offenders_.ToStatus();
}

Status ModelReader::ReadGraph(Fields message) {
  // Ports come after the initializers in most files, but need not: they are read last, so that an
  // initializer that is an input too (IR version 3 asks for it) is known as a constant.
  const Fields start = message;
  while (message.Next()) {
    Status s;
    switch (message.key()) {
      case AsBytes(proto::graph::kName):
        graph().name = message.Bytes();
        break;
      case AsBytes(proto::graph::kNode):
        s = ReadNode(message.Message());
        break;
      case AsBytes(proto::graph::kInitializer):
        s = ReadInitializer(message.Message());
        break;
      case AsBytes(proto::graph::kSparseInitializer):
        s = ReadSparseInitializer(message.Message());
        break;
      default:
        message.Skip();
    }
    if (!s.ok()) return s;
  }
  for (message = start; message.Next();) {
    Status s;
    switch (message.key()) {
      case AsBytes(proto::graph::kInput):
        s = ReadValueInfo(message.Message(), Port::kInput);
        break;
      case AsBytes(proto::graph::kOutput):
        s = ReadValueInfo(message.Message(), Port::kOutput);
        break;
      case AsBytes(proto::graph::kValueInfo):
        s = ReadValueInfo(message.Message(), Port::kInner);
        break;
      default:
        message.Skip();
    }
    if (!s.ok()) return s;
  }
  return {};
}

Status ModelReader::ReadNode(Fields message) {
  Node node;
  std::vector<Fields> attributes;
  while (message.Next()) {
    switch (message.key()) {
      case AsBytes(proto::node::kInput):
        node.inputs.push_back(Id(message.Bytes()));
        break;
      case AsBytes(proto::node::kOutput):
        node.outputs.push_back(Id(message.Bytes()));
        break;
      case AsBytes(proto::node::kName):
        node.name = message.Bytes();
        break;
      case AsBytes(proto::node::kOpType):
        node.op = message.Bytes();
        break;
      case AsBytes(proto::node::kDomain):
        node.domain = Domain(message.Bytes());
        break;
      case AsBytes(proto::node::kAttribute):
        attributes.push_back(message.Message());
        break;
      default:
        message.Skip();
    }
  }
  for (const Fields& attribute : attributes) {
    Result<ReadAttributeResult> read = ReadAttribute(attribute, external_, model_);
    if (!read.ok()) return read.status().In("node " + Describe(graph(), node));
    const std::string_view name = read->attribute.name;
    if (node.FindAttribute(name) != nullptr) {
      return InvalidInput("node {}: two attributes are called {}", Describe(graph(), node),
                          Quoted(name));
    }
    const auto who = [&] {
      return Format("node {}, attribute {}", Describe(graph(), node), Quoted(name));
    };
    if (read->is_subgraph) offenders_.subgraphs.push_back(who());
    if (read->is_sparse) offenders_.sparse.push_back(who());
    if (!read->unsupported_type.empty()) offenders_.types[read->unsupported_type].push_back(who());
    node.attributes.push_back(std::move(read->attribute));
  }
  graph().nodes.push_back(std::move(node));
  return {};
}

Status ModelReader::ReadInitializer(Fields message) {
  const TensorHeader header = ScanTensor(message);
  const std::string who = "tensor " + Quoted(header.name);
  if (header.name.empty()) return InvalidInput("an initializer has no name");
  if (!proto::DTypeOf(header.data_type)) {
    offenders_.types[proto::DataTypeName(header.data_type)].push_back(who);
    return {};
  }
  const ValueId id = Id(header.name);
  if (value(id).tensor >= 0)
    return InvalidInput("two initializers are called {}", Quoted(header.name));
  Result<Tensor> tensor = DecodeTensor(header, message, external_, model_);
  if (!tensor.ok()) return tensor.status().In(who);
  value(id).dtype = tensor->dtype;
  value(id).shape.emplace();
  for (int64_t dim : tensor->dims) value(id).shape->push_back(Dim{.size = dim, .symbol = {}});
  value(id).tensor = static_cast<int32_t>(graph().tensors.size());
  graph().tensors.push_back(std::move(*tensor));
  return {};
}

Status ModelReader::ReadSparseInitializer(Fields message) {
  std::string_view name;
  while (message.Next()) {
    if (message.key() == AsBytes(proto::sparse_tensor::kValues)) {
      name = ScanTensor(message.Message()).name;
    } else {
      message.Skip();
    }
  }
  offenders_.sparse.push_back("tensor " + Quoted(name));
  return {};
}

Status ModelReader::ReadValueInfo(Fields message, Port port) {
  Value declared;
  std::vector<Fields> tensor_types;
  std::string_view other_type;
  while (message.Next()) {
    if (message.key() == AsBytes(proto::value_info::kName)) {
      declared.name = message.Bytes();
    } else if (message.key() == AsBytes(proto::value_info::kType)) {
      for (Fields type = message.Message(); type.Next();) {
        if (type.key() == AsBytes(proto::type::kTensor)) {
          tensor_types.push_back(type.Message());
          continue;
        }
        if (type.field() == proto::type::kSequence) other_type = "sequence";
        if (type.field() == proto::type::kMap) other_type = "map";
        if (type.field() == proto::type::kOpaque) other_type = "opaque";
        if (type.field() == proto::type::kSparseTensor) other_type = "sparse_tensor";
        if (type.field() == proto::type::kOptional) other_type = "optional";
        type.Skip();
      }
    } else {
      message.Skip();
    }
  }
  const std::string_view what = port == Port::kInput    ? "input"
                                : port == Port::kOutput ? "output"
                                                        : "value";
  const std::string who = Format("{} {}", what, Quoted(declared.name));
  if (declared.name.empty()) return InvalidInput("a graph {} has no name", what);
  if (!other_type.empty()) {
    offenders_.types[std::string(other_type)].push_back(who);
    return {};
  }
  for (const Fields& type : tensor_types) {
    if (Status s = ReadTensorType(type, port, declared); !s.ok()) return s.In(who);
  }
  // What the file says about values that no node mentions is of no use (exporters leave such lines
  // behind).
  if (port == Port::kInner && !ids_.contains(declared.name)) return {};
  const ValueId id = Id(declared.name);
  if (port == Port::kInput) {
    if (!declared_inputs_.insert(id).second)
      return InvalidInput("two graph inputs are called {}", Quoted(declared.name));
    if (value(id).tensor < 0) graph().inputs.push_back(id);
    if (!declared.dtype && value(id).tensor < 0 && tensor_types.empty())
      return InvalidInput("{} has no type", who);
  }
  if (port == Port::kOutput) {
    if (!declared_outputs_.insert(id).second)
      return InvalidInput("two graph outputs are called {}", Quoted(declared.name));
    graph().outputs.push_back(id);
  }
  return Declare(id, declared).In(who);
}

Status ModelReader::ReadTensorType(Fields message, Port port, Value& declared) {
  while (message.Next()) {
    if (message.key() == AsVarint(proto::tensor_type::kElemType)) {
      const int64_t type = message.Varint();
      declared.dtype = proto::DTypeOf(type);
      // 0 is "not stated", which only an input has to.
      if (!declared.dtype && (type != 0 || port == Port::kInput)) {
        const std::string_view what = port == Port::kInput    ? "input"
                                      : port == Port::kOutput ? "output"
                                                              : "value";
        offenders_.types[proto::DataTypeName(type)].push_back(
            Format("{} {}", what, Quoted(declared.name)));
      }
      continue;
    }
    if (message.key() != AsBytes(proto::tensor_type::kShape)) {
      message.Skip();
      continue;
    }
    declared.shape.emplace();
    for (Fields shape = message.Message(); shape.Next();) {
      if (shape.key() != AsBytes(proto::shape::kDim)) {
        shape.Skip();
        continue;
      }
      Dim dim;
      for (Fields field = shape.Message(); field.Next();) {
        if (field.key() == AsVarint(proto::dim::kValue)) {
          dim.size = field.Varint();
          // Some exporters write -1 for a dimension that varies.
          if (dim.size < -1)
            return InvalidInput("dimension {} is {}", declared.shape->size(), dim.size);
        } else if (field.key() == AsBytes(proto::dim::kParam)) {
          dim.symbol = field.Bytes();
        } else {
          field.Skip();
        }
      }
      if (dim.known()) dim.symbol = {};
      declared.shape->push_back(dim);
      if (declared.shape->size() > kMaxRank)
        return InvalidInput("it has more than {} dimensions", kMaxRank);
    }
  }
  return {};
}

// Takes over what the file declares about a value; two declarations must agree on type, rank and
// numbers.
Status ModelReader::Declare(ValueId id, const Value& declared) {
  Value& known = value(id);
  if (known.dtype && declared.dtype && *known.dtype != *declared.dtype) {
    return InvalidInput("declared as {}, but it is {}", DTypeName(*declared.dtype),
                        DTypeName(*known.dtype));
  }
  if (!known.dtype) known.dtype = declared.dtype;
  if (!declared.shape) return {};
  if (!known.shape) {
    known.shape = declared.shape;
    return {};
  }
  bool agree = known.shape->size() == declared.shape->size();
  for (size_t i = 0; agree && i < declared.shape->size(); ++i) {
    Dim& dim = (*known.shape)[i];
    const Dim& stated = (*declared.shape)[i];
    if (dim.known() && stated.known() && dim.size != stated.size) agree = false;
    if (!dim.known() && (stated.known() || dim.symbol.empty())) dim = stated;
  }
  if (!agree)
    return InvalidInput("declared as {}, but it is {}", Describe(*declared.shape),
                        Describe(*known.shape));
  return {};
}

void ModelReader::ReadFunction(Fields message) {
  std::string_view domain, name;
  while (message.Next()) {
    if (message.key() == AsBytes(proto::function::kDomain)) {
      domain = Domain(message.Bytes());
    } else if (message.key() == AsBytes(proto::function::kName)) {
      name = message.Bytes();
    } else {
      message.Skip();
    }
  }
  functions_.emplace(domain, name);
}

void ModelReader::FindFunctionCalls() {
  if (functions_.empty()) return;
  for (const Node& node : graph().nodes) {
    if (!functions_.contains({node.domain, node.op})) continue;
    const std::string name =
        Quoted(node.domain.empty() ? std::string(node.op) : Format("{}.{}", node.domain, node.op));
    offenders_.functions[name].push_back(Describe(graph(), node));
  }
}

}  // namespace

Result<Model> ReadModel(const std::filesystem::path& path, const ReadOptions& options) {
  auto file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  return ReadModelFromBytes(*file, (*file)->bytes(), options);
}

Result<Model> ReadModelFromBytes(std::shared_ptr<MappedFile> file_or_null,
                                 std::span<const std::byte> bytes, const ReadOptions& options) {
  const std::string where = file_or_null ? file_or_null->path().string() : "the model";
  ExternalData external(file_or_null ? file_or_null->path() : std::filesystem::path(), options);
  ModelReader reader({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, external);
  Status status;
  std::string malformed;  // set: the bytes are no readable message, in words after the file's name
  try {
    status = reader.Read();
  } catch (const protozero::end_of_buffer_exception&) {
    malformed = "ends early: its last field is cut";
  } catch (const protozero::exception& error) {
    malformed = Format("is not an ONNX model, or is damaged ({})", error.what());
  } catch (const WireError& error) {
    malformed = error.what();
  }
  if (!malformed.empty()) {
    const std::string foreign = ExplainForeignBytes(bytes);
    return InvalidInput("{} {}", where, foreign.empty() ? malformed : foreign);
  }
  if (!status.ok()) return status.In(where);
  Model& model = reader.model();
  if (file_or_null) model.files.push_back(std::move(file_or_null));
  model.files.insert(model.files.end(), external.files().begin(), external.files().end());
  if (Status s = CheckAndSort(model); !s.ok()) return s.In(where);
  return std::move(model);
}

}  // namespace granule::onnx
