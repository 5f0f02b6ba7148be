// granule bench: growth runs every row of the table in a process of its own, and checks
// what must hold between them.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/bench_floor.h"
#include "cli/bench_growth.h"
#include "cli/bench_vmm.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "engine/ort/ort_library.h"
#include "package/synth.h"

extern char** environ;

namespace granule::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDefaultModel = "synth:qwen2.5-0.5b";
constexpr const char* kFloorModel = "synth:qwen2.5-14b";

VerbSyntax Syntax() {
  return {
      .name = "bench",
      .purpose = "counts what KV growth costs, by layout and kind",
      .positionals = {"WHAT", "MODEL"},
      .usage = "growth | floor | vmm [MODEL] [--device DEVICE] [--json | --markdown]",
      .flags = {ModelFlag(),
                LeverFlag(LeverId::kDevice, "Options"),
                LeverFlag(LeverId::kThreads, "Options"),
                LeverFlag(LeverId::kCtxSize, "Options"),
                LeverFlag(LeverId::kCudaGraph, "Options"),
                {{"--json"}, "", "Options", "an array with one object per row"},
                {{"--markdown"}, "", "Options", "the table for a document"},
                {{"--row"},
                 "ROW",
                 "Options",
                 "run this row alone, in this process, and print its JSON (what each child does)"}},
      .examples =
          {{"granule bench growth",
            "the table on synth:qwen2.5-0.5b: 5 prompt tokens, 48 new ones, hard maximum 512"},
           {"granule bench growth models/smollm2-135m-instruct --markdown",
            "the same on a model of yours"},
           {"granule bench floor --device cuda",
            "what one sequence's KV holds at 1 to 32,000 tokens of a 14b geometry, by layout"},
           {"granule bench vmm --device cuda", "what each call of virtual memory costs"}},
      .exit_codes = UsualExitCodes()};
}

// A folder of this process's own, gone with the object.
struct ScratchFolder {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / Format("granule-bench-{}", getpid());
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

// Runs this program with the row's words; returns what it wrote to stdout.
Result<std::string> RunChild(const std::string& model, const std::string& row) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0)
    return Error(Code::kExhausted, "no pipe for a child process");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  std::vector<std::string> words = {"granule", "bench", "growth", model, "--row", row};
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
  std::string out;
  if (error == 0) {
    char buffer[4096];
    for (ssize_t n; (n = read(pipe_ends[0], buffer, sizeof buffer)) != 0;) {
      if (n > 0) out.append(buffer, static_cast<size_t>(n));
      if (n < 0 && errno != EINTR) break;
    }
  }
  close(pipe_ends[0]);
  if (error != 0)
    return Error(Code::kExhausted, "cannot start a child process: {}", std::strerror(error));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || out.empty()) {
    return Error(Code::kInternal, "the child of row {} ended with {}", row,
                 WIFEXITED(status) ? Format("exit code {}", WEXITSTATUS(status))
                                   : Format("signal {}", WTERMSIG(status)));
  }
  return out;
}

// What must hold between the rows, whatever the numbers are. Empty = all of it.
std::vector<std::string> Contradictions(const Json& rows) {
  std::vector<std::string> found;
  std::map<std::string, Json> first;  // of each backend and device
  for (const Json& row : rows) {
    if (row["status"] != "ok") continue;
    const auto text = [&](const char* key) { return row[key].get<std::string>(); };
    const std::string place = text("backend") + " " + text("device");
    const std::string name = Format("{} {} {} {} capture {}", place, text("layout"), text("growth"),
                                    text("arm"), text("capture"));
    const Json& same = first.emplace(place, row).first->second;
    if (row["ids"] != same["ids"])
      found.push_back(name + ": other ids than the backend's first row");
    if (row["logits_hash"] != same["logits_hash"])
      found.push_back(name + ": other logits than the backend's first row");
    if (row["arm"] == "forced" && row["rounding"] == "bucket") {
      const bool moves = row["growth"] != "commit";
      if (row["growth_events"] == 0) found.push_back(name + ": a forced row that did not grow");
      // The negative oracle: growth that moves must show bytes, no keeps, and one invalidation per
      // growth beside the prefill's.
      if (moves != (row["kv_bytes_moved"] > 0))
        found.push_back(name + ": moved bytes contradict the growth kind");
      const auto events = row["growth_events"].get<uint64_t>();
      if (moves && (row["growth_keeps"] != 0 || row["invalidations"] != events + 1)) {
        found.push_back(name + ": a growth that moves kept a graph");
      }
      if (!moves && row["growth_keeps"] != events)
        found.push_back(name + ": a growth by commit invalidated");
      // A graph that every moving growth dropped was captured again after each.
      if (text("capture") == "on" && row["captures"] != (moves ? events + 1 : 1))
        found.push_back(name + ": captures contradict what was kept");
    }
  }
  return found;
}

