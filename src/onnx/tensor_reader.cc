#include "onnx/tensor_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <protozero/varint.hpp>

#include "base/arith.h"
#include "onnx/proto.h"
#include "onnx/words.h"

namespace granule::onnx {
namespace {

static_assert(std::endian::native == std::endian::little,
              "raw data is little-endian and used in place");

void ReadExternalEntry(Fields entry, ExternalEntry& external) {
  std::string_view key;
  std::string_view value;
  while (entry.Next()) {
    switch (entry.key()) {
      case AsBytes(proto::string_entry::kKey):
        key = entry.Bytes();
        break;
      case AsBytes(proto::string_entry::kValue):
        value = entry.Bytes();
        break;
      default:
        entry.Skip();
    }
  }
  if (key == "location") external.location = value;
  if (key == "offset") external.offset = value;
  if (key == "length")
    external.length = value;  // other keys (checksum) say nothing that the reader needs
}

// The typed field that holds elements of a type, where they are not raw.
uint32_t TypedFieldOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return proto::tensor::kFloatData;
    case DType::kI64:
      return proto::tensor::kInt64Data;
    default:
      return proto::tensor::kInt32Data;
  }
}

// An int32_data element as bits of `dtype`; nullopt when it is out of the type's range. 4-bit
// elements come two to a number, as one byte.
std::optional<uint32_t> NarrowInt32(DType dtype, int64_t value) {
  int64_t low = 0;
  int64_t high = 0;
  switch (dtype) {
    case DType::kI8:
      low = -128;
      high = 127;
      break;
    case DType::kBool:
      high = 1;
      break;
    case DType::kF16:
    case DType::kBF16:
      high = 0xffff;
      break;
    case DType::kI32:
      low = std::numeric_limits<int32_t>::min();
      high = std::numeric_limits<int32_t>::max();
      break;
    case DType::kI4:  // writers that pack through int8 sign-extend the byte
      low = -128;
      high = 255;
      break;
    default:
      high = 255;
  }
  if (value < low || value > high) return std::nullopt;
  return static_cast<uint32_t>(value);
}

// Writes the elements of one typed field into storage whose size is known to fit them.
class TypedWriter {
 public:
  TypedWriter(DType dtype, std::span<std::byte> to)
      : dtype_(dtype),
        size_(BitsOf(dtype) < 8 ? 1 : static_cast<size_t>(BitsOf(dtype)) / 8),
        to_(to) {}

  Status Put(int64_t value) {
    uint64_t bits = static_cast<uint64_t>(value);
    if (dtype_ != DType::kI64) {
      const std::optional<uint32_t> narrow = NarrowInt32(dtype_, value);
      if (!narrow) {
        return InvalidInput("element {} of int32_data is {}, which no {} can be", at_ / size_,
                            value, DTypeName(dtype_));
      }
      bits = *narrow;
    }
    std::memcpy(to_.data() + at_, &bits, size_);
    at_ += size_;
    return {};
  }

  void Put(float value) {
    std::memcpy(to_.data() + at_, &value, sizeof(value));
    at_ += sizeof(value);
  }

 private:
  DType dtype_;
  size_t size_;
  std::span<std::byte> to_;
  size_t at_ = 0;
};

Status CopyTypedField(Fields message, uint32_t wanted, TypedWriter writer) {
  while (message.Next()) {
    if (message.key() == AsVarint(wanted)) {
      if (Status s = writer.Put(message.Varint()); !s.ok()) return s;
    } else if (message.key() == AsFixed32(wanted)) {
      writer.Put(message.Fixed32());
    } else if (message.key() == AsBytes(wanted) && wanted == proto::tensor::kFloatData) {
      const std::string_view packed = message.Bytes();
      for (size_t i = 0; i < packed.size(); i += sizeof(float)) {
        float value;
        std::memcpy(&value, packed.data() + i, sizeof(value));
        writer.Put(value);
      }
    } else if (message.key() == AsBytes(wanted)) {
      const std::string_view packed = message.Bytes();
      for (const char *p = packed.data(), *end = p + packed.size(); p != end;) {
        if (Status s = writer.Put(static_cast<int64_t>(protozero::decode_varint(&p, end))); !s.ok())
          return s;
      }
    } else {
      message.Skip();
    }
  }
  return {};
}

// Bytes as they stand in a file, unless As<T>() would read them misaligned.
std::span<const std::byte> Aligned(DType dtype, std::span<const std::byte> bytes, Model& model) {
  const auto unit = static_cast<uintptr_t>(std::max(BitsOf(dtype) / 8, 1));
  if (reinterpret_cast<uintptr_t>(bytes.data()) % unit == 0) return bytes;
  const std::span<std::byte> copy = model.Own(bytes.size());
  if (!bytes.empty()) std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy;
}

Status CheckBools(DType dtype, std::span<const std::byte> bytes) {
  if (dtype != DType::kBool) return {};
  const auto bad =
      std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; });
  if (bad == bytes.end()) return {};
  return InvalidInput("element {} is {}, which no bool can be", bad - bytes.begin(),
                      std::to_integer<int>(*bad));
}

}  // namespace

