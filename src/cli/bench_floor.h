// `granule bench floor`: what the KV of one sequence holds at growing lengths, by layout, counted
// by the ledger and by the device.
#pragma once

#include "base/status.h"
#include "cli/command_line.h"

namespace granule::cli {

// kUsage, or the errors of loading and running the model. Prints a table, or JSON with --json.
Result<int> BenchFloor(const Arguments& arguments, const std::string& model);

}  // namespace granule::cli
