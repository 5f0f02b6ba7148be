// Attention on a GPU against its definition in double precision: every head size, KV type, group of
// heads and layout; the same bits in every layout and from a graph; and never a byte outside what a
// row attends to.
#include "kernels/cuda/cuda_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>

#include "base/arith.h"
#include "kernels/cuda/graph_for_test.h"
#include "kernels/cuda/kernels_for_test.h"
#include "kernels/ref/reference.h"
#include "kernels/test_inputs.h"

namespace granule::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

enum class Layout { kSeqMajor, kTokenMajor, kHeadMajor };
constexpr Layout kLayouts[] = {Layout::kSeqMajor, Layout::kTokenMajor, Layout::kHeadMajor};

// The live keys and values of one sequence, [length, Hk, D] of the KV's type.
struct Live {
  int64_t length = 0;
  std::vector<std::byte> k, v;
};

// Several sequences in one piece of memory. Bytes that belong to no live slot are all ones, which
// is a NaN in every type: whoever uses one shows it.
struct KvMemory {
  std::vector<std::byte> bytes;
  std::vector<KvView> host;  // into bytes

  KvMemory(Layout layout, const AttentionShape& shape, DType type, const std::vector<Live>& live) {
    const int64_t element = BitsOf(type) / 8, head = shape.head_dim * element;
    const int64_t token = head * shape.kv_heads;
    constexpr int64_t kLayers = 3;  // of a token-major stripe; this is the middle one
    std::vector<int64_t> k_at, v_at;
    int64_t at = 0;
    for (const Live& sequence : live) {
      const int64_t capacity = sequence.length + 70;
      KvView view;
      view.dtype = type;
      k_at.push_back(at + (layout == Layout::kTokenMajor ? 2 * token : 0));
      switch (layout) {
        case Layout::kSeqMajor:
          view.k_token_stride = view.v_token_stride = token;
          view.k_head_stride = view.v_head_stride = head;
          v_at.push_back(k_at.back() + capacity * token);
          at += 2 * capacity * token;
          break;
        case Layout::kTokenMajor:
          view.k_token_stride = view.v_token_stride = 2 * kLayers * token;
          view.k_head_stride = view.v_head_stride = head;
          v_at.push_back(k_at.back() + token);
          at += 2 * kLayers * capacity * token;
          break;
        case Layout::kHeadMajor:
          view.k_token_stride = view.v_token_stride = head;
          view.k_head_stride = view.v_head_stride = capacity * head;
          v_at.push_back(k_at.back() + capacity * token);
          at += 2 * capacity * token;
          break;
      }
      host.push_back(view);
    }
    bytes.assign(static_cast<size_t>(at), std::byte{0xff});
    for (size_t s = 0; s < live.size(); ++s) {
      host[s].k = bytes.data() + k_at[s];
      host[s].v = bytes.data() + v_at[s];
      for (int64_t t = 0; t < live[s].length; ++t) {
        for (int64_t h = 0; h < shape.kv_heads; ++h) {
          const auto from = static_cast<size_t>((t * shape.kv_heads + h) * head);
          const auto size = static_cast<size_t>(head);
          std::memcpy(host[s].k + t * host[s].k_token_stride + h * host[s].k_head_stride,
                      live[s].k.data() + from, size);
          std::memcpy(host[s].v + t * host[s].v_token_stride + h * host[s].v_head_stride,
                      live[s].v.data() + from, size);
        }
      }
    }
  }

  // The views of a copy at this device address.
  std::vector<KvView> At(cuda::DevicePtr address) const {
    std::vector<KvView> views = host;
    for (KvView& view : views) {
      view.k = reinterpret_cast<std::byte*>(address) + (view.k - bytes.data());
      view.v = reinterpret_cast<std::byte*>(address) + (view.v - bytes.data());
    }
    return views;
  }
};

Live RandomLive(Inputs& in, const AttentionShape& shape, DType type, int64_t length) {
  Live live;
  live.length = length;
  live.k = Narrow(in.Floats(length * shape.kv_heads * shape.head_dim), type);
  live.v = Narrow(in.Floats(length * shape.kv_heads * shape.head_dim), type);
  return live;
}

