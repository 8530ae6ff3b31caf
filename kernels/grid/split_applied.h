#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/reduce/audit_sums.h"

namespace millrace {

/// Entries that the room of split_applied() has beyond those that were offered: whole vectors are written.
constexpr size_t kSplitSlack = 16;

/// Gives split_applied() its output arrays: each has as many entries as were offered, and kSplitSlack more. The arrays
/// for taken entries may be empty: then they are only counted.
struct SplitBuffers {
  std::span<uint32_t> taken_indices;
  std::span<float> taken_values;
  std::span<uint32_t> back_indices;
  std::span<float> back_values;
};

/// Counts the entries by outcome.
struct SplitCounts {
  size_t taken = 0;     ///< entries of which something was applied
  size_t back = 0;      ///< ... of which a remainder is returned
  size_t whole = 0;     ///< ... that are returned as a whole, with nothing applied
  Mass applied;         ///< of the applied values
  bool adds_up = true;  ///< value = applied + returned for every entry, in f64
};

/// Splits the entries that were offered to a sum by outcome, in their order. Applied are integer x step. Returned are
/// f32(value - integer x step), computed in f64, as in grid_remainder(). An entry may be in both lists.
///
/// indices, values, integers  of the same length: an entry each.
/// step                       a power of 2: the grid's.
/// Threads                    reentrant.
SplitCounts split_applied(std::span<const uint32_t> indices, std::span<const float> values,
                          std::span<const int32_t> integers, double step, const SplitBuffers& room);

/// Sets `taken` to the integers whose indices, counted from `begin`, are set in `bits`, and to 0 for the others.
/// In-place use is allowed. May be done in place.
///
/// indices, integers, taken  of the same length.
/// begin                     modulo 2^32.
/// bits                      bit i is bit i % 32 of word i / 32; every index less `begin` has one.
/// Threads                   reentrant.
void take_where_set(std::span<const uint32_t> indices, uint32_t begin, std::span<const int32_t> integers,
                    std::span<const uint32_t> bits, std::span<int32_t> taken);

}  // namespace millrace
