#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/base/buffer.h"

namespace millrace {

/// A magnitude as an unsigned integer: the bits of |x|. Monotone in |x|; both zeros are 0; infinity is kInfinityKey and
/// every NaN is above it, so one integer comparison orders magnitudes and finds non-finite values, denormals included.
template <typename T>
using MagnitudeKey = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <typename T>
inline constexpr MagnitudeKey<T> kInfinityKey =
    sizeof(T) == 4 ? MagnitudeKey<T>{0x7F800000u} : static_cast<MagnitudeKey<T>>(0x7FF0000000000000u);

template <typename T>
constexpr MagnitudeKey<T> magnitude_key(T value) {
  constexpr MagnitudeKey<T> kSign = MagnitudeKey<T>{1} << (8 * sizeof(T) - 1);
  return std::bit_cast<MagnitudeKey<T>>(value) & ~kSign;
}

template <typename T>
constexpr T magnitude_of_key(MagnitudeKey<T> key) {
  return std::bit_cast<T>(key);
}

/// Entries that one call of scan_block looks at, so that what it writes stays in the first-level cache.
inline constexpr size_t kScanBlock = 4096;
/// Entries that scan_block may write (garbage) past what it returns: one vector of any ISA.
inline constexpr size_t kScanSlack = 64;

/// Writes position and key of every entry whose key is >= key_min, in order, without a branch per entry.
///
/// values     [count], any alignment.
/// position   of values[0].
/// positions, keys   out: capacity count + kScanSlack each.
/// Returns    entries written. NaN and infinity are among them if key_min <= kInfinityKey: look at the keys.
template <typename T>
size_t scan_block(const T* values, size_t count, uint32_t position, MagnitudeKey<T> key_min, uint32_t* positions,
                  MagnitudeKey<T>* keys);

/// The largest key of the array (0 if it is empty): the memory pass. Above or equal to kInfinityKey: something in it is
/// not finite.
template <typename T>
MagnitudeKey<T> max_key(std::span<const T> values);

/// Entries with their keys, in the order of their positions.
template <typename T>
struct Candidates {
  IndexBuffer positions;
  Buffer<MagnitudeKey<T>> keys;
};

enum class ScanEnd : uint8_t {
  kComplete,   ///< everything was looked at and is finite
  kOverLimit,  ///< there are more than `limit`; what was collected is to be thrown away
  kNonFinite,  ///< NaN or infinity; what was collected is to be thrown away
};

/// Collects every entry whose key is >= key_min (key_min <= kInfinityKey).
///
/// limit    stops, soon after it is passed, with kOverLimit; memory stays within O(limit).
/// Cost     one memory pass, and the entries found.
/// Threads  reentrant; uses TBB above a size; the result does not depend on it.
template <typename T>
ScanEnd collect_at_least(std::span<const T> values, MagnitudeKey<T> key_min, uint64_t limit, Candidates<T>& candidates);

/// As collect_at_least, without the keys.
template <typename T>
ScanEnd collect_positions(std::span<const T> values, MagnitudeKey<T> key_min, uint64_t limit, IndexBuffer& positions);

/// How many entries have a key >= key_min.
template <typename T>
uint64_t count_at_least(std::span<const T> values, MagnitudeKey<T> key_min);

}  // namespace millrace
