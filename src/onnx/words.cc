#include "onnx/words.h"

#include <algorithm>

#include "base/format.h"

namespace granule::onnx {
namespace {

// Bytes of the valid UTF-8 sequence at the front of `text` (no overlong forms, no surrogates); 0
// when there is none.
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const size_t length = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (length == 1) return 1;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f)) return 0;
  if ((lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f)) return 0;
  return length;
}

template <class T, class Print>
std::string Bracketed(const std::vector<T>& dims, const Print& print) {
  std::string out = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) out += ',';
    out += print(dims[i]);
  }
  return out + "]";
}

}  // namespace

std::string Quoted(std::string_view text) {
  constexpr size_t kMaxBytes = 120;
  std::string out = "\"";
  size_t i = 0;
  while (i < text.size() && i < kMaxBytes) {
    const size_t length = Utf8Length(text.substr(i));
    const auto c = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters as well.
    const bool control =
        c < 0x20 || c == 0x7f ||
        (length == 2 && c == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0);
    if (length == 0 || control) {
      for (size_t k = 0; k < std::max<size_t>(length, 1); ++k)
        out += Format("\\x{:02x}", static_cast<unsigned char>(text[i + k]));
    } else {
      out += text.substr(i, length);
    }
    i += std::max<size_t>(length, 1);
  }
  if (i < text.size()) out += Format("... ({} bytes)", text.size());
  return out + "\"";
}

std::string Describe(const Graph& graph, const Node& node) {
  const std::string op = node.domain.empty()
                             ? std::string(node.op)
                             : std::string(node.domain) + "." + std::string(node.op);
  const std::string printable = Quoted(op);
  std::string out = printable.substr(1, printable.size() - 2);
  if (out.empty()) out = "(no operator)";
  if (!node.name.empty()) return out + " " + Quoted(node.name);
  for (ValueId output : node.outputs) {
    if (output != kNone)
      return out + " that makes " + Quoted(graph.values[static_cast<size_t>(output)].name);
  }
  return out;
}

std::string Describe(const std::vector<Dim>& dims) {
  return Bracketed(dims, [](const Dim& dim) {
    if (dim.known()) return Format("{}", dim.size);
    if (dim.symbol.empty()) return std::string("?");
    const std::string quoted = Quoted(dim.symbol);
    return quoted.substr(1, quoted.size() - 2);
  });
}

std::string Describe(const std::vector<int64_t>& dims) {
  return Bracketed(dims, [](int64_t dim) { return Format("{}", dim); });
}

std::string Describe(const Value& value) {
  return (value.dtype ? std::string(DTypeName(*value.dtype)) : std::string("?")) +
         (value.shape ? Describe(*value.shape) : std::string("[...]"));
}

std::string Join(const std::vector<std::string>& items, size_t limit) {
  std::string out;
  for (size_t i = 0; i < items.size() && i < limit; ++i) {
    if (i > 0) out += ", ";
    out += items[i];
  }
  if (items.size() > limit) out += Format(" and {} more", items.size() - limit);
  return out;
}

}  // namespace granule::onnx
