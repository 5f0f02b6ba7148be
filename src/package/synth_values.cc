#include "package/synth_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "package/synth_tokenizer.h"

namespace granule::package {
namespace {

constexpr int64_t kMembers = 4;

// A counter-based generator: number i of stream `key`. The increment and the finalizer are those of
// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
uint64_t Number(uint64_t key, uint64_t i) {
  uint64_t x = key + (i + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// What the streams of a model are numbered by. Projections and norms follow their first number.
enum Stream : uint64_t {
  kTable,
  kClusters,
  kMembersOfHead,
  kNorms,
  kBiases = 16,
  kProjections = 32
};

// Deviation of a projection's value: codes spread evenly over -7..7 with 0 twice, times a block's
// factor.
constexpr double kCodeDeviation = 4.18;
constexpr double kFactorDeviation = 1.16;
constexpr float kFactors[] = {0.75f, 1.0f, 1.25f, 1.5f};

// The nearest number with 3 significant bits: what keeps products with codes and factors exact.
float RoundScale(double scale) {
  int exponent = 0;
  const double mantissa = std::frexp(scale, &exponent);  // [0.5, 1)
  return static_cast<float>(std::ldexp(std::round(mantissa * 8) / 8, exponent));
}

constexpr double kScore = 1.7;      // of a query's or key's element
constexpr double kAttention = 1.0;  // of all attention branches together, where the embedding has 1
constexpr double kFeedForward = 0.6;
constexpr double kMixed = 0.7;  // of a weighted sum of values
constexpr double kGated = 0.6;  // of silu(gate) * up, where gate and up have 1
constexpr double kMemberLogit = 256;

// Deviation that the outputs of a projection should have, over that of its inputs.
double Gain(Projection projection, int64_t layers) {
  const double depth = std::sqrt(static_cast<double>(layers));
  switch (projection) {
    case Projection::kQuery:
    case Projection::kKey:
      return kScore;
    case Projection::kOutput:
      return kAttention / depth / kMixed;
    case Projection::kDown:
      return kFeedForward / depth / kGated;
    case Projection::kValue:
    case Projection::kGate:
    case Projection::kUp:
      break;
  }
  return 1.0;
}

int SignBit(uint64_t bits, int64_t i) { return static_cast<int>(bits >> (i % 64) & 1) * 2 - 1; }

// How many of the low 4 bits are set beyond 2: -2..2.
int SmallNoise(uint64_t bits) { return std::popcount(bits & 15) - 2; }

}  // namespace

SynthValues::SynthValues(const SynthModel& model)
    : model_(model), clusters_(model.vocab / kMembers) {
  // Near the golden section, so that neighbours in the ring are no neighbours in number.
  stride_ = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(clusters_) * 0.618));
  while (std::gcd(stride_, clusters_) != 1) ++stride_;
}

uint64_t SynthValues::Key(uint64_t kind, int64_t layer) const {
  return Number(Number(model_.seed, kind), static_cast<uint64_t>(layer));
}

int64_t SynthValues::Successor(int64_t token) const {
  return (token % clusters_ + stride_ * (1 + token / clusters_)) % clusters_;
}

SynthRing SynthValues::Ring() const {
  return {clusters_,
          stride_,
          Number(model_.seed, kClusters),
          kFirstSynthSpecial,
          kFirstSynthSpecial + kSynthSpecials,
          clusters_ * kMembers};
}

SynthMatrix SynthValues::Table() const {
  return {SynthMatrix::Kind::kTable, model_.vocab, model_.hidden, Key(kTable, 0), 0.1875f};
}

SynthMatrix SynthValues::Head() const {
  const double scale = kMemberLogit / (5 * std::sqrt(static_cast<double>(model_.hidden)));
  return {SynthMatrix::Kind::kHead, model_.vocab, model_.hidden, Key(kMembersOfHead, 0),
          RoundScale(scale)};
}

SynthMatrix SynthValues::Of(Projection projection, int64_t layer) const {
  const int64_t q = model_.heads * model_.head_dim, kv = model_.kv_heads * model_.head_dim;
  SynthMatrix matrix{.rows = q, .columns = model_.hidden};
  if (projection == Projection::kKey || projection == Projection::kValue) matrix.rows = kv;
  if (projection == Projection::kGate || projection == Projection::kUp)
    matrix.rows = model_.feed_forward;
  if (projection == Projection::kOutput || projection == Projection::kDown) {
    matrix.rows = model_.hidden;
    matrix.columns = projection == Projection::kOutput ? q : model_.feed_forward;
  }
  matrix.key = Key(kProjections + static_cast<uint64_t>(projection), layer);
  matrix.scale =
      RoundScale(Gain(projection, model_.layers) / (std::sqrt(static_cast<double>(matrix.columns)) *
                                                    kCodeDeviation * kFactorDeviation));
  return matrix;
}

void SynthValues::Codes(const SynthMatrix& matrix, int64_t row, int64_t begin,
                        std::span<int8_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  if (matrix.kind == SynthMatrix::Kind::kProjection) {
    uint64_t word = static_cast<uint64_t>((row * matrix.columns + begin) / 16);
    for (int64_t i = 0; i < count; i += 16, ++word) {
      const uint64_t bits = Number(matrix.key, word);
      for (int64_t j = 0; j < 16; ++j) {
        const int code = static_cast<int>(bits >> (4 * j) & 15) - 8;
        out[static_cast<size_t>(i + j)] = static_cast<int8_t>(code == -8 ? 0 : code);
      }
    }
    return;
  }
  // Nothing but the tokenizer's own tokens could end a text, so the head never chooses those; nor
  // the last few ids, which belong to no cluster.
  const bool is_head = matrix.kind == SynthMatrix::Kind::kHead;
  if (is_head && (IsSynthSpecial(row) || row >= clusters_ * kMembers)) {
    std::fill(out.begin(), out.end(), int8_t{0});
    return;
  }
  const int64_t cluster = is_head ? row % clusters_ : Successor(row);
  const uint64_t cluster_key = Key(kClusters, cluster);
  const uint64_t member_key = Number(matrix.key, static_cast<uint64_t>(row / clusters_));
  const uint64_t noise_key = Number(matrix.key, static_cast<uint64_t>(row));
  uint64_t cluster_bits = 0, member_bits = 0, noise_bits = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t column = begin + i;
    const auto word = static_cast<uint64_t>(column / 64);
    if (i == 0 || column % 64 == 0) {
      cluster_bits = Number(cluster_key, word);
      member_bits = Number(member_key, word);
    }
    if (column % 16 == 0) noise_bits = Number(noise_key, static_cast<uint64_t>(column / 16));
    const int sign = SignBit(cluster_bits, column);
    const int code = is_head ? 2 * sign + 5 * SignBit(member_bits, column)
                             : 5 * sign + SmallNoise(noise_bits >> (column % 16 * 4));
    out[static_cast<size_t>(i)] = static_cast<int8_t>(code);
  }
}

float SynthValues::Scale(const SynthMatrix& matrix, int64_t row, int64_t block) const {
  if (matrix.kind != SynthMatrix::Kind::kProjection) return matrix.scale;
  const auto i = static_cast<uint64_t>(row * (matrix.columns / kSynthBlock) + block);
  return matrix.scale * kFactors[Number(~matrix.key, i / 32) >> (i % 32 * 2) & 3];
}

float SynthValues::Gamma(Norm norm, int64_t layer, int64_t i) const {
  const uint64_t bits =
      Number(Key(kNorms + static_cast<uint64_t>(norm), layer), static_cast<uint64_t>(i));
  return 1.0f + static_cast<float>(static_cast<int>(bits & 15) - 8) / 64.0f;
}

float SynthValues::Bias(Projection projection, int64_t layer, int64_t i) const {
  const uint64_t bits =
      Number(Key(kBiases + static_cast<uint64_t>(projection), layer), static_cast<uint64_t>(i));
  return static_cast<float>(static_cast<int>(bits & 15) - 8) / 16.0f;
}

}  // namespace granule::package