struct HostExtras {
  float softcap = 0.0f;
  int64_t window = 0;
  std::vector<float> sinks;
};

// One row's attention over a sequence, [Hq * D], as it is defined.
std::vector<double> Attend(const AttentionShape& shape, const HostExtras& extras, DType type,
                           const Live& live, int64_t slot, const float* q) {
  std::vector<double> out(static_cast<size_t>(shape.heads * shape.head_dim), 0.0);
  const int64_t dim = shape.head_dim, group = shape.heads / shape.kv_heads;
  const int64_t first = extras.window > 0 ? std::max<int64_t>(0, slot - extras.window + 1) : 0;
  std::vector<double> key(static_cast<size_t>(dim)), weights(static_cast<size_t>(slot - first + 1));
  std::vector<std::vector<double>> of_heads(static_cast<size_t>(group), weights);
  for (int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
    for (int64_t t = first; t <= slot; ++t) {
      for (int64_t d = 0; d < dim; ++d) {
        key[static_cast<size_t>(d)] =
            ref::ElementOf(live.k.data(), type, (t * shape.kv_heads + kv_head) * dim + d);
      }
      for (int64_t g = 0; g < group; ++g) {
        const float* head = q + (kv_head * group + g) * dim;
        double score = 0;
        for (int64_t d = 0; d < dim; ++d) score += head[d] * key[static_cast<size_t>(d)];
        score *= shape.scale;
        if (extras.softcap > 0) score = extras.softcap * std::tanh(score / extras.softcap);
        of_heads[static_cast<size_t>(g)][static_cast<size_t>(t - first)] = score;
      }
    }
    std::vector<double> totals;
    for (int64_t g = 0; g < group; ++g) {
      std::vector<double>& scores = of_heads[static_cast<size_t>(g)];
      double largest = *std::max_element(scores.begin(), scores.end());
      const bool sink = !extras.sinks.empty();
      const double sink_score = sink ? extras.sinks[static_cast<size_t>(kv_head * group + g)] : 0;
      if (sink) largest = std::max(largest, sink_score);
      double total = sink ? std::exp(sink_score - largest) : 0;
      for (double& score : scores) total += score = std::exp(score - largest);
      totals.push_back(total);
    }
    for (int64_t t = first; t <= slot; ++t) {
      for (int64_t d = 0; d < dim; ++d) {
        key[static_cast<size_t>(d)] =
            ref::ElementOf(live.v.data(), type, (t * shape.kv_heads + kv_head) * dim + d);
      }
      for (int64_t g = 0; g < group; ++g) {
        const double weight = of_heads[static_cast<size_t>(g)][static_cast<size_t>(t - first)] /
                              totals[static_cast<size_t>(g)];
        double* to = out.data() + (kv_head * group + g) * dim;
        for (int64_t d = 0; d < dim; ++d) to[d] += weight * key[static_cast<size_t>(d)];
      }
    }
  }
  return out;
}

// A step: rows of several sequences, some alone, some in tiles.
struct Step {
  AttentionShape shape;
  HostExtras extras;
  DType type = DType::kF16;
  std::vector<Live> live;
  std::vector<CudaRow> rows;
  std::vector<int32_t> single_rows;
  std::vector<AttentionTile> tiles;
  int64_t ldq = 0, ldo = 0;
  std::vector<float> q;

  void AddSingle(int32_t sequence, int64_t slot) {
    single_rows.push_back(static_cast<int32_t>(rows.size()));
    rows.push_back({0, sequence, slot});
  }
  void AddTiles(int32_t sequence, int64_t slot, int64_t count) {
    for (int64_t r = 0; r < count; ++r) {
      if (r % kTileRows == 0) {
        tiles.push_back({static_cast<int32_t>(rows.size()),
                         static_cast<int32_t>(std::min<int64_t>(kTileRows, count - r))});
      }
      rows.push_back({0, sequence, slot + r});
    }
  }
  void MakeQ(Inputs& in) {
    ldq = shape.heads * shape.head_dim + 8;
    ldo = shape.heads * shape.head_dim + 3;
    q = in.Floats(static_cast<int64_t>(rows.size()) * ldq, 1.5f);
  }
  bool Padding(size_t r) const { return rows[r].sequence < 0; }
  // Of every row, [Hq * D]; empty for padding.
  std::vector<std::vector<double>> Want() const {
    std::vector<std::vector<double>> want(rows.size());
    for (size_t r = 0; r < rows.size(); ++r) {
      if (Padding(r)) continue;
      want[r] = Attend(shape, extras, type, live[static_cast<size_t>(rows[r].sequence)],
                       rows[r].slot, q.data() + static_cast<int64_t>(r) * ldq);
    }
    return want;
  }
};

