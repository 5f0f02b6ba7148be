// TensorProto -> Tensor, in two passes: the first only looks (name, type, where the data is and how
// much of it), the second takes or converts the data after its size was checked against dims and
// against the real bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "onnx/external_data.h"
#include "onnx/graph.h"
#include "onnx/wire.h"

namespace granule::onnx {

struct TensorHeader {
  std::string_view name;
  int64_t data_type = 0;  // as written, perhaps one that Graph does not have
  std::vector<int64_t> dims;
  std::optional<std::string_view> raw;
  std::optional<ExternalEntry> external;
  // Elements of the typed fields, packed or not.
  uint64_t float_data = 0;
  uint64_t int32_data = 0;
  uint64_t int64_data = 0;
};

// The most dimensions that a tensor or a declared shape may have.
inline constexpr size_t kMaxRank = 32;

// Throws WireError.
TensorHeader ScanTensor(Fields message);

// Product of dims and bytes of that many elements. Refused: negative dims, more than 32 of them,
// products that overflow 63 bits (zero dims left out of the product: strides must not wrap either).
Result<int64_t> CountElements(const std::vector<int64_t>& dims);
Result<uint64_t> CountBytes(DType dtype, const std::vector<int64_t>& dims);

// The data of a scanned tensor, whose data_type must be a DType. Views `message` or the external
// file where its bytes are already what Tensor promises (raw and aligned for the element type);
// converted bytes go to model.owned. Errors read on from "tensor NAME: ".
Result<Tensor> DecodeTensor(const TensorHeader& header, Fields message, ExternalData& external,
                            Model& model);

}  // namespace granule::onnx
