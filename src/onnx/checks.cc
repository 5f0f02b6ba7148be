#include "onnx/checks.h"

#include <algorithm>
#include <queue>

#include "onnx/operators.h"
#include "onnx/words.h"

namespace granule::onnx {
namespace {

char TypeLetter(const Attribute& attribute) {
  // In the order of Attribute::value's alternatives.
  constexpr std::string_view kLetters = "-ifsIFSt";
  return kLetters[attribute.value.index()];
}

std::string_view TypeWord(char letter) {
  switch (letter) {
    case 'i':
      return "INT";
    case 'f':
      return "FLOAT";
    case 's':
      return "STRING";
    case 'I':
      return "INTS";
    case 'F':
      return "FLOATS";
    case 'S':
      return "STRINGS";
    case 't':
      return "TENSOR";
    default:
      return "none";
  }
}

// The letter after "NAME:" in an operator's attribute list; 0 when the name is not listed.
char ListedType(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const std::string_view item = list.substr(0, list.find(' '));
    if (item.substr(0, item.size() - 2) == name) return item.back();
    list.remove_prefix(std::min(list.size(), item.size() + 1));
  }
  return 0;
}

Status CheckNode(const Graph& graph, const Node& node) {
  if (node.op.empty()) return InvalidInput("node {} names no operator", Describe(graph, node));
  const OperatorInfo* info = FindOperator(node.domain, node.op);
  if (info == nullptr) return {};
  const size_t inputs = node.inputs.size();
  if (inputs < info->min_inputs || (inputs > info->max_inputs && info->max_inputs != kAnyCount)) {
    return InvalidInput("node {} has {} inputs, {} takes {}", Describe(graph, node), inputs,
                        node.op,
                        info->max_inputs == kAnyCount ? Format("{} or more", info->min_inputs)
                        : info->min_inputs == info->max_inputs
                            ? Format("{}", info->min_inputs)
                            : Format("{} to {}", info->min_inputs, info->max_inputs));
  }
  for (size_t i = 0; i < info->min_inputs; ++i) {
    // Packed queries leave key and value out; a model without a past leaves its two out.
    const bool may_be_absent = node.op == "GroupQueryAttention" && i >= 1 && i <= 4;
    if (node.inputs[i] == kNone && !may_be_absent) {
      return InvalidInput("node {} leaves out input {}, which {} needs", Describe(graph, node), i,
                          node.op);
    }
  }
  if (node.outputs.empty() ||
      (node.outputs.size() > info->max_outputs && info->max_outputs != kAnyCount)) {
    return InvalidInput("node {} has {} outputs, {} gives 1 to {}", Describe(graph, node),
                        node.outputs.size(), node.op, info->max_outputs);
  }
  for (const Attribute& attribute : node.attributes) {
    const char listed = ListedType(info->attributes, attribute.name);
    if (listed != 0 && listed != TypeLetter(attribute)) {
      return InvalidInput("node {}: attribute {} is of type {}, {} takes {}", Describe(graph, node),
                          Quoted(attribute.name), TypeWord(TypeLetter(attribute)), node.op,
                          TypeWord(listed));
    }
  }
  return {};
}

// Which node makes a value.
constexpr int32_t kNoProducer = -1;
constexpr int32_t kIsInput = -2;
constexpr int32_t kIsConstant = -3;

Result<std::vector<int32_t>> FindProducers(const Graph& graph) {
  std::vector<int32_t> producer(graph.values.size(), kNoProducer);
  for (ValueId id : graph.inputs) producer[static_cast<size_t>(id)] = kIsInput;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].tensor >= 0) producer[v] = kIsConstant;
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (ValueId id : graph.nodes[n].outputs) {
      if (id == kNone) continue;
      int32_t& earlier = producer[static_cast<size_t>(id)];
      if (earlier != kNoProducer) {
        const std::string who =
            earlier == kIsInput ? "is a graph input"
            : earlier == kIsConstant
                ? "is an initializer"
                : "is made by node " + Describe(graph, graph.nodes[static_cast<size_t>(earlier)]);
        return InvalidInput("value {} has two producers: it {}, and node {} makes it as well",
                            Quoted(graph.values[static_cast<size_t>(id)].name), who,
                            Describe(graph, graph.nodes[n]));
      }
      earlier = static_cast<int32_t>(n);
    }
  }
  return producer;
}

