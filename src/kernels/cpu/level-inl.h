// The table of one level. Included last by isa_*.cc, after the level's vec file.
#include "kernels/cpu/unroll-inl.h"
// in this order
#include "kernels/cpu/block-inl.h"
#include "kernels/cpu/math-inl.h"
// each builds on the ones above
#include "kernels/cpu/attention-inl.h"
#include "kernels/cpu/matmul-inl.h"
#include "kernels/cpu/rowwise-inl.h"

namespace granule::kernels::GRANULE_LEVEL {

inline constexpr CpuTable kTable = {
    .gemv = Gemv,
    .gemm = Gemm,
    .rotate_append = RotateAppend,
    .attend_begin = AttendBegin,
    .attend_block = AttendBlock,
    .attend_merge = AttendMerge,
    .attend_end = AttendEnd,
    .rms_norm = RmsNormRow,
    .add_rows = AddRow,
    .binary = BinaryRow,
    .unary = UnaryRow,
    .silu_mul = SiluMulRow,
    .round_to = RoundToRow,
    .widen = WidenRow,
    .arg_max = ArgMaxRow,
    .exp = ExpRow,
    .read_all = ReadAll,
    .fma_rounds = FmaRounds,
};

}  // namespace granule::kernels::GRANULE_LEVEL
