// Structural checks of a graph, and what the standard calls shape inference as far as decoders need it.
#pragma once

#include "base/status.h"
#include "onnx/graph.h"

namespace granule::onnx {

// Sorts nodes topologically and refuses: a cycle (names the nodes on it), a value with two producers, a node input that
// nothing produces, a graph output that nothing produces, duplicate initializers.
Status CheckAndSort(Model& model);

// Fills dtype and shape of node outputs where they follow from the inputs; leaves unknown ones unset. A contradiction
// with what the file declares (value_info, outputs) is an error with both. Covers every operator of OperatorTable (and what
// mask and position subgraphs of GroupQueryAttention exports use); unknown operators leave their outputs unknown.
Status InferShapes(Model& model);

// Simplifies in place: Constant nodes and Identity become constants / aliases, nodes whose inputs are all constant are
// evaluated (Reshape, Transpose, Cast, Squeeze/Unsqueeze, Concat, Slice, Gather, arithmetic, Shape of a constant;
// zero-copy where only dims change, e.g. the Reshape of a tied int8 table), then nodes whose outputs nobody reads are removed.
// `keep_alive` lists outputs wanted besides the graph's own. `dead_outputs` lists graph outputs to ignore as readers.
struct SimplifyOptions {
  std::vector<ValueId> dead_outputs;
  uint64_t max_folded_bytes = uint64_t{64} << 20;  // do not fold into something larger than this
};
Status Simplify(Model& model, const SimplifyOptions& options);

}  // namespace granule::onnx
