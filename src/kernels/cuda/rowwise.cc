// Starts the row-wise kernels of rowwise.cu.
#include <algorithm>
#include <initializer_list>
#include <limits>

#include "base/arith.h"
#include "base/check.h"
#include "kernels/cuda/cuda_rowwise.h"

namespace granule::kernels {
namespace {

// Where all of these allow 16-byte accesses. Null pointers and strides of 0 do.
bool Aligned(std::initializer_list<const void*> pointers,
             std::initializer_list<int64_t> strides_in_floats) {
  for (const void* p : pointers)
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) return false;
  for (const int64_t stride : strides_in_floats)
    if (stride % 4 != 0) return false;
  return true;
}

// A block per row and piece of columns.
Grid Pieces(int64_t rows, int64_t width) {
  return {Count(rows), Count(CeilDiv<int64_t>(width, cuda_args::kPiece))};
}
// No more threads than a row has groups of four elements.
unsigned PieceThreads(int64_t width) {
  return Count(
      std::min<int64_t>(cuda_args::kThreads, RoundUp<int64_t>(CeilDiv<int64_t>(width, 4), 32)));
}

// Two groups of four per thread while a block can hold that many threads.
unsigned NormThreads(int64_t width) {
  return Count(std::clamp<int64_t>(RoundUp<int64_t>(CeilDiv<int64_t>(width, 8), 32), 32, 1024));
}

}  // namespace

void RmsNorm(Launcher& launcher, const float* x, int64_t ldx, const float* gamma, float epsilon,
             int64_t rows, int64_t width, float* y, int64_t ldy) {
  cuda_args::Norm a{};
  a.x = x;
  a.ldx = ldx;
  a.gamma = gamma;
  a.epsilon = epsilon;
  a.width = static_cast<int32_t>(width);
  a.y = y;
  a.ldy = ldy;
  a.vectors = Aligned({x, gamma, y}, {ldx, ldy, width});
  launcher.Launch("rowwise_norm", {Count(rows)}, NormThreads(width), 0, a);
}

void SkipRmsNorm(Launcher& launcher, const SkipRmsNormArgs& args) {
  if (args.y == nullptr && args.sum == nullptr) return;
  cuda_args::Norm a{};
  a.x = args.x;
  a.skip = args.skip;
  a.bias = args.bias;
  a.gamma = args.gamma;
  a.epsilon = args.epsilon;
  a.width = static_cast<int32_t>(args.width);
  a.sum = args.sum;
  a.y = args.y;
  a.ldx = a.ld_skip = a.ld_sum = a.ldy = args.width;
  a.vectors = Aligned({args.x, args.skip, args.bias, args.gamma, args.sum, args.y}, {args.width});
  launcher.Launch("rowwise_norm", {Count(args.rows)}, NormThreads(args.width), 0, a);
}

void Elementwise(Launcher& launcher, Binary op, const float* x, const float* z, int64_t z_ld,
                 int64_t z_width, int64_t rows, int64_t width, float* y) {
  cuda_args::BinaryOp a{};
  a.x = x;
  a.z = z;
  a.y = y;
  a.z_ld = z_ld;
  a.width = width;
  a.op = static_cast<int32_t>(op);
  a.scalar = z_width == 1 && width != 1;
  a.vectors = Aligned({x, y}, {width}) && (a.scalar || Aligned({z}, {z_ld}));
  launcher.Launch("rowwise_binary", Pieces(rows, width), PieceThreads(width), 0, a);
}

namespace {

void LaunchUnary(Launcher& launcher, int32_t op, const float* x, const float* z, int64_t count,
                 float* y) {
  cuda_args::UnaryOp a{};
  a.x = x;
  a.z = z;
  a.y = y;
  a.count = count;
  a.op = op;
  a.vectors = Aligned({x, z, y}, {});
  launcher.Launch("rowwise_unary", {Count(CeilDiv<int64_t>(count, cuda_args::kPiece))},
                  cuda_args::kThreads, 0, a);
}

}  // namespace

void Elementwise(Launcher& launcher, Unary op, const float* x, int64_t count, float* y) {
  LaunchUnary(launcher, static_cast<int32_t>(op), x, nullptr, count, y);
}

void SiluMul(Launcher& launcher, const float* gate, const float* up, int64_t count, float* y) {
  LaunchUnary(launcher, cuda_args::kSiluMul, gate, up, count, y);
}

void GatherRows(Launcher& launcher, const void* table, DType type, int64_t table_rows,
                int64_t width, const CudaRow* rows, CudaIndex index, int64_t row_count, float* y,
                int64_t ldy) {
  GRANULE_DCHECK(IsFloat(type));
  cuda_args::Gather a{};
  a.table = table;
  a.type = type;
  a.table_rows = table_rows;
  a.width = width;
  a.rows = rows;
  a.index = index;
  a.y = y;
  a.ldy = ldy;
  a.vectors = Aligned({table, y}, {width, ldy});
  launcher.Launch("rowwise_gather", Pieces(row_count, width), PieceThreads(width), 0, a);
}

