// Weights of synthetic models, made in device memory: bit for bit what package/synth_values.h
// gives, at the speed of the memory instead of one host thread's.
//
// Matrices are [rows, columns] and `columns` is a multiple of 32. Destinations are device
// addresses, 16-byte aligned, without gaps between rows.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/launcher.h"
#include "kernels/cuda/synth_args.h"

namespace granule::kernels {

// Codes as MatMulNBits and GatherBlockQuantized store them, [rows, columns * bits / 8] bytes: 4
// bits with 8 added, the even column in the low half, or 8 bits with 128 added.
void FillSynthCodes(Launcher& launcher, const SynthFill& fill, int bits, void* codes);

// fp32 [rows, columns / 32].
void FillSynthScales(Launcher& launcher, const SynthFill& fill, float* scales);

// code * scale as kF16 or kF32, [rows, columns].
void FillSynthRows(Launcher& launcher, const SynthFill& fill, DType dtype, void* rows);

}  // namespace granule::kernels
