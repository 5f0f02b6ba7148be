// What a parsed GGUF file answers: types, values, look-ups. Parsing, with every check, is in
// gguf.cc.
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "package/gguf.h"

namespace granule::package {
namespace {

constexpr uint64_t kMaxInt = std::numeric_limits<int64_t>::max();

template <class T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Visits the elements of an integer array as int64; false where one does not fit.
template <class T>
bool AppendInts(const GgufValue& value, std::vector<int64_t>* out) {
  for (uint64_t i = 0; i < value.count; ++i) {
    const T element = Load<T>(value.payload.data() + i * sizeof(T));
    if (std::is_same_v<T, uint64_t> && static_cast<uint64_t>(element) > kMaxInt) return false;
    out->push_back(static_cast<int64_t>(element));
  }
  return true;
}

bool AppendInts(const GgufValue& value, GgufValueType type, std::vector<int64_t>* out) {
  switch (type) {
    case GgufValueType::kU8:
      return AppendInts<uint8_t>(value, out);
    case GgufValueType::kI8:
      return AppendInts<int8_t>(value, out);
    case GgufValueType::kU16:
      return AppendInts<uint16_t>(value, out);
    case GgufValueType::kI16:
      return AppendInts<int16_t>(value, out);
    case GgufValueType::kU32:
      return AppendInts<uint32_t>(value, out);
    case GgufValueType::kI32:
      return AppendInts<int32_t>(value, out);
    case GgufValueType::kU64:
      return AppendInts<uint64_t>(value, out);
    case GgufValueType::kI64:
      return AppendInts<int64_t>(value, out);
    default:
      return false;
  }
}

// One entry as type T, or an error that names what was expected.
template <class T>
Result<std::optional<T>> Typed(const GgufValue* entry, std::optional<T> value,
                               const char* expected) {
  if (entry == nullptr) return std::optional<T>();
  if (!value) {
    return InvalidInput("metadata \"{}\" is {}; {} is expected", entry->key, entry->TypeText(),
                        expected);
  }
  return value;
}

}  // namespace

const char* GgufValueTypeName(GgufValueType type) {
  static constexpr const char* kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                           "int32",  "float32", "bool",   "string", "array",
                                           "uint64", "int64",   "float64"};
  return kNames[static_cast<uint32_t>(type)];
}

const GgmlTypeInfo* FindGgmlType(GgmlType type) {
  static constexpr struct {
    uint32_t number;
    GgmlTypeInfo info;
  } kTypes[] = {
      {0, {"F32", 1, 4}},         {1, {"F16", 1, 2}},         {2, {"Q4_0", 32, 18}},
      {3, {"Q4_1", 32, 20}},      {6, {"Q5_0", 32, 22}},      {7, {"Q5_1", 32, 24}},
      {8, {"Q8_0", 32, 34}},      {9, {"Q8_1", 32, 36}},      {10, {"Q2_K", 256, 84}},
      {11, {"Q3_K", 256, 110}},   {12, {"Q4_K", 256, 144}},   {13, {"Q5_K", 256, 176}},
      {14, {"Q6_K", 256, 210}},   {15, {"Q8_K", 256, 292}},   {16, {"IQ2_XXS", 256, 66}},
      {17, {"IQ2_XS", 256, 74}},  {18, {"IQ3_XXS", 256, 98}}, {19, {"IQ1_S", 256, 50}},
      {20, {"IQ4_NL", 32, 18}},   {21, {"IQ3_S", 256, 110}},  {22, {"IQ2_S", 256, 82}},
      {23, {"IQ4_XS", 256, 136}}, {24, {"I8", 1, 1}},         {25, {"I16", 1, 2}},
      {26, {"I32", 1, 4}},        {27, {"I64", 1, 8}},        {28, {"F64", 1, 8}},
      {29, {"IQ1_M", 256, 56}},   {30, {"BF16", 1, 2}},       {34, {"TQ1_0", 256, 54}},
      {35, {"TQ2_0", 256, 66}},   {39, {"MXFP4", 32, 17}},
  };
  for (const auto& known : kTypes) {
    if (known.number == static_cast<uint32_t>(type)) return &known.info;
  }
  return nullptr;
}

std::optional<int64_t> GgufValue::AsInt() const {
  std::vector<int64_t> ints;
  if (type == GgufValueType::kArray || !AppendInts(*this, type, &ints)) return std::nullopt;
  return ints[0];
}

std::optional<double> GgufValue::AsFloat() const {
  if (type == GgufValueType::kF32) return Load<float>(payload.data());
  if (type == GgufValueType::kF64) return Load<double>(payload.data());
  return std::nullopt;
}

std::optional<bool> GgufValue::AsBool() const {
  if (type != GgufValueType::kBool) return std::nullopt;
  return payload[0] != std::byte{0};
}

std::optional<std::string_view> GgufValue::AsString() const {
  if (type != GgufValueType::kString) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(payload.data()), payload.size());
}

std::optional<std::vector<std::string_view>> GgufValue::AsStrings() const {
  if (type != GgufValueType::kArray || element_type != GgufValueType::kString) return std::nullopt;
  std::vector<std::string_view> strings;
  strings.reserve(count);
  const std::byte* at = payload.data();
  for (uint64_t i = 0; i < count; ++i) {  // the lengths were checked when the file was parsed
    const uint64_t length = Load<uint64_t>(at);
    strings.emplace_back(reinterpret_cast<const char*>(at + 8), length);
    at += 8 + length;
  }
  return strings;
}

std::optional<std::vector<int64_t>> GgufValue::AsInts() const {
  std::vector<int64_t> ints;
  if (type != GgufValueType::kArray || !AppendInts(*this, element_type, &ints)) return std::nullopt;
  return ints;
}

std::string GgufValue::TypeText() const {
  if (type != GgufValueType::kArray) return GgufValueTypeName(type);
  return Format("array of {}", GgufValueTypeName(element_type));
}

int64_t GgufTensor::elements() const {
  int64_t product = 1;
  for (int64_t dim : dims) product *= dim;  // was checked when the file was parsed
  return product;
}

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto it = std::find_if(metadata.begin(), metadata.end(),
                               [&](const GgufValue& v) { return v.key == key; });
  return it == metadata.end() ? nullptr : &*it;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto it = std::find_if(tensors.begin(), tensors.end(),
                               [&](const GgufTensor& t) { return t.name == name; });
  return it == tensors.end() ? nullptr : &*it;
}

Result<std::optional<int64_t>> GgufFile::Int(std::string_view key) const {
  const GgufValue* entry = Find(key);
  return Typed<int64_t>(entry, entry ? entry->AsInt() : std::nullopt, "an integer");
}

Result<std::optional<double>> GgufFile::Float(std::string_view key) const {
  const GgufValue* entry = Find(key);
  return Typed<double>(entry, entry ? entry->AsFloat() : std::nullopt, "a floating-point number");
}

Result<std::optional<bool>> GgufFile::Bool(std::string_view key) const {
  const GgufValue* entry = Find(key);
  return Typed<bool>(entry, entry ? entry->AsBool() : std::nullopt, "a bool");
}

Result<std::optional<std::string>> GgufFile::String(std::string_view key) const {
  const GgufValue* entry = Find(key);
  std::optional<std::string> text;
  if (entry != nullptr && entry->AsString()) text = std::string(*entry->AsString());
  return Typed<std::string>(entry, std::move(text), "a string");
}

}  // namespace granule::package
