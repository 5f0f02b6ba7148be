#include "engine/native/weights.h"

#include <bit>
#include <cstring>

#include "base/arith.h"
#include "base/check.h"

namespace granule::engine {
namespace {

Status WrongSize(const char* what, int64_t expected, int64_t found) {
  return InvalidInput("{} has {} elements, expected {}", what, found, expected);
}

// Element i of a float tensor; the bytes of a file need not be aligned.
float FloatAt(const onnx::Tensor& tensor, int64_t i) {
  const std::byte* at = tensor.bytes.data() + i * BitsOf(tensor.dtype) / 8;
  if (tensor.dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return tensor.dtype == DType::kF16 ? F16ToF32(bits) : BF16ToF32(bits);
}

// Sizes that both quantised operators share.
struct BlockSizes {
  int64_t blocks = 0;            // per row
  int64_t bytes_per_row = 0;     // of codes, in whole blocks
  int64_t zero_point_bytes = 0;  // per row, packed
};

Result<BlockSizes> CheckBlocks(int64_t rows, int64_t width, int64_t bits, int64_t block_size) {
  if (rows <= 0 || width <= 0)
    return InvalidInput("N = {} and K = {} must be positive", rows, width);
  if (bits != 4 && bits != 8) return InvalidInput("bits = {} is not built (4 and 8 are)", bits);
  if (block_size < 16 || block_size > (1 << 20) ||
      !std::has_single_bit(static_cast<uint64_t>(block_size))) {
    return InvalidInput("block_size = {} must be a power of two of at least 16", block_size);
  }
  BlockSizes sizes;
  sizes.blocks = CeilDiv(width, block_size);
  sizes.bytes_per_row = sizes.blocks * (block_size * bits / 8);
  sizes.zero_point_bytes = CeilDiv(sizes.blocks * bits, int64_t{8});
  const auto total = CheckedMul(rows, sizes.bytes_per_row);
  if (!total) return InvalidInput("N x K overflows: {} x {}", rows, width);
  return sizes;
}

}  // namespace

Weights::Weights(const onnx::Model& model, const kernels::Context* kernels, Plan& plan)
    : model_(model), kernels_(kernels), plan_(plan), producer_(model.graph.values.size(), -1) {
  const auto& nodes = model.graph.nodes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const onnx::ValueId v : nodes[i].outputs) {
      if (v != onnx::kNone) producer_[static_cast<size_t>(v)] = static_cast<int32_t>(i);
    }
  }
}

ConstantView Weights::Find(onnx::ValueId value) const {
  ConstantView view;
  while (value != onnx::kNone) {
    if (const onnx::Tensor* tensor = model_.graph.FindConstant(value)) {
      view.tensor = tensor;
      return view;
    }
    const int32_t producer = producer_[static_cast<size_t>(value)];
    if (producer < 0) break;
    const onnx::Node& node = model_.graph.nodes[static_cast<size_t>(producer)];
    if (node.op == "Transpose" && node.domain.empty()) {
      view.transposed =
          !view.transposed;  // only ever asked of matrices; the caller checks the rank
    } else if (node.op != "Cast" && node.op != "Identity") {
      break;
    }
    value = node.input(0);
  }
  return {};
}

Result<const float*> Weights::Floats(onnx::ValueId value, int64_t expected_elements) {
  const ConstantView view = Find(value);
  if (view.tensor == nullptr || view.transposed || !IsFloat(view.tensor->dtype)) {
    return InvalidInput("expected a constant of floats");
  }
  const int64_t elements = view.tensor->elements();
  if (elements != expected_elements) return WrongSize("a constant", expected_elements, elements);
  const std::byte* bytes = view.tensor->bytes.data();
  if (view.tensor->dtype == DType::kF32 &&
      reinterpret_cast<uintptr_t>(bytes) % alignof(float) == 0) {
    return reinterpret_cast<const float*>(bytes);  // the model outlives the plan
  }
  if (const auto known = floats_.find(bytes); known != floats_.end()) return known->second;
  auto copy = std::make_unique<float[]>(static_cast<size_t>(elements));
  for (int64_t i = 0; i < elements; ++i) copy[static_cast<size_t>(i)] = FloatAt(*view.tensor, i);
  const float* data = copy.get();
  plan_.constants.push_back(std::move(copy));
  floats_.emplace(bytes, data);
  return data;
}