AttentionShape ShapeOf(int64_t kv_heads, int64_t ratio, int64_t dim) {
  AttentionShape shape;
  shape.heads = kv_heads * ratio;
  shape.kv_heads = kv_heads;
  shape.head_dim = dim;
  shape.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  return shape;
}

// How far a result may be off, relative to 1 + |expected|: values are about 1 in size. Single rows:
// q and the weights carry 22 bits (fp16), 16 bits (bf16) or all (fp32). Tiles: 11 bits, 8 bits, and
// 11 for an fp32 KV as well.
double SingleTolerance(DType type) { return type == DType::kBF16 ? 2e-4 : 3e-5; }
double TileTolerance(DType type) { return type == DType::kBF16 ? 4e-2 : 5e-3; }

class CudaAttentionTest : public CudaKernelTest {
 protected:
  // The step's device side. Everything but the KV's place is the same in every layout.
  struct Placed {
    cuda::Buffer rows, views, q, out, single_rows, tiles, workspace, sinks;
    CudaAttentionArgs args;
  };

  // Put, with something there also for nothing.
  template <class T>
  cuda::Buffer PutList(std::vector<T> values) {
    if (values.empty()) values.resize(1);
    return Put(values);
  }

  Placed Place(const Step& step, const std::vector<KvView>& views) {
    Placed p;
    p.rows = Put(step.rows);
    p.views = Put(views);
    p.q = Put(step.q);
    p.out = Put(std::vector<float>(step.rows.size() * static_cast<size_t>(step.ldo), kNaN));
    p.single_rows = PutList(step.single_rows);
    p.tiles = PutList(step.tiles);
    p.sinks = PutList(step.extras.sinks);
    const auto singles = static_cast<int64_t>(step.single_rows.size());
    const uint64_t bytes = CudaAttentionWorkspaceBytes(step.shape, singles);
    p.workspace = PutList(std::vector<uint8_t>(bytes, 0xff));
    CudaAttentionArgs& a = p.args;
    a.shape = step.shape;
    a.extras.softcap = step.extras.softcap;
    a.extras.window = step.extras.window;
    a.extras.sinks = step.extras.sinks.empty() ? nullptr : p.sinks.as<float>();
    a.rows = p.rows.as<CudaRow>();
    a.row_count = static_cast<int64_t>(step.rows.size());
    a.views = p.views.as<KvView>();
    a.kv_type = step.type;
    a.q = p.q.as<float>();
    a.ldq = step.ldq;
    a.out = p.out.as<float>();
    a.ldo = step.ldo;
    a.single_rows = p.single_rows.as<int32_t>();
    a.single_count = singles;
    a.tiles = p.tiles.as<AttentionTile>();
    a.tile_count = static_cast<int64_t>(step.tiles.size());
    a.workspace = p.workspace.as<std::byte>();
    a.workspace_bytes = bytes;
    return p;
  }
  std::vector<float> Out(const Placed& p, const Step& step) {
    return Get<float>(p.out.address(), step.rows.size() * static_cast<size_t>(step.ldo));
  }

  std::vector<float> RunIn(Layout layout, const Step& step) {
    const KvMemory memory(layout, step.shape, step.type, step.live);
    const auto kv = Put(memory.bytes);
    const Placed p = Place(step, memory.At(kv.address()));
    Attention(launcher(), p.args);
    ExpectRan();
    return Out(p, step);
  }

