#include "engine/ort/ort_graph.h"

#include <algorithm>
#include <initializer_list>

#include "base/check.h"

namespace granule::engine {
namespace {

const OrtPort* FindPort(const std::vector<OrtPort>& ports, std::string_view name) {
  const auto it = std::find_if(ports.begin(), ports.end(),
                               [&](const OrtPort& port) { return port.name == name; });
  return it == ports.end() ? nullptr : &*it;
}

// Takes all of the statuses; the first failure counts.
Status TakeAll(const OrtLibrary& library, std::initializer_list<OrtStatus*> statuses,
               std::string_view what) {
  Status first;
  for (OrtStatus* status : statuses) {
    if (Status s = library.Take(status, what); !s.ok() && first.ok()) first = s;
  }
  return first;
}

// Element type and dimensions of a tensor description.
Status ReadInfo(const OrtLibrary& library, const OrtTensorInfo* info, OrtElementType* type,
                std::vector<int64_t>* dims) {
  constexpr std::string_view kWhat = "reading a tensor's shape";
  const OrtCalls& calls = library.calls();
  size_t rank = 0;
  if (Status s = library.Take(calls.element_type(info, type), kWhat); !s.ok()) return s;
  if (Status s = library.Take(calls.rank(info, &rank), kWhat); !s.ok()) return s;
  dims->resize(rank);
  return library.Take(calls.dims(info, dims->data(), rank), kWhat);
}

// One port by the calls for inputs or those for outputs.
Status ReadPort(const OrtLibrary& library, const OrtSession* session, size_t index,
                decltype(OrtCalls::input_name) name_of, decltype(OrtCalls::input_type) type_of,
                OrtPort* port) {
  constexpr std::string_view kWhat = "reading the model's inputs and outputs";
  const OrtCalls& calls = library.calls();
  OrtAllocator* allocator = nullptr;
  if (Status s = library.Take(calls.default_allocator(&allocator), kWhat); !s.ok()) return s;
  char* name = nullptr;
  if (Status s = library.Take(name_of(session, index, allocator, &name), kWhat); !s.ok()) return s;
  port->name = name;
  if (Status s = library.Take(calls.allocator_free(allocator, name), kWhat); !s.ok()) return s;

  OrtTypeInfo* type = nullptr;
  if (Status s = library.Take(type_of(session, index, &type), kWhat); !s.ok()) return s;
  const std::unique_ptr<OrtTypeInfo, decltype(calls.release_type_info)> owned(
      type, calls.release_type_info);
  const OrtTensorInfo* info = nullptr;
  if (Status s = library.Take(calls.type_to_tensor(type, &info), kWhat); !s.ok()) return s;
  return info == nullptr ? Status() : ReadInfo(library, info, &port->type, &port->dims);
}

}  // namespace

OrtElementType OrtTypeOf(DType type) {
  switch (type) {
    case DType::kF32:
      return OrtElementType::kFloat;
    case DType::kF16:
      return OrtElementType::kFloat16;
    case DType::kBF16:
      return OrtElementType::kBFloat16;
    case DType::kI8:
      return OrtElementType::kInt8;
    case DType::kU8:
      return OrtElementType::kUint8;
    case DType::kI32:
      return OrtElementType::kInt32;
    case DType::kI64:
      return OrtElementType::kInt64;
    case DType::kBool:
      return OrtElementType::kBool;
    case DType::kI4:
    case DType::kU4:
      break;  // not a type of graph inputs or outputs here
  }
  return OrtElementType::kUndefined;
}

Result<std::unique_ptr<OrtGraph>> OrtGraph::Load(std::shared_ptr<const OrtLibrary> library,
                                                 const std::filesystem::path& path, int threads) {
  std::unique_ptr<OrtGraph> graph(new OrtGraph(std::move(library)));
  if (Status s = graph->Open(path, threads); !s.ok()) return s.In(path.native());
  if (Status s = graph->ReadPorts(); !s.ok()) return s.In(path.native());
  return graph;
}

Status OrtGraph::Open(const std::filesystem::path& path, int threads) {
  const OrtCalls& calls = library_->calls();
  OrtSessionOptions* options = nullptr;
  if (Status s = library_->Take(calls.create_session_options(&options), "making options");
      !s.ok()) {
    return s;
  }
  const std::unique_ptr<OrtSessionOptions, decltype(calls.release_session_options)> owned(
      options, calls.release_session_options);
  // Every step has a new total length, so a memory pattern kept per shape would only pile up.
  // Waiting threads sleep: between steps the threads of granule's own pool and of other programs
  // want the cores.
  if (Status s = TakeAll(
          *library_,
          {calls.set_intra_op_threads(options, threads), calls.set_inter_op_threads(options, 1),
           calls.set_optimization(options, OrtOptimization::kAll),
           calls.disable_mem_pattern(options),
           calls.add_config_entry(options, "session.intra_op.allow_spinning", "0")},
          "setting options");
      !s.ok()) {
    return s;
  }
  if (Status s = library_->Take(
          calls.create_session(library_->env(), path.c_str(), options, &session_), "loading");
      !s.ok()) {
    return s;
  }
  return library_->Take(
      calls.create_cpu_memory_info(OrtAllocatorType::kDevice, OrtMemoryType::kDefault, &memory_),
      "describing host memory");
}

Status OrtGraph::ReadPorts() {
  const OrtCalls& calls = library_->calls();
  size_t inputs = 0;
  size_t outputs = 0;
  if (Status s = TakeAll(
          *library_, {calls.input_count(session_, &inputs), calls.output_count(session_, &outputs)},
          "counting the model's inputs and outputs");
      !s.ok()) {
    return s;
  }
  inputs_.resize(inputs);
  outputs_.resize(outputs);
  for (size_t i = 0; i < inputs; ++i) {
    if (Status s =
            ReadPort(*library_, session_, i, calls.input_name, calls.input_type, &inputs_[i]);
        !s.ok()) {
      return s;
    }
  }
  for (size_t i = 0; i < outputs; ++i) {
    if (Status s =
            ReadPort(*library_, session_, i, calls.output_name, calls.output_type, &outputs_[i]);
        !s.ok()) {
      return s;
    }
  }
  return {};
}

OrtGraph::~OrtGraph() {
  const OrtCalls& calls = library_->calls();
  if (session_ != nullptr) calls.release_session(session_);
  if (memory_ != nullptr) calls.release_memory_info(memory_);
}

const OrtPort* OrtGraph::FindInput(std::string_view name) const { return FindPort(inputs_, name); }
const OrtPort* OrtGraph::FindOutput(std::string_view name) const {
  return FindPort(outputs_, name);
}

Result<OrtTensor> OrtGraph::Wrap(void* data, size_t bytes, std::span<const int64_t> dims,
                                 OrtElementType type) const {
  const OrtCalls& calls = library_->calls();
  OrtValue* value = nullptr;
  if (Status s = library_->Take(
          calls.create_tensor_over(memory_, data, bytes, dims.data(), dims.size(), type, &value),
          "binding a tensor");
      !s.ok()) {
    return s;
  }
  return OrtTensor(calls, value);
}

Result<OrtContents> OrtGraph::Read(const OrtTensor& tensor) const {
  const OrtCalls& calls = library_->calls();
  OrtContents contents;
  OrtTensorInfo* info = nullptr;
  if (Status s = library_->Take(calls.value_tensor_info(tensor.get(), &info), "reading an output");
      !s.ok()) {
    return s;
  }
  const std::unique_ptr<OrtTensorInfo, decltype(calls.release_tensor_info)> owned(
      info, calls.release_tensor_info);
  if (Status s = ReadInfo(*library_, info, &contents.type, &contents.dims); !s.ok()) return s;
  void* data = nullptr;
  if (Status s = library_->Take(calls.tensor_data(tensor.get(), &data), "reading an output");
      !s.ok()) {
    return s;
  }
  contents.data = data;
  return contents;
}

Status OrtGraph::Run(std::span<const Feed> inputs, std::span<Feed> outputs,
                     std::span<const Alias> aliases) const {
  std::vector<const char*> input_names, output_names;
  std::vector<const OrtValue*> input_values;
  std::vector<OrtValue*> output_values;
  for (const Feed& feed : inputs) {
    input_names.push_back(feed.name);
    input_values.push_back(feed.tensor.get());
  }
  for (const Feed& feed : outputs) {
    output_names.push_back(feed.name);
    output_values.push_back(feed.tensor.get());
  }
  std::vector<bool> ours(outputs.size());
  for (const Alias& alias : aliases) {
    GRANULE_CHECK(outputs[alias.output].tensor.get() == nullptr);
    output_values[alias.output] = inputs[alias.input].tensor.get();
    ours[alias.output] = true;
  }
  const OrtCalls& calls = library_->calls();
  Status status =
      library_->Take(calls.run(session_, /*options=*/nullptr, input_names.data(),
                               input_values.data(), input_values.size(), output_names.data(),
                               output_values.size(), output_values.data()),
                     "running the model");
  for (size_t i = 0; i < outputs.size(); ++i) {
    // After an error the library has released what it allocated.
    if (!status.ok() || ours[i] || outputs[i].tensor.get() != nullptr) continue;
    outputs[i].tensor = OrtTensor(calls, output_values[i]);
  }
  return status;
}

}  // namespace granule::engine
