#include "kernels/cpu/packing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>

#include "base/arith.h"
#include "base/check.h"

namespace granule::kernels {
namespace {

float LoadFloat(const void* data, DType type, int64_t i) {
  switch (type) {
    case DType::kF16:
      return F16ToF32(static_cast<const uint16_t*>(data)[i]);
    case DType::kBF16:
      return BF16ToF32(static_cast<const uint16_t*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

// The source of a quantised matrix, element by element.
class QuantizedSource {
 public:
  explicit QuantizedSource(const QuantizedWeights& w)
      : w_(w),
        blocks_(CeilDiv(w.k, w.block_size)),
        row_bytes_(blocks_ * w.block_size * w.bits / 8),
        zero_row_bytes_(CeilDiv(blocks_ * w.bits, int64_t{8})) {}

  int64_t blocks() const { return blocks_; }
  const uint8_t* Codes(int64_t n, int64_t k) const {
    return w_.q + n * row_bytes_ + k * w_.bits / 8;
  }
  float Scale(int64_t n, int64_t block) const {
    return LoadFloat(w_.scales, w_.scales_type, n * blocks_ + block);
  }
  float ZeroPoint(int64_t n, int64_t block) const {
    switch (w_.zero_points_kind) {
      case QuantizedWeights::ZeroPoints::kDefault:
        return w_.bits == 4 ? 8.0f : 128.0f;
      case QuantizedWeights::ZeroPoints::kFloat:
        return LoadFloat(w_.zero_points, w_.zero_points_type, n * blocks_ + block);
      case QuantizedWeights::ZeroPoints::kPacked:
        break;
    }
    const uint8_t* row = static_cast<const uint8_t*>(w_.zero_points) + n * zero_row_bytes_;
    if (w_.bits == 8) return static_cast<float>(row[block]);
    return static_cast<float>(block % 2 == 0 ? row[block / 2] & 15 : row[block / 2] >> 4);
  }

  bool ScalesAreHalf() const {
    if (w_.scales_type == DType::kF16) return true;
    for (int64_t i = 0; i < w_.n * blocks_; ++i) {
      const float s = LoadFloat(w_.scales, w_.scales_type, i);
      if (std::bit_cast<uint32_t>(F16ToF32(F32ToF16(s))) != std::bit_cast<uint32_t>(s))
        return false;
    }
    return true;
  }
  // The one integer that every zero point equals, if there is one.
  bool ZeroPointIsUniform(float* zero_point) const {
    *zero_point = w_.n == 0 || blocks_ == 0 ? 0.0f : ZeroPoint(0, 0);
    if (w_.zero_points_kind == QuantizedWeights::ZeroPoints::kDefault) return true;
    // Larger ones would not be exact in 2^23 + zero point (vec_avx2-inl.h).
    if (!(std::fabs(*zero_point) <= 1024.0f) || *zero_point != std::nearbyintf(*zero_point))
      return false;
    for (int64_t n = 0; n < w_.n; ++n) {
      for (int64_t b = 0; b < blocks_; ++b) {
        if (ZeroPoint(n, b) != *zero_point) return false;
      }
    }
    return true;
  }

 private:
  const QuantizedWeights& w_;
  int64_t blocks_;
  int64_t row_bytes_;
  int64_t zero_row_bytes_;
};

// Nibbles k0 k1 ... k7 from the low end become k0 k4 k1 k5 k2 k6 k3 k7.
uint32_t InterleaveNibbles(uint32_t source) {
  uint32_t packed = 0;
  for (int j = 0; j < 4; ++j) {
    packed |= ((source >> (4 * j)) & 15u) << (8 * j);
    packed |= ((source >> (16 + 4 * j)) & 15u) << (8 * j + 4);
  }
  return packed;
}

Status Allocate(const Context& context, PackedMatrix::Data& data, int64_t bytes) {
  data.bytes = static_cast<uint64_t>(bytes);
  data.memory = context.weights->Take(data.bytes);
  if (data.memory.data == nullptr) {
    return Error(Code::kExhausted, "No memory for {} of packed weights ([{}, {}]).",
                 FormatBytes(data.bytes), data.view.n, data.view.k);
  }
  data.view.data = data.memory.data;
  return {};
}

void PackRecord(const QuantizedSource& source, const StripView& view, int64_t strip, int64_t block,
                std::byte* record) {
  const int64_t first_n = strip * kStrip;
  const int64_t lanes = std::min<int64_t>(kStrip, view.n - first_n);
  const int64_t block_size = int64_t{1} << view.block_log2;
  const int64_t first_k = block * block_size;
  const int64_t ks = std::min(block_size, view.k - first_k);

  for (int64_t lane = 0; lane < lanes; ++lane) {
    const float scale = source.Scale(first_n + lane, block);
    if (view.half_scales) {
      const uint16_t half = F32ToF16(scale);
      std::memcpy(record + 2 * lane, &half, 2);
    } else {
      std::memcpy(record + 4 * lane, &scale, 4);
    }
    if (view.has_mins) {
      const float min = -source.ZeroPoint(first_n + lane, block) * scale;
      std::memcpy(record + ScaleBytes(view) + 4 * lane, &min, 4);
    }
  }

  std::byte* codes = record + HeaderBytes(view);
  const int64_t group_k = GroupK(view);
  for (int64_t k = 0; k < ks; k += group_k, codes += kGroupBytes) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      // A block's bytes are all there, also where K ends inside it.
      uint32_t word;
      std::memcpy(&word, source.Codes(first_n + lane, first_k + k), 4);
      if (view.kind == WeightKind::kQ4) word = InterleaveNibbles(word);
      std::memcpy(codes + 4 * lane, &word, 4);
    }
  }
}

}  // namespace

PackedMatrix::PackedMatrix() : data_(std::make_unique<Data>()) {}
PackedMatrix::~PackedMatrix() = default;
int64_t PackedMatrix::n() const { return data_->view.n; }
int64_t PackedMatrix::k() const { return data_->view.k; }
uint64_t PackedMatrix::bytes() const { return data_->bytes; }

Result<std::shared_ptr<const PackedMatrix>> PackedMatrix::Pack(const Context& context,
                                                               const QuantizedWeights& weights) {
  GRANULE_CHECK(weights.bits == 4 || weights.bits == 8);
  GRANULE_CHECK(weights.block_size >= 16 &&
                std::has_single_bit(static_cast<uint64_t>(weights.block_size)));
  const QuantizedSource source(weights);
  std::shared_ptr<PackedMatrix> matrix(new (std::nothrow) PackedMatrix);
  if (matrix == nullptr) return Error(Code::kExhausted, "No memory for a packed matrix.");

  StripView& view = matrix->data_->view;
  view.n = weights.n;
  view.k = weights.k;
  view.strips = CeilDiv<int64_t>(weights.n, kStrip);
  view.kind = weights.bits == 4 ? WeightKind::kQ4 : WeightKind::kQ8;
  view.half_scales = source.ScalesAreHalf();
  view.has_mins = !source.ZeroPointIsUniform(&view.zero_point);
  if (view.has_mins) view.zero_point = 0.0f;
  view.block_log2 = std::countr_zero(static_cast<uint64_t>(weights.block_size));
  view.record_bytes = HeaderBytes(view) + weights.block_size / GroupK(view) * kGroupBytes;
  const int64_t blocks = source.blocks();
  if (blocks > 0) {
    const int64_t last_k = weights.k - (blocks - 1) * weights.block_size;
    view.last_record_bytes = HeaderBytes(view) + CeilDiv(last_k, GroupK(view)) * kGroupBytes;
    view.strip_bytes = 2 * ((blocks - 1) * view.record_bytes + view.last_record_bytes);
  }
  const int64_t pairs = CeilDiv<int64_t>(view.strips, 2);
  if (Status s = Allocate(context, *matrix->data_, pairs * view.strip_bytes); !s.ok()) return s;

  std::byte* base = matrix->data_->memory.data;
  context.pool->Run(pairs, 1, [&](int64_t begin, int64_t end, int) {
    // Lanes beyond n weigh nothing.
    std::memset(base + begin * view.strip_bytes, 0,
                static_cast<size_t>((end - begin) * view.strip_bytes));
    for (int64_t strip = 2 * begin; strip < std::min(2 * end, view.strips); ++strip) {
      for (int64_t b = 0; b < blocks; ++b) {
        PackRecord(source, view, strip, b, base + RecordOffset(view, strip, b));
      }
    }
  });
  return std::shared_ptr<const PackedMatrix>(std::move(matrix));
}

Result<std::shared_ptr<const PackedMatrix>> PackedMatrix::Pack(const Context& context,
                                                               const DenseWeights& weights) {
  GRANULE_CHECK(IsFloat(weights.dtype));
  std::shared_ptr<PackedMatrix> matrix(new (std::nothrow) PackedMatrix);
  if (matrix == nullptr) return Error(Code::kExhausted, "No memory for a packed matrix.");
  const int64_t element = BitsOf(weights.dtype) / 8;

  StripView& view = matrix->data_->view;
  view.n = weights.n;
  view.k = weights.k;
  view.strips = CeilDiv<int64_t>(weights.n, kStrip);
  view.strip_bytes = weights.k * kStrip * element;
  view.kind = weights.dtype == DType::kF32   ? WeightKind::kF32
              : weights.dtype == DType::kF16 ? WeightKind::kF16
                                             : WeightKind::kBF16;
  if (Status s = Allocate(context, *matrix->data_, view.strips * view.strip_bytes); !s.ok())
    return s;

  std::byte* base = matrix->data_->memory.data;
  const auto* source = static_cast<const std::byte*>(weights.data);
  context.pool->Run(view.strips, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t strip = begin; strip < end; ++strip) {
      std::byte* out = base + strip * view.strip_bytes;
      const int64_t first_n = strip * kStrip;
      const int64_t lanes = std::min<int64_t>(kStrip, view.n - first_n);
      if (lanes < kStrip) std::memset(out, 0, static_cast<size_t>(view.strip_bytes));
      for (int64_t k = 0; k < view.k; ++k, out += kStrip * element) {
        if (!weights.transposed) {
          std::memcpy(out, source + (k * view.n + first_n) * element,
                      static_cast<size_t>(lanes * element));
          continue;
        }
        for (int64_t lane = 0; lane < lanes; ++lane) {
          std::memcpy(out + lane * element, source + ((first_n + lane) * view.k + k) * element,
                      static_cast<size_t>(element));
        }
      }
    }
  });
  return std::shared_ptr<const PackedMatrix>(std::move(matrix));
}