  void ExpectRight(const Step& step, const std::vector<float>& got, const std::string& what) {
    const auto want = step.Want();
    std::vector<bool> single(step.rows.size(), false);
    for (const int32_t r : step.single_rows) single[static_cast<size_t>(r)] = true;
    int shown = 0;
    double worst = 0;
    for (size_t r = 0; r < step.rows.size(); ++r) {
      const double tolerance = single[r] ? SingleTolerance(step.type) : TileTolerance(step.type);
      for (int64_t i = 0; i < step.ldo; ++i) {
        const float value = got[r * static_cast<size_t>(step.ldo) + static_cast<size_t>(i)];
        const bool unwritten = step.Padding(r) || i >= step.shape.heads * step.shape.head_dim;
        double off = 0;
        if (unwritten) {
          if (std::isnan(value)) continue;
          off = std::numeric_limits<double>::infinity();
        } else {
          const double wanted = want[r][static_cast<size_t>(i)];
          off = std::abs(value - wanted) / (1 + std::abs(wanted));
          if (off <= tolerance) {
            worst = std::max(worst, off / tolerance);
            continue;
          }
        }
        ADD_FAILURE() << what << ": row " << r << (single[r] ? " alone" : " in a tile") << " slot "
                      << step.rows[r].slot << " head " << i / step.shape.head_dim << " lane "
                      << i % step.shape.head_dim << " is " << value << ", expected "
                      << (unwritten ? std::string("nothing")
                                    : Format("{}", want[r][static_cast<size_t>(i)]))
                      << " (off by " << off << ", allowed " << tolerance << ")";
        if (++shown == 5) return;
      }
    }
    RecordProperty(what, Format("{:.2f} of the tolerance", worst));
  }

  // Right in one layout, the same bits in the others.
  void ExpectRightInEveryLayout(const Step& step, const std::string& what) {
    const std::vector<float> first = RunIn(kLayouts[0], step);
    ExpectRight(step, first, what);
    for (const Layout layout : {kLayouts[1], kLayouts[2]}) {
      EXPECT_TRUE(SameBits(RunIn(layout, step), first))
          << what << ": layout " << static_cast<int>(layout) << " gives other bits";
    }
  }
};

const int64_t kDims[] = {64, 80, 96, 128, 256};
const DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

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

double Rounding(DType type) {
  return type == DType::kF32 ? 1e-6 : type == DType::kF16 ? 1.0 / 1024 : 1.0 / 128;
}

