#include "cli/bench_floor.h"

#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "base/levers.h"
#include "cli/terminal.h"
#include "engine/engine.h"
#include "package/package.h"

namespace granule::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kLengths[] = {1, 1000, 8192, 32000};
constexpr uint64_t kHardMax = 32768;
constexpr uint64_t kRowsPerStep = 1024;  // of what is read to reach a length
constexpr uint64_t kDecodeSteps = 4;     // the last of each length; captured on a GPU

constexpr LeverId kLevers[] = {LeverId::kDevice, LeverId::kThreads, LeverId::kCtxSize,
                               LeverId::kCudaGraph};

// What the device itself says is in use: on a GPU total less free, on the host the file's blocks.
Result<uint64_t> DeviceUse(engine::DeviceContext& device) {
  if (device.gpu() == nullptr) return device.vmm().ResidentBytes();
  const auto memory = device.vmm().Memory();
  if (!memory.ok()) return memory.status();
  return memory->total_bytes - memory->free_bytes;
}

class Floor {
 public:
  Floor(engine::DeviceContext& device, engine::Model& model, const LeverValues& levers)
      : device_(device), model_(model), levers_(levers) {}

  // Rows of one layout, appended to `rows`.
  Status Measure(const kv::LayoutChoice& layout, Json& rows) {
    engine::KvOptions options;
    options.layout = layout;
    options.explicit_limit = kv::Limit{kHardMax, "bench floor"};
    if (const auto& size = levers_.ctx_size; size.value)
      options.explicit_limit = kv::Limit{*size.value, size.source};
    options.capture_source = levers_.cuda_graph.source;
    options.capture = kv::CaptureModeOf(levers_.cuda_graph.value);
    engine::Engine engine(device_, model_, options);
    uint64_t captures = 0;
    {
      // Activations for the largest step, and the graph, so that later differences are KV alone.
      auto warm = engine.NewSequence();
      if (!warm.ok()) return warm.status();
      if (Status s = Reach(engine, **warm, std::min(kRowsPerStep + kDecodeSteps, Last(engine)));
          !s.ok()) {
        return s;
      }
      captures = (*warm)->counters().captures;
    }
    device_.store().pool->Trim(0);
    auto sequence = engine.NewSequence();
    if (!sequence.ok()) return sequence.status();
    auto start = DeviceUse(device_);
    if (!start.ok()) return start.status();
    const std::byte* base = (*sequence)->base();
    for (const uint64_t length : kLengths) {
      if (length > Last(engine)) break;
      if (Status s = Reach(engine, **sequence, length); !s.ok()) return s;
      device_.store().pool->Trim(0);
      auto now = DeviceUse(device_);
      if (!now.ok()) return now.status();
      const kv::Counters c = (*sequence)->counters();
      rows.push_back({{"layout", kv::LayoutName(layout)},
                      {"device", device_.name()},
                      {"length", length},
                      {"committed_length", (*sequence)->committed_length()},
                      {"committed_bytes", c.committed_bytes},
                      {"unique_physical_bytes", c.unique_physical_bytes},
                      {"device_bytes", static_cast<int64_t>(*now) - static_cast<int64_t>(*start)},
                      {"live_bytes", length * (*sequence)->bytes_per_token()},
                      {"reserved_bytes", c.reserved_bytes},
                      {"growth_events", c.growth_events},
                      {"kv_bytes_moved", c.kv_bytes_moved},
                      {"captures", captures + c.captures},
                      {"replays", c.replays},
                      {"invalidations", c.invalidations},
                      {"base_unchanged", (*sequence)->base() == base}});
    }
    return {};
  }

 private:
  static uint64_t Last(const engine::Engine& engine) {
    return std::min<uint64_t>(engine.hard_max().tokens.value_or(kHardMax), kHardMax);
  }

  // Reads tokens until the sequence holds `length`: long steps, then a few single ones.
  Status Reach(engine::Engine& engine, kv::Sequence& sequence, uint64_t length) {
    const auto vocab = static_cast<uint64_t>(model_.info().vocab_size);
    std::vector<engine::TokenId> tokens;
    while (sequence.live_length() < length) {
      const uint64_t left = length - sequence.live_length();
      const uint64_t count = left > kDecodeSteps ? std::min(left - kDecodeSteps, kRowsPerStep) : 1;
      tokens.clear();
      for (uint64_t i = 0; i < count; ++i)
        tokens.push_back(static_cast<engine::TokenId>((sequence.live_length() + i) * 7 % vocab));
      const auto last = static_cast<int32_t>(count - 1);
      const engine::StepItem item{&sequence, tokens, {&last, 1}};
      auto output = engine.Step({&item, 1});
      if (!output.ok()) return output.status();
      if (InterruptFlag().load()) return Error(Code::kInterrupted, "interrupted");
    }
    return {};
  }

  engine::DeviceContext& device_;
  engine::Model& model_;
  const LeverValues& levers_;
};

std::string Table(const Json& rows) {
  std::ostringstream out;
  out << "| layout | tokens | committed MiB | unique MiB | by the device MiB | live MiB | captures "
         "| "
         "moved |\n|---|---|---|---|---|---|---|---|\n";
  const auto mib = [](const Json& bytes) {
    return Format("{:.1f}", bytes.get<double>() / 1048576);
  };
  for (const Json& row : rows) {
    out << "| " << row["layout"].get<std::string>() << " | " << row["length"] << " | "
        << mib(row["committed_bytes"]) << " | " << mib(row["unique_physical_bytes"]) << " | "
        << mib(row["device_bytes"]) << " | " << mib(row["live_bytes"]) << " | " << row["captures"]
        << " | " << row["kv_bytes_moved"] << " |\n";
  }
  return out.str();
}

}  // namespace

Result<int> BenchFloor(const Arguments& arguments, const std::string& model_path) {
  const auto levers = ReadLevers(kLevers, arguments.flags, ProcessEnvironment);
  if (!levers.ok()) return levers.status();
  const std::optional<int> gpu = levers->CudaIndex();
  auto package =
      package::Open(model_path, gpu ? package::Weights::kOnDemand : package::Weights::kAll);
  if (!package.ok()) return package.status();
  engine::DeviceOptions device_options;
  device_options.threads = levers->threads.value;
  device_options.granule_bytes = size_t{2} << 20;  // the GPU's, so that both devices compare
  auto device = engine::DeviceContext::Create(device_options, gpu);
  if (!device.ok()) return device.status();
  auto model = engine::Model::Load(**device, std::move(*package));
  if (!model.ok()) return model.status();
  Json rows = Json::array();
  Floor floor(**device, **model, *levers);
  Progress progress("bench floor");
  const kv::LayoutChoice layouts[] = {{kv::LayoutKind::kHeadMajor, 0},
                                      {kv::LayoutKind::kSeqMajor, 0},
                                      {kv::LayoutKind::kTokenMajor, 0}};
  for (size_t i = 0; i < std::size(layouts); ++i) {
    progress.Update(i, std::size(layouts), kv::LayoutName(layouts[i]));
    if (Status s = floor.Measure(layouts[i], rows); !s.ok()) return s;
  }
  progress.Clear();
  const std::string out = arguments.Has("--json") ? rows.dump(1) + "\n" : Table(rows);
  if (Status s = WriteStdout(out); !s.ok()) return s;
  return 0;
}

}  // namespace granule::cli
