// Appending to the KV on a GPU, and where in the KV every attention kernel reads: never a byte
// outside what a row attends to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/attention_for_test.h"
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/graph_for_test.h"

namespace granule::kernels {
namespace {

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

}  // namespace
}  // namespace granule::kernels