TensorHeader ScanTensor(Fields message) {
  TensorHeader header;
  ExternalEntry external;
  bool is_external = false;
  while (message.Next()) {
    switch (message.key()) {
      case AsVarint(proto::tensor::kDims):
      case AsBytes(proto::tensor::kDims):
        message.AppendInts(header.dims);
        break;
      case AsVarint(proto::tensor::kDataType):
        header.data_type = message.Varint();
        break;
      case AsBytes(proto::tensor::kName):
        header.name = message.Bytes();
        break;
      case AsBytes(proto::tensor::kRawData):
        header.raw = message.Bytes();
        break;
      case AsBytes(proto::tensor::kFloatData): {
        const size_t size = message.Bytes().size();
        if (size % sizeof(float) != 0) {
          throw WireError(
              Format("is damaged: float_data of {} bytes is no whole number of elements", size));
        }
        header.float_data += size / sizeof(float);
        break;
      }
      case AsFixed32(proto::tensor::kFloatData):
        ++header.float_data;
        message.Skip();
        break;
      case AsBytes(proto::tensor::kInt32Data):
        header.int32_data += CountVarints(message.Bytes());
        break;
      case AsVarint(proto::tensor::kInt32Data):
        ++header.int32_data;
        message.Skip();
        break;
      case AsBytes(proto::tensor::kInt64Data):
        header.int64_data += CountVarints(message.Bytes());
        break;
      case AsVarint(proto::tensor::kInt64Data):
        ++header.int64_data;
        message.Skip();
        break;
      case AsBytes(proto::tensor::kExternalData):
        ReadExternalEntry(message.Message(), external);
        break;
      case AsVarint(proto::tensor::kDataLocation):
        is_external = message.Varint() == proto::tensor::kLocationExternal;
        break;
      default:
        message.Skip();
    }
  }
  if (is_external) header.external = external;
  return header;
}

Result<int64_t> CountElements(const std::vector<int64_t>& dims) {
  if (dims.size() > kMaxRank) {
    return InvalidInput("it has {} dimensions; at most {} are read", dims.size(), kMaxRank);
  }
  int64_t product = 1;
  bool empty = false;
  for (int64_t dim : dims) {
    if (dim < 0) return InvalidInput("its dims {} have a negative one", Describe(dims));
    if (dim == 0) {
      empty = true;
      continue;
    }
    const std::optional<int64_t> next = CheckedMul(product, dim);
    if (!next)
      return InvalidInput("the product of its dims {} does not fit into 63 bits", Describe(dims));
    product = *next;
  }
  return empty ? 0 : product;
}

Result<uint64_t> CountBytes(DType dtype, const std::vector<int64_t>& dims) {
  const Result<int64_t> elements = CountElements(dims);
  if (!elements.ok()) return elements.status();
  const auto bits =
      CheckedMul(static_cast<uint64_t>(*elements), static_cast<uint64_t>(BitsOf(dtype)));
  if (!bits) return InvalidInput("its dims {} need more than 2^61 bytes", Describe(dims));
  return CeilDiv(*bits, uint64_t{8});
}

Result<Tensor> DecodeTensor(const TensorHeader& header, Fields message, ExternalData& external,
                            Model& model) {
  Tensor tensor;
  tensor.dtype = *proto::DTypeOf(header.data_type);
  tensor.dims = header.dims;
  const Result<uint64_t> need = CountBytes(tensor.dtype, tensor.dims);
  if (!need.ok()) return need.status();

  const uint64_t typed = header.float_data + header.int32_data + header.int64_data;
  if ((header.external ? 1 : 0) + (header.raw ? 1 : 0) + (typed > 0 ? 1 : 0) > 1) {
    return InvalidInput(
        "it has its data in more than one place (raw_data: {} bytes, typed fields: {} elements, "
        "external: {})",
        header.raw ? header.raw->size() : 0, typed, header.external ? "yes" : "no");
  }
  if (header.external) {
    const auto bytes = external.Bytes(*header.external, *need);
    if (!bytes.ok()) return bytes.status();
    tensor.bytes = Aligned(tensor.dtype, *bytes, model);
    if (Status s = CheckBools(tensor.dtype, tensor.bytes); !s.ok()) return s;
    return tensor;
  }
  if (header.raw || typed == 0) {
    const std::string_view raw = header.raw.value_or(std::string_view());
    if (raw.size() != *need) {
      return InvalidInput("{}{} needs {} bytes, has {}", DTypeName(tensor.dtype),
                          Describe(tensor.dims), *need, raw.size());
    }
    tensor.bytes = Aligned(tensor.dtype, std::as_bytes(std::span(raw)), model);
    if (Status s = CheckBools(tensor.dtype, tensor.bytes); !s.ok()) return s;
    return tensor;
  }

  const uint32_t field = TypedFieldOf(tensor.dtype);
  const std::string_view field_name = field == proto::tensor::kFloatData   ? "float_data"
                                      : field == proto::tensor::kInt32Data ? "int32_data"
                                                                           : "int64_data";
  const uint64_t have = field == proto::tensor::kFloatData   ? header.float_data
                        : field == proto::tensor::kInt32Data ? header.int32_data
                                                             : header.int64_data;
  const uint64_t bytes_per_entry = static_cast<uint64_t>(std::max(BitsOf(tensor.dtype) / 8, 1));
  if (have != *need / bytes_per_entry || have != typed) {
    return InvalidInput("{}{} needs {} entries in {}, has {}, and {} in other fields",
                        DTypeName(tensor.dtype), Describe(tensor.dims), *need / bytes_per_entry,
                        field_name, have, typed - have);
  }
  const std::span<std::byte> storage =
      model.Own(*need);  // `have` entries of a byte or more back this size
  if (Status s = CopyTypedField(message, field, TypedWriter(tensor.dtype, storage)); !s.ok())
    return s;
  tensor.bytes = storage;
  return tensor;
}

}  // namespace granule::onnx
