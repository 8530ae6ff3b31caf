#pragma once

#include <cstdint>
#include <span>

namespace millrace {

/// Sums by index of entries of one window (indices below 2^16) that lie one behind the other in any order: those of
/// several contributions. Each index's place among all is the number of marked bits below it, so the sums lie side by
/// side from the beginning. Apart from two bitmaps, no memory as long as the window is touched.
///
/// present  [window / 64] zero; zero again afterwards.
/// ranks    [window / 64] overwritten.
/// Results  indices increasing, each once, values their sums, modulo 2^32: the caller sees to it that none overflows.
/// Threads  reentrant.
struct EntrySumRoom {
  std::span<uint64_t> present;
  std::span<uint16_t> ranks;
  std::span<uint16_t> indices;  ///< [window]
  std::span<int32_t> values;    ///< [window]
};

/// Returns how many indices there are.
///
/// indices  below 64 * room.present.size(); values as many.
/// Cost     about a nanosecond and a half an entry, a third of one for each word of `present`.
uint32_t sum_entries(std::span<const uint16_t> indices, std::span<const int32_t> values, const EntrySumRoom& room);

/// Computes sums[j] += values[j] modulo 2^32. REQUIRES: of one length, no overlap. Cost: a pass over both.
void add_values(std::span<int32_t> sums, std::span<const int32_t> values);

/// Returns all magnitudes or-ed (its bit width is that of the largest), 2^31 for the lowest number.
uint32_t magnitudes_or(std::span<const int32_t> values);

/// Returns the largest magnitude, 2^31 for the lowest number.
uint32_t largest_magnitude(std::span<const int32_t> values);

}  // namespace millrace
