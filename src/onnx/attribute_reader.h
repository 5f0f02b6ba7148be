// AttributeProto -> Attribute.
#pragma once

#include <string>

#include "base/status.h"
#include "onnx/external_data.h"
#include "onnx/graph.h"
#include "onnx/wire.h"

namespace granule::onnx {

struct ReadAttributeResult {
  Attribute attribute;
  // Set where the value is of a kind that Attribute cannot hold; nothing of it was read.
  bool is_subgraph = false;
  bool is_sparse = false;
  std::string unsupported_type;  // "tensors", "type_proto", or the element type of a tensor
};

// A nested graph is noted and never entered, so nesting costs no stack. Throws WireError.
Result<ReadAttributeResult> ReadAttribute(Fields message, ExternalData& external, Model& model);

}  // namespace granule::onnx
