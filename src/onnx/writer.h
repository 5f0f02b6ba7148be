// Streams a model to disk: graph structure in NAME.onnx, every tensor of 1 KiB and more in
// NAME.onnx.data. Used by import, synth and tests. Nothing needs the whole model in memory.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace granule::onnx {

// A constant inside of an attribute (Constant, ConstantOfShape).
struct TensorAttribute {
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;
  std::string bytes;  // as Tensor::bytes
};

using AttributeValue = std::variant<int64_t, float, std::string, std::vector<int64_t>,
                                    std::vector<float>, std::vector<std::string>, TensorAttribute>;

struct NamedAttribute {
  std::string name;
  AttributeValue value;
};

// A dimension of a graph input or output: number >= 0, or a symbol.
using WriterDim = std::variant<int64_t, std::string>;

class ModelWriter {
 public:
  struct Options {
    std::string producer = "granule";
    int64_t ir_version = 10;
    int64_t opset = 21;    // of the default domain
    int64_t ms_opset = 1;  // of com.microsoft; 0 leaves the import out
    std::string graph_name = "main_graph";
    size_t external_threshold_bytes = 1024;  // smaller tensors go inside the .onnx file
  };

  // Both files are staged and appear together in Finish; destroying the writer before leaves
  // nothing. The data file is only made when a tensor goes into it.
  static Result<std::unique_ptr<ModelWriter>> Create(const std::filesystem::path& model_path,
                                                     const Options& options);
  virtual ~ModelWriter() = default;

  // What these were given wrongly (a name twice, an empty one) is told by Finish.
  virtual void AddInput(std::string name, DType dtype, std::vector<WriterDim> dims) = 0;
  virtual void AddOutput(std::string name, DType dtype, std::vector<WriterDim> dims) = 0;
  virtual void AddNode(std::string op, std::string domain, std::string name,
                       std::vector<std::string> inputs, std::vector<std::string> outputs,
                       std::vector<NamedAttribute> attributes) = 0;

  // A constant. Its bytes come in one or more pieces by Append and must add up to what dims say by
  // the time of the next AddTensor or Finish. External data is aligned to 4096 bytes for tensors of
  // 64 KiB and more, 64 otherwise.
  virtual Status BeginTensor(std::string name, DType dtype, std::vector<int64_t> dims) = 0;
  virtual Status Append(std::span<const std::byte> bytes) = 0;
  Status AddTensor(std::string name, DType dtype, std::vector<int64_t> dims,
                   std::span<const std::byte> bytes);

  // Publishes the data file, then the model that names it. The writer is done afterwards, also
  // after an error.
  virtual Status Finish() = 0;
};

}  // namespace granule::onnx
