#include "package/weight_stream.h"

#include <algorithm>
#include <array>
#include <vector>

#include "package/gguf_blocks.h"

namespace granule::package {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;  // what is handed to the writer at once

int64_t SourceRow(const RowOrder& order, int64_t r) { return order ? order(r) : r; }

// Bytes of one row of the tensor in the file.
int64_t RowBytes(const GgufTensor& tensor) {
  const GgmlTypeInfo* info = FindGgmlType(tensor.type);
  return tensor.row() / info->block * info->bytes;
}

// Collects small writes into pieces.
template <class T>
class Pieces {
 public:
  explicit Pieces(onnx::ModelWriter& writer) : writer_(writer) {
    buffer_.reserve(kPieceBytes / sizeof(T));
  }

  Status Add(std::span<const T> values) {
    if (buffer_.size() + values.size() > kPieceBytes / sizeof(T)) {
      if (Status s = Flush(); !s.ok()) return s;
    }
    buffer_.insert(buffer_.end(), values.begin(), values.end());
    return {};
  }
  Status Flush() {
    Status s = writer_.Append(std::as_bytes(std::span(buffer_)));
    buffer_.clear();
    return s;
  }

 private:
  onnx::ModelWriter& writer_;
  std::vector<T> buffer_;
};

// Calls visit(block) for each block in the order of the output rows; stops at an error.
template <class Visit>
Status ForEachBlock(const GgufTensor& tensor, const RowOrder& order, const Visit& visit) {
  const int64_t block_bytes = FindGgmlType(tensor.type)->bytes;
  const int64_t row_bytes = RowBytes(tensor);
  for (int64_t r = 0; r < tensor.rows(); ++r) {
    const std::byte* row = tensor.bytes.data() + SourceRow(order, r) * row_bytes;
    for (int64_t at = 0; at < row_bytes; at += block_bytes) {
      if (Status s = visit(row + at); !s.ok()) return s;
    }
  }
  return {};
}

Status StreamCodes(const GgufTensor& tensor, const RowOrder& order, onnx::ModelWriter& writer) {
  Pieces<uint8_t> out(writer);
  const size_t bytes = static_cast<size_t>(kBlock * BitsOfCodes(tensor.type) / 8);
  Status s = ForEachBlock(tensor, order, [&](const std::byte* block) -> Status {
    if (!IsFiniteBlock(tensor.type, block)) {
      return InvalidInput("tensor \"{}\" has a block at byte {} whose scale is not a finite number",
                          tensor.name, block - tensor.bytes.data());
    }
    std::array<uint8_t, kBlock> codes;
    WriteCodes(tensor.type, block, codes.data());
    return out.Add(std::span(codes).first(bytes));
  });
  return s.ok() ? out.Flush() : s;
}

// One fp32 number per block.
Status StreamPerBlock(const GgufTensor& tensor, const RowOrder& order,
                      float (*number)(GgmlType, const std::byte*), const std::string& name,
                      onnx::ModelWriter& writer) {
  if (Status s = writer.BeginTensor(name, DType::kF32, {tensor.rows(), tensor.row() / kBlock});
      !s.ok())
    return s;
  Pieces<float> out(writer);
  Status s = ForEachBlock(tensor, order, [&](const std::byte* block) {
    const float value = number(tensor.type, block);
    return out.Add({&value, 1});
  });
  return s.ok() ? out.Flush() : s;
}

}  // namespace

Status StreamQuantized(const GgufTensor& tensor, const RowOrder& order, const std::string& name,
                       onnx::ModelWriter& writer) {
  const int64_t block_bytes = kBlock * BitsOfCodes(tensor.type) / 8;
  Status s = writer.BeginTensor(name + "_quant", DType::kU8,
                                {tensor.rows(), tensor.row() / kBlock, block_bytes});
  if (!s.ok()) return s;
  if (s = StreamCodes(tensor, order, writer); !s.ok()) return s;
  if (s = StreamPerBlock(tensor, order, ScaleOf, name + "_scales", writer); !s.ok()) return s;
  if (!HasFloatZeroPoints(tensor.type)) return {};
  return StreamPerBlock(tensor, order, ZeroPointOf, name + "_zero_points", writer);
}

Status StreamQuantizedTable(const GgufTensor& tensor, const std::string& name,
                            onnx::ModelWriter& writer) {
  const int64_t row_bytes = tensor.row() * BitsOfCodes(tensor.type) / 8;
  if (Status s = writer.BeginTensor(name + "_quant", DType::kU8, {tensor.rows(), row_bytes});
      !s.ok())
    return s;
  if (Status s = StreamCodes(tensor, {}, writer); !s.ok()) return s;
  return StreamPerBlock(tensor, {}, ScaleOf, name + "_scales", writer);
}

Status StreamRows(const GgufTensor& tensor, const std::string& name, onnx::ModelWriter& writer) {
  std::vector<int64_t> dims(tensor.dims.rbegin(), tensor.dims.rend());
  if (Status s = writer.BeginTensor(name, DType::kF32, std::move(dims)); !s.ok()) return s;
  const int64_t row_bytes = RowBytes(tensor);
  std::vector<float> row(static_cast<size_t>(tensor.row()));
  Pieces<float> out(writer);
  for (int64_t r = 0; r < tensor.rows(); ++r) {
    Dequantize(tensor.type, tensor.bytes.data() + r * row_bytes, row);
    if (Status s = out.Add(row); !s.ok()) return s;
  }
  return out.Flush();
}

Status StreamTransposed(const GgufTensor& tensor, const RowOrder& order, const std::string& name,
                        onnx::ModelWriter& writer) {
  const int64_t n = tensor.rows(), k = tensor.row();
  if (Status s = writer.BeginTensor(name, DType::kF32, {k, n}); !s.ok()) return s;
  // A strip of columns at a time: as many as a few MiB hold, whatever N is.
  constexpr int64_t kStripFloats = int64_t{1} << 21;
  const int64_t width = std::clamp<int64_t>(kStripFloats / n, 1, k);
  const int64_t element_bytes = FindGgmlType(tensor.type)->bytes;
  const int64_t row_bytes = RowBytes(tensor);
  std::vector<float> piece(static_cast<size_t>(width));
  std::vector<float> strip(static_cast<size_t>(width * n));  // [width, N]
  for (int64_t begin = 0; begin < k; begin += width) {
    const int64_t columns = std::min(width, k - begin);
    for (int64_t r = 0; r < n; ++r) {
      const std::byte* source =
          tensor.bytes.data() + SourceRow(order, r) * row_bytes + begin * element_bytes;
      Dequantize(tensor.type, source, std::span(piece).first(static_cast<size_t>(columns)));
      for (int64_t c = 0; c < columns; ++c)
        strip[static_cast<size_t>(c * n + r)] = piece[static_cast<size_t>(c)];
    }
    Status s =
        writer.Append(std::as_bytes(std::span(strip).first(static_cast<size_t>(columns * n))));
    if (!s.ok()) return s;
  }
  return {};
}

}  // namespace granule::package
