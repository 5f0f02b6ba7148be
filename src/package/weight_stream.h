// GGUF tensors streamed into a model file as initializers, converted on the way and never whole in
// memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/status.h"
#include "onnx/writer.h"
#include "package/gguf.h"

namespace granule::package {

// Which row of the source becomes row r. Empty: the same.
using RowOrder = std::function<int64_t(int64_t r)>;

// A quantised matrix [N, K] as MatMulNBits takes it. Adds NAME_quant uint8 [N, K/32, 4*bits],
// NAME_scales fp32 [N, K/32] and for Q4_1 NAME_zero_points fp32 [N, K/32]. A block whose d or m is
// not finite is an error.
Status StreamQuantized(const GgufTensor& tensor, const RowOrder& order, const std::string& name,
                       onnx::ModelWriter& writer);

// The same codes as a table [N, K * bits / 8] for GatherBlockQuantized that no product shares. Not
// for Q4_1.
Status StreamQuantizedTable(const GgufTensor& tensor, const std::string& name,
                            onnx::ModelWriter& writer);

// As fp32 [N, K] (or [K] for a vector), the values of ggml's dequantiser.
Status StreamRows(const GgufTensor& tensor, const std::string& name, onnx::ModelWriter& writer);

// A dense matrix as MatMul takes it: fp32 [K, N].
Status StreamTransposed(const GgufTensor& tensor, const RowOrder& order, const std::string& name,
                        onnx::ModelWriter& writer);

}  // namespace granule::package
