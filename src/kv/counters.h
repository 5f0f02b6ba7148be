// What the KV of a sequence did and holds. A counter's name says what it brackets.
#pragma once

#include <array>
#include <cstdint>

namespace granule::kv {

// Microseconds in powers of two: bucket i counts values in [2^i, 2^(i+1)), bucket 0 also 0.
struct StallHistogram {
  std::array<uint64_t, 24> counts{};
  uint64_t total_us = 0;
  uint64_t max_us = 0;

  void Add(uint64_t us);
};

struct Counters {
  // Growth. A growth raises the committed length of a sequence that already had one; the first
  // commit is none.
  uint64_t growth_events = 0;
  uint64_t kv_bytes_moved = 0;  // nominal: at each moving growth live length x (bytes_per_token + 8
                                // where the graph reads a mask)
  uint64_t kv_bytes_copied = 0;  // what really was
  // Captured graphs.
  uint64_t captures = 0, replays = 0, fallbacks = 0, invalidations = 0, growth_keeps = 0;
  bool graph_existed = false;
  // Memory, now.
  uint64_t committed_bytes = 0;  // granules under each span, summed (kv/layout.h)
  uint64_t unique_physical_bytes = 0;
  uint64_t reserved_bytes = 0;
  uint64_t shared_bytes = 0;
  uint64_t parked_bytes = 0;
  uint64_t pooled_bytes = 0;
  uint64_t tail_waste_bytes = 0;  // unique bytes that hold no live token
  uint64_t granules_mapped = 0;   // since the beginning
  // Time by which growth delayed the launch of a step.
  StallHistogram commit_stall_us;
};

}  // namespace granule::kv
