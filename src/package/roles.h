// Which graph input or output plays which part. The configuration proposes names, the graph
// decides.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "onnx/graph.h"
#include "package/package.h"
#include "package/stated.h"

namespace granule::package {

// Names from `stated` are tried first, then the usual ones; KV geometry is read from the graph's
// own input shapes. Refused: no input_ids or logits, a half of a key/value pair or its present
// output that is missing, ranks, element types or sizes that are not those of a KV cache, inputs
// that play no part (all of them). Where the configuration contradicts the graph, a warning names
// both numbers.
Result<Roles> FindRoles(const onnx::Graph& graph, const Stated& stated,
                        std::vector<std::string>* warnings);

// The smallest number of rows of the tables that positions are looked up in: cos_cache of
// GroupQueryAttention and RotaryEmbedding, and constants that are gathered by position_ids.
std::optional<Sourced> FindTableRows(const onnx::Graph& graph, const Roles& roles);

}  // namespace granule::package
