#include "package/synth_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "base/arith.h"
#include "base/file.h"
#include "onnx/checks.h"
#include "onnx/tensor_reader.h"
#include "onnx/words.h"

namespace granule::package {
namespace {

Status NoMemory(const char* what, int error) {
  return Error(Code::kExhausted, "no memory for the weights: {}: {}", what, std::strerror(error));
}

template <class T>
onnx::Attribute Plain(std::string_view name, const T& value) {
  return {.name = name, .value = value};
}

}  // namespace

MemoryModelWriter::MemoryModelWriter(int fd) : fd_(fd) {
  const Options defaults;
  model_.ir_version = defaults.ir_version;
  model_.producer = Keep(defaults.producer);
  model_.opsets = {{"", defaults.opset}, {"com.microsoft", defaults.ms_opset}};
  model_.graph.name = Keep(defaults.graph_name);
}

MemoryModelWriter::~MemoryModelWriter() { close(fd_); }

Result<std::unique_ptr<MemoryModelWriter>> MemoryModelWriter::Create() {
  const int fd = memfd_create("granule-synth", MFD_CLOEXEC);
  if (fd < 0) return NoMemory("memfd_create", errno);
  return std::unique_ptr<MemoryModelWriter>(new MemoryModelWriter(fd));
}

std::string_view MemoryModelWriter::Keep(std::string text) {
  return model_.owned.emplace_back(std::move(text));
}

onnx::ValueId MemoryModelWriter::Id(std::string name) {
  if (name.empty()) return onnx::kNone;
  const auto known = ids_.find(name);
  if (known != ids_.end()) return known->second;
  const auto id = static_cast<onnx::ValueId>(model_.graph.values.size());
  onnx::Value& value = model_.graph.values.emplace_back();
  value.name = Keep(std::move(name));
  ids_.emplace(value.name, id);
  return id;
}

onnx::Value& MemoryModelWriter::AddPort(std::string name, DType dtype,
                                        std::vector<onnx::WriterDim> dims,
                                        std::vector<onnx::ValueId>* ports) {
  ports->push_back(Id(std::move(name)));
  onnx::Value& value = model_.graph.values[static_cast<size_t>(ports->back())];
  value.dtype = dtype;
  value.shape.emplace();
  for (onnx::WriterDim& dim : dims) {
    onnx::Dim& added = value.shape->emplace_back();
    if (const int64_t* size = std::get_if<int64_t>(&dim)) {
      added.size = *size;
    } else {
      added.symbol = Keep(std::move(std::get<std::string>(dim)));
    }
  }
  return value;
}

void MemoryModelWriter::AddInput(std::string name, DType dtype, std::vector<onnx::WriterDim> dims) {
  AddPort(std::move(name), dtype, std::move(dims), &model_.graph.inputs);
}

void MemoryModelWriter::AddOutput(std::string name, DType dtype,
                                  std::vector<onnx::WriterDim> dims) {
  AddPort(std::move(name), dtype, std::move(dims), &model_.graph.outputs);
}

void MemoryModelWriter::AddNode(std::string op, std::string domain, std::string name,
                                std::vector<std::string> inputs, std::vector<std::string> outputs,
                                std::vector<onnx::NamedAttribute> attributes) {
  onnx::Node node;
  node.op = Keep(std::move(op));
  node.domain = Keep(std::move(domain));
  node.name = Keep(std::move(name));
  for (std::string& input : inputs) node.inputs.push_back(Id(std::move(input)));
  for (std::string& output : outputs) node.outputs.push_back(Id(std::move(output)));
  for (onnx::NamedAttribute& attribute : attributes) {
    const std::string_view key = Keep(std::move(attribute.name));
    // A decoder's graph has numbers and lists of numbers; texts and tensors are kept all the same.
    if (const auto* i = std::get_if<int64_t>(&attribute.value)) {
      node.attributes.push_back(Plain(key, *i));
    } else if (const auto* f = std::get_if<float>(&attribute.value)) {
      node.attributes.push_back(Plain(key, *f));
    } else if (const auto* ints = std::get_if<std::vector<int64_t>>(&attribute.value)) {
      node.attributes.push_back(Plain(key, *ints));
    } else if (const auto* floats = std::get_if<std::vector<float>>(&attribute.value)) {
      node.attributes.push_back(Plain(key, *floats));
    } else if (auto* text = std::get_if<std::string>(&attribute.value)) {
      node.attributes.push_back(Plain(key, Keep(std::move(*text))));
    } else if (auto* texts = std::get_if<std::vector<std::string>>(&attribute.value)) {
      std::vector<std::string_view> kept;
      for (std::string& each : *texts) kept.push_back(Keep(std::move(each)));
      node.attributes.push_back(Plain(key, kept));
    } else if (auto* tensor = std::get_if<onnx::TensorAttribute>(&attribute.value)) {
      const std::string_view bytes = Keep(std::move(tensor->bytes));
      node.attributes.push_back(
          Plain(key, onnx::Tensor{tensor->dtype, std::move(tensor->dims),
                                  std::as_bytes(std::span(bytes.data(), bytes.size()))}));
    }
  }
  model_.graph.nodes.push_back(std::move(node));
}

Status MemoryModelWriter::BeginTensor(std::string name, DType dtype, std::vector<int64_t> dims) {
  if (Status s = Flush(); !s.ok()) return s;
  const Result<uint64_t> need = onnx::CountBytes(dtype, dims);
  if (!need.ok()) return need.status().In("tensor " + onnx::Quoted(name));
  const uint64_t end = places_.empty() ? 0 : places_.back().offset + places_.back().bytes;
  const uint64_t unit = *need >= (64 << 10) ? 4096 : 64;
  places_.push_back({RoundUp(end, unit), *need});
  filled_bytes_ = 0;

  onnx::Value& value = model_.graph.values[static_cast<size_t>(Id(std::move(name)))];
  value.dtype = dtype;
  value.shape.emplace();
  for (const int64_t size : dims) value.shape->push_back({.size = size, .symbol = {}});
  value.tensor = static_cast<int32_t>(model_.graph.tensors.size());
  model_.graph.tensors.push_back({dtype, std::move(dims), {}});
  return {};
}

Status MemoryModelWriter::Append(std::span<const std::byte> bytes) {
  const uint64_t have = filled_bytes_ + buffer_.size();
  if (places_.empty() || bytes.size() > places_.back().bytes - have) {
    return Error(Code::kInternal, "{} bytes are more than the tensor takes", bytes.size());
  }
  constexpr size_t kBufferBytes = size_t{1} << 20;
  buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return buffer_.size() < kBufferBytes ? Status() : Flush();
}

Status MemoryModelWriter::Flush() {
  const char* data = buffer_.data();
  for (size_t left = buffer_.size(); left > 0;) {
    const auto offset = static_cast<off_t>(places_.back().offset + filled_bytes_);
    const ssize_t written = pwrite(fd_, data, left, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return NoMemory("pwrite", written < 0 ? errno : ENOSPC);
    data += written;
    left -= static_cast<size_t>(written);
    filled_bytes_ += static_cast<uint64_t>(written);
  }
  buffer_.clear();
  return {};
}

Status MemoryModelWriter::Finish() {
  if (Status s = Flush(); !s.ok()) return s;
  if (places_.empty()) return InvalidInput("the model has no weights");
  const uint64_t end = places_.back().offset + places_.back().bytes;
  if (ftruncate(fd_, static_cast<off_t>(end)) != 0) return NoMemory("ftruncate", errno);
  Result<std::shared_ptr<MappedFile>> file = MappedFile::Open(Format("/proc/self/fd/{}", fd_));
  if (!file.ok()) return file.status();
  const std::span<const std::byte> bytes = (*file)->bytes();
  for (size_t i = 0; i < places_.size(); ++i)
    model_.graph.tensors[i].bytes = bytes.subspan(places_[i].offset, places_[i].bytes);
  model_.files.push_back(std::move(*file));
  return onnx::CheckAndSort(model_);
}

}  // namespace granule::package
