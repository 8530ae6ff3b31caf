#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

namespace millrace {

// What the two codes of GSpar 2.3 share: a stream of the draws of Proposition 1 has entries g / p with p = min(lambda |g|, 1),
// so those with p < 1 all have the magnitude 1 / lambda (the paper's Q_B), and the others (Q_A), larger ones, are as they were.

template <typename T>
using ValueBits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <typename T>
inline constexpr ValueBits<T> kSignBit = ValueBits<T>{1} << (8 * sizeof(T) - 1);

template <typename T>
inline constexpr ValueBits<T> kInfinityBits = std::bit_cast<ValueBits<T>>(std::numeric_limits<T>::infinity());

template <typename T>
ValueBits<T> magnitude_bits(T value) {
  return std::bit_cast<ValueBits<T>>(value) & ~kSignBit<T>;
}

/// The magnitude of the sign part, as bits, and how many entries have it.
template <typename T>
struct GsparScale {
  ValueBits<T> bits = 0;
  uint64_t entries = 0;
};

/// The smallest magnitude, or the one of more than half of the entries (a stream that a Bloom policy filled up may have smaller
/// ones), whichever is more frequent.
///
/// values  [n]; none: 0 entries.
/// Errors  non_finite.
template <typename T>
Result<GsparScale<T>> find_gspar_scale(std::span<const T> values);

/// Appends the exact entries of `values`, as they are.
template <typename T>
void append_exact(std::span<const T> values, const GsparScale<T>& scale, ByteBuffer& out);

/// Copies as many values as `out` has. False: one of them is NaN or infinite.
template <typename T>
bool take_finite(const uint8_t* bytes, std::span<T> out) {
  if (out.empty()) return true;
  std::memcpy(out.data(), bytes, out.size_bytes());
  bool finite = true;
  for (const T value : out) finite &= magnitude_bits(value) < kInfinityBits<T>;
  return finite;
}

/// A scale off hostile bytes: finite, its sign bit 0.
template <typename T>
std::optional<ValueBits<T>> take_scale(const uint8_t* bytes) {
  ValueBits<T> bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  if (bits >= kInfinityBits<T>) return std::nullopt;
  return bits;
}

}  // namespace millrace
