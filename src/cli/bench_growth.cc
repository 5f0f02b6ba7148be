#include "cli/bench_growth.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

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
  auto package = package::Open(model_path);
  if (!package.ok()) return package.status();
  engine::DeviceOptions device_options;
  device_options.granule_bytes = kGranuleBytes;
  auto device = engine::DeviceContext::CreateCpu(device_options);
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
  return {{"layout", kv::LayoutName(row.layout)},       {"growth", kv::GrowthName(row.growth)},
          {"rounding", kv::RoundingName(row.rounding)}, {"capture", row.capture ? "on" : "off"},
          {"arm", row.forced ? "forced" : "control"},   {"backend", BackendName(row.backend)},
          {"device", row.capture ? "cuda" : "cpu"}};
}

}  // namespace

std::vector<GrowthCase> GrowthCases(bool with_ort) {
  using engine::BackendKind;
  using kv::GrowthKind;
  using kv::LayoutKind;
  const kv::LayoutChoice head{LayoutKind::kHeadMajor, 0};
  const kv::LayoutChoice seq{LayoutKind::kSeqMajor, 0};
  const kv::LayoutChoice layouts[] = {
      head, seq, {LayoutKind::kStripe, 4}, {LayoutKind::kTokenMajor, 0}};
  std::vector<GrowthCase> cases;
  const auto add = [&](BackendKind backend, const kv::LayoutChoice& layout, GrowthKind growth,
                       bool capture) {
    for (const bool forced : {true, false}) {
      cases.push_back({backend, layout, growth, kv::Rounding::kBucket, forced, capture});
    }
  };
  // The seeds' rows: in-place head-major is restride, in-place seq-major is commit.
  for (const bool capture : {true, false}) {
    add(BackendKind::kNative, head, GrowthKind::kRestride, capture);
    add(BackendKind::kNative, seq, GrowthKind::kCommit, capture);
  }
  add(BackendKind::kNative, head, GrowthKind::kCommit, false);
  for (const kv::LayoutChoice& layout : {layouts[2], layouts[3]})
    add(BackendKind::kNative, layout, GrowthKind::kCommit, false);
  for (const kv::LayoutChoice& layout : layouts)
    add(BackendKind::kNative, layout, GrowthKind::kRealloc, false);
  for (const kv::LayoutChoice& layout : layouts) {
    cases.push_back(
        {BackendKind::kNative, layout, GrowthKind::kCommit, kv::Rounding::kGranule, true, false});
  }
  if (with_ort) {
    for (const GrowthKind growth :
         {GrowthKind::kCommit, GrowthKind::kRestride, GrowthKind::kRealloc}) {
      add(BackendKind::kOrt, head, growth, false);
    }
  }
  return cases;
}

std::string CaseText(const GrowthCase& row) {
  return Format("{},{},{},{},{},{}", BackendName(row.backend), kv::LayoutName(row.layout),
                kv::GrowthName(row.growth), kv::RoundingName(row.rounding),
                row.forced ? "forced" : "control", row.capture ? "on" : "off");
}

Result<GrowthCase> ParseCase(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  const Status bad =
      Error(Code::kUsage,
            "--row: \"{}\" is no row; accepted: what `granule bench growth` passes on", text);
  if (parts.size() != 6) return bad;
  GrowthCase row;
  const auto layout = kv::ParseLayout(parts[1]);
  const auto growth = kv::ParseGrowth(parts[2]);
  if (!layout.ok() || !growth.ok()) return bad;
  row.backend = parts[0] == "ort" ? engine::BackendKind::kOrt : engine::BackendKind::kNative;
  row.layout = *layout;
  row.growth = *growth;
  row.rounding = parts[3] == "granule" ? kv::Rounding::kGranule : kv::Rounding::kBucket;
  row.forced = parts[4] == "forced";
  row.capture = parts[5] == "on";
  return CaseText(row) == text ? Result<GrowthCase>(row) : Result<GrowthCase>(bad);
}

std::string RunGrowthCase(const std::string& model, const GrowthCase& row) {
  Json json = RowJson(row);
  if (row.capture) {
    json["status"] = "no CUDA in this build: nothing was captured";
    return json.dump();
  }
  const auto finished = Run(model, row);
  if (!finished.ok()) {
    json["status"] = finished.status().message();
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