template <class Source>
Result<Weights::Matrix> Weights::PackOnce(const onnx::Tensor& key, const Source& source) {
  Matrix matrix{source, nullptr, source.n, source.k};
  if (kernels_ == nullptr) return matrix;
  Packed& packed = packed_[key.bytes.data()];
  if (packed == nullptr) {
    auto result = kernels::PackedMatrix::Pack(*kernels_, source);
    if (!result.ok()) return result.status();
    packed = std::move(*result);
    packed_bytes_ += packed->bytes();
    Release(key);
  }
  matrix.packed = packed;
  return matrix;
}

void Weights::Release(const onnx::Tensor& tensor) const {
  for (const auto& file : model_.files) {
    const auto bytes = file->bytes();
    if (tensor.bytes.data() >= bytes.data() && tensor.bytes.data() < bytes.data() + bytes.size()) {
      file->DropPages(tensor.bytes);
    }
  }
}

Result<Weights::Matrix> Weights::Dense(const onnx::Node& node) {
  const ConstantView view = Find(node.input(1));
  if (view.tensor == nullptr) return InvalidInput("the right side is no constant");
  if (view.tensor->dims.size() != 2) {
    return InvalidInput("the right side has {} dimensions, expected 2", view.tensor->dims.size());
  }
  if (!IsFloat(view.tensor->dtype)) {
    return InvalidInput("weights of type {} are not built", DTypeName(view.tensor->dtype));
  }
  kernels::DenseWeights source;
  source.k = view.tensor->dims[view.transposed ? 1 : 0];
  source.n = view.tensor->dims[view.transposed ? 0 : 1];
  source.data = view.tensor->bytes.data();
  source.dtype = view.tensor->dtype;
  source.transposed = view.transposed;
  if (source.n <= 0 || source.k <= 0) return InvalidInput("the right side is empty");
  return PackOnce(*view.tensor, source);
}

Result<Weights::Matrix> Weights::Quantized(const onnx::Node& node) {
  kernels::QuantizedWeights source;
  source.n = node.Int("N", 0);
  source.k = node.Int("K", 0);
  source.block_size = node.Int("block_size", 32);
  const int64_t bits = node.Int("bits", 4);
  const auto sizes = CheckBlocks(source.n, source.k, bits, source.block_size);
  if (!sizes.ok()) return sizes.status();
  source.bits = static_cast<int>(bits);
  if (node.input(4) != onnx::kNone) return InvalidInput("g_idx (act-order) is not built");
  if (node.Int("weight_prepacked", 0) != 0)
    return InvalidInput("weight_prepacked layouts are not built");

  const onnx::Tensor* q = Find(node.input(1)).tensor;
  const onnx::Tensor* scales = Find(node.input(2)).tensor;
  if (q == nullptr || scales == nullptr)
    return InvalidInput("weights and scales must be constants");
  if (BitsOf(q->dtype) != 8) {
    return InvalidInput("weights of type {} found, expected uint8", DTypeName(q->dtype));
  }
  const int64_t bytes = static_cast<int64_t>(q->bytes.size());
  if (bytes != source.n * sizes->bytes_per_row)
    return WrongSize("the weights tensor", source.n * sizes->bytes_per_row, bytes);
  const int64_t blocks = source.n * sizes->blocks;
  if (!IsFloat(scales->dtype))
    return InvalidInput("scales of type {} are not built", DTypeName(scales->dtype));
  if (scales->elements() != blocks)
    return WrongSize("the scales tensor", blocks, scales->elements());
  source.q = reinterpret_cast<const uint8_t*>(q->bytes.data());
  source.scales = scales->bytes.data();
  source.scales_type = scales->dtype;

  if (node.input(3) != onnx::kNone) {
    const onnx::Tensor* zero = Find(node.input(3)).tensor;
    if (zero == nullptr) return InvalidInput("zero points must be a constant");
    using Kind = kernels::QuantizedWeights::ZeroPoints;
    const bool is_float = IsFloat(zero->dtype);
    if (!is_float && zero->dtype != DType::kU8) {
      return InvalidInput("zero points of type {} are not built", DTypeName(zero->dtype));
    }
    const int64_t expected = is_float ? blocks : source.n * sizes->zero_point_bytes;
    if (zero->elements() != expected)
      return WrongSize("the zero point tensor", expected, zero->elements());
    source.zero_points_kind = is_float ? Kind::kFloat : Kind::kPacked;
    source.zero_points = zero->bytes.data();
    source.zero_points_type = zero->dtype;
  }
  return PackOnce(*q, source);
}

