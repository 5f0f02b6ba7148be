// Starts the kernels of synth.cu.
#include <algorithm>

#include "base/arith.h"
#include "base/check.h"
#include "kernels/cuda/cuda_synth.h"

namespace granule::kernels {
namespace {

void FillRows(Launcher& launcher, const char* kernel, const SynthFill& fill, void* to) {
  GRANULE_CHECK(fill.rows >= 0 && fill.rows <= INT32_MAX && fill.columns >= 0);
  GRANULE_CHECK(fill.columns % cuda_args::kSynthBlock == 0 && fill.clusters > 0);
  GRANULE_CHECK(reinterpret_cast<uintptr_t>(to) % 16 == 0);
  const int64_t words = fill.columns / cuda_args::kSynthWord;
  const auto threads =
      static_cast<unsigned>(std::clamp<int64_t>(RoundUp<int64_t>(words, int64_t{32}), 32, 256));
  launcher.Launch(kernel, {static_cast<unsigned>(fill.rows)}, threads, 0,
                  cuda_args::Synth{fill, to});
}

}  // namespace

void FillSynthCodes(Launcher& launcher, const SynthFill& fill, int bits, void* codes) {
  GRANULE_CHECK(bits == 4 || bits == 8);
  FillRows(launcher, bits == 4 ? "synth_codes_4" : "synth_codes_8", fill, codes);
}

void FillSynthScales(Launcher& launcher, const SynthFill& fill, float* scales) {
  const int64_t count = fill.rows * (fill.columns / cuda_args::kSynthBlock);
  constexpr int64_t kThreads = 256;
  const int64_t blocks = std::min<int64_t>(CeilDiv(count, kThreads), 1 << 20);
  launcher.Launch("synth_scales", {static_cast<unsigned>(blocks)}, kThreads, 0,
                  cuda_args::Synth{fill, scales});
}

void FillSynthRows(Launcher& launcher, const SynthFill& fill, DType dtype, void* rows) {
  GRANULE_CHECK(dtype == DType::kF16 || dtype == DType::kF32);
  FillRows(launcher, dtype == DType::kF16 ? "synth_rows_f16" : "synth_rows_f32", fill, rows);
}

}  // namespace granule::kernels
