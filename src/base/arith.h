// Integer arithmetic on sizes that come from outside: checked where a wrap must be an error,
// saturating where "too large" is an answer.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>

namespace granule {

template <std::integral T>
std::optional<T> CheckedAdd(T a, T b) {
  T r;
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}

template <std::integral T>
std::optional<T> CheckedMul(T a, T b) {
  T r;
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}

inline uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  return CheckedAdd(a, b).value_or(std::numeric_limits<uint64_t>::max());
}
inline uint64_t SaturatingMul(uint64_t a, uint64_t b) {
  return CheckedMul(a, b).value_or(std::numeric_limits<uint64_t>::max());
}

// a / b rounded up; b > 0. Cannot overflow.
template <std::integral T>
constexpr T CeilDiv(T a, T b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// value rounded up to a multiple of unit > 0. The caller knows that the result fits.
template <std::integral T>
constexpr T RoundUp(T value, T unit) {
  return CeilDiv(value, unit) * unit;
}

template <std::integral T>
constexpr T RoundDown(T value, T unit) {
  return value / unit * unit;
}

}  // namespace granule
