#include "kernels/ref/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace granule::kernels::ref {

double ElementOf(const void* data, DType type, int64_t i) {
  if (type == DType::kF16) return F16ToF32(static_cast<const uint16_t*>(data)[i]);
  if (type == DType::kBF16) return BF16ToF32(static_cast<const uint16_t*>(data)[i]);
  return static_cast<const float*>(data)[i];
}

int CodeOf(const uint8_t* row, int bits, int64_t i) {
  if (bits == 8) return row[i];
  return (row[i / 2] >> (i % 2 == 0 ? 0 : 4)) & 15;
}

std::vector<double> Dequantize(const QuantizedWeights& w) {
  using ZeroPoints = QuantizedWeights::ZeroPoints;
  const int64_t blocks = (w.k + w.block_size - 1) / w.block_size;
  std::vector<double> out;
  out.reserve(static_cast<size_t>(w.n * w.k));
  for (int64_t n = 0; n < w.n; ++n) {
    for (int64_t k = 0; k < w.k; ++k) {
      const int64_t block = k / w.block_size;
      const int64_t row_bytes = blocks * w.block_size * w.bits / 8;
      double zero_point = w.bits == 4 ? 8 : 128;
      if (w.zero_points_kind == ZeroPoints::kFloat) {
        zero_point = ElementOf(w.zero_points, w.zero_points_type, n * blocks + block);
      } else if (w.zero_points_kind == ZeroPoints::kPacked) {
        const int64_t zero_row = (blocks * w.bits + 7) / 8;
        zero_point =
            CodeOf(static_cast<const uint8_t*>(w.zero_points) + n * zero_row, w.bits, block);
      }
      const double scale = ElementOf(w.scales, w.scales_type, n * blocks + block);
      out.push_back((CodeOf(w.q + n * row_bytes, w.bits, k) - zero_point) * scale);
    }
  }
  return out;
}

std::vector<double> Dense(const DenseWeights& w) {
  std::vector<double> out;
  out.reserve(static_cast<size_t>(w.n * w.k));
  for (int64_t n = 0; n < w.n; ++n) {
    for (int64_t k = 0; k < w.k; ++k) {
      out.push_back(ElementOf(w.data, w.dtype, w.transposed ? n * w.k + k : k * w.n + n));
    }
  }
  return out;
}

Product MatMul(const float* a, int64_t lda, int64_t m, const std::vector<double>& w, int64_t n,
               int64_t k, const float* bias) {
  Product product;
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t col = 0; col < n; ++col) {
      double sum = 0, magnitude = 0;
      for (int64_t i = 0; i < k; ++i) {
        const double term = a[row * lda + i] * w[static_cast<size_t>(col * k + i)];
        sum += term;
        magnitude += std::abs(term);
      }
      if (bias != nullptr) {
        sum += bias[col];
        magnitude += std::abs(bias[col]);
      }
      product.y.push_back(sum);
      product.magnitude.push_back(magnitude);
    }
  }
  return product;
}

std::vector<double> Rotate(const Rotary& rotary, int64_t position, int64_t heads, int64_t head_dim,
                           const float* x) {
  std::vector<double> out(x, x + heads * head_dim);
  const int64_t half = rotary.rotary_dim / 2;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < half; ++i) {
      const int64_t first = h * head_dim + (rotary.interleaved ? 2 * i : i);
      const int64_t second = h * head_dim + (rotary.interleaved ? 2 * i + 1 : i + half);
      const double cos = rotary.cos[position * half + i], sin = rotary.sin[position * half + i];
      out[static_cast<size_t>(first)] = x[first] * cos - x[second] * sin;
      out[static_cast<size_t>(second)] = x[second] * cos + x[first] * sin;
    }
  }
  return out;
}

std::vector<double> Attend(const AttentionShape& shape, const KvView& view, int64_t slot,
                           const float* q) {
  std::vector<double> out;
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t h = 0; h < shape.heads; ++h) {
    std::vector<double> weight;
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t t = 0; t <= slot; ++t) {
      const std::byte* key = view.k + t * view.k_token_stride + h / group * view.k_head_stride;
      double score = 0;
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        score += q[h * shape.head_dim + d] * ElementOf(key, view.dtype, d);
      }
      weight.push_back(score * shape.scale);
      largest = std::max(largest, weight.back());
    }
    double total = 0;
    for (double& w : weight) total += w = std::exp(w - largest);
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      double sum = 0;
      for (int64_t t = 0; t <= slot; ++t) {
        const std::byte* value = view.v + t * view.v_token_stride + h / group * view.v_head_stride;
        sum += weight[static_cast<size_t>(t)] * ElementOf(value, view.dtype, d);
      }
      out.push_back(sum / total);
    }
  }
  return out;
}

std::vector<double> RmsNorm(const float* x, const float* gamma, double epsilon, int64_t width) {
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += static_cast<double>(x[i]) * x[i];
  const double root = std::sqrt(squares / static_cast<double>(width) + epsilon);
  std::vector<double> out;
  for (int64_t i = 0; i < width; ++i) out.push_back(x[i] / root * gamma[i]);
  return out;
}

double Unary(kernels::Unary op, double x) {
  switch (op) {
    case kernels::Unary::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case kernels::Unary::kSilu:
      return x / (1 + std::exp(-x));
    case kernels::Unary::kTanh:
      return std::tanh(x);
    case kernels::Unary::kNeg:
      return -x;
  }
  return 0;
}

double Binary(kernels::Binary op, double x, double z) {
  switch (op) {
    case kernels::Binary::kAdd:
      return x + z;
    case kernels::Binary::kSub:
      return x - z;
    case kernels::Binary::kMul:
      return x * z;
    case kernels::Binary::kDiv:
      return x / z;
  }
  return 0;
}

std::vector<double> GatherQuantizedRow(const QuantizedTable& table, int64_t id) {
  std::vector<double> out;
  const int64_t blocks = (table.width + table.block_size - 1) / table.block_size;
  const int64_t modulus = int64_t{1} << table.bits;
  const auto value_of = [&](const uint8_t* row, int64_t i) {
    const int64_t code = CodeOf(row, table.bits, i);
    return table.is_signed && code >= modulus / 2 ? code - modulus : code;
  };
  for (int64_t i = 0; i < table.width; ++i) {
    const int64_t block = i / table.block_size;
    int64_t zero_point = table.default_zero_point;
    if (table.zero_points != nullptr) {
      zero_point = value_of(table.zero_points + id * ((blocks * table.bits + 7) / 8), block);
    }
    const double scale = ElementOf(table.scales, table.scales_type, id * blocks + block);
    const int64_t code = value_of(table.data + id * ((table.width * table.bits + 7) / 8), i);
    out.push_back(static_cast<double>(code - zero_point) * scale);
  }
  return out;
}

int64_t ArgMax(const float* x, int64_t count) {
  int64_t best = -1;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isnan(x[i])) continue;
    if (best < 0 || x[i] > x[best]) best = i;
  }
  return best < 0 ? 0 : best;
}

}  // namespace granule::kernels::ref
