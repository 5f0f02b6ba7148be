// What `doctor` finds out about GPUs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/ceilings.h"

namespace granule::cli {

struct CudaReport {
  std::string json;                // "null" where there is no GPU to use
  std::vector<std::string> lines;  // for people
  std::vector<Ceiling> ceilings;   // of each GPU: its name, 0 threads
};

// Never fails: what does not work is in the report.
CudaReport ExamineCuda();

// How a GPU's ceiling is kept among those of CPUs.
Ceiling GpuCeiling(const std::string& name, double read_bytes_per_second);

}  // namespace granule::cli
