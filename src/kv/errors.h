// The two errors that people meet when memory is short. Same content for every backend.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "kv/capacity.h"
#include "memory/vmm.h"

namespace granule::kv {

struct CapacityExceededFacts {
  uint64_t required = 0;
  uint64_t limit = 0;  // tokens: the hard maximum, or the reservation where that is unbounded
  std::string source;  // of the limit
  std::optional<uint64_t> model_context;  // what the model states
  uint64_t bytes_per_token = 0;
  std::optional<memory::MemoryInfo> memory;
};
Status CapacityExceededError(const CapacityExceededFacts& facts);

struct GrowthFailedFacts {
  uint64_t old_tokens = 0;
  uint64_t new_tokens = 0;
  uint64_t new_bytes = 0;   // physical memory asked for
  uint64_t peak_bytes = 0;  // most memory held at once while growing, of the growth kind at hand
  std::string peak_reason;
  uint64_t bytes_per_token = 0;
  std::optional<memory::MemoryInfo> memory;
};
Status GrowthFailedError(const GrowthFailedFacts& facts, const Status& cause);

}  // namespace granule::kv
