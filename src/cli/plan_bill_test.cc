#include "cli/plan_bill.h"

#include <gtest/gtest.h>

namespace granule::cli {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

kv::Group Layers(int count, int64_t kv_heads, int64_t head_dim, DType dtype) {
  kv::Group group;
  for (int i = 0; i < count; ++i) group.layers.push_back({kv_heads, head_dim, dtype});
  return group;
}

const LayoutBill& Find(const Bill& bill, const std::string& name) {
  for (const LayoutBill& layout : bill.layouts) {
    if (kv::LayoutName(layout.layout) == name) return layout;
  }
  ADD_FAILURE() << name;
  return bill.layouts.front();
}

// One layer of 8 KV heads of 128 in fp16, limit 32,768, granules of 2 MiB: every head of head-major
// has a granule of its own for K and for V.
TEST(MakeBill, FloorsOfOneLayer) {
  BillInput input;
  input.group = Layers(1, 8, 128, DType::kF16);
  input.granule_bytes = 2 * kMiB;
  input.limit_tokens = 32768;
  input.tokens = 8192;
  input.budget_bytes = 64 * kMiB;
  const Result<Bill> bill = MakeBill(input);
  ASSERT_TRUE(bill.ok()) << bill.status().message();
  EXPECT_EQ(bill->bytes_per_token, 4096u);
  ASSERT_EQ(bill->layouts.size(), 3u);
  EXPECT_EQ(Find(*bill, "head-major").floor_bytes, 16 * 2 * kMiB);
  EXPECT_EQ(Find(*bill, "head-major").floor_tokens, 8192u);
  EXPECT_EQ(Find(*bill, "head-major").tokens_per_granule, 8192);
  EXPECT_EQ(Find(*bill, "seq-major").floor_bytes, 2 * 2 * kMiB);
  EXPECT_EQ(Find(*bill, "seq-major").floor_tokens, 1024u);
  EXPECT_EQ(Find(*bill, "token-major").floor_bytes, 2 * kMiB);
  EXPECT_EQ(Find(*bill, "token-major").floor_tokens, 512u);
  for (const LayoutBill& layout : bill->layouts) {
    EXPECT_EQ(layout.bytes_at_tokens, 32 * kMiB) << kv::LayoutName(layout.layout);
    EXPECT_EQ(layout.bytes_at_limit, 128 * kMiB);
    EXPECT_EQ(layout.sessions, 2u);
    EXPECT_EQ(layout.capacity_tokens, 16384u);
  }
  EXPECT_EQ(bill->preallocated.bytes, 128 * kMiB);
  EXPECT_EQ(bill->preallocated.sessions, 0u);
}

// Qwen2.5-14B: 48 layers of 8 KV heads of 128 in fp16 are 196,608 bytes a token, 24 GiB at 131,072.
TEST(MakeBill, BigModel) {
  BillInput input;
  input.group = Layers(48, 8, 128, DType::kF16);
  input.granule_bytes = 64 << 10;
  input.limit_tokens = 131072;
  input.tokens = 4096;
  input.sequences = 2;
  input.weight_bytes = 8 << 10 << 20;
  input.budget_bytes = input.weight_bytes + (uint64_t{6} << 30);
  const Result<Bill> bill = MakeBill(input);
  ASSERT_TRUE(bill.ok()) << bill.status().message();
  EXPECT_EQ(bill->bytes_per_token, 196608u);
  EXPECT_EQ(bill->kv_budget_bytes, uint64_t{6} << 30);
  EXPECT_EQ(bill->preallocated.bytes, uint64_t{24} << 30);
  ASSERT_EQ(bill->layouts.size(), 4u);
  EXPECT_EQ(Find(*bill, "head-major").floor_bytes, 48u * 2 * 8 * 65536);
  EXPECT_EQ(Find(*bill, "seq-major").floor_bytes, 48u * 2 * 65536);
  EXPECT_EQ(Find(*bill, "seq-major").floor_tokens, 32u);
  EXPECT_EQ(Find(*bill, "stripe:4").floor_bytes, 12u * 65536);
  EXPECT_EQ(Find(*bill, "stripe:4").floor_tokens, 4u);
  // A token record is three granules: one token needs them all, and no more.
  EXPECT_EQ(Find(*bill, "token-major").floor_bytes, 196608u);
  EXPECT_EQ(Find(*bill, "token-major").floor_tokens, 1u);
  EXPECT_NEAR(Find(*bill, "token-major").tokens_per_granule, 1 / 3.0, 1e-9);
  for (const LayoutBill& layout : bill->layouts) {
    EXPECT_EQ(layout.bytes_at_tokens, 768 * kMiB);
    EXPECT_EQ(layout.sessions, 8u);
    EXPECT_EQ(layout.capacity_tokens, 16384u);
  }
}

TEST(MakeBill, NothingFits) {
  BillInput input;
  input.group = Layers(2, 2, 32, DType::kF32);
  input.granule_bytes = 64 << 10;
  input.limit_tokens = 100;
  input.tokens = 100;
  input.weight_bytes = 1000;
  input.budget_bytes = 999;
  const Result<Bill> bill = MakeBill(input);
  ASSERT_TRUE(bill.ok());
  EXPECT_EQ(bill->kv_budget_bytes, 0u);
  for (const LayoutBill& layout : bill->layouts) {
    EXPECT_EQ(layout.capacity_tokens, 0u);
    EXPECT_EQ(layout.sessions, 0u);
  }
}

TEST(MakeBill, AddressesThatDoNotFitAreAnError) {
  BillInput input;
  input.group = Layers(48, 8, 128, DType::kF16);
  input.granule_bytes = 64 << 10;
  input.limit_tokens = UINT64_MAX / 2;
  input.tokens = 1;
  const Result<Bill> bill = MakeBill(input);
  ASSERT_FALSE(bill.ok());
  EXPECT_EQ(bill.status().code(), Code::kExhausted);
}

}  // namespace
}  // namespace granule::cli