void PackedMatrix::DequantizeRow(int64_t n, float* out) const {
  const StripView& view = data_->view;
  GRANULE_CHECK(n >= 0 && n < view.n);
  const std::byte* strip = view.data + n / kStrip * view.strip_bytes;  // of dense kinds
  const int64_t lane = n % kStrip;
  if (view.kind == WeightKind::kF32) {
    for (int64_t k = 0; k < view.k; ++k) std::memcpy(out + k, strip + (k * kStrip + lane) * 4, 4);
    return;
  }
  if (view.kind == WeightKind::kF16 || view.kind == WeightKind::kBF16) {
    for (int64_t k = 0; k < view.k; ++k) {
      uint16_t bits;
      std::memcpy(&bits, strip + (k * kStrip + lane) * 2, 2);
      out[k] = view.kind == WeightKind::kF16 ? F16ToF32(bits) : BF16ToF32(bits);
    }
    return;
  }
  for (int64_t k = 0; k < view.k; ++k) {
    const std::byte* record = view.data + RecordOffset(view, n / kStrip, k >> view.block_log2);
    const int64_t in_block = k & ((int64_t{1} << view.block_log2) - 1);
    float scale, min = 0.0f;
    if (view.half_scales) {
      uint16_t half;
      std::memcpy(&half, record + 2 * lane, 2);
      scale = F16ToF32(half);
    } else {
      std::memcpy(&scale, record + 4 * lane, 4);
    }
    if (view.has_mins) std::memcpy(&min, record + ScaleBytes(view) + 4 * lane, 4);

    const int64_t group_k = GroupK(view);
    const auto* codes = reinterpret_cast<const uint8_t*>(
        record + HeaderBytes(view) + in_block / group_k * kGroupBytes + 4 * lane);
    const int64_t j = in_block % group_k;
    const int q = view.kind == WeightKind::kQ8 ? codes[j]
                  : j < 4                      ? codes[j] & 15
                                               : codes[j - 4] >> 4;
    const auto code = static_cast<float>(q);
    out[k] = view.has_mins ? std::fma(code, scale, min) : (code - view.zero_point) * scale;
  }
}

}  // namespace granule::kernels
