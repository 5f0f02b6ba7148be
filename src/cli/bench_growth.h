// The seeds' table: what growth costs, by layout and kind of growth, in counters rather than
// seconds.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "kv/growth.h"
#include "kv/layout.h"

namespace granule::cli {

// One row to run, in a process of its own.
struct GrowthCase {
  engine::BackendKind backend = engine::BackendKind::kNative;
  kv::LayoutChoice layout;
  kv::GrowthKind growth = kv::GrowthKind::kCommit;
  kv::Rounding rounding = kv::Rounding::kBucket;
  bool forced = true;          // floor 8: three growths; otherwise the control, floor 64: none
  bool capture = false;        // needs a GPU
  std::string device = "cpu";  // or "cuda:0"
};

// Which devices and backends to have rows for.
struct GrowthSelection {
  bool cpu = true;
  bool ort = false;   // on the CPU
  bool cuda = false;  // rows that a GPU can run; without one they say why not
  std::string cuda_device = "cuda:0";
};

// Every combination that means something: native on the CPU, on the GPU, then ONNX Runtime.
std::vector<GrowthCase> GrowthCases(const GrowthSelection& selection);

// "native,cpu,seq-major,commit,bucket,forced,off": how a parent tells its child which row to run.
std::string CaseText(const GrowthCase& row);
Result<GrowthCase> ParseCase(const std::string& text);

// Runs one row on `model` and returns it as a line of JSON. A failure of the run is a row too, with
// its reason as status.
std::string RunGrowthCase(const std::string& model, const GrowthCase& row);

}  // namespace granule::cli
