// How many tokens a sequence may hold, and how a needed length is rounded up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace granule::kv {

enum class Rounding { kGranule, kBucket };
inline const char* RoundingName(Rounding r) {
  return r == Rounding::kGranule ? "granule" : "bucket";
}

inline constexpr uint64_t kDefaultMinBucket = 256;

// Owned by a session; nothing here is read from the environment.
struct CapacityPolicy {
  Rounding rounding = Rounding::kGranule;
  uint64_t min_bucket = kDefaultMinBucket;  // >= 1; need not be a power of two
};

// min(max(next power of two of length, floor), hard_max); 0 where hard_max is 0. Saturates: a
// length above 2^63 gives hard_max.
uint64_t Bucket(uint64_t length, uint64_t hard_max, uint64_t floor);

// The tokens a sequence may ever hold, and who says so. Unset = unbounded until an allocation
// fails.
struct HardMax {
  std::optional<uint64_t> tokens;
  std::string source = "unbounded (the model states no context length)";
  std::string warning;  // an explicit value was lowered

  uint64_t or_unbounded() const { return tokens.value_or(UINT64_MAX); }
};

struct Limit {
  uint64_t tokens = 0;
  std::string
      source;  // "--ctx-size", "genai_config.json model.context_length", "cos_cache rows", ...
};

// explicit -> model (the smaller of what it states and the rows of its tables) -> unbounded. An
// explicit value above the model's is lowered to it, with a warning and the source "... clamped by
// SOURCE (N)". `explicit_limit` of 0 tokens means the model's.
HardMax ResolveHardMax(const std::optional<Limit>& explicit_limit,
                       const std::optional<Limit>& stated, const std::optional<Limit>& table_rows);

}  // namespace granule::kv
