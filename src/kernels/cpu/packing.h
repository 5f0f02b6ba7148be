// The packed layout of weights, shared by all levels and all row counts.
//
// Outputs are cut into strips of 32 (two tiles of 16; the last one padded with zero weights). A
// strip, or pair of strips, is one contiguous piece of memory: a product reads front to back.
//
//   dense      [strip][k][32] elements of fp32, fp16 or bf16
//   quantised  [pair of strips][block of k][strip of the pair] records, so that four tiles side by
//              side are still one stream. A record is, in this order:
//     scales   32 x fp16 where every scale of the matrix is an fp16 value, else 32 x fp32
//     mins     32 x fp32, only where zero points differ: -zero_point * scale, rounded once
//     codes    groups of 8 k (4 bit) or 4 k (8 bit): 64 bytes for each of the two tiles, 4 bytes
//              per output. 4 bit: byte j holds k = j in its low and k = 4 + j in its high half, so
//              that one mask leaves 4 consecutive k in 4 bytes, as the int8 dot-product
//              instructions want them. 8 bit: k in order.
//              The last record ends after the groups that hold a k < K.
//
// Value of a weight, rounded to fp32 once: fma(q, scale, min), or (q - zero_point) * scale where
// all zero points are one integer. With fp16 scales q * scale is exact, so both forms are exact
// products and one rounded sum.
#pragma once

#include "base/status.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/weight_memory.h"
#include "kernels/matmul.h"

namespace granule::kernels {

struct PackedMatrix::Data {
  StripView view;
  WeightMemory::Piece memory;
  uint64_t bytes = 0;
};

// Bytes of a record's scales, of its scales and mins together; where a record lies; k of a group of
// codes.
inline int64_t ScaleBytes(const StripView& v) { return kStrip * (v.half_scales ? 2 : 4); }
inline int64_t HeaderBytes(const StripView& v) {
  return ScaleBytes(v) + (v.has_mins ? kStrip * 4 : 0);
}
inline int64_t RecordOffset(const StripView& v, int64_t strip, int64_t block) {
  const bool last = (block + 1) << v.block_log2 >= v.k;
  return strip / 2 * v.strip_bytes + 2 * block * v.record_bytes +
         strip % 2 * (last ? v.last_record_bytes : v.record_bytes);
}
inline int64_t GroupK(const StripView& v) { return v.kind == WeightKind::kQ4 ? 8 : 4; }

}  // namespace granule::kernels
