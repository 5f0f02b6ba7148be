// How names, nodes and shapes of a model appear in messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "onnx/graph.h"

namespace granule::onnx {

// The text in double quotes, safe to print: control characters and bytes that are not UTF-8 become
// \xNN, and what is longer than 120 bytes is cut. Names come from outside and must not drive a
// terminal.
std::string Quoted(std::string_view text);

// com.microsoft.MatMulNBits "/model/lm_head"; a node without a name is told by its first output.
std::string Describe(const Graph& graph, const Node& node);

// float32[batch,4,?]; "?" for what is not known.
std::string Describe(const Value& value);
std::string Describe(const std::vector<Dim>& dims);
std::string Describe(const std::vector<int64_t>& dims);

// "a, b, c and 17 more": at most `limit` of them.
std::string Join(const std::vector<std::string>& items, size_t limit = 20);

}  // namespace granule::onnx