std::string Cell(const Json& row, const char* key) {
  const auto it = row.find(key);
  if (it == row.end()) return "-";
  return it->is_string() ? it->get<std::string>() : it->dump();
}

std::string Table(const Json& rows, bool markdown) {
  const std::pair<const char*, const char*> columns[] = {{"backend", "backend"},
                                                         {"device", "device"},
                                                         {"layout", "layout"},
                                                         {"growth", "growth"},
                                                         {"rounding", "rounding"},
                                                         {"arm", "arm"},
                                                         {"capture", "capture"},
                                                         {"growth_events", "growths"},
                                                         {"kv_bytes_moved", "moved (nominal)"},
                                                         {"kv_bytes_copied", "copied"},
                                                         {"captures", "captures"},
                                                         {"replays", "replays"},
                                                         {"invalidations", "invalidations"},
                                                         {"growth_keeps", "keeps"},
                                                         {"committed_bytes", "committed"},
                                                         {"unique_physical_bytes", "unique"},
                                                         {"logits_hash", "logits hash"}};
  std::vector<std::vector<std::string>> lines(1);
  for (const auto& column : columns) lines[0].emplace_back(column.second);
  for (const Json& row : rows) {
    std::vector<std::string>& line = lines.emplace_back();
    for (const auto& column : columns) line.push_back(Cell(row, column.first));
    if (row["status"] != "ok") line.back() = Cell(row, "status");
  }
  std::vector<size_t> widths(std::size(columns), 0);
  for (const auto& line : lines) {
    for (size_t i = 0; i + 1 < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (size_t l = 0; l < lines.size(); ++l) {
    for (size_t i = 0; i < lines[l].size(); ++i) {
      std::string cell = lines[l][i];
      cell.resize(std::max(cell.size(), widths[i]), ' ');
      out += (markdown ? "| " : i == 0 ? "" : "  ") + cell + (markdown ? " " : "");
    }
    out += markdown ? "|\n" : "\n";
    if (markdown && l == 0) {
      for (size_t i = 0; i < widths.size(); ++i) out += "|---";
      out += "|\n";
    }
  }
  return out;
}

Result<int> BenchGrowth(const Arguments& arguments, const std::string& model);

Result<int> Bench(const Invocation& invocation) {
  const Arguments& arguments = invocation.arguments;
  const std::string what = arguments.positionals.empty() ? "" : arguments.positionals[0];
  std::string model = arguments.positionals.size() > 1 ? arguments.positionals[1] : "";
  if (const auto flag = arguments.Find("--model")) model = *flag;
  const auto only = [&](const char* flag, bool serves) -> Status {
    if (serves || !arguments.Has(flag)) return {};
    return Error(Code::kUsage, "{} has no effect on bench {}: leave it out", flag, what);
  };
  for (const char* flag : {"--threads", "--ctx-size", "--cuda-graph"}) {
    if (Status s = only(flag, what == "floor"); !s.ok()) return s;
  }
  if (Status s = only("--row", what == "growth"); !s.ok()) return s;
  if (Status s = only("--markdown", what != "floor"); !s.ok()) return s;
  if (what == "vmm" && !model.empty())
    return Error(Code::kUsage, "bench vmm takes no model, found \"{}\"", model);
  if (what == "growth") return BenchGrowth(arguments, model.empty() ? kDefaultModel : model);
  if (what == "floor") return BenchFloor(arguments, model.empty() ? kFloorModel : model);
  if (what == "vmm") return BenchVmm(arguments);
  return Error(Code::kUsage, "bench what? Built so far: growth, floor and vmm; \"{}\" is not",
               what);
}

Result<int> BenchGrowth(const Arguments& arguments, const std::string& model) {
  if (const auto text = arguments.Find("--row")) {
    const auto row = ParseCase(*text);
    if (!row.ok()) return row.status();
    if (Status s = WriteStdout(RunGrowthCase(model, *row) + "\n"); !s.ok()) return s;
    return 0;
  }

  GrowthSelection selection;
  selection.cuda = true;
  if (const auto device = arguments.Find("--device")) {
    constexpr LeverId kDevice[] = {LeverId::kDevice};
    const auto levers = ReadLevers(kDevice, arguments.flags, ProcessEnvironment);
    if (!levers.ok()) return levers.status();
    selection.cuda = levers->CudaIndex().has_value();
    selection.cpu = !selection.cuda;
    if (selection.cuda) selection.cuda_device = levers->device.value;
  }
  // ONNX Runtime reads files only: a made-up model is written for its rows.
  const bool with_ort =
      selection.cpu && engine::OrtLibrary::Open(engine::OrtPlaces::Usual(ProcessEnvironment)).ok();
  selection.ort = with_ort;
  const auto cases = GrowthCases(selection);
  Json rows = Json::array();
  ScratchFolder folder;
  std::string ort_model = model;
  if (with_ort && model.starts_with("synth:")) {
    const auto synth = package::ParseSynth(std::string_view(model).substr(std::strlen("synth:")));
    if (!synth.ok()) return synth.status();
    const auto written = package::WriteSynth(*synth, folder.path, {});
    if (!written.ok()) return written.status();
    ort_model = folder.path.native();
  }
  Progress progress("bench growth");
  for (size_t i = 0; i < cases.size(); ++i) {
    if (InterruptFlag().load()) return Error(Code::kInterrupted, "interrupted");
    progress.Update(i, cases.size(), CaseText(cases[i]));
    const auto line = RunChild(cases[i].backend == engine::BackendKind::kOrt ? ort_model : model,
                               CaseText(cases[i]));
    if (!line.ok()) return line.status();
    Json row = Json::parse(*line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object())
      return Error(Code::kInternal, "the child of row {} wrote no JSON", CaseText(cases[i]));
    rows.push_back(std::move(row));
  }
  progress.Clear();
  const std::string out =
      arguments.Has("--json") ? rows.dump(1) + "\n" : Table(rows, arguments.Has("--markdown"));
  if (Status s = WriteStdout(out); !s.ok()) return s;
  if (!with_ort) Say("bench", "no rows for ort: ONNX Runtime is not on this machine");
  // Across backends and devices logits differ by rounding, so that ids may part where two tokens
  // are almost equally likely: worth a line, no contradiction.
  for (const Json& row : rows) {
    if (row["status"] != "ok" || row["ids"] == rows.front()["ids"]) continue;
    if (rows.front()["status"] == "ok") {
      Say("bench", Format("note: {} on {} chose other ids than the first row",
                          row["backend"].get<std::string>(), row["device"].get<std::string>()));
      break;
    }
  }
  const auto contradictions = Contradictions(rows);
  for (const std::string& text : contradictions) Say("bench", "error: " + text);
  const bool all_failed =
      std::none_of(rows.begin(), rows.end(), [](const Json& r) { return r["status"] == "ok"; });
  if (all_failed) {
    Say("bench", "error: no row ran: " + Cell(rows.back(), "status"));
    return rows.back()["exit_code"].get<int>();
  }
  return contradictions.empty() ? 0 : ExitCode(Code::kInternal);
}

}  // namespace

Verb BenchVerb() { return {Syntax(), Bench}; }

}  // namespace granule::cli