void GatherQuantizedRows(Launcher& launcher, const QuantizedTable& table, const CudaRow* rows,
                         CudaIndex index, int64_t row_count, float* y, int64_t ldy) {
  GRANULE_DCHECK(table.bits == 4 || table.bits == 8);
  cuda_args::GatherQuantized a{};
  a.data = table.data;
  a.zero_points = table.zero_points;
  a.scales = table.scales;
  a.scales_type = table.scales_type;
  a.table_rows = table.rows;
  a.width = table.width;
  a.block_size = table.block_size;
  a.blocks = CeilDiv(table.width, table.block_size);
  a.row_bytes = CeilDiv<int64_t>(table.width * table.bits, 8);
  a.zero_point_bytes = CeilDiv<int64_t>(a.blocks * table.bits, 8);
  a.bits = table.bits;
  a.is_signed = table.is_signed;
  a.default_zero_point = table.default_zero_point;
  a.rows = rows;
  a.index = index;
  a.y = y;
  a.ldy = ldy;
  launcher.Launch("rowwise_gather_quantized", Pieces(row_count, table.width),
                  PieceThreads(table.width), 0, a);
}

namespace {

void LaunchCopy(Launcher& launcher, const float* x, int64_t ldx, const int32_t* which, float* y,
                int64_t ldy, int64_t rows, int64_t width) {
  cuda_args::Copy a{};
  a.x = x;
  a.ldx = ldx;
  a.which = which;
  a.y = y;
  a.ldy = ldy;
  a.width = width;
  a.vectors = Aligned({x, y}, {ldx, ldy, width});
  launcher.Launch("rowwise_copy", Pieces(rows, width), PieceThreads(width), 0, a);
}

}  // namespace

void CopyColumns(Launcher& launcher, const float* x, int64_t ldx, float* y, int64_t ldy,
                 int64_t rows, int64_t width) {
  LaunchCopy(launcher, x, ldx, nullptr, y, ldy, rows, width);
}

void TakeRows(Launcher& launcher, const float* x, int64_t width, const int32_t* which,
              int64_t count, float* y) {
  LaunchCopy(launcher, x, width, which, y, width, count, width);
}

namespace {

// Two events that go with their scope.
struct Stopwatch {
  explicit Stopwatch(cuda::Device& device) : device(device) {
    device.MakeCurrent();
    status = device.Check(device.driver().EventCreate(&start, 0), "making an event");
    if (status.ok())
      status = device.Check(device.driver().EventCreate(&stop, 0), "making an event");
  }
  ~Stopwatch() {
    device.MakeCurrent();
    if (start != nullptr) device.driver().EventDestroy(start);
    if (stop != nullptr) device.driver().EventDestroy(stop);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  Status Record(cuda::EventHandle event) {
    device.MakeCurrent();
    return device.Check(device.driver().EventRecord(event, device.stream()), "recording an event");
  }
  Result<double> Seconds() {
    device.MakeCurrent();
    float milliseconds = 0.0f;
    if (Status s = device.Check(device.driver().EventSynchronize(stop), "waiting for an event");
        !s.ok()) {
      return s;
    }
    if (Status s = device.Check(device.driver().EventElapsedTime(&milliseconds, start, stop),
                                "reading a time");
        !s.ok()) {
      return s;
    }
    return milliseconds * 1e-3;
  }

  cuda::Device& device;
  cuda::EventHandle start = nullptr, stop = nullptr;
  Status status;
};

}  // namespace

Result<double> MeasureReadCeiling(Launcher& launcher, uint64_t bytes) {
  if (launcher.recording())
    return Error(Code::kInternal, "a ceiling is measured, not recorded into a graph");
  cuda::Device& device = launcher.device();
  const uint64_t vectors = std::max<uint64_t>(bytes / 16, 1);
  auto buffer = cuda::Buffer::Allocate(device, vectors * 16 + 16, "measuring the read ceiling");
  if (!buffer.ok()) return buffer.status();
  if (Status s = device.ZeroAsync(buffer->address(), buffer->bytes()); !s.ok()) return s;
  Stopwatch watch(device);
  if (!watch.status.ok()) return watch.status;

  cuda_args::ReadAll a{};
  a.data = buffer->as<void>();
  a.vectors = static_cast<int64_t>(vectors);
  a.sink = reinterpret_cast<float*>(buffer->address() + vectors * 16);
  const Grid grid{Count(int64_t{16} * device.facts().multiprocessors)};
  // The best of several: a ceiling is what the machine can do, other work only lowers a run.
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 10; ++run) {
    if (Status s = watch.Record(watch.start); !s.ok()) return s;
    launcher.Launch("rowwise_read_all", grid, 512, 0, a);
    if (Status s = watch.Record(watch.stop); !s.ok()) return s;
    if (!launcher.status().ok()) return launcher.status();
    const auto seconds = watch.Seconds();
    if (!seconds.ok()) return seconds.status();
    best = std::min(best, *seconds);
  }
  return static_cast<double>(vectors * 16) / best;
}

}  // namespace granule::kernels
