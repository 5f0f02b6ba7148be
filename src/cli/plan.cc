// granule plan MODEL: the memory bill before anything is loaded. Reads the graph and its sizes; no
// weight is touched.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/arith.h"
#include "cli/plan_bill.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "kv/capacity.h"
#include "memory/host/host_vmm.h"
#include "memory/host/memory_limits.h"
#include "package/package.h"

namespace granule::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kUsualTokens = 4096;  // of a session, where --tokens is left out
constexpr LeverId kLeversOfPlan[] = {LeverId::kCtxSize, LeverId::kKvGranule};

VerbSyntax Syntax() {
  VerbSyntax syntax{
      .name = "plan",
      .purpose = "says what a model's KV will take, before anything is loaded",
      .positionals = {"MODEL"},
      .usage = "MODEL [-c N] [--tokens N] [--sequences N] [--ram-limit BYTES] [--json]",
      .flags = {ModelFlag(),
                {{"--tokens"},
                 "N",
                 "Options",
                 "tokens that a session really holds; default 4096, or the limit where that is "
                 "less"},
                {{"--sequences"}, "N", "Options", "sequences that share the memory; default 1"},
                {{"--ram-limit"},
                 "BYTES",
                 "Options",
                 "memory for weights and KV, as 65536, 512MiB or 16GiB; default: what is "
                 "available now"},
                {{"--json"}, "", "Options", "one JSON object"}},
      .examples = {{"granule plan models/smollm2 -c 8192",
                    "bytes per token, and per layout the first token's price, what fits, and what "
                    "a runtime that allocates the whole context takes"},
                   {"granule plan synth:qwen2.5-14b --ram-limit 16GiB --sequences 4",
                    "for a model that nobody has downloaded yet"}},
      .exit_codes = UsualExitCodes()};
  for (const LeverId id : kLeversOfPlan) syntax.flags.push_back(LeverFlag(id, "Memory"));
  return syntax;
}

// Everything plan says, gathered once and shown in two ways.
struct Findings {
  const package::Package* package = nullptr;
  kv::HardMax hard_max;
  std::string limit_source;
  std::string budget_source;
  BillInput input;
  Bill bill;
};

Result<uint64_t> CountFlag(const Arguments& arguments, const char* flag, uint64_t fallback) {
  const std::optional<std::string> text = arguments.Find(flag);
  if (!text) return fallback;
  const std::optional<uint64_t> n = ParseUnsigned(*text);
  if (!n || *n == 0) {
    return Error(Code::kUsage, "{}: \"{}\" is not accepted; accepted: a number from 1 on", flag,
                 *text);
  }
  return *n;
}

std::optional<kv::Limit> AsLimit(const std::optional<package::Sourced>& sourced) {
  if (!sourced || sourced->value < 0) return std::nullopt;
  return kv::Limit{static_cast<uint64_t>(sourced->value), sourced->source};
}

// Bytes of all constants, those that are shared counted once.
uint64_t WeightBytes(const onnx::Graph& graph) {
  std::set<const std::byte*> seen;
  uint64_t bytes = 0;
  for (const onnx::Tensor& tensor : graph.tensors) {
    if (seen.insert(tensor.bytes.data()).second) bytes = SaturatingAdd(bytes, tensor.bytes.size());
  }
  return bytes;
}

Status FindBudget(const Arguments& arguments, const memory::MemoryLimit& memory, Findings* found) {
  found->input.budget_bytes = memory.available;
  found->budget_source = memory.name;
  const std::optional<std::string> text = arguments.Find("--ram-limit");
  if (!text) return {};
  const std::optional<uint64_t> bytes = ParseByteSize(*text);
  if (!bytes || *bytes == 0) {
    return Error(Code::kUsage,
                 "--ram-limit: \"{}\" is not accepted; accepted: bytes, or a number with KiB, MiB "
                 "or GiB",
                 *text);
  }
  found->input.budget_bytes = *bytes;
  found->budget_source = "--ram-limit";
  return {};
}

