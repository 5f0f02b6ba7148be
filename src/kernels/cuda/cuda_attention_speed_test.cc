// How fast attention and appending run on a GPU, from a graph.
#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "kernels/cuda/attention_for_test.h"
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/graph_for_test.h"

namespace granule::kernels {
namespace {

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
