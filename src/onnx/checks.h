// Structural checks of a graph, and what the standard calls shape inference as far as decoders need
// it.
#pragma once

#include "base/status.h"
#include "onnx/graph.h"

namespace granule::onnx {

// Sorts nodes topologically (a sorted graph keeps its order) and refuses: a cycle (names the nodes
// on it), a value with two producers, node inputs and graph outputs that nothing produces (all of
// them), and nodes of known operators (operators.h) with a wrong number of inputs or outputs or
// with an attribute of a wrong type. Later code may index inputs and read attributes without asking
// again.
Status CheckAndSort(Model& model);

// Fills dtype and shape of node outputs where they follow from the inputs; leaves unknown ones
// unset. A contradiction with what the file declares (value_info, outputs) is an error with both.
// Symbols of the graph's inputs ("batch", "seq") are carried along, also through shape subgraphs
// (Shape, Gather, Concat, Reshape). Covers the operators of operators.h; others leave their outputs
// as declared. May be called again, e.g. after Simplify.
Status InferShapes(Model& model);

// Simplifies in place. Constant nodes become constants, Identity nodes become their input. Nodes
// whose inputs are all constant are evaluated (views, cuts, joins, lookups, casts, arithmetic,
// comparisons); where only dims change, as in the Reshape of a tied int8 table, the bytes are
// shared and not copied. Shape of a value whose dims are all known numbers is a constant too. Then
// nodes whose outputs nobody reads are removed.
//
// What cannot be evaluated (an index out of range, a division by zero, a cast out of range) stays a
// node. A graph output may end up as a constant: it has a tensor and no producer. An Identity that
// makes a graph output of something that varies stays.
struct SimplifyOptions {
  // Graph outputs that nobody wants. One that no remaining node makes leaves Graph::outputs.
  std::vector<ValueId> dead_outputs;
  // A constant larger than this is not made, nor are more than 8 times this in total. Shared bytes
  // are free.
  uint64_t max_folded_bytes = uint64_t{64} << 20;
};
Status Simplify(Model& model, const SimplifyOptions& options);

}  // namespace granule::onnx
