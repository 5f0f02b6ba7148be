// A model written into memory instead of a folder: the same calls, and a Model at the end.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "onnx/graph.h"
#include "onnx/writer.h"

namespace granule::package {

// Tensor bytes go into one file in memory (memfd) that the model keeps mapped, so they have what
// bytes of a model folder have: alignment, one owner, and pages that may be dropped from the
// process. A tensor that is begun and not filled is zeros that take no memory: how a model is
// described without its weights.
class MemoryModelWriter final : public onnx::ModelWriter {
 public:
  // kExhausted where the system gives no file.
  static Result<std::unique_ptr<MemoryModelWriter>> Create();
  ~MemoryModelWriter() override;

  void AddInput(std::string name, DType dtype, std::vector<onnx::WriterDim> dims) override;
  void AddOutput(std::string name, DType dtype, std::vector<onnx::WriterDim> dims) override;
  void AddNode(std::string op, std::string domain, std::string name,
               std::vector<std::string> inputs, std::vector<std::string> outputs,
               std::vector<onnx::NamedAttribute> attributes) override;
  Status BeginTensor(std::string name, DType dtype, std::vector<int64_t> dims) override;
  Status Append(std::span<const std::byte> bytes) override;
  // Maps the data, then checks and sorts the graph as a reader does.
  Status Finish() override;

  // After Finish, once.
  onnx::Model Take() { return std::move(model_); }

 private:
  explicit MemoryModelWriter(int fd);
  std::string_view Keep(std::string text);
  onnx::ValueId Id(std::string name);
  onnx::Value& AddPort(std::string name, DType dtype, std::vector<onnx::WriterDim> dims,
                       std::vector<onnx::ValueId>* ports);
  Status Flush();

  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  const int fd_;
  onnx::Model model_;
  std::unordered_map<std::string_view, onnx::ValueId> ids_;
  std::vector<Place> places_;  // of each tensor
  uint64_t filled_bytes_ = 0;  // of the last tensor
  std::string buffer_;         // what was appended and is not yet in the file
};

}  // namespace granule::package
