// The fields of one protobuf message, in file order: protozero with the two checks that it lacks.
// protozero keeps lengths in 32 bits (2^32 + 5 becomes 5) and leaves the wire type to its caller,
// so a length is looked at before protozero sees it, and callers switch on number and wire type
// together.
//
// Errors are thrown as WireError (or protozero's own exceptions) and caught once, in reader.cc: no
// exception leaves the layer.
#pragma once

#include <cstdint>
#include <exception>
#include <protozero/pbf_reader.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace granule::onnx {

// What is wrong with the bytes, in words that continue "model.onnx ...".
class WireError : public std::exception {
 public:
  explicit WireError(std::string words) : words_(std::move(words)) {}
  const char* what() const noexcept override { return words_.c_str(); }

 private:
  std::string words_;
};

// Case labels of a switch over Fields::key().
constexpr uint32_t AsVarint(uint32_t field) { return field << 3 | 0; }
constexpr uint32_t AsFixed64(uint32_t field) { return field << 3 | 1; }
constexpr uint32_t AsBytes(uint32_t field) { return field << 3 | 2; }
constexpr uint32_t AsFixed32(uint32_t field) { return field << 3 | 5; }

class Fields {
 public:
  // A field longer than this is refused: protobuf's own limit for a message.
  static constexpr uint64_t kMaxFieldBytes = uint64_t{1} << 31;

  // `file` is the whole input that `message` is a part of; it only serves positions in messages.
  Fields(std::string_view message, std::string_view file)
      : reader_(message.data(), message.size()), file_(file) {}

  // Goes to the next field. Its value must then be taken by one of the functions below, or skipped.
  bool Next() { return reader_.next(); }
  uint32_t key() const { return reader_.tag_and_type(); }
  uint32_t field() const { return reader_.tag(); }

  // A varint as int64, as int32 and enum fields are written too.
  int64_t Varint() { return reader_.get_int64(); }
  float Fixed32() { return reader_.get_float(); }
  std::string_view Bytes();
  Fields Message() { return Fields(Bytes(), file_); }
  void Skip();

  // Appends to a repeated field that may be packed or not (key() says which).
  void AppendInts(std::vector<int64_t>& to);
  void AppendFloats(std::vector<float>& to);

 private:
  protozero::pbf_reader reader_;
  std::string_view file_;
};

// Number of varints in a packed field; throws WireError when the last one is cut.
uint64_t CountVarints(std::string_view packed);

}  // namespace granule::onnx
