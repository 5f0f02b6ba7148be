// granule doctor: what this machine can do, measured.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/cgroup.h"
#include "cli/ceilings.h"
#include "cli/doctor_cuda.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "engine/device.h"
#include "engine/ort/ort_library.h"
#include "kernels/kernels.h"
#include "kernels/rowwise.h"

namespace granule::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kReadBytes = uint64_t{1} << 30;  // far beyond any cache
constexpr uint64_t kLeastReadBytes = uint64_t{1} << 26;
constexpr int kRepeats =
    3;  // the best counts: a ceiling is what the machine can do, not what it did
constexpr LeverId kLeversOfDoctor[] = {LeverId::kThreads, LeverId::kIsa, LeverId::kKvGranule};

VerbSyntax Syntax() {
  VerbSyntax syntax{
      .name = "doctor",
      .purpose = "what this machine can do; measures and remembers its ceilings",
      .usage = "[--json] [--quiet] [--if-missing]",
      .flags =
          {{{"--json"}, "", "Options", "one JSON object"},
           {{"--quiet"}, "", "Options", "measure and store, print nothing"},
           {{"--if-missing"},
            "",
            "Options",
            "use the ceilings that are stored for this CPU; measure only those that are missing"}},
      .examples = {{"granule doctor", "CPU, threads, memory, virtual memory, measured ceilings"},
                   {"granule doctor --quiet --if-missing",
                    "what a script runs before `granule run`"}},
      .exit_codes = UsualExitCodes()};
  for (const LeverId id : kLeversOfDoctor) syntax.flags.push_back(LeverFlag(id, "Levers"));
  return syntax;
}

// The smallest memory limit of the cgroups above this process.
std::optional<uint64_t> CgroupMemoryLimit() {
  std::optional<uint64_t> least;
  for (const CgroupDirectory& directory : CgroupDirectories("memory")) {
    const char* file = directory.version == 2 ? "/memory.max" : "/memory.limit_in_bytes";
    const std::optional<uint64_t> limit = ReadCounter(directory.path + file);
    // Version 1 writes "no limit" as a number near 2^63.
    if (limit && *limit < (uint64_t{1} << 60) && (!least || *limit < *least)) least = limit;
  }
  return least;
}

// One granule through every verb of the virtual memory, with a write and a read in the middle.
Status TryVirtualMemory(memory::Vmm& vmm, size_t granule_bytes) {
  Result<memory::AddressRange> range = vmm.Reserve(granule_bytes);
  if (!range.ok()) return range.status();
  Status status = [&]() -> Status {
    Result<memory::Handle> handle = vmm.Create(granule_bytes, range->base);
    if (!handle.ok()) return handle.status();
    Status mapped = vmm.Map(range->base, *handle, memory::Access::kReadWrite);
    if (mapped.ok()) {
      auto* bytes = reinterpret_cast<volatile char*>(range->base);
      bytes[0] = 42;
      const bool reads_back = bytes[0] == 42;
      mapped = vmm.Unmap(*range);
      if (mapped.ok() && !reads_back) {
        mapped = Error(Code::kExhausted, "a mapped granule does not read back what was written");
      }
    }
    const Status released = vmm.Release(*handle);
    return mapped.ok() ? released : mapped;
  }();
  const Status freed = vmm.Free(*range);
  return status.ok() ? freed : status;
}

// Everything doctor knows but the ceilings.
struct Machine {
  std::string cpu;
  Isa best_isa = Isa::kPortable;
  Isa isa = Isa::kPortable;
  int threads = 1;
  std::string threads_reason;
  std::optional<double> cpu_quota;
  std::optional<uint64_t> memory_limit;
  memory::MemoryInfo memory;
  std::string vmm;
  size_t granule_bytes = 0;
  uint64_t reservation_bytes = 0;  // largest rung of the ladder
  Status vmm_status;
  std::string ort_version;  // empty: not found
  std::string ort_path;
  std::string ort_reason;  // why not
};

