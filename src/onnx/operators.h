// What is known about each operator before any of its nodes runs: how many inputs and outputs it
// may have, and the types of its attributes. The checks refuse a node that breaks this, so that
// later code may index inputs and read attributes without asking. An operator that is not listed is
// no error here.
#pragma once

#include <cstdint>
#include <string_view>

namespace granule::onnx {

struct OperatorInfo {
  std::string_view op;
  std::string_view
      domain;  // "", "com.microsoft", or "*" for either (exporters put contrib operators into "")
  uint8_t min_inputs;
  uint8_t max_inputs;
  uint8_t max_outputs;
  // "axis:i keepdims:i" with types i INT, f FLOAT, s STRING, t TENSOR, I INTS, F FLOATS, S STRINGS.
  // Attributes that are not listed are left alone.
  std::string_view attributes;
};

inline constexpr uint8_t kAnyCount = 255;

const OperatorInfo* FindOperator(std::string_view domain,
                                 std::string_view op);  // nullptr: not listed

}  // namespace granule::onnx
