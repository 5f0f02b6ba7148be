// How a matrix product is dealt to threads. What is computed per output is in matmul-inl.h and does
// not depend on it.
#include "kernels/matmul.h"

#include <algorithm>

#include "base/arith.h"
#include "base/check.h"
#include "kernels/cpu/packing.h"

namespace granule::kernels {
namespace {

// One thread's dequantised panel. Static storage: a call allocates nothing, and a Context stays a
// plain value.
alignas(64) thread_local float panel_of_thread[kPanelK * kStrip];

// Rows that one pass over a strip serves: few enough that their part of `a` stays in the
// second-level cache, many enough to pay for dequantising. A multiple of every register block.
constexpr int64_t kRowsPerPass = 144;

// Strips per piece of the loop. Few rows: long runs of memory, because what is prefetched behind a
// piece's end is fetched for another thread; even, because strips are packed in pairs. Many rows:
// small pieces, for balance.
int64_t Grain(int64_t strips, int threads, bool few_rows, uint64_t bytes) {
  if (!few_rows) return std::max<int64_t>(1, strips / (int64_t{threads} * 8));
  constexpr uint64_t kRun = 256 << 10;
  const auto strips_per_run =
      static_cast<int64_t>(kRun * static_cast<uint64_t>(strips) / std::max<uint64_t>(bytes, 1));
  const int64_t per_thread = CeilDiv<int64_t>(strips, threads);
  return RoundUp<int64_t>(std::max<int64_t>(1, std::min(per_thread, strips_per_run)), 2);
}

}  // namespace

void MatMul(const Context& context, const float* a, int64_t lda, int64_t m,
            std::span<const MatMulOutput> outputs) {
  if (m <= 0) return;
  int64_t strips = 0;
  uint64_t bytes = 0;
  for (const MatMulOutput& output : outputs) {
    GRANULE_DCHECK(output.weights->k() == outputs[0].weights->k());
    strips += output.weights->data().view.strips;
    bytes += output.weights->bytes();
  }
  const bool gemv = m <= kGemvRows;
  const int64_t passes = gemv ? 1 : CeilDiv(m, kRowsPerPass);
  const int64_t rows_per_pass = gemv ? m : RoundUp(CeilDiv(m, passes), int64_t{12});

  // Item i is strip i % strips of all outputs in pass i / strips: neighbours share their rows of
  // `a`.
  context.pool->Run(strips * passes, Grain(strips * passes, context.pool->threads(), gemv, bytes),
                    [&](int64_t begin, int64_t end, int) {
                      while (begin < end) {
                        const int64_t pass = begin / strips;
                        int64_t strip = begin % strips;
                        const int64_t stop = std::min(end, (pass + 1) * strips);
                        const int64_t first_row = pass * rows_per_pass;
                        const int64_t rows = std::min(rows_per_pass, m - first_row);
                        for (const MatMulOutput& output : outputs) {
                          const StripView& view = output.weights->data().view;
                          if (strip >= view.strips) {
                            strip -= view.strips;
                            continue;
                          }
                          if (begin == stop) break;
                          MatMulJob job;
                          job.weights = view;
                          job.bias = output.bias;
                          job.a = a + first_row * lda;
                          job.lda = lda;
                          job.rows = rows;
                          job.strip_begin = strip;
                          job.strip_end = std::min(view.strips, strip + (stop - begin));
                          job.y = output.y + first_row * output.ldy;
                          job.ldy = output.ldy;
                          job.panel = panel_of_thread;
                          if (rows > 0) (gemv ? context.table->gemv : context.table->gemm)(job);
                          begin += job.strip_end - job.strip_begin;
                          strip = 0;
                        }
                      }
                    });
}

}  // namespace granule::kernels
