// CudaMatrix: from host memory to the layout of matmul_args.h.
#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "base/arith.h"
#include "base/check.h"
#include "kernels/cuda/matmul_matrix.h"

namespace granule::kernels {
namespace {

static_assert(kTypeF32 == static_cast<int>(DType::kF32) &&
              kTypeF16 == static_cast<int>(DType::kF16) &&
              kTypeBF16 == static_cast<int>(DType::kBF16));

// Sources that must be rearranged pass through device memory of at most about this size.
constexpr auto kPassBytes = static_cast<int64_t>(kRearrangeBytes);
constexpr int64_t kPartAlignment = 256;

// Offsets and sizes of the parts of one allocation.
struct Layout {
  CudaWeights view;              // without addresses
  int64_t source_row_bytes = 0;  // of [n, k] or codes
  int64_t rows = 0;              // n, or more where there are rows of padding
  int64_t scales_row_bytes = 0, zeros_row_bytes = 0;
  int64_t scales_at = 0, zeros_at = 0, bytes = 0;
};

void Place(Layout& layout) {
  layout.rows = layout.view.tiled ? RoundUp(layout.view.n, int64_t{kTiledRows}) : layout.view.n;
  layout.scales_at = RoundUp(layout.rows * layout.view.row_bytes, kPartAlignment);
  layout.zeros_at =
      layout.scales_at + RoundUp(layout.rows * layout.scales_row_bytes, kPartAlignment);
  layout.bytes = layout.zeros_at + RoundUp(layout.rows * layout.zeros_row_bytes, kPartAlignment);
}

Layout LayoutOf(const DenseWeights& weights) {
  const int64_t element = BitsOf(weights.dtype) / 8;
  Layout layout;
  layout.view.n = weights.n;
  layout.view.k = weights.k;
  layout.view.kind = weights.dtype == DType::kF32   ? WeightKind::kF32
                     : weights.dtype == DType::kF16 ? WeightKind::kF16
                                                    : WeightKind::kBF16;
  layout.source_row_bytes = weights.k * element;
  layout.view.row_bytes = RoundUp(weights.k, int64_t{kUnit}) * element;
  Place(layout);
  return layout;
}

Layout LayoutOf(const QuantizedWeights& weights) {
  const int64_t blocks = CeilDiv(weights.k, weights.block_size);
  Layout layout;
  layout.view.n = weights.n;
  layout.view.k = weights.k;
  layout.view.kind = weights.bits == 4 ? WeightKind::kQ4 : WeightKind::kQ8;
  layout.view.blocks = static_cast<int32_t>(blocks);
  layout.view.block_log2 = std::countr_zero(static_cast<uint64_t>(weights.block_size));
  layout.source_row_bytes = blocks * weights.block_size * weights.bits / 8;
  layout.view.tiled =
      weights.block_size >= 32 && weights.zero_points_kind != QuantizedWeights::ZeroPoints::kFloat;
  layout.view.row_bytes =
      RoundUp(layout.source_row_bytes, layout.view.tiled ? int64_t{64} : int64_t{16});
  layout.view.scales_type = static_cast<int32_t>(weights.scales_type);
  layout.scales_row_bytes = blocks * BitsOf(weights.scales_type) / 8;
  switch (weights.zero_points_kind) {
    case QuantizedWeights::ZeroPoints::kDefault:
      layout.view.zero_kind = ZeroKind::kDefault;
      break;
    case QuantizedWeights::ZeroPoints::kPacked:
      layout.view.zero_kind = ZeroKind::kPacked;
      layout.view.zero_row_bytes = CeilDiv(blocks * weights.bits, int64_t{8});
      layout.zeros_row_bytes = layout.view.zero_row_bytes;
      break;
    case QuantizedWeights::ZeroPoints::kFloat:
      layout.view.zero_kind = ZeroKind::kFloat;
      layout.view.zeros_type = static_cast<int32_t>(weights.zero_points_type);
      layout.zeros_row_bytes = blocks * BitsOf(weights.zero_points_type) / 8;
      break;
  }
  if (layout.view.tiled) {
    const int64_t groups = layout.view.row_bytes / 64;
    const int group_log2 = weights.bits == 4 ? 7 : 6;  // of its codes
    layout.view.block_log2 = std::min(layout.view.block_log2, group_log2);
    layout.view.blocks = static_cast<int32_t>(groups << (group_log2 - layout.view.block_log2));
    layout.view.scales_type = kTypeF32;
    layout.scales_row_bytes = int64_t{layout.view.blocks} * 4;
    if (layout.view.zero_kind == ZeroKind::kPacked)
      layout.zeros_row_bytes = layout.view.zero_row_bytes = groups * 4;
  }
  Place(layout);
  return layout;
}

std::span<const std::byte> Bytes(const void* from, int64_t offset, int64_t count) {
  return {static_cast<const std::byte*>(from) + offset, static_cast<size_t>(count)};
}

unsigned CopyBlocks(int64_t items) {
  return static_cast<unsigned>(std::clamp<int64_t>(CeilDiv<int64_t>(items, 256), 1, 1 << 16));
}

// Passes the source through device memory, some rows at a time.
template <class Rearrange>
Status Pass(Launcher& launcher, Staging& staging, const void* from, int64_t rows, int64_t row_bytes,
            Rearrange rearrange) {
  const int64_t most = std::clamp<int64_t>(kPassBytes / row_bytes, 1, rows);
  const auto pass =
      staging.PassThrough(static_cast<size_t>(std::max(kPassBytes, most * row_bytes)));
  if (!pass.ok()) return pass.status();
  for (int64_t row = 0; row < rows; row += most) {
    const int64_t count = std::min(most, rows - row);
    if (Status s = staging.Upload(*pass, Bytes(from, row * row_bytes, count * row_bytes)); !s.ok())
      return s;
    rearrange(reinterpret_cast<const void*>(*pass), row, count);
    if (!launcher.status().ok()) return launcher.status();
  }
  return {};
}

// [n] rows of `row_bytes` into rows of view.row_bytes at `to`.
Status UploadRows(Launcher& launcher, Staging& staging, const void* from, int64_t row_bytes,
                  const CudaWeights& view, cuda::DevicePtr to) {
  if (row_bytes == view.row_bytes && !view.tiled)
    return staging.Upload(to, Bytes(from, 0, view.n * view.row_bytes));
  return Pass(
      launcher, staging, from, view.n, row_bytes,
      [&](const void* pass, int64_t row, int64_t count) {
        PadArgs args;
        args.from = pass;
        args.to = reinterpret_cast<void*>(to + static_cast<cuda::DevicePtr>(row * view.row_bytes));
        args.rows = count;
        args.from_bytes = row_bytes;
        args.to_bytes = view.row_bytes;
        launcher.Launch(view.tiled ? "matmul_tile" : "matmul_pad",
                        {CopyBlocks(count * view.row_bytes / 4)}, 256, 0, args);
      });
}

// Scales and packed zero points of tiled codes.
Status UploadTiledScales(Launcher& launcher, Staging& staging, const QuantizedWeights& weights,
                         const CudaWeights& view, cuda::DevicePtr to) {
  const int64_t blocks = CeilDiv(weights.k, weights.block_size);
  const int64_t row_bytes = blocks * BitsOf(weights.scales_type) / 8;
  if (weights.scales_type == DType::kF32 && blocks == view.blocks)
    return staging.Upload(to, Bytes(weights.scales, 0, weights.n * row_bytes));
  return Pass(
      launcher, staging, weights.scales, weights.n, row_bytes,
      [&](const void* pass, int64_t row, int64_t count) {
        TileScalesArgs args;
        args.from = pass;
        args.type = static_cast<int32_t>(weights.scales_type);
        args.to = reinterpret_cast<float*>(to) + row * view.blocks;
        args.rows = count;
        args.from_blocks = static_cast<int32_t>(blocks);
        args.to_blocks = view.blocks;
        args.shift = std::countr_zero(static_cast<uint64_t>(weights.block_size)) - view.block_log2;
        launcher.Launch("matmul_tile_scales", {CopyBlocks(count * view.blocks)}, 256, 0, args);
      });
}
Status UploadTiledZeros(Launcher& launcher, Staging& staging, const QuantizedWeights& weights,
                        const CudaWeights& view, cuda::DevicePtr to) {
  const int64_t blocks = CeilDiv(weights.k, weights.block_size);
  const int64_t row_bytes = CeilDiv(blocks * weights.bits, int64_t{8});
  return Pass(launcher, staging, weights.zero_points, weights.n, row_bytes,
              [&](const void* pass, int64_t row, int64_t count) {
                TileZerosArgs args;
                args.from = static_cast<const uint8_t*>(pass);
                args.from_row_bytes = row_bytes;
                args.to = reinterpret_cast<uint8_t*>(to) + row * view.zero_row_bytes;
                args.rows = count;
                args.bits = weights.bits;
                args.from_blocks = static_cast<int32_t>(blocks);
                args.parts_log2 = std::countr_zero(static_cast<uint64_t>(weights.block_size)) - 5;
                args.groups = static_cast<int32_t>(view.row_bytes / 64);
                args.parts = weights.bits == 4 ? 4 : 2;
                launcher.Launch("matmul_tile_zeros", {CopyBlocks(count * view.zero_row_bytes)}, 256,
                                0, args);
              });
}

// [k, n] into rows of n.
Status UploadTurned(Launcher& launcher, Staging& staging, const DenseWeights& weights,
                    const CudaWeights& view, cuda::DevicePtr to) {
  const int64_t element = BitsOf(weights.dtype) / 8;
  if (view.k * element != view.row_bytes) {
    if (Status s = launcher.device().ZeroAsync(to, static_cast<size_t>(view.n * view.row_bytes));
        !s.ok()) {
      return s;
    }
  }
  return Pass(launcher, staging, weights.data, view.k, view.n * element,
              [&](const void* pass, int64_t row, int64_t count) {
                TurnArgs args;
                args.from = pass;
                args.to = reinterpret_cast<void*>(to);
                args.rows = count;
                args.n = view.n;
                args.k0 = row;
                args.to_ld = view.row_bytes / element;
                // Of narrow matrices a pass has more tiles than fit block y.
                constexpr int64_t kMostRows = int64_t{65535} * 32;
                for (int64_t done = 0; done < count; done += kMostRows) {
                  TurnArgs piece = args;
                  piece.from = static_cast<const std::byte*>(pass) + done * view.n * element;
                  piece.rows = std::min(kMostRows, count - done);
                  piece.k0 = row + done;
                  launcher.Launch(element == 2 ? "matmul_turn_2" : "matmul_turn_4",
                                  {static_cast<unsigned>(CeilDiv(view.n, int64_t{32})),
                                   static_cast<unsigned>(CeilDiv(piece.rows, int64_t{32}))},
                                  256, 0, piece);
                }
              });
}

Status Allocate(Launcher& launcher, const Layout& layout, CudaMatrix::Data& data) {
  if (launcher.recording())
    return Error(Code::kInternal, "weights are uploaded while a graph is recorded");
  auto memory = cuda::Buffer::Allocate(launcher.device(), static_cast<size_t>(layout.bytes),
                                       "a weight matrix");
  if (!memory.ok()) return memory.status();
  data.memory = std::move(*memory);
  data.view = layout.view;
  const std::byte* base = data.memory.as<const std::byte>();
  data.view.data = base;
  if (layout.scales_row_bytes > 0) data.view.scales = base + layout.scales_at;
  if (layout.zeros_row_bytes > 0) data.view.zeros = base + layout.zeros_at;
  // Rows of padding: what they hold goes nowhere, but they are read.
  const int64_t n = layout.view.n;
  const std::pair<int64_t, int64_t> parts[] = {{0, layout.view.row_bytes},
                                               {layout.scales_at, layout.scales_row_bytes},
                                               {layout.zeros_at, layout.zeros_row_bytes}};
  for (const auto& [at, row_bytes] : parts) {
    const int64_t bytes = (layout.rows - n) * row_bytes;
    if (bytes == 0) continue;
    const int64_t offset = at + n * row_bytes;
    if (Status s = launcher.device().ZeroAsync(
            data.memory.address() + static_cast<cuda::DevicePtr>(offset),
            static_cast<size_t>(bytes));
        !s.ok()) {
      return s;
    }
  }
  return {};
}

}  // namespace

CudaMatrix::CudaMatrix() : data_(std::make_unique<Data>()) {}
CudaMatrix::~CudaMatrix() = default;
int64_t CudaMatrix::n() const { return data_->view.n; }
int64_t CudaMatrix::k() const { return data_->view.k; }
uint64_t CudaMatrix::bytes() const { return data_->memory.bytes(); }

uint64_t CudaMatrixBytes(const QuantizedWeights& weights) {
  return static_cast<uint64_t>(LayoutOf(weights).bytes);
}
uint64_t CudaMatrixBytes(const DenseWeights& weights) {
  return static_cast<uint64_t>(LayoutOf(weights).bytes);
}

Result<std::shared_ptr<const CudaMatrix>> CudaMatrix::Upload(Launcher& launcher, Staging& staging,
                                                             const QuantizedWeights& weights) {
  GRANULE_CHECK(weights.n > 0 && weights.k > 0);
  GRANULE_CHECK(weights.bits == 4 || weights.bits == 8);
  GRANULE_CHECK(weights.block_size >= kUnit &&
                std::has_single_bit(static_cast<uint64_t>(weights.block_size)));
  GRANULE_CHECK(IsFloat(weights.scales_type));
  const Layout layout = LayoutOf(weights);
  std::shared_ptr<CudaMatrix> matrix(new CudaMatrix);
  Data& data = *matrix->data_;
  if (Status s = Allocate(launcher, layout, data); !s.ok()) return s;
  const cuda::DevicePtr base = data.memory.address();
  if (Status s = UploadRows(launcher, staging, weights.q, layout.source_row_bytes, data.view, base);
      !s.ok()) {
    return s;
  }
  const auto scales = base + static_cast<cuda::DevicePtr>(layout.scales_at);
  const auto zeros = base + static_cast<cuda::DevicePtr>(layout.zeros_at);
  Status status;
  if (data.view.tiled) {
    status = UploadTiledScales(launcher, staging, weights, data.view, scales);
    if (status.ok() && layout.zeros_row_bytes > 0)
      status = UploadTiledZeros(launcher, staging, weights, data.view, zeros);
  } else {
    status = staging.Upload(scales, Bytes(weights.scales, 0, weights.n * layout.scales_row_bytes));
    if (status.ok()) {
      status =
          staging.Upload(zeros, Bytes(weights.zero_points, 0, weights.n * layout.zeros_row_bytes));
    }
  }
  if (!status.ok()) return status;
  return std::shared_ptr<const CudaMatrix>(std::move(matrix));
}

Result<std::shared_ptr<const CudaMatrix>> CudaMatrix::Upload(Launcher& launcher, Staging& staging,
                                                             const DenseWeights& weights) {
  GRANULE_CHECK(weights.n > 0 && weights.k > 0);
  GRANULE_CHECK(IsFloat(weights.dtype));
  const Layout layout = LayoutOf(weights);
  std::shared_ptr<CudaMatrix> matrix(new CudaMatrix);
  Data& data = *matrix->data_;
  if (Status s = Allocate(launcher, layout, data); !s.ok()) return s;
  const cuda::DevicePtr base = data.memory.address();
  const Status status =
      weights.transposed
          ? UploadRows(launcher, staging, weights.data, layout.source_row_bytes, data.view, base)
          : UploadTurned(launcher, staging, weights, data.view, base);
  if (!status.ok()) return status;
  return std::shared_ptr<const CudaMatrix>(std::move(matrix));
}

}  // namespace granule::kernels
