// Field numbers and enum values of ONNX's protobuf messages, as far as the reader and the writer
// use them. Source: onnx.proto of the `onnx` package (IR versions 3 to 14).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/dtype.h"

namespace granule::onnx::proto {

namespace model {
inline constexpr uint32_t kIrVersion = 1, kProducerName = 2, kGraph = 7, kOpsetImport = 8,
                          kFunctions = 25;
}
namespace opset {
inline constexpr uint32_t kDomain = 1, kVersion = 2;
}
namespace function {
inline constexpr uint32_t kName = 1, kDomain = 10;
}
namespace graph {
inline constexpr uint32_t kNode = 1, kName = 2, kInitializer = 5, kInput = 11, kOutput = 12,
                          kValueInfo = 13, kSparseInitializer = 15;
}
namespace node {
inline constexpr uint32_t kInput = 1, kOutput = 2, kName = 3, kOpType = 4, kAttribute = 5,
                          kDomain = 7;
}
namespace attribute {
inline constexpr uint32_t kName = 1, kF = 2, kI = 3, kS = 4, kT = 5, kG = 6, kFloats = 7, kInts = 8,
                          kStrings = 9, kTensors = 10, kGraphs = 11, kTp = 14, kTypeProtos = 15,
                          kType = 20, kRefAttrName = 21, kSparseTensor = 22, kSparseTensors = 23;
// AttributeProto.AttributeType
inline constexpr int64_t kTypeUndefined = 0, kTypeFloat = 1, kTypeInt = 2, kTypeString = 3,
                         kTypeTensor = 4, kTypeGraph = 5, kTypeFloats = 6, kTypeInts = 7,
                         kTypeStrings = 8, kTypeTensors = 9, kTypeGraphs = 10,
                         kTypeSparseTensor = 11, kTypeSparseTensors = 12, kTypeTypeProto = 13,
                         kTypeTypeProtos = 14;
}  // namespace attribute
namespace tensor {
inline constexpr uint32_t kDims = 1, kDataType = 2, kFloatData = 4, kInt32Data = 5, kStringData = 6,
                          kInt64Data = 7, kName = 8, kRawData = 9, kDoubleData = 10,
                          kUint64Data = 11, kExternalData = 13, kDataLocation = 14;
inline constexpr int64_t kLocationExternal = 1;
}  // namespace tensor
namespace sparse_tensor {
inline constexpr uint32_t kValues = 1;
}
namespace string_entry {
inline constexpr uint32_t kKey = 1, kValue = 2;
}
namespace value_info {
inline constexpr uint32_t kName = 1, kType = 2;
}
namespace type {
inline constexpr uint32_t kTensor = 1, kSequence = 4, kMap = 5, kDenotation = 6, kOpaque = 7,
                          kSparseTensor = 8, kOptional = 9;
}
namespace tensor_type {
inline constexpr uint32_t kElemType = 1, kShape = 2;
}
namespace shape {
inline constexpr uint32_t kDim = 1;
}
namespace dim {
inline constexpr uint32_t kValue = 1, kParam = 2;
}

// TensorProto.DataType of an element type, and back. nullopt: a type that Graph does not have.
int32_t DataTypeOf(DType dtype);
std::optional<DType> DTypeOf(int64_t data_type);
// "float64", "string", "float8e4m3fn", ...; "type 99" for a number that ONNX does not define.
std::string DataTypeName(int64_t data_type);

}  // namespace granule::onnx::proto
