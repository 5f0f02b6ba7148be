// What the tests of attention on a GPU share: keys and values in every layout, the definition in
// double precision, and steps of single rows and tiles.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/kernels_for_test.h"
#include "kernels/ref/reference.h"
#include "kernels/test_inputs.h"

namespace granule::kernels {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

enum class Layout { kSeqMajor, kTokenMajor, kHeadMajor };
inline constexpr Layout kLayouts[] = {Layout::kSeqMajor, Layout::kTokenMajor, Layout::kHeadMajor};

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

inline Live RandomLive(Inputs& in, const AttentionShape& shape, DType type, int64_t length) {
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
inline std::vector<double> Attend(const AttentionShape& shape, const HostExtras& extras, DType type,
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

inline AttentionShape ShapeOf(int64_t kv_heads, int64_t ratio, int64_t dim) {
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
inline double SingleTolerance(DType type) { return type == DType::kBF16 ? 2e-4 : 3e-5; }
inline double TileTolerance(DType type) { return type == DType::kBF16 ? 4e-2 : 5e-3; }

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

inline constexpr int64_t kDims[] = {64, 80, 96, 128, 256};
inline constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

}  // namespace granule::kernels
