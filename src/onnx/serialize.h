// Parts of a model -> protobuf messages. The writer streams them to a file; tests take them as one
// string.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "onnx/writer.h"

namespace granule::onnx {

class ModelStructure {
 public:
  void AddInput(const std::string& name, DType dtype, const std::vector<WriterDim>& dims);
  void AddOutput(const std::string& name, DType dtype, const std::vector<WriterDim>& dims);
  void AddNode(const std::string& op, const std::string& domain, const std::string& name,
               const std::vector<std::string>& inputs, const std::vector<std::string>& outputs,
               const std::vector<NamedAttribute>& attributes);
  // `bytes` were checked against dims.
  void AddInlineTensor(const std::string& name, DType dtype, const std::vector<int64_t>& dims,
                       std::string_view bytes);
  void AddExternalTensor(const std::string& name, DType dtype, const std::vector<int64_t>& dims,
                         const std::string& location, uint64_t offset, uint64_t length);

  // Hands the whole file to `write`, piece by piece. Fails when a name was given twice or is empty,
  // when the structure is larger than a protobuf message may be, and when `write` fails.
  Status Write(const ModelWriter::Options& options,
               const std::function<Status(std::string_view)>& write) const;

 private:
  void Claim(std::set<std::string>& names, const std::string& name, std::string_view what);

  std::string inputs_, outputs_, nodes_,
      tensors_;  // fields of GraphProto, each with tag and length
  std::set<std::string> input_names_, output_names_, made_names_;
  Status first_error_;
};

}  // namespace granule::onnx