TEST_F(CudaAttentionTest, RotateAndAppendWritesItsSlotsAlone) {
  struct Way {
    int64_t dim, rotary_dim;
    bool interleaved;
  };
  for (const Way way : {Way{64, 64, false},
                        {80, 32, false},
                        {96, 96, true},
                        {128, 128, false},
                        {128, 64, true},
                        {256, 256, false},
                        {64, 0, false},
                        {80, 2, true}}) {
    for (const DType type : kTypes) {
      for (const Layout layout : kLayouts) {
        Inputs in(static_cast<uint32_t>(way.dim + way.rotary_dim));
        const AttentionShape shape = ShapeOf(/*kv_heads=*/2, /*ratio=*/3, way.dim);
        const std::vector<CudaRow> rows = {
            {0, 1, 5}, {0, 0, 0}, {0, -1, 3}, {0, 0, 1}, {0, 2, 199}};
        std::vector<Live> live;
        for (int i = 0; i < 3; ++i) {
          live.push_back(RandomLive(in, shape, type, 200));  // what is there before
        }
        const KvMemory before(layout, shape, type, live);
        KvMemory after(layout, shape, type, live);
        const int64_t kv_width = shape.kv_heads * way.dim, q_width = shape.heads * way.dim;
        const int64_t ldq = q_width + 2 * kv_width;  // q, k, v side by side
        const auto count = static_cast<int64_t>(rows.size());
        const auto qkv = in.Floats(count * ldq);
        const auto cos = in.Floats(200 * std::max<int64_t>(way.rotary_dim / 2, 1));
        const auto sin = in.Floats(200 * std::max<int64_t>(way.rotary_dim / 2, 1));
        const auto dqkv = Put(qkv), dcos = Put(cos), dsin = Put(sin);
        const auto dkv = Put(before.bytes);
        const auto drows = Put(rows);
        const auto dviews = Put(before.At(dkv.address()));
        CudaAppendArgs args;
        args.shape = shape;
        args.rotary = {dcos.as<float>(), dsin.as<float>(), way.rotary_dim, way.interleaved};
        args.rows = drows.as<CudaRow>();
        args.row_count = count;
        args.views = dviews.as<KvView>();
        args.kv_type = type;
        args.q = dqkv.as<float>();
        args.k = args.q + q_width;
        args.v = args.k + kv_width;
        args.ldq = args.ldk = args.ldv = ldq;
        RotateAndAppend(launcher(), args);
        ExpectRan();
        const auto got_qkv = Get<float>(dqkv.address(), qkv.size());
        const auto got_kv = Get<std::byte>(dkv.address(), before.bytes.size());

        const Rotary rotary = {cos.data(), sin.data(), way.rotary_dim, way.interleaved};
        std::vector<double> want_qkv(qkv.begin(), qkv.end());
        const size_t head_bytes = static_cast<size_t>(way.dim * BitsOf(type) / 8);
        for (size_t r = 0; r < rows.size(); ++r) {
          if (rows[r].sequence < 0) continue;
          const float* row = qkv.data() + static_cast<int64_t>(r) * ldq;
          const auto q = ref::Rotate(rotary, rows[r].slot, shape.heads, way.dim, row);
          std::copy(q.begin(), q.end(), want_qkv.begin() + static_cast<int64_t>(r) * ldq);
          const auto k = ref::Rotate(rotary, rows[r].slot, shape.kv_heads, way.dim, row + q_width);
          const KvView& view = after.host[static_cast<size_t>(rows[r].sequence)];
          for (int64_t h = 0; h < shape.kv_heads; ++h) {
            std::byte* to = view.k + rows[r].slot * view.k_token_stride + h * view.k_head_stride;
            const std::byte* got = got_kv.data() + (to - after.bytes.data());
            for (int64_t d = 0; d < way.dim; ++d) {
              const double want = k[static_cast<size_t>(h * way.dim + d)];
              const double value = ref::ElementOf(got, type, d);
              // What did not rotate is the nearest number; the rest went through fp32.
              const double allowed =
                  d >= way.rotary_dim ? Rounding(type) / 2 : Rounding(type) / 2 + 4e-7;
              ASSERT_LE(std::abs(value - want), allowed * std::abs(want) + 4e-6)
                  << "k of row " << r << " head " << h << " lane " << d << " dim " << way.dim
                  << " rotary " << way.rotary_dim;
            }
            if (way.rotary_dim == 0) {
              const auto exact =
                  Narrow({row + q_width + h * way.dim, row + q_width + (h + 1) * way.dim}, type);
              EXPECT_EQ(std::memcmp(got, exact.data(), head_bytes), 0);
            }
            std::memcpy(to, got, head_bytes);
            const float* v = row + q_width + kv_width + h * way.dim;
            const auto exact = Narrow({v, v + way.dim}, type);
            std::memcpy(view.v + rows[r].slot * view.v_token_stride + h * view.v_head_stride,
                        exact.data(), head_bytes);
          }
        }
        EXPECT_EQ(std::memcmp(got_kv.data(), after.bytes.data(), got_kv.size()), 0)
            << "a value is wrong or something outside the slots was written: dim " << way.dim
            << " layout " << static_cast<int>(layout);
        for (size_t i = 0; i < qkv.size(); ++i) {
          ASSERT_NEAR(got_qkv[i], want_qkv[i], 2e-6) << "element " << i << " of q, k, v";
        }
      }
    }
  }
}

