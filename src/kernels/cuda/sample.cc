// Starts the sampling kernels of sample.cu.
#include <algorithm>
#include <bit>

#include "base/arith.h"
#include "base/check.h"
#include "kernels/cuda/cuda_sample.h"

namespace granule::kernels {
namespace {

int64_t Pieces(int64_t vocab_size) { return CeilDiv<int64_t>(vocab_size, cuda_args::kSamplePiece); }

}  // namespace

uint64_t SampleWorkspaceBytes(int64_t rows, int64_t vocab_size) {
  return static_cast<uint64_t>(rows * Pieces(vocab_size)) * sizeof(uint64_t);
}

void Sample(Launcher& launcher, const CudaSampleArgs& args) {
  if (args.rows == 0) return;
  GRANULE_CHECK(args.vocab_size > 0 && args.vocab_size <= kMostSampledVocab);
  GRANULE_CHECK(args.workspace_bytes >= SampleWorkspaceBytes(args.rows, args.vocab_size));
  cuda_args::Sample a{};
  a.logits = args.logits;
  a.settings = args.settings;
  a.best = reinterpret_cast<uint64_t*>(args.workspace);
  a.ids = args.ids;
  a.vocab = args.vocab_size;
  a.pieces = static_cast<int32_t>(Pieces(args.vocab_size));
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(args.vocab_size - 1)));
  a.id_bits = std::max(4, RoundUp(bits, 4));
  a.vectors = args.vocab_size % 4 == 0 && reinterpret_cast<uintptr_t>(args.logits) % 16 == 0;
  const auto rows = static_cast<unsigned>(args.rows);
  launcher.Launch("sample_best", {static_cast<unsigned>(a.pieces), rows}, cuda_args::kBestThreads,
                  0, a);
  if (args.settings == nullptr) {
    launcher.Launch("sample_greedy", {rows}, cuda_args::kGreedyThreads, 0, a);
  } else {
    launcher.Launch("sample_draw", {rows}, cuda_args::kDrawThreads, cuda_args::kDrawSharedBytes, a);
  }
}

}  // namespace granule::kernels
