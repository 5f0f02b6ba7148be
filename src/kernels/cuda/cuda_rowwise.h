// Operators that treat every row (token) alone, on a GPU. Everything is fp32 on the device unless
// said otherwise.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/launcher.h"
#include "kernels/cuda/rowwise_args.h"  // CudaRow, CudaIndex
#include "kernels/rowwise.h"

namespace granule::kernels {

void RmsNorm(Launcher& launcher, const float* x, int64_t ldx, const float* gamma, float epsilon,
             int64_t rows, int64_t width, float* y, int64_t ldy);
void SkipRmsNorm(Launcher& launcher, const SkipRmsNormArgs& args);
void Elementwise(Launcher& launcher, Binary op, const float* x, const float* z, int64_t z_ld,
                 int64_t z_width, int64_t rows, int64_t width, float* y);
void Elementwise(Launcher& launcher, Unary op, const float* x, int64_t count, float* y);
void SiluMul(Launcher& launcher, const float* gate, const float* up, int64_t count, float* y);

// Rows of a step's tokens or positions. A padding row is gathered by what stands in it: an id
// outside [0, table_rows) gives zeros.
void GatherRows(Launcher& launcher, const void* table, DType type, int64_t table_rows,
                int64_t width, const CudaRow* rows, CudaIndex index, int64_t row_count, float* y,
                int64_t ldy);
// `table` with device pointers.
void GatherQuantizedRows(Launcher& launcher, const QuantizedTable& table, const CudaRow* rows,
                         CudaIndex index, int64_t row_count, float* y, int64_t ldy);

// Columns [0, width) of x into those of y.
void CopyColumns(Launcher& launcher, const float* x, int64_t ldx, float* y, int64_t ldy,
                 int64_t rows, int64_t width);
// y[i] = x[which[i]]: rows of floats, for i < count. x and y do not overlap. `which` is on the
// device.
void TakeRows(Launcher& launcher, const float* x, int64_t width, const int32_t* which,
              int64_t count, float* y);

// Bytes per second of a read of `bytes` of device memory: the ceiling that shares are stated
// against. Allocates that much and waits. kInternal while a graph is recorded.
Result<double> MeasureReadCeiling(Launcher& launcher, uint64_t bytes);

}  // namespace granule::kernels