Result<kernels::QuantizedTable> Weights::Table(const onnx::Node& node) {
  const onnx::Tensor* data = Find(node.input(0)).tensor;
  const onnx::Tensor* scales = Find(node.input(2)).tensor;
  if (data == nullptr || scales == nullptr)
    return InvalidInput("data and scales must be constants");
  if (data->dims.size() != 2 || scales->dims.size() != 2) {
    return InvalidInput("data and scales must have 2 dimensions, found {} and {}",
                        data->dims.size(), scales->dims.size());
  }
  if (node.Int("gather_axis", 0) != 0)
    return InvalidInput("gather_axis = {} is not built (0 is)", node.Int("gather_axis", 0));
  const int64_t quantize_axis = node.Int("quantize_axis", 1);
  if (quantize_axis != 1 && quantize_axis != -1)
    return InvalidInput("quantize_axis = {} is not built (1 is)", quantize_axis);
  if (!IsFloat(scales->dtype))
    return InvalidInput("scales of type {} are not built", DTypeName(scales->dtype));

  kernels::QuantizedTable table;
  const bool packed = data->dtype == DType::kU8 || data->dtype == DType::kI8;
  const int64_t bits = packed ? node.Int("bits", 4) : 4;
  if (bits != 4 && bits != 8) return InvalidInput("bits = {} is not built (4 and 8 are)", bits);
  table.rows = data->dims[0];
  table.width = packed ? data->dims[1] * 8 / bits : data->dims[1];
  table.block_size = node.Int("block_size", 128);
  const auto sizes = CheckBlocks(table.rows, table.width, bits, table.block_size);
  if (!sizes.ok()) return sizes.status();
  if (!packed && data->dtype != DType::kI4 && data->dtype != DType::kU4) {
    return InvalidInput("data of type {} is not built", DTypeName(data->dtype));
  }
  if (table.width * bits % 8 != 0)
    return InvalidInput("rows of {} elements of {} bits are not whole bytes", table.width, bits);
  table.bits = static_cast<int>(bits);
  table.data = reinterpret_cast<const uint8_t*>(data->bytes.data());
  table.is_signed = data->dtype == DType::kI4 || data->dtype == DType::kI8;
  table.default_zero_point = data->dtype == DType::kU8 ? 1 << (bits - 1) : 0;
  if (scales->elements() != table.rows * sizes->blocks) {
    return WrongSize("the scales tensor", table.rows * sizes->blocks, scales->elements());
  }
  table.scales = scales->bytes.data();
  table.scales_type = scales->dtype;
  if (node.input(3) != onnx::kNone) {
    const onnx::Tensor* zero = Find(node.input(3)).tensor;
    if (zero == nullptr || zero->dtype != data->dtype)
      return InvalidInput("zero points must be a constant of the data's type");
    const int64_t expected = table.rows * sizes->zero_point_bytes;
    const int64_t found = static_cast<int64_t>(zero->bytes.size());
    if (found != expected)
      return InvalidInput("the zero points take {} bytes, expected {}", found, expected);
    table.zero_points = reinterpret_cast<const uint8_t*>(zero->bytes.data());
  }
  return table;
}

}  // namespace granule::engine
