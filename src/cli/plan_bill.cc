#include "cli/plan_bill.h"

#include "base/arith.h"

namespace granule::cli {
namespace {

class LayoutCosts {
 public:
  LayoutCosts(const kv::Layout& layout, uint64_t granule_bytes)
      : layout_(layout), granule_bytes_(granule_bytes) {}

  uint64_t Bytes(uint64_t tokens) const {
    return kv::TouchedGranules(kv::LiveRanges(layout_, 0, tokens), granule_bytes_) * granule_bytes_;
  }

  // The most tokens up to `limit` whose bytes are within `budget`. Bytes never fall with tokens.
  uint64_t Capacity(uint64_t budget, uint64_t limit) const {
    uint64_t fits = 0, too_many = limit + 1;
    while (too_many - fits > 1) {
      const uint64_t middle = fits + (too_many - fits) / 2;
      (Bytes(middle) <= budget ? fits : too_many) = middle;
    }
    return fits;
  }

 private:
  const kv::Layout& layout_;
  const uint64_t granule_bytes_;
};

Result<LayoutBill> BillOf(const kv::LayoutChoice& choice, const BillInput& input,
                          uint64_t kv_budget) {
  Result<kv::Layout> layout =
      kv::MakeLayout(choice, input.group, input.limit_tokens, input.granule_bytes);
  if (!layout.ok()) return layout.status();
  const LayoutCosts costs(*layout, input.granule_bytes);
  LayoutBill bill;
  bill.layout = choice;
  bill.floor_bytes = costs.Bytes(1);
  bill.floor_tokens = kv::LengthHeldByGranules(*layout, 1, input.granule_bytes);
  bill.tokens_per_granule = static_cast<double>(input.granule_bytes) /
                            static_cast<double>(layout->spans.front().shape.token_bytes);
  bill.bytes_at_tokens = costs.Bytes(input.tokens);
  bill.bytes_at_limit = costs.Bytes(input.limit_tokens);
  bill.capacity_tokens = costs.Capacity(kv_budget / input.sequences, input.limit_tokens);
  bill.sessions = kv_budget / bill.bytes_at_tokens;
  return bill;
}

}  // namespace

Result<Bill> MakeBill(const BillInput& input) {
  Bill bill;
  bill.bytes_per_token = input.group.BytesPerToken();
  if (input.budget_bytes > input.weight_bytes)
    bill.kv_budget_bytes = input.budget_bytes - input.weight_bytes;
  std::vector<kv::LayoutChoice> choices = {{kv::LayoutKind::kHeadMajor, 0},
                                           {kv::LayoutKind::kSeqMajor, 0}};
  if (input.group.layers.size() > 4) choices.push_back({kv::LayoutKind::kStripe, 4});
  choices.push_back({kv::LayoutKind::kTokenMajor, 0});
  for (const kv::LayoutChoice& choice : choices) {
    Result<LayoutBill> layout = BillOf(choice, input, bill.kv_budget_bytes);
    if (!layout.ok()) return layout.status().In(kv::LayoutName(choice));
    bill.layouts.push_back(*layout);
  }
  bill.preallocated.bytes = SaturatingMul(bill.bytes_per_token, input.limit_tokens);
  bill.preallocated.sessions = bill.kv_budget_bytes / bill.preallocated.bytes;
  return bill;
}

}  // namespace granule::cli
