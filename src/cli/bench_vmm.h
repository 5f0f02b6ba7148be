// `granule bench vmm`: what each call of virtual memory costs, by handle size, idle and beside
// running work.
#pragma once

#include "base/status.h"
#include "cli/command_line.h"

namespace granule::cli {

// --device cuda[:N] or cpu, --json, --markdown. kUsage, kUnavailable without the device,
// kExhausted where it has too little memory. Prints a table, or one JSON object.
Result<int> BenchVmm(const Arguments& arguments);

}  // namespace granule::cli