Result<Machine> Examine(const LeverValues& levers) {
  engine::DeviceOptions options;
  options.threads = levers.threads.value;
  options.isa = levers.isa.value;
  options.granule_bytes = levers.kv_granule.value;
  Result<std::unique_ptr<engine::DeviceContext>> device = engine::DeviceContext::CreateCpu(options);
  if (!device.ok()) return device.status();
  Machine machine;
  machine.cpu = CpuModelName();
  const auto ort = engine::OrtLibrary::Open(engine::OrtPlaces::Usual(ProcessEnvironment));
  if (ort.ok()) {
    machine.ort_version = (*ort)->version();
    machine.ort_path = (*ort)->path();
  } else {
    machine.ort_reason = ort.status().message();
  }
  machine.best_isa = BestIsa();
  machine.isa = (*device)->kernels().isa;
  machine.threads = (*device)->threads();
  machine.threads_reason = (*device)->threads_reason();
  machine.cpu_quota = CgroupCpuQuota();
  machine.memory_limit = CgroupMemoryLimit();
  memory::Vmm& vmm = (*device)->vmm();
  if (Result<memory::MemoryInfo> memory = vmm.Memory(); memory.ok()) machine.memory = *memory;
  machine.vmm = vmm.capabilities().name;
  machine.granule_bytes = vmm.capabilities().granule_bytes;
  machine.vmm_status = TryVirtualMemory(vmm, machine.granule_bytes);
  Result<uint64_t> rung = (*device)->store().space->LargestRungBytes();
  if (rung.ok()) machine.reservation_bytes = *rung;
  if (!rung.ok() && machine.vmm_status.ok()) machine.vmm_status = rung.status();
  return machine;
}

// 1 to 16, then powers of two, and always the last.
std::vector<int> ThreadCounts(int most) {
  std::vector<int> counts;
  for (int n = 1; n < most; n = n < 16 ? n + 1 : n * 2) counts.push_back(n);
  counts.push_back(most);
  return counts;
}

// The ceilings for 1 to machine.threads threads: stored ones where asked for, measured otherwise.
std::vector<Ceiling> MeasureCeilings(const Machine& machine, const std::vector<Ceiling>& stored) {
  const uint64_t read_bytes =
      std::max(std::min(kReadBytes, machine.memory.free_bytes / 4), kLeastReadBytes);
  const std::vector<int> counts = ThreadCounts(machine.threads);
  std::vector<Ceiling> ceilings;
  Progress progress("measuring ceilings");
  for (size_t i = 0; i < counts.size() && !InterruptFlag().load(); ++i) {
    progress.Update(i, counts.size(), Format("{} of {} threads", counts[i], machine.threads));
    if (std::optional<Ceiling> known = FindCeiling(stored, machine.cpu, counts[i], machine.isa)) {
      ceilings.push_back(*known);
      continue;
    }
    ThreadPool pool(counts[i]);
    const kernels::Context context = kernels::MakeContext(pool, machine.isa);
    Ceiling ceiling{machine.cpu, counts[i], machine.isa, 0, 0};
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      ceiling.read_bytes_per_second =
          std::max(ceiling.read_bytes_per_second, kernels::MeasureReadCeiling(context, read_bytes));
      ceiling.fma_flops_per_second =
          std::max(ceiling.fma_flops_per_second, kernels::MeasureFmaCeiling(context));
    }
    ceilings.push_back(ceiling);
  }
  return ceilings;
}

std::string AsText(const Machine& machine, const std::vector<Ceiling>& ceilings,
                   const CudaReport& cuda, const std::string& stored_in) {
  std::string out;
  const auto line = [&](std::string name, const std::string& text) {
    name.resize(16, ' ');
    out += name + Printable(text) + "\n";
  };
  line("CPU", machine.cpu);
  line("instructions", Format("{} of portable, avx2, avx512; kernels use {}",
                              IsaName(machine.best_isa), IsaName(machine.isa)));
  line("threads", Format("{} ({})", machine.threads, machine.threads_reason));
  line("cgroup", Format("CPU quota {}, memory limit {}",
                        machine.cpu_quota ? Format("{:.2f} CPUs", *machine.cpu_quota) : "none",
                        machine.memory_limit ? FormatBytes(*machine.memory_limit) : "none"));
  line("memory", Format("{} available of {}", FormatBytes(machine.memory.free_bytes),
                        FormatBytes(machine.memory.total_bytes)));
  line("virtual memory",
       Format("{}: granule {}, {}", machine.vmm, FormatBytes(machine.granule_bytes),
              machine.vmm_status.ok() ? "reserve, map, write, read and release work"
                                      : "does not work: " + machine.vmm_status.message()));
  line("reservation", FormatBytes(machine.reservation_bytes) + " of addresses granted");
  line("ONNX Runtime", machine.ort_version.empty() ? machine.ort_reason
                                                   : Format("{} ({}), for --backend ort",
                                                            machine.ort_version, machine.ort_path));
  for (size_t i = 0; i < cuda.lines.size(); ++i) line(i == 0 ? "CUDA" : "", cuda.lines[i]);
  out += "\nceilings         read GB/s   fp32 multiply-add GFLOP/s\n";
  for (const Ceiling& c : ceilings) {
    out += Format("{:>3} thread{}     {:>9.1f}   {:>9.0f}\n", c.threads, c.threads == 1 ? " " : "s",
                  c.read_bytes_per_second / 1e9, c.fma_flops_per_second / 1e9);
  }
  if (!stored_in.empty()) out += "stored in " + Printable(stored_in) + "\n";
  return out;
}

