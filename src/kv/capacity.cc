#include "kv/capacity.h"

#include <algorithm>
#include <bit>

#include "base/format.h"

namespace granule::kv {

uint64_t Bucket(uint64_t length, uint64_t hard_max, uint64_t floor) {
  // bit_ceil is undefined where the result would need 65 bits; there every bound is smaller anyway.
  constexpr uint64_t kLargestPowerOfTwo = uint64_t{1} << 63;
  if (length > kLargestPowerOfTwo) return hard_max;
  return std::min(std::max(std::bit_ceil(length), floor), hard_max);
}

HardMax ResolveHardMax(const std::optional<Limit>& explicit_limit,
                       const std::optional<Limit>& stated, const std::optional<Limit>& table_rows) {
  std::optional<Limit> model = stated;
  if (table_rows && (!model || table_rows->tokens < model->tokens)) model = table_rows;

  HardMax result;
  if (explicit_limit && explicit_limit->tokens > 0) {
    result.tokens = explicit_limit->tokens;
    result.source = explicit_limit->source;
    if (model && model->tokens < explicit_limit->tokens) {
      result.tokens = model->tokens;
      result.source =
          Format("{} clamped by {} ({})", explicit_limit->source, model->source, model->tokens);
      result.warning = Format(
          "{} asks for {} tokens; the model holds at most {} ({}): using {}. Positions beyond it "
          "were "
          "not trained or have no rotary table.",
          explicit_limit->source, explicit_limit->tokens, model->tokens, model->source,
          model->tokens);
    }
  } else if (model) {
    result.tokens = model->tokens;
    result.source = model->source;
  }
  return result;
}

}  // namespace granule::kv
