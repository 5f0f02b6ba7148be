#include "onnx/proto.h"

#include <array>
#include <string_view>

#include "base/format.h"

namespace granule::onnx::proto {
namespace {

struct TypeRow {
  int32_t data_type;
  DType dtype;
};
constexpr std::array<TypeRow, 10> kTypes = {{{1, DType::kF32},
                                             {2, DType::kU8},
                                             {3, DType::kI8},
                                             {6, DType::kI32},
                                             {7, DType::kI64},
                                             {9, DType::kBool},
                                             {10, DType::kF16},
                                             {16, DType::kBF16},
                                             {21, DType::kU4},
                                             {22, DType::kI4}}};

constexpr std::array<std::string_view, 29> kNames = {
    "undefined",      "float32",    "uint8",          "int8",       "uint16",    "int16",
    "int32",          "int64",      "string",         "bool",       "float16",   "float64",
    "uint32",         "uint64",     "complex64",      "complex128", "bfloat16",  "float8e4m3fn",
    "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "uint4",      "int4",      "float4e2m1",
    "float8e8m0",     "uint2",      "int2",           "float6e2m3", "float6e3m2"};

}  // namespace

int32_t DataTypeOf(DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return row.data_type;
  }
  return 0;
}

std::optional<DType> DTypeOf(int64_t data_type) {
  for (const TypeRow& row : kTypes) {
    if (row.data_type == data_type) return row.dtype;
  }
  return std::nullopt;
}

std::string DataTypeName(int64_t data_type) {
  if (data_type >= 0 && data_type < static_cast<int64_t>(kNames.size())) {
    return std::string(kNames[static_cast<size_t>(data_type)]);
  }
  return Format("type {}", data_type);
}

}  // namespace granule::onnx::proto