// The limit of one sequence. A model that states none is planned with what its reservation would
// be: as many tokens as the machine's whole memory holds.
Status FindLimit(const LeverValues& levers, const package::Package& package,
                 const memory::MemoryLimit& memory, Findings* found) {
  std::optional<kv::Limit> asked;
  if (levers.ctx_size.value) asked = kv::Limit{*levers.ctx_size.value, levers.ctx_size.source};
  found->hard_max =
      kv::ResolveHardMax(asked, AsLimit(package.context_length), AsLimit(package.table_rows));
  found->limit_source = found->hard_max.source;
  if (found->hard_max.tokens) {
    found->input.limit_tokens = *found->hard_max.tokens;
  } else {
    found->input.limit_tokens = memory.total / found->input.group.BytesPerToken();
    found->limit_source += "; planned with what all memory holds";
  }
  if (found->input.limit_tokens == 0)
    return InvalidInput("{}: a sequence may hold no token ({})", package.name, found->limit_source);
  return {};
}

Result<Findings> Examine(const Arguments& arguments, const package::Package& package) {
  Findings found;
  found.package = &package;
  Result<LeverValues> levers = ReadLevers(kLeversOfPlan, arguments.flags, ProcessEnvironment);
  if (!levers.ok()) return levers.status();
  for (const package::KvPort& port : package.roles.kv)
    found.input.group.layers.push_back({port.kv_heads, port.head_dim, port.dtype});
  if (found.input.group.BytesPerToken() == 0)
    return InvalidInput("{}: the model keeps no KV, so there is nothing to plan", package.name);

  const Result<memory::MemoryLimit> memory = memory::MemoryLimits({}).Tightest();
  if (!memory.ok()) return memory.status();
  if (Status s = FindBudget(arguments, *memory, &found); !s.ok()) return s;
  if (Status s = FindLimit(*levers, package, *memory, &found); !s.ok()) return s;
  const uint64_t granule = levers->kv_granule.value;
  found.input.granule_bytes = granule != 0 ? granule : memory::HostVmmOptions().granule_bytes;
  found.input.weight_bytes = WeightBytes(package.model.graph);

  Result<uint64_t> sequences = CountFlag(arguments, "--sequences", 1);
  if (!sequences.ok()) return sequences.status();
  found.input.sequences = *sequences;
  const uint64_t limit = found.input.limit_tokens;
  Result<uint64_t> tokens = CountFlag(arguments, "--tokens", std::min(kUsualTokens, limit));
  if (!tokens.ok()) return tokens.status();
  if (*tokens > limit) {
    return Error(Code::kUsage, "--tokens: {} is more than a sequence may hold, {} ({})", *tokens,
                 limit, found.limit_source);
  }
  found.input.tokens = *tokens;
  Result<Bill> bill = MakeBill(found.input);
  if (!bill.ok()) return bill.status().In(package.name);
  found.bill = std::move(*bill);
  return found;
}

// Rows of text in columns: the first to the left, the others to the right.
std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - row[i].size(), ' ');
      out += i == 0 ? row[i] + blanks : "  " + blanks + row[i];
    }
    out += "\n";
  }
  return out;
}

std::string Number(double x) {
  return x >= 10 ? Format("{}", static_cast<uint64_t>(x)) : Format("{:.2f}", x);
}

