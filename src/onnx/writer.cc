#include "onnx/writer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/arith.h"
#include "base/file.h"
#include "onnx/serialize.h"
#include "onnx/tensor_reader.h"
#include "onnx/words.h"

namespace granule::onnx {
namespace {

namespace fs = std::filesystem;

class StreamingWriter final : public ModelWriter {
 public:
  StreamingWriter(fs::path path, Options options, AtomicFile model)
      : path_(std::move(path)), options_(std::move(options)), model_(std::move(model)) {
    data_path_ = path_;
    data_path_ += ".data";
  }

  void AddInput(std::string name, DType dtype, std::vector<WriterDim> dims) override {
    structure_.AddInput(name, dtype, dims);
  }
  void AddOutput(std::string name, DType dtype, std::vector<WriterDim> dims) override {
    structure_.AddOutput(name, dtype, dims);
  }
  void AddNode(std::string op, std::string domain, std::string name,
               std::vector<std::string> inputs, std::vector<std::string> outputs,
               std::vector<NamedAttribute> attributes) override {
    structure_.AddNode(op, domain, name, inputs, outputs, attributes);
  }

  Status BeginTensor(std::string name, DType dtype, std::vector<int64_t> dims) override;
  Status Append(std::span<const std::byte> bytes) override;
  Status Finish() override;

 private:
  // The tensor between BeginTensor and the end of its bytes.
  struct Current {
    std::string name;
    DType dtype;
    std::vector<int64_t> dims;
    uint64_t need_bytes = 0;
    uint64_t have_bytes = 0;
    bool external = false;
    uint64_t offset = 0;
    std::string inside;  // its bytes, unless external
  };

  Status EndTensor();
  Status OpenData();
  Status WriteData(std::string_view bytes);
  Status FlushData();

  const fs::path path_;
  fs::path data_path_;
  const Options options_;
  AtomicFile model_;
  std::optional<AtomicFile> data_;
  std::string buffer_;       // importers append a row at a time; the disk sees megabytes
  uint64_t data_bytes_ = 0;  // including what is buffered
  ModelStructure structure_;
  std::optional<Current> current_;
  bool finished_ = false;
};

Status StreamingWriter::OpenData() {
  if (data_) return {};
  Result<AtomicFile> file = AtomicFile::Create(data_path_);
  if (!file.ok()) return file.status();
  data_.emplace(std::move(*file));
  return {};
}

Status StreamingWriter::FlushData() {
  if (buffer_.empty()) return {};
  Status s = data_->Write(std::string_view(buffer_));
  buffer_.clear();
  return s;
}

Status StreamingWriter::WriteData(std::string_view bytes) {
  constexpr size_t kBufferBytes = size_t{1} << 20;
  data_bytes_ += bytes.size();
  if (buffer_.size() + bytes.size() > kBufferBytes) {
    if (Status s = FlushData(); !s.ok()) return s;
  }
  if (bytes.size() >= kBufferBytes) return data_->Write(bytes);
  buffer_ += bytes;
  return {};
}

Status StreamingWriter::BeginTensor(std::string name, DType dtype, std::vector<int64_t> dims) {
  if (finished_)
    return Error(Code::kInternal, "tensor {} is added to a finished model", Quoted(name));
  if (Status s = EndTensor(); !s.ok()) return s;
  const Result<uint64_t> need = CountBytes(dtype, dims);
  if (!need.ok()) return need.status().In("tensor " + Quoted(name));
  Current next{.name = std::move(name),
               .dtype = dtype,
               .dims = std::move(dims),
               .need_bytes = *need,
               .inside = {}};
  next.external = *need >= options_.external_threshold_bytes && *need > 0;
  if (next.external) {
    if (Status s = OpenData(); !s.ok()) return s;
    // Page-aligned where it matters: each tensor can then be mapped, read ahead and dropped on its
    // own.
    const uint64_t unit = *need >= (64 << 10) ? 4096 : 64;
    next.offset = RoundUp(data_bytes_, unit);
    if (Status s = WriteData(std::string(next.offset - data_bytes_, '\0')); !s.ok()) return s;
  }
  current_ = std::move(next);
  return {};
}

Status StreamingWriter::Append(std::span<const std::byte> bytes) {
  if (!current_) return Error(Code::kInternal, "bytes are appended to no tensor");
  if (bytes.size() > current_->need_bytes - current_->have_bytes) {
    return InvalidInput("tensor {}: {}{} takes {} bytes, got {} and {} more",
                        Quoted(current_->name), DTypeName(current_->dtype),
                        Describe(current_->dims), current_->need_bytes, current_->have_bytes,
                        bytes.size());
  }
  current_->have_bytes += bytes.size();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (current_->external) return WriteData(text);
  current_->inside += text;
  return {};
}

Status StreamingWriter::EndTensor() {
  if (!current_) return {};
  const Current tensor = std::move(*current_);
  current_.reset();
  if (tensor.have_bytes != tensor.need_bytes) {
    return InvalidInput("tensor {}: {}{} takes {} bytes, got {}", Quoted(tensor.name),
                        DTypeName(tensor.dtype), Describe(tensor.dims), tensor.need_bytes,
                        tensor.have_bytes);
  }
  if (tensor.external) {
    structure_.AddExternalTensor(tensor.name, tensor.dtype, tensor.dims,
                                 data_path_.filename().string(), tensor.offset, tensor.need_bytes);
  } else {
    structure_.AddInlineTensor(tensor.name, tensor.dtype, tensor.dims, tensor.inside);
  }
  return {};
}

Status StreamingWriter::Finish() {
  if (std::exchange(finished_, true))
    return Error(Code::kInternal, "{}: finished twice", path_.string());
  if (Status s = EndTensor(); !s.ok()) return s.In(path_.string());
  const auto write = [&](std::string_view bytes) { return model_.Write(bytes); };
  if (Status s = structure_.Write(options_, write); !s.ok()) return s.In(path_.string());
  if (data_) {
    if (Status s = FlushData(); !s.ok()) return s;
    if (Status s = data_->Commit(); !s.ok()) return s;
  }
  return model_.Commit();
}

}  // namespace

Result<std::unique_ptr<ModelWriter>> ModelWriter::Create(const fs::path& model_path,
                                                         const Options& options) {
  Result<AtomicFile> model = AtomicFile::Create(model_path);
  if (!model.ok()) return model.status();
  return std::unique_ptr<ModelWriter>(new StreamingWriter(model_path, options, std::move(*model)));
}

Status ModelWriter::AddTensor(std::string name, DType dtype, std::vector<int64_t> dims,
                              std::span<const std::byte> bytes) {
  if (Status s = BeginTensor(std::move(name), dtype, std::move(dims)); !s.ok()) return s;
  return Append(bytes);
}

}  // namespace granule::onnx
