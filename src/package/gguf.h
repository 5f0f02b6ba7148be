// A GGUF file (versions 2 and 3) as plain data: a zero-copy view of metadata, tensor table and
// tensor bytes.
//
// Format: github.com/ggml-org/ggml, docs/gguf.md. Everything in the file is untrusted: each count,
// length, offset and product is compared with the bytes that are really there before anything is
// allocated or read.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace granule::package {

// Types of metadata values, numbered as in the file.
enum class GgufValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
const char* GgufValueTypeName(GgufValueType type);

// Types of tensors that this project reads, numbered as in the file. Others keep their number.
enum class GgmlType : uint32_t { kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8, kBF16 = 30 };

// How a tensor type stores its elements: rows are whole blocks of `block` elements in `bytes` bytes
// each.
struct GgmlTypeInfo {
  const char* name;
  uint32_t block;
  uint32_t bytes;
};
// Null for numbers that the format does not define.
const GgmlTypeInfo* FindGgmlType(GgmlType type);

// One metadata entry. `payload` is the value's bytes as they lie in the file: a scalar, the
// characters of a string, or an array's elements.
struct GgufValue {
  std::string_view key;
  GgufValueType type = GgufValueType::kU8;
  GgufValueType element_type = GgufValueType::kU8;  // of arrays
  uint64_t count = 1;                               // elements of arrays
  std::span<const std::byte> payload;

  // Each is empty where the type differs. Integers of every width and sign read as AsInt where they
  // fit.
  std::optional<int64_t> AsInt() const;
  std::optional<double> AsFloat() const;  // F32, F64
  std::optional<bool> AsBool() const;
  std::optional<std::string_view> AsString() const;
  std::optional<std::vector<std::string_view>> AsStrings() const;
  std::optional<std::vector<int64_t>> AsInts() const;
  std::string TypeText() const;  // "uint32", "array of string"
};

struct GgufTensor {
  std::string_view name;
  GgmlType type = GgmlType::kF32;
  // 1 to 4 dimensions, the fastest first (ggml's order, the reverse of ONNX's); each > 0, product
  // and bytes fit int64.
  std::vector<int64_t> dims;
  std::span<const std::byte> bytes;

  int64_t elements() const;
  int64_t row() const { return dims[0]; }  // elements of a row
  int64_t rows() const { return elements() / dims[0]; }
};

struct GgufFile {
  uint32_t version = 0;
  uint64_t alignment = 32;
  std::vector<GgufValue> metadata;
  std::vector<GgufTensor> tensors;

  const GgufValue* Find(std::string_view key) const;          // nullptr when absent
  const GgufTensor* FindTensor(std::string_view name) const;  // likewise

  // The entry as that type: empty when absent, an error that names key, expected and found type
  // otherwise.
  Result<std::optional<int64_t>> Int(std::string_view key) const;
  Result<std::optional<double>> Float(std::string_view key) const;
  Result<std::optional<bool>> Bool(std::string_view key) const;
  Result<std::optional<std::string>> String(std::string_view key) const;
};

// Views into `bytes`, which must outlive the result. Errors name the field and its value; `bytes`
// that are no GGUF at all are explained in words.
Result<GgufFile> ParseGguf(std::span<const std::byte> bytes);

}  // namespace granule::package
