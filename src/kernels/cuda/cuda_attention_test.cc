// Attention on a GPU against its definition in double precision: every head size, KV type, group of
// heads and layout; the same bits in every layout and from a graph.
#include "kernels/cuda/cuda_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/attention_for_test.h"
#include "kernels/cuda/graph_for_test.h"

namespace granule::kernels {
namespace {

TEST_F(CudaAttentionTest, SingleRowsOfEveryShapeTypeLengthAndLayout) {
  for (const int64_t dim : kDims) {
    for (const DType type : kTypes) {
      for (const int64_t ratio : {1, 3, 5, 7, 8}) {
        Inputs in(static_cast<uint32_t>(dim * 100 + ratio));
        Step step;
        step.shape = ShapeOf(/*kv_heads=*/2, ratio, dim);
        step.type = type;
        for (const int64_t length : {1, 2, 127, 128, 129, 1000, 5000}) {
          step.live.push_back(RandomLive(in, step.shape, type, length));
          step.AddSingle(static_cast<int32_t>(step.live.size()) - 1, length - 1);
          if (length == 2) step.AddSingle(-1, 77);  // padding
        }
        step.MakeQ(in);
        ExpectRightInEveryLayout(step, Format("D{}_{}_ratio{}", dim, DTypeName(type), ratio));
      }
    }
  }
}

TEST_F(CudaAttentionTest, SingleRowsOfManyQueryHeads) {
  for (const int64_t dim : {64, 80, 128, 256}) {
    for (const DType type : kTypes) {
      for (const int64_t ratio : {9, 16, 17, 40}) {
        Inputs in(static_cast<uint32_t>(dim + ratio));
        Step step;
        step.shape = ShapeOf(/*kv_heads=*/ratio > 17 ? 1 : 3, ratio, dim);
        step.type = type;
        for (const int64_t length : {1, 63, 64, 65, 700}) {
          step.live.push_back(RandomLive(in, step.shape, type, length));
          step.AddSingle(static_cast<int32_t>(step.live.size()) - 1, length - 1);
        }
        step.MakeQ(in);
        ExpectRightInEveryLayout(step, Format("D{}_{}_ratio{}", dim, DTypeName(type), ratio));
      }
    }
  }
}

TEST_F(CudaAttentionTest, TilesOfEveryShapeTypeLengthAndLayout) {
  for (const int64_t dim : kDims) {
    for (const DType type : kTypes) {
      for (const int64_t ratio : {1, 3, 5, 7, 8}) {
        Inputs in(static_cast<uint32_t>(dim * 100 + ratio + 50));
        Step step;
        step.shape = ShapeOf(/*kv_heads=*/2, ratio, dim);
        step.type = type;
        struct Piece {
          int64_t slot, rows;
        };
        for (const Piece piece :
             {Piece{0, 1}, {0, 37}, {0, 64}, {63, 77}, {128, 128}, {300, 64}, {2500, 3}}) {
          step.live.push_back(RandomLive(in, step.shape, type, piece.slot + piece.rows));
          step.AddTiles(static_cast<int32_t>(step.live.size()) - 1, piece.slot, piece.rows);
        }
        step.tiles.push_back({0, 0});  // no rows
        step.rows.push_back({0, -1, 0});
        step.tiles.push_back({static_cast<int32_t>(step.rows.size()) - 1, 1});  // padding
        step.MakeQ(in);
        ExpectRightInEveryLayout(step, Format("D{}_{}_ratio{}", dim, DTypeName(type), ratio));
      }
    }
  }
}

// Single rows and tiles of several sequences in one call, not in order, with everything models add.
TEST_F(CudaAttentionTest, ExtrasInAMixedStep) {
  for (const int64_t dim : kDims) {
    for (const DType type : kTypes) {
      for (const int what : {0, 1, 2, 3, 4}) {
        Inputs in(static_cast<uint32_t>(dim + what));
        Step step;
        step.shape = ShapeOf(/*kv_heads=*/2, /*ratio=*/3, dim);
        step.type = type;
        if (what == 1 || what == 4) step.extras.softcap = 2.0f;
        if (what == 2) step.extras.window = 1;
        if (what == 3) step.extras.window = 100;
        if (what == 4) step.extras.window = 65;
        if (what == 0 || what == 4) step.extras.sinks = in.Floats(step.shape.heads, 3.0f);
        for (const int64_t length : {1, 700, 129, 200, 66, 1025})
          step.live.push_back(RandomLive(in, step.shape, type, length));
        step.AddTiles(3, 90, 110);
        step.AddSingle(1, 699);
        step.AddSingle(0, 0);
        step.AddTiles(4, 0, 66);
        step.AddSingle(2, 128);
        step.AddSingle(5, 1024);
        step.AddSingle(5, 511);  // a row that is not its sequence's last
        std::reverse(step.single_rows.begin(), step.single_rows.end());
        step.MakeQ(in);
        ExpectRightInEveryLayout(step, Format("D{}_{}_extras{}", dim, DTypeName(type), what));
      }
    }
  }
}

// Without a list the single rows are the first ones. One graph serves other lengths, sequences and
// queries, with the bits of a launch.
TEST_F(CudaAttentionTest, OneGraphServesEveryLength) {
  for (const DType type : kTypes) {
    Inputs in(11);
    Step step;
    step.shape = ShapeOf(/*kv_heads=*/2, /*ratio=*/5, /*dim=*/128);
    step.type = type;
    for (const int64_t length : {3000, 5000, 200})
      step.live.push_back(RandomLive(in, step.shape, type, length));
    step.AddSingle(0, 2999);
    step.AddSingle(1, 17);
    step.AddTiles(2, 100, 64);
    step.MakeQ(in);
    const KvMemory memory(Layout::kTokenMajor, step.shape, type, step.live);
    const auto kv = Put(memory.bytes);
    Placed recorded = Place(step, memory.At(kv.address()));
    recorded.args.single_rows = nullptr;
    RecordedGraph graph(launcher(), [&] { Attention(launcher(), recorded.args); });

    for (const int64_t slot : {2999, 0, 63, 64, 1500}) {
      step.rows[0] = {0, 0, slot};
      step.rows[1] = {0, slot == 0 ? -1 : 1, std::min<int64_t>(4999, slot * 3)};
      for (int64_t r = 0; r < 64; ++r) step.rows[static_cast<size_t>(2 + r)].slot = slot % 130 + r;
      const std::vector<float> launched = RunIn(Layout::kTokenMajor, step);
      ASSERT_TRUE(device()
                      .UploadAsync(recorded.rows.address(), step.rows.data(),
                                   step.rows.size() * sizeof(CudaRow))
                      .ok());
      const std::vector<float> poison(launched.size(), kNaN);
      ASSERT_TRUE(
          device()
              .UploadAsync(recorded.out.address(), poison.data(), poison.size() * sizeof(float))
              .ok());
      graph.Run();
      ExpectRan();
      const auto replayed = Out(recorded, step);
      EXPECT_TRUE(SameBits(replayed, launched)) << "slot " << slot;
      ExpectRight(step, replayed, Format("slot_{}_{}", slot, DTypeName(type)));
    }
  }
}

TEST(CudaAttentionShapes, AreCheckedInWords) {
  EXPECT_TRUE(CheckCudaAttention(ShapeOf(2, 7, 64), DType::kF16).ok());
  EXPECT_TRUE(CheckCudaAttention(ShapeOf(1, 71, 256), DType::kF32).ok());
  const Status dim = CheckCudaAttention(ShapeOf(2, 1, 112), DType::kF16);
  EXPECT_EQ(dim.code(), Code::kInvalidInput);
  EXPECT_NE(dim.message().find("112"), std::string::npos) << dim.message();
  AttentionShape uneven = ShapeOf(2, 1, 64);
  uneven.heads = 3;
  EXPECT_EQ(CheckCudaAttention(uneven, DType::kF16).code(), Code::kInvalidInput);
  uneven.kv_heads = 0;
  EXPECT_EQ(CheckCudaAttention(uneven, DType::kF16).code(), Code::kInvalidInput);
  EXPECT_EQ(CheckCudaAttention(ShapeOf(20'000, 1, 64), DType::kF16).code(), Code::kInvalidInput);
  const Status type = CheckCudaAttention(ShapeOf(2, 1, 64), DType::kI8);
  EXPECT_EQ(type.code(), Code::kInvalidInput);
  EXPECT_NE(type.message().find("int8"), std::string::npos) << type.message();
}

TEST(CudaAttentionWorkspace, IsBoundedAndGrowsWithRowsAtMost) {
  const AttentionShape shape = ShapeOf(8, 5, 128);
  EXPECT_EQ(CudaAttentionWorkspaceBytes(shape, 0), 0u);
  // 48 splits of one row; of many rows, four each.
  EXPECT_EQ(CudaAttentionWorkspaceBytes(shape, 1), 40u * 48 * (2 + 128) * 4);
  EXPECT_EQ(CudaAttentionWorkspaceBytes(shape, 256), 256u * 40 * 4 * (2 + 128) * 4);
  EXPECT_LE(CudaAttentionWorkspaceBytes(shape, 64), uint64_t{16} << 20);
  // A step that is planned for more rows than it turns out to have fits.
  for (const int64_t kv_heads : {1, 2, 3, 8, 32}) {
    for (int64_t rows = 1; rows < 600; ++rows) {
      ASSERT_LE(CudaAttentionWorkspaceBytes(ShapeOf(kv_heads, 3, 64), rows),
                CudaAttentionWorkspaceBytes(ShapeOf(kv_heads, 3, 64), rows + 1))
          << kv_heads << " KV heads, " << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace granule::kernels
