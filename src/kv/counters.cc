#include "kv/counters.h"

#include <algorithm>
#include <bit>

namespace granule::kv {

void StallHistogram::Add(uint64_t us) {
  const size_t bucket = us == 0 ? 0 : static_cast<size_t>(std::bit_width(us) - 1);
  ++counts[std::min(bucket, counts.size() - 1)];
  total_us += us;
  max_us = std::max(max_us, us);
}

}  // namespace granule::kv
