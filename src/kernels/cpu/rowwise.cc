// How row-wise operators are dealt to threads, and the measured ceilings.
#include "kernels/rowwise.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "base/arith.h"
#include "base/check.h"
#include "kernels/cpu/table.h"

namespace granule::kernels {
namespace {

// Elements that a thread takes at a time: below this a loop over threads costs more than it saves.
constexpr int64_t kElements = 8192;

int64_t RowGrain(int64_t width) {
  return std::max<int64_t>(1, kElements / std::max<int64_t>(width, 1));
}

// body(first, count) over [0, count) elements, in whole virtual registers but the last.
template <class Body>
void OverElements(const Context& context, int64_t count, const Body& body) {
  context.pool->Run(count, kElements,
                    [&](int64_t begin, int64_t end, int) { body(begin, end - begin); });
}

}  // namespace

void RmsNorm(const Context& context, const float* x, int64_t ldx, const float* gamma, float epsilon,
             int64_t rows, int64_t width, float* y, int64_t ldy) {
  context.pool->Run(rows, RowGrain(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      context.table->rms_norm(x + r * ldx, gamma, epsilon, width, y + r * ldy);
  });
}

void SkipRmsNorm(const Context& context, const SkipRmsNormArgs& args) {
  const CpuTable& table = *context.table;
  float* const sums = args.sum != nullptr ? args.sum : args.y;  // the norm may run in place
  if (sums == nullptr) return;
  context.pool->Run(args.rows, RowGrain(args.width), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * args.width;
      table.add_rows(args.x + at, args.skip + at, args.bias, args.width, sums + at);
      if (args.y != nullptr)
        table.rms_norm(sums + at, args.gamma, args.epsilon, args.width, args.y + at);
    }
  });
}

void Elementwise(const Context& context, Binary op, const float* x, const float* z, int64_t z_ld,
                 int64_t z_width, int64_t rows, int64_t width, float* y) {
  const bool scalar = z_width == 1 && width != 1;
  context.pool->Run(rows, RowGrain(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      context.table->binary(op, x + r * width, z + r * z_ld, scalar, width, y + r * width);
    }
  });
}

void Elementwise(const Context& context, Unary op, const float* x, int64_t count, float* y) {
  OverElements(context, count,
               [&](int64_t i, int64_t n) { context.table->unary(op, x + i, n, y + i); });
}

void SiluMul(const Context& context, const float* gate, const float* up, int64_t count, float* y) {
  OverElements(context, count,
               [&](int64_t i, int64_t n) { context.table->silu_mul(gate + i, up + i, n, y + i); });
}

void RoundTo(const Context& context, DType type, const float* x, int64_t count, float* y) {
  GRANULE_DCHECK(IsFloat(type));
  OverElements(context, count,
               [&](int64_t i, int64_t n) { context.table->round_to(type, x + i, n, y + i); });
}

void GatherRows(const Context& context, const void* table, DType type, int64_t table_rows,
                int64_t width, std::span<const int64_t> ids, float* y, int64_t ldy) {
  GRANULE_DCHECK(IsFloat(type));
  const int64_t row_bytes = width * BitsOf(type) / 8;
  context.pool->Run(
      static_cast<int64_t>(ids.size()), RowGrain(width), [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t id = ids[static_cast<size_t>(r)];
          if (id < 0 || id >= table_rows) {
            std::memset(y + r * ldy, 0, static_cast<size_t>(width) * sizeof(float));
            continue;
          }
          context.table->widen(type, static_cast<const std::byte*>(table) + id * row_bytes, width,
                               y + r * ldy);
        }
      });
}