Status CheckEverythingIsProduced(const Graph& graph, const std::vector<int32_t>& producer) {
  std::vector<std::string> missing;
  std::vector<bool> told(graph.values.size());
  for (const Node& node : graph.nodes) {
    for (ValueId id : node.inputs) {
      const auto v = static_cast<size_t>(id);
      if (id == kNone || producer[v] != kNoProducer || told[v]) continue;
      told[v] = true;
      missing.push_back(
          Format("{} (read by node {})", Quoted(graph.values[v].name), Describe(graph, node)));
    }
  }
  for (ValueId id : graph.outputs) {
    const auto v = static_cast<size_t>(id);
    if (producer[v] != kNoProducer || told[v]) continue;
    missing.push_back(Format("{} (a graph output)", Quoted(graph.values[v].name)));
  }
  if (missing.empty()) return {};
  return InvalidInput(
      "nothing produces {}: no graph input, initializer or node output is called so",
      Join(missing));
}

// The nodes of one cycle, in order, given that every node of `waiting` waits for another one of
// them.
Status CycleError(const Graph& graph, const std::vector<int32_t>& producer,
                  const std::vector<int32_t>& waiting_for) {
  auto at = static_cast<int32_t>(
      std::find_if(waiting_for.begin(), waiting_for.end(), [](int32_t n) { return n > 0; }) -
      waiting_for.begin());
  const auto next = [&](int32_t node) {
    for (ValueId id : graph.nodes[static_cast<size_t>(node)].inputs) {
      const int32_t from = id == kNone ? kNoProducer : producer[static_cast<size_t>(id)];
      if (from >= 0 && waiting_for[static_cast<size_t>(from)] > 0) return from;
    }
    return node;
  };
  std::vector<bool> seen(graph.nodes.size());
  for (; !seen[static_cast<size_t>(at)]; at = next(at)) seen[static_cast<size_t>(at)] = true;
  std::vector<std::string> cycle;
  const int32_t start = at;
  do {
    cycle.push_back(Describe(graph, graph.nodes[static_cast<size_t>(at)]));
    at = next(at);
  } while (at != start);
  std::reverse(cycle.begin(), cycle.end());
  return InvalidInput("the graph has a cycle of {} node{}: {}", cycle.size(),
                      cycle.size() == 1 ? "" : "s", Join(cycle));
}

Status SortNodes(Graph& graph, const std::vector<int32_t>& producer) {
  const size_t count = graph.nodes.size();
  std::vector<int32_t> waiting_for(count, 0);  // inputs that nodes not yet placed make
  std::vector<std::vector<int32_t>> readers(count);
  for (size_t n = 0; n < count; ++n) {
    for (ValueId id : graph.nodes[n].inputs) {
      const int32_t from = id == kNone ? kNoProducer : producer[static_cast<size_t>(id)];
      if (from < 0) continue;
      ++waiting_for[n];
      readers[static_cast<size_t>(from)].push_back(static_cast<int32_t>(n));
    }
  }
  // The smallest ready index first: a sorted file keeps its order.
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> ready;
  for (size_t n = 0; n < count; ++n) {
    if (waiting_for[n] == 0) ready.push(static_cast<int32_t>(n));
  }
  std::vector<int32_t> order;
  order.reserve(count);
  while (!ready.empty()) {
    const int32_t node = ready.top();
    ready.pop();
    order.push_back(node);
    for (int32_t reader : readers[static_cast<size_t>(node)]) {
      if (--waiting_for[static_cast<size_t>(reader)] == 0) ready.push(reader);
    }
  }
  if (order.size() != count) return CycleError(graph, producer, waiting_for);
  std::vector<Node> sorted;
  sorted.reserve(count);
  for (int32_t node : order) sorted.push_back(std::move(graph.nodes[static_cast<size_t>(node)]));
  graph.nodes = std::move(sorted);
  return {};
}

}  // namespace

Status CheckAndSort(Model& model) {
  Graph& graph = model.graph;
  for (const Node& node : graph.nodes) {
    if (Status s = CheckNode(graph, node); !s.ok()) return s;
  }
  const Result<std::vector<int32_t>> producer = FindProducers(graph);
  if (!producer.ok()) return producer.status();
  if (Status s = CheckEverythingIsProduced(graph, *producer); !s.ok()) return s;
  return SortNodes(graph, *producer);
}

}  // namespace granule::onnx
