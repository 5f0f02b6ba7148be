#include "cli/bench_growth.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/levers.h"
#include "generate/generate.h"
#include "package/package.h"

namespace granule::cli {
namespace {

using Json = nlohmann::ordered_json;

// "The capital of France is" in Qwen2's tokens: the seeds' prompt.
constexpr int32_t kPrompt[] = {785, 6722, 315, 9625, 374};
constexpr int64_t kNewTokens = 48;
constexpr uint64_t kHardMax = 512;
constexpr uint64_t kForcedFloor = 8;
constexpr uint64_t kControlFloor = 64;
constexpr size_t kGranuleBytes = size_t{2}
                                 << 20;  // the GPU's, so that the numbers are those of the seeds

const char* BackendName(engine::BackendKind backend) {
  return backend == engine::BackendKind::kOrt ? "ort" : "native";
}

struct Finished {
  generate::Outcome outcome;
  kv::Counters counters;
  uint64_t committed_length = 0;
};

Result<Finished> Run(const std::string& model_path, const GrowthCase& row) {
  const std::optional<int> gpu = CudaIndexOf(row.device);
  auto package =
      package::Open(model_path, gpu ? package::Weights::kOnDemand : package::Weights::kAll);
  if (!package.ok()) return package.status();
  engine::DeviceOptions device_options;
  device_options.granule_bytes = kGranuleBytes;
  auto device = engine::DeviceContext::Create(device_options, gpu);
  if (!device.ok()) return device.status();
  auto model = engine::Model::Load(**device, std::move(*package), row.backend);
  if (!model.ok()) return model.status();

  engine::KvOptions options;
  options.layout = row.layout;
  options.growth = row.growth;
  options.policy.rounding = row.rounding;
  options.policy.min_bucket = row.forced ? kForcedFloor : kControlFloor;
  options.explicit_limit = kv::Limit{kHardMax, "bench growth"};
  options.capture_policy = kv::CapturePolicy::kSeed;
  options.capture = row.capture ? kv::CaptureMode::kOn : kv::CaptureMode::kOff;
  options.capture_source = "bench growth";
  engine::Engine engine(**device, **model, options);
  auto sequence = engine.NewSequence();
  if (!sequence.ok()) return sequence.status();

  generate::Request request;
  for (const int32_t id : kPrompt) {
    request.prompt.push_back(static_cast<int32_t>(id % (*model)->info().vocab_size));
  }
  request.max_new_tokens = kNewTokens;
  request.ignore_eos = true;
  auto outcome = generate::Generate(engine, **sequence, request);
  if (!outcome.ok()) return outcome.status();
  return Finished{std::move(*outcome), (*sequence)->counters(), (*sequence)->committed_length()};
}

Json RowJson(const GrowthCase& row) {
  return {{"layout", kv::LayoutName(row.layout)},
          {"growth", kv::GrowthName(row.growth)},
          {"rounding", kv::RoundingName(row.rounding)},
          {"capture", row.capture ? "on" : "off"},
          {"arm", row.forced ? "forced" : "control"},
          {"backend", BackendName(row.backend)},
          {"device", row.device}};
}

}  // namespace

std::vector<GrowthCase> GrowthCases(const GrowthSelection& selection) {
  using engine::BackendKind;
  using kv::GrowthKind;
  using kv::LayoutKind;
  const kv::LayoutChoice head{LayoutKind::kHeadMajor, 0};
  const kv::LayoutChoice seq{LayoutKind::kSeqMajor, 0};
  const kv::LayoutChoice layouts[] = {
      head, seq, {LayoutKind::kStripe, 4}, {LayoutKind::kTokenMajor, 0}};
  std::vector<GrowthCase> cases;
  const auto add = [&](BackendKind backend, const std::string& device,
                       const kv::LayoutChoice& layout, GrowthKind growth, bool capture) {
    for (const bool forced : {true, false}) {
      cases.push_back({backend, layout, growth, kv::Rounding::kBucket, forced, capture, device});
    }
  };
  const auto add_device = [&](const std::string& device, bool capture) {
    // The seeds' rows first: in-place head-major is restride, in-place seq-major is commit.
    add(BackendKind::kNative, device, head, GrowthKind::kRestride, capture);
    add(BackendKind::kNative, device, seq, GrowthKind::kCommit, capture);
    for (const kv::LayoutChoice& layout : {layouts[3], layouts[0], layouts[2]})
      add(BackendKind::kNative, device, layout, GrowthKind::kCommit, capture);
    for (const kv::LayoutChoice& layout : layouts)
      add(BackendKind::kNative, device, layout, GrowthKind::kRealloc, capture);
    for (const kv::LayoutChoice& layout : layouts) {
      cases.push_back({BackendKind::kNative, layout, GrowthKind::kCommit, kv::Rounding::kGranule,
                       true, capture, device});
    }
  };
  if (selection.cpu) add_device("cpu", false);
  if (selection.cuda) {
    add_device(selection.cuda_device, true);
    add_device(selection.cuda_device, false);
  }
  if (selection.ort) {
    for (const GrowthKind growth :
         {GrowthKind::kCommit, GrowthKind::kRestride, GrowthKind::kRealloc}) {
      add(BackendKind::kOrt, "cpu", head, growth, false);
    }
  }
  return cases;
}

std::string CaseText(const GrowthCase& row) {
  return Format("{},{},{},{},{},{},{}", BackendName(row.backend), row.device,
                kv::LayoutName(row.layout), kv::GrowthName(row.growth),
                kv::RoundingName(row.rounding), row.forced ? "forced" : "control",
                row.capture ? "on" : "off");
}

Result<GrowthCase> ParseCase(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  const Status bad =
      Error(Code::kUsage,
            "--row: \"{}\" is no row; accepted: what `granule bench growth` passes on", text);
  if (parts.size() != 7) return bad;
  GrowthCase row;
  const auto layout = kv::ParseLayout(parts[2]);
  const auto growth = kv::ParseGrowth(parts[3]);
  if (!layout.ok() || !growth.ok()) return bad;
  row.backend = parts[0] == "ort" ? engine::BackendKind::kOrt : engine::BackendKind::kNative;
  row.layout = *layout;
  row.growth = *growth;
  row.device = parts[1];
  row.rounding = parts[4] == "granule" ? kv::Rounding::kGranule : kv::Rounding::kBucket;
  row.forced = parts[5] == "forced";
  row.capture = parts[6] == "on";
  return CaseText(row) == text ? Result<GrowthCase>(row) : Result<GrowthCase>(bad);
}

std::string RunGrowthCase(const std::string& model, const GrowthCase& row) {
  Json json = RowJson(row);
  const auto finished = Run(model, row);
  if (!finished.ok()) {
    json["status"] = finished.status().message();
    json["exit_code"] = ExitCode(finished.status().code());
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  const kv::Counters& c = finished->counters;
  json["status"] = "ok";
  json["growth_events"] = c.growth_events;
  json["kv_bytes_moved"] = c.kv_bytes_moved;
  json["kv_bytes_copied"] = c.kv_bytes_copied;
  json["captures"] = c.captures;
  json["replays"] = c.replays;
  json["fallbacks"] = c.fallbacks;
  json["invalidations"] = c.invalidations;
  json["growth_keeps"] = c.growth_keeps;
  json["graph_existed"] = c.graph_existed;
  json["committed_bytes"] = c.committed_bytes;
  json["unique_physical_bytes"] = c.unique_physical_bytes;
  json["reserved_bytes"] = c.reserved_bytes;
  json["committed_length"] = finished->committed_length;
  json["ids"] = finished->outcome.ids;
  json["logits_hash"] = Format("{:016x}", finished->outcome.logits_hash);
  return json.dump();
}

}  // namespace granule::cli
