// The measured ceilings of this machine, kept between runs in the user's cache folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/status.h"

namespace granule::cli {

// The threads of a record that is a GPU's.
inline constexpr int kGpuThreads = 0;

// What one CPU model reaches with so many threads of this instruction-set level.
struct Ceiling {
  std::string cpu;  // or a GPU's name
  int threads = 0;
  Isa isa = Isa::kPortable;
  double read_bytes_per_second = 0;
  double fma_flops_per_second = 0;  // fp32, a multiply-add counts as 2
};

// ${XDG_CACHE_HOME:-~/.cache}/granule/ceilings.json; empty when neither variable names a folder.
std::filesystem::path CeilingsPath();

// The records of a file. A missing file has none; one that is not ours is kInvalidInput.
Result<std::vector<Ceiling>> ReadCeilings(const std::filesystem::path& path);

// Puts the records in place of those with the same CPU, threads and level; keeps the others. A file
// that cannot be read is replaced. Written atomically; makes the folder.
Status StoreCeilings(const std::filesystem::path& path, const std::vector<Ceiling>& records);

std::optional<Ceiling> FindCeiling(const std::vector<Ceiling>& records, const std::string& cpu,
                                   int threads, Isa isa);

}  // namespace granule::cli
