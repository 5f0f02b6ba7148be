// Where one layer's keys and values of one sequence lie. The one description that kernels take, so
// that the same kernel serves every KV layout.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace granule {

// Element d of head h of the token at slot t lies at
//   k + t * k_token_stride + h * k_head_stride + d * sizeof(element)      (v likewise).
// Slots below the live length may be read; the step that runs may write slots that are committed
// and at or above the live length. Strides are bytes and stay valid until the next growth of the
// sequence.
struct KvView {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int64_t k_token_stride = 0;
  int64_t k_head_stride = 0;
  int64_t v_token_stride = 0;
  int64_t v_head_stride = 0;
  DType dtype = DType::kF32;
};

}  // namespace granule