std::string AsText(const Findings& found) {
  const BillInput& input = found.input;
  const Bill& bill = found.bill;
  std::string out;
  const auto line = [&](std::string name, const std::string& text) {
    name.resize(11, ' ');
    out += name + Printable(text) + "\n";
  };
  line("model", Format("{} ({})", found.package->name, found.package->model_type));
  line("weights", FormatBytes(input.weight_bytes));
  line("KV", Format("{} B per token, {} layers", bill.bytes_per_token, input.group.layers.size()));
  line("limit", Format("{} tokens ({})", input.limit_tokens, found.limit_source));
  line("granule", FormatBytes(input.granule_bytes));
  line("memory", Format("{} ({}), {} of it for KV", FormatBytes(input.budget_bytes),
                        found.budget_source, FormatBytes(bill.kv_budget_bytes)));
  line("sequences", Format("{}", input.sequences));
  out += "\n";

  std::vector<std::vector<std::string>> rows = {
      {"KV layout", "1 token", "tokens a granule", Format("{} tokens", input.tokens), "the limit",
       input.sequences == 1 ? "longest" : Format("longest of {}", input.sequences),
       Format("sessions of {}", input.tokens)}};
  const Result<kv::LayoutChoice> usual = kv::ParseLayout("auto");
  for (const LayoutBill& layout : bill.layouts) {
    const bool is_usual = usual.ok() && *usual == layout.layout;
    rows.push_back({kv::LayoutName(layout.layout) + (is_usual ? " *" : ""),
                    FormatBytes(layout.floor_bytes), Number(layout.tokens_per_granule),
                    FormatBytes(layout.bytes_at_tokens), FormatBytes(layout.bytes_at_limit),
                    Format("{}", layout.capacity_tokens), Format("{}", layout.sessions)});
  }
  const PreallocatedBill& all = bill.preallocated;
  const std::string whole = FormatBytes(all.bytes);
  rows.push_back({"allocated at load", whole, "-", whole, whole,
                  Format("{}", all.sessions >= input.sequences ? input.limit_tokens : 0),
                  Format("{}", all.sessions)});
  out += Table(rows);
  out +=
      "\n* the default. \"allocated at load\" is a runtime that takes the whole limit for each "
      "sequence\nat once. Every figure but the longest is of one sequence.\n";
  return out;
}

Json AsJson(const Findings& found) {
  const BillInput& input = found.input;
  const Bill& bill = found.bill;
  Json layouts = Json::array();
  for (const LayoutBill& layout : bill.layouts) {
    layouts.push_back({{"layout", kv::LayoutName(layout.layout)},
                       {"floor_bytes", layout.floor_bytes},
                       {"floor_tokens", layout.floor_tokens},
                       {"tokens_per_granule", layout.tokens_per_granule},
                       {"bytes_at_tokens", layout.bytes_at_tokens},
                       {"bytes_at_limit", layout.bytes_at_limit},
                       {"capacity_tokens", layout.capacity_tokens},
                       {"sessions", layout.sessions}});
  }
  return {{"name", found.package->name},
          {"weight_bytes", input.weight_bytes},
          {"bytes_per_token", bill.bytes_per_token},
          {"hard_max", found.hard_max.tokens ? Json(*found.hard_max.tokens) : Json(nullptr)},
          {"hard_max_source", found.hard_max.source},
          {"limit_tokens", input.limit_tokens},
          {"granule_bytes", input.granule_bytes},
          {"budget_bytes", input.budget_bytes},
          {"budget_source", found.budget_source},
          {"kv_budget_bytes", bill.kv_budget_bytes},
          {"sequences", input.sequences},
          {"tokens", input.tokens},
          {"layouts", std::move(layouts)},
          {"allocated_at_load",
           {{"bytes", bill.preallocated.bytes}, {"sessions", bill.preallocated.sessions}}}};
}

Result<int> Plan(const Invocation& invocation) {
  const Arguments& arguments = invocation.arguments;
  const Result<std::string> path = ModelArgument(Syntax(), arguments);
  if (!path.ok()) return path.status();
  Result<package::Package> package = package::Open(*path, package::Weights::kSizesOnly);
  if (!package.ok()) return package.status();
  for (const std::string& warning : package->warnings) Warn("plan", warning);
  Result<Findings> found = Examine(arguments, *package);
  if (!found.ok()) return found.status();
  if (!found->hard_max.warning.empty()) Warn("plan", found->hard_max.warning);
  if (found->bill.kv_budget_bytes == 0) {
    Warn("plan",
         Format("the weights alone take {}, more than the {} there are",
                FormatBytes(found->input.weight_bytes), FormatBytes(found->input.budget_bytes)));
  }
  const std::string out =
      arguments.Has("--json")
          ? AsJson(*found).dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) +
                "\n"
          : AsText(*found);
  if (Status s = WriteStdout(out); !s.ok()) return s;
  return 0;
}

}  // namespace

Verb PlanVerb() { return {Syntax(), Plan}; }

}  // namespace granule::cli
