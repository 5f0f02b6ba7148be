#include "onnx/wire.h"

#include <algorithm>
#include <cstring>
#include <protozero/varint.hpp>

#include "base/format.h"

namespace granule::onnx {

std::string_view Fields::Bytes() {
  const protozero::data_view rest = reader_.data();
  const char* after_length = rest.data();
  const char* end = rest.data() + rest.size();
  const uint64_t length = protozero::decode_varint(&after_length, end);
  const auto left = static_cast<uint64_t>(end - after_length);
  if (length > kMaxFieldBytes) {
    throw WireError(Format(
        "is damaged: field {} at byte {} claims {} bytes, more than a message can have (2 GiB)",
        field(), rest.data() - file_.data(), length));
  }
  if (length > left) {
    // The enclosing message reaches to the end of the file: the tail is missing. Otherwise sizes
    // contradict.
    const bool at_end = end == file_.data() + file_.size();
    throw WireError(Format("{}: field {} at byte {} needs {} bytes, {} are left",
                           at_end ? "ends early" : "is damaged", field(),
                           rest.data() - file_.data(), length, left));
  }
  const protozero::data_view view = reader_.get_view();
  return {view.data(), view.size()};
}

void Fields::Skip() {
  if (reader_.wire_type() == protozero::pbf_wire_type::length_delimited) {
    Bytes();
  } else {
    reader_.skip();
  }
}

void Fields::AppendInts(std::vector<int64_t>& to) {
  if (reader_.wire_type() == protozero::pbf_wire_type::varint) {
    to.push_back(Varint());
    return;
  }
  const std::string_view packed = Bytes();
  to.reserve(to.size() + CountVarints(packed));
  for (const char *p = packed.data(), *end = p + packed.size(); p != end;) {
    to.push_back(static_cast<int64_t>(protozero::decode_varint(&p, end)));
  }
}

void Fields::AppendFloats(std::vector<float>& to) {
  if (reader_.wire_type() == protozero::pbf_wire_type::fixed32) {
    to.push_back(Fixed32());
    return;
  }
  const std::string_view packed = Bytes();
  if (packed.size() % sizeof(float) != 0) {
    throw WireError(Format("is damaged: {} bytes of packed float32 are no whole number of elements",
                           packed.size()));
  }
  const size_t first = to.size();
  to.resize(first + packed.size() / sizeof(float));
  if (!packed.empty()) std::memcpy(to.data() + first, packed.data(), packed.size());
}

uint64_t CountVarints(std::string_view packed) {
  if (packed.empty()) return 0;
  const auto is_last = [](char c) { return (static_cast<unsigned char>(c) & 0x80u) == 0; };
  if (!is_last(packed.back()))
    throw WireError("is damaged: a packed list of integers ends inside one");
  return static_cast<uint64_t>(std::count_if(packed.begin(), packed.end(), is_last));
}

}  // namespace granule::onnx
