// What a model's KV will take, worked out from its geometry alone.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "kv/layout.h"

namespace granule::cli {

struct BillInput {
  kv::Group group;
  uint64_t granule_bytes = 0;
  uint64_t limit_tokens = 0;  // that a sequence may ever hold, >= 1
  uint64_t tokens = 0;        // that a session is counted with, 1 to limit_tokens
  uint64_t sequences = 1;     // that share the budget
  uint64_t weight_bytes = 0;
  uint64_t budget_bytes = 0;  // for weights and KV together
};

// One layout. Bytes are those of whole granules, as they are committed.
struct LayoutBill {
  kv::LayoutChoice layout;
  uint64_t floor_bytes = 0;       // one sequence at its first token
  uint64_t floor_tokens = 0;      // tokens that the floor holds
  double tokens_per_granule = 0;  // of one span: how far apart its growths are
  uint64_t bytes_at_tokens = 0;
  uint64_t bytes_at_limit = 0;
  uint64_t capacity_tokens = 0;  // of each of `sequences` that share the budget equally
  uint64_t sessions = 0;         // of `tokens` that fit the budget
};

// A runtime that allocates the whole context at load.
struct PreallocatedBill {
  uint64_t bytes =
      0;  // 2 * layers * kv_heads * head_dim * bytes of an element * limit, per sequence
  uint64_t sessions = 0;
};

struct Bill {
  uint64_t bytes_per_token = 0;
  uint64_t kv_budget_bytes = 0;  // 0 where the weights alone are too much
  std::vector<LayoutBill> layouts;
  PreallocatedBill preallocated;
};

// head-major, seq-major, stripe:4 (where there are more than 4 layers), token-major. kExhausted
// where a layout's addresses would not fit 64 bits. Sums saturate.
Result<Bill> MakeBill(const BillInput& input);

}  // namespace granule::cli