namespace {

float ScaleAt(const QuantizedTable& table, int64_t i) {
  switch (table.scales_type) {
    case DType::kF16:
      return F16ToF32(static_cast<const uint16_t*>(table.scales)[i]);
    case DType::kBF16:
      return BF16ToF32(static_cast<const uint16_t*>(table.scales)[i]);
    default:
      return static_cast<const float*>(table.scales)[i];
  }
}

// Code i of a row of packed codes.
int CodeAt(const QuantizedTable& table, const uint8_t* row, int64_t i) {
  if (table.bits == 8) return table.is_signed ? static_cast<int8_t>(row[i]) : row[i];
  const int nibble = i % 2 == 0 ? row[i / 2] & 15 : row[i / 2] >> 4;
  return table.is_signed && nibble >= 8 ? nibble - 16 : nibble;
}

void GatherQuantizedRow(const QuantizedTable& table, int64_t id, float* y) {
  const int64_t blocks = CeilDiv(table.width, table.block_size);
  const uint8_t* codes = table.data + id * CeilDiv<int64_t>(table.width * table.bits, 8);
  const uint8_t* zero_points =
      table.zero_points == nullptr
          ? nullptr
          : table.zero_points + id * CeilDiv<int64_t>(blocks * table.bits, 8);
  for (int64_t block = 0; block < blocks; ++block) {
    const int zero_point =
        zero_points == nullptr ? table.default_zero_point : CodeAt(table, zero_points, block);
    const float scale = ScaleAt(table, id * blocks + block);
    const int64_t end = std::min(table.width, (block + 1) * table.block_size);
    for (int64_t i = block * table.block_size; i < end; ++i) {
      y[i] = static_cast<float>(CodeAt(table, codes, i) - zero_point) * scale;
    }
  }
}

}  // namespace

void GatherQuantizedRows(const Context& context, const QuantizedTable& table,
                         std::span<const int64_t> ids, float* y, int64_t ldy) {
  GRANULE_DCHECK(table.bits == 4 || table.bits == 8);
  context.pool->Run(static_cast<int64_t>(ids.size()), RowGrain(table.width),
                    [&](int64_t begin, int64_t end, int) {
                      for (int64_t r = begin; r < end; ++r) {
                        const int64_t id = ids[static_cast<size_t>(r)];
                        if (id < 0 || id >= table.rows) {
                          std::memset(y + r * ldy, 0,
                                      static_cast<size_t>(table.width) * sizeof(float));
                        } else {
                          GatherQuantizedRow(table, id, y + r * ldy);
                        }
                      }
                    });
}

int32_t ArgMax(const Context& context, const float* x, int64_t count) {
  return static_cast<int32_t>(context.table->arg_max(x, count));
}

namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The best of several runs within about 0.3 s: a ceiling is what the machine can do, other work
// only lowers a run.
template <class Work>
double BestSeconds(const Work& work) {
  double best = std::numeric_limits<double>::infinity();
  const auto begin = std::chrono::steady_clock::now();
  for (int run = 0; run < 3 || SecondsSince(begin) < 0.3; ++run) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, SecondsSince(start));
  }
  return best;
}

}  // namespace

double MeasureReadCeiling(const Context& context, uint64_t bytes) {
  constexpr uint64_t kPiece = 256 << 10;
  const auto pieces = static_cast<int64_t>(std::max<uint64_t>(1, bytes / kPiece));
  const uint64_t size = static_cast<uint64_t>(pieces) * kPiece;
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0.0;
  ::madvise(memory, size, MADV_HUGEPAGE);
  auto* data = static_cast<std::byte*>(memory);
  std::memset(data, 1, size);  // its own pages, not the shared zero page
  const double seconds = BestSeconds([&] {
    context.pool->Run(pieces, 1, [&](int64_t begin, int64_t end, int) {
      volatile float sink = context.table->read_all(data + begin * static_cast<int64_t>(kPiece),
                                                    static_cast<uint64_t>(end - begin) * kPiece);
      (void)sink;
    });
  });
  ::munmap(memory, size);
  return static_cast<double>(size) / seconds;
}

double MeasureFmaCeiling(const Context& context) {
  constexpr int64_t kRounds = 20'000;
  const int64_t threads = context.pool->threads();
  const int64_t pieces = threads * 4;
  int64_t per_round = 0;
  {
    float sink[48] = {};
    per_round = context.table->fma_rounds(1, sink);
  }
  const double seconds = BestSeconds([&] {
    context.pool->Run(pieces, 1, [&](int64_t begin, int64_t end, int) {
      alignas(64) float sink[48];
      std::fill_n(sink, 48, 0.5f);
      for (int64_t i = begin; i < end; ++i) context.table->fma_rounds(kRounds, sink);
      volatile float keep = sink[32];
      (void)keep;
    });
  });
  return 2.0 * static_cast<double>(per_round * kRounds * pieces) / seconds;
}

}  // namespace granule::kernels