std::string AsJson(const Machine& machine, const std::vector<Ceiling>& ceilings,
                   const CudaReport& cuda, const std::string& stored_in) {
  Json list = Json::array();
  for (const Ceiling& c : ceilings) {
    list.push_back({{"threads", c.threads},
                    {"isa", IsaName(c.isa)},
                    {"read_bytes_per_second", c.read_bytes_per_second},
                    {"fma_flops_per_second", c.fma_flops_per_second}});
  }
  const auto or_null = [](const auto& optional) { return optional ? Json(*optional) : Json(); };
  const Json json = {
      {"cpu", machine.cpu},
      {"best_isa", IsaName(machine.best_isa)},
      {"isa", IsaName(machine.isa)},
      {"threads", machine.threads},
      {"threads_reason", machine.threads_reason},
      {"cgroup",
       {{"cpu_quota", or_null(machine.cpu_quota)},
        {"memory_limit", or_null(machine.memory_limit)}}},
      {"memory",
       {{"available_bytes", machine.memory.free_bytes},
        {"total_bytes", machine.memory.total_bytes}}},
      {"vmm",
       {{"name", machine.vmm},
        {"granule_bytes", machine.granule_bytes},
        {"reservation_bytes", machine.reservation_bytes},
        {"works", machine.vmm_status.ok()},
        {"error", machine.vmm_status.ok() ? Json() : Json(machine.vmm_status.message())}}},
      {"onnx_runtime", machine.ort_version.empty()
                           ? Json()
                           : Json{{"version", machine.ort_version}, {"path", machine.ort_path}}},
      {"cuda", Json::parse(cuda.json)},
      {"ceilings", std::move(list)},
      {"ceilings_file", stored_in.empty() ? Json() : Json(stored_in)},
  };
  return json.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

Result<int> Doctor(const Invocation& invocation) {
  const Arguments& arguments = invocation.arguments;
  const Result<LeverValues> levers =
      ReadLevers(kLeversOfDoctor, arguments.flags, ProcessEnvironment);
  if (!levers.ok()) return levers.status();
  InstallInterruptHandler();
  Result<Machine> machine = Examine(*levers);
  if (!machine.ok()) return machine.status();

  const std::filesystem::path path = CeilingsPath();
  std::vector<Ceiling> stored;
  if (arguments.Has("--if-missing")) {
    Result<std::vector<Ceiling>> read = ReadCeilings(path);
    if (!read.ok()) Warn("doctor", read.status().message());
    if (read.ok()) stored = std::move(*read);
  }
  const std::vector<Ceiling> ceilings = MeasureCeilings(*machine, stored);
  if (InterruptFlag().load()) return ExitCode(Code::kInterrupted);
  const CudaReport cuda = ExamineCuda();
  // A cache that cannot be written costs the share in later runs and nothing else.
  std::vector<Ceiling> all = ceilings;
  all.insert(all.end(), cuda.ceilings.begin(), cuda.ceilings.end());
  const Status kept = StoreCeilings(path, all);
  if (!kept.ok()) Warn("doctor", "the ceilings are not stored: " + kept.message());
  if (arguments.Has("--quiet")) return 0;
  const std::string stored_in = kept.ok() ? path.native() : std::string();
  if (Status s = WriteStdout(arguments.Has("--json") ? AsJson(*machine, ceilings, cuda, stored_in)
                                                     : AsText(*machine, ceilings, cuda, stored_in));
      !s.ok()) {
    return s;
  }
  return 0;
}

}  // namespace

Verb DoctorVerb() { return {Syntax(), Doctor}; }

}  // namespace granule::cli