// Address space with memory behind a part of it only.
class Island {
 public:
  // `granules` of memory between one granule of nothing before and one behind.
  Island(cuda::Device& device, size_t granules) : device_(device) {
    const cuda::Driver& driver = device.driver();
    device.MakeCurrent();
    cuda::AllocationProperties properties;
    properties.location.id = device.facts().index;
    Expect(driver.MemGetAllocationGranularity(&granule_, &properties, 0));
    bytes_ = granules * granule_;
    Expect(driver.MemAddressReserve(&base_, bytes_ + 2 * granule_, 0, 0, 0));
    Expect(driver.MemCreate(&handle_, bytes_, &properties, 0));
    Expect(driver.MemMap(begin(), bytes_, 0, handle_, 0));
    cuda::AccessDescription access;
    access.location = properties.location;
    Expect(driver.MemSetAccess(begin(), bytes_, &access, 1));
  }
  ~Island() {
    device_.MakeCurrent();
    device_.driver().MemUnmap(begin(), bytes_);
    device_.driver().MemRelease(handle_);
    device_.driver().MemAddressFree(base_, bytes_ + 2 * granule_);
  }
  Island(const Island&) = delete;
  Island& operator=(const Island&) = delete;

  cuda::DevicePtr begin() const { return base_ + granule_; }
  cuda::DevicePtr end() const { return begin() + bytes_; }

 private:
  void Expect(cuda::DriverResult result) {
    EXPECT_EQ(result, cuda::kSuccess) << device_.driver().Describe(result);
  }
  cuda::Device& device_;
  size_t granule_ = 0, bytes_ = 0;
  cuda::DevicePtr base_ = 0;
  cuda::MemoryHandle handle_ = 0;
};

// The live length ends with the last mapped byte, and with a window the first slot begins with the
// first one: whatever reads or writes a slot more stops the context. Launched and from a graph.
TEST_F(CudaAttentionTest, NothingOutsideTheMappedGranulesIsTouched) {
  for (const int64_t dim : kDims) {
    for (const DType type : kTypes) {
      for (const int64_t window : {0, 333}) {
        for (const int64_t ratio : {1, 12}) {
          Inputs in(static_cast<uint32_t>(dim + window));
          const int64_t length = 1041;
          Step step;
          step.shape = ShapeOf(/*kv_heads=*/1, ratio, dim);
          step.type = type;
          step.extras.window = window;
          step.live.push_back(RandomLive(in, step.shape, type, length));
          step.AddSingle(0, length - 1);
          if (window == 0) step.AddTiles(0, length - 70, 70);
          // A tile of one row reads from the first mapped slot on, like the single row.
          if (window != 0) step.AddTiles(0, length - 1, 1);
          step.MakeQ(in);
          const auto plain = RunIn(Layout::kSeqMajor, step);
          ExpectRight(step, plain, Format("D{}_{}_window{}", dim, DTypeName(type), window));

          const int64_t token = dim * BitsOf(type) / 8;
          const Island k_island(device(), 1), v_island(device(), 1);
          KvView view;
          view.dtype = type;
          view.k_token_stride = view.v_token_stride = view.k_head_stride = view.v_head_stride =
              token;
          const int64_t first = window == 0 ? 0 : length - window;
          // Ends: slot `length` would be behind the island. Begins: slot first - 1 would be before
          // it.
          for (const bool at_end : {true, false}) {
            if (!at_end && window == 0) continue;
            const auto place = [&](const Island& island, const std::vector<std::byte>& values) {
              const cuda::DevicePtr slot0 =
                  at_end ? island.end() - static_cast<cuda::DevicePtr>(length * token)
                         : island.begin() - static_cast<cuda::DevicePtr>(first * token);
              EXPECT_TRUE(device()
                              .UploadAsync(slot0 + static_cast<cuda::DevicePtr>(first * token),
                                           values.data() + first * token,
                                           static_cast<size_t>((length - first) * token))
                              .ok());
              return reinterpret_cast<std::byte*>(slot0);
            };
            view.k = place(k_island, step.live[0].k);
            view.v = place(v_island, step.live[0].v);
            const Placed p = Place(step, {view});
            Attention(launcher(), p.args);
            ExpectRan();
            ASSERT_TRUE(device().lost().ok()) << device().lost().message();
            EXPECT_TRUE(SameBits(Out(p, step), plain));
            RecordedGraph graph(launcher(), [&] { Attention(launcher(), p.args); });
            graph.Run();
            ExpectRan();
            EXPECT_TRUE(SameBits(Out(p, step), plain));

            // The last slot is written again, with what it holds.
            CudaAppendArgs append;
            append.shape = step.shape;
            append.rows = p.args.rows;
            append.row_count = 1;  // the single row
            append.views = p.args.views;
            append.kv_type = type;
            append.q = const_cast<float*>(p.args.q);
            append.ldq = step.ldq;
            std::vector<float> last_k, last_v;
            for (int64_t d = 0; d < dim; ++d) {
              last_k.push_back(static_cast<float>(
                  ref::ElementOf(step.live[0].k.data(), type, (length - 1) * dim + d)));
              last_v.push_back(static_cast<float>(
                  ref::ElementOf(step.live[0].v.data(), type, (length - 1) * dim + d)));
            }
            const auto dk = Put(last_k), dv = Put(last_v);
            append.k = dk.as<float>();
            append.v = dv.as<float>();
            append.ldk = append.ldv = dim;
            RotateAndAppend(launcher(), append);
            RecordedGraph recorded(launcher(), [&] {
              RotateAndAppend(launcher(), append);
              Attention(launcher(), p.args);
            });
            recorded.Run();
            ExpectRan();
            ASSERT_TRUE(device().lost().ok()) << device().lost().message();
            EXPECT_TRUE(SameBits(Out(p, step), plain));
          }
        }
      }
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
}

// Layers of KV in one token-major stripe, read one after the other from a graph.
TEST_F(CudaAttentionTest, SpeedOfSingleRows) {
  struct Case {
    const char* name;
    int64_t kv_heads, ratio, dim, batch, length, layers;
  };
  for (const Case& c : {Case{"14b, 1 x 32000", 8, 5, 128, 1, 32'000, 48},
                        Case{"14b, 1 x 1000", 8, 5, 128, 1, 1'000, 48},
                        Case{"14b, 16 x 4096", 8, 5, 128, 16, 4'096, 48},
                        Case{"14b, 64 x 1024", 8, 5, 128, 64, 1'024, 48},
                        Case{"7b, 1 x 8192", 4, 7, 128, 1, 8'192, 28},
                        Case{"0.5b, 1 x 1000", 2, 7, 64, 1, 1'000, 24},
                        Case{"0.5b, 1 x 60", 2, 7, 64, 1, 60, 24}}) {
    const AttentionShape shape = ShapeOf(c.kv_heads, c.ratio, c.dim);
    const int64_t token = c.kv_heads * c.dim * 2, stride = token * 2 * c.layers;
    auto kv = cuda::Buffer::Allocate(device(), static_cast<size_t>(c.batch * c.length * stride),
                                     "a test");
    ASSERT_TRUE(kv.ok()) << kv.status().message();
    device().MakeCurrent();
    ASSERT_EQ(device().driver().MemsetD8Async(kv->address(), 0x35, kv->bytes(), device().stream()),
              cuda::kSuccess);
    std::vector<CudaRow> rows;
    std::vector<KvView> views;
    for (int64_t layer = 0; layer < c.layers; ++layer) {
      for (int64_t b = 0; b < c.batch; ++b) {
        KvView view;
        view.dtype = DType::kF16;
        view.k =
            reinterpret_cast<std::byte*>(kv->address()) + b * c.length * stride + layer * 2 * token;
        view.v = view.k + token;
        view.k_token_stride = view.v_token_stride = stride;
        view.k_head_stride = view.v_head_stride = c.dim * 2;
        views.push_back(view);
        if (layer == 0) rows.push_back({0, static_cast<int32_t>(b), c.length - 1});
      }
    }
    Inputs in(3);
    const int64_t width = shape.heads * c.dim;
    const auto q = Put(in.Floats(c.batch * width));
    const auto out = Put(std::vector<float>(static_cast<size_t>(c.batch * width), kNaN));
    const auto drows = Put(rows);
    const auto dviews = Put(views);
    const uint64_t bytes = CudaAttentionWorkspaceBytes(shape, c.batch);
    const auto workspace = Put(std::vector<uint8_t>(bytes, 0xff));
    RecordedGraph graph(launcher(), [&] {
      for (int64_t layer = 0; layer < c.layers; ++layer) {
        CudaAttentionArgs a;
        a.shape = shape;
        a.rows = drows.as<CudaRow>();
        a.row_count = a.single_count = c.batch;
        a.views = dviews.as<KvView>() + layer * c.batch;
        a.q = q.as<float>();
        a.out = out.as<float>();
        a.ldq = a.ldo = width;
        a.workspace = workspace.as<std::byte>();
        a.workspace_bytes = bytes;
        Attention(launcher(), a);
      }
    });
    const double seconds = graph.Seconds();
    const auto read = static_cast<double>(c.batch * c.length * token * 2 * c.layers);
    std::printf("decode attention %-16s %7.2f us per layer, %6.0f GB/s\n", c.name,
                seconds / static_cast<double>(c.layers) * 1e6, read / seconds * 1e-9);
  }
  ExpectRan();
}

TEST_F(CudaAttentionTest, SpeedOfTilesAndAppend) {
  struct Case {
    const char* name;
    int64_t kv_heads, ratio, dim, length;
    DType type;
  };
  for (const Case& c : {Case{"14b, 8192, fp16", 8, 5, 128, 8192, DType::kF16},
                        Case{"14b, 8192, bf16", 8, 5, 128, 8192, DType::kBF16},
                        Case{"14b, 8192, fp32", 8, 5, 128, 8192, DType::kF32},
                        Case{"14b, 1024, fp16", 8, 5, 128, 1024, DType::kF16},
                        Case{"0.5b, 8192, fp16", 2, 7, 64, 8192, DType::kF16},
                        Case{"8 x 256, 8192, fp16", 4, 2, 256, 8192, DType::kF16}}) {
    const AttentionShape shape = ShapeOf(c.kv_heads, c.ratio, c.dim);
    const int64_t token = c.kv_heads * c.dim * BitsOf(c.type) / 8, width = shape.heads * c.dim;
    Step step;
    step.shape = shape;
    step.type = c.type;
    step.AddTiles(0, 0, c.length);
    step.ldq = step.ldo = width;
    Inputs in(5);
    step.q = in.Floats(c.length * width);
    const auto k = Put(Narrow(in.Floats(c.length * c.kv_heads * c.dim), c.type));
    const auto v = Put(Narrow(in.Floats(c.length * c.kv_heads * c.dim), c.type));
    KvView view;
    view.dtype = c.type;
    view.k = k.as<std::byte>();
    view.v = v.as<std::byte>();
    view.k_token_stride = view.v_token_stride = token;
    view.k_head_stride = view.v_head_stride = token / c.kv_heads;
    const Placed p = Place(step, {view});
    RecordedGraph graph(launcher(), [&] { Attention(launcher(), p.args); });
    const double seconds = graph.Seconds();
    const auto rows = static_cast<double>(c.length);
    const double operations = 4 * rows * (rows + 1) / 2 * static_cast<double>(width);
    std::printf("prefill attention %-20s %8.1f us, %5.0f TFLOP/s\n", c.name, seconds * 1e6,
                operations / seconds * 1e-12);

    const auto cos = Put(in.Floats(c.length * c.dim / 2));
    const auto sin = Put(in.Floats(c.length * c.dim / 2));
    const auto kv_rows = Put(in.Floats(c.length * c.kv_heads * c.dim));
    CudaAppendArgs append;
    append.shape = shape;
    append.rotary = {cos.as<float>(), sin.as<float>(), c.dim, false};
    append.rows = p.args.rows;
    append.row_count = c.length;
    append.views = p.args.views;
    append.kv_type = c.type;
    append.q = const_cast<float*>(p.args.q);
    append.ldq = width;
    append.k = append.v = kv_rows.as<float>();
    append.ldk = append.ldv = c.kv_heads * c.dim;
    RecordedGraph appends(launcher(), [&] { RotateAndAppend(launcher(), append); });
    std::printf("append            %-20s %8.1f us\n", c.name, appends.Seconds() * 1e6);
  }
  ExpectRan();
}

}  // namespace
}  // namespace granule::kernels
