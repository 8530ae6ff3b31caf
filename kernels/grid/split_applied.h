#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/reduce/audit_sums.h"

namespace millrace {

/// Entries that the room of split_fates() has beyond those that were offered: whole vectors are written.
constexpr size_t kFateSlack = 16;

/// Where split_fates() writes: each of at least as many entries as were offered, and kFateSlack more. What was taken
/// may have none: then it is only counted.
struct FateRoom {
  std::span<uint32_t> taken_indices;
  std::span<float> taken_values;
  std::span<uint32_t> back_indices;
  std::span<float> back_values;
};

/// What became of all of them.
struct FateCounts {
  size_t taken = 0;     ///< entries of which something was applied
  size_t back = 0;      ///< ... of which something comes back
  size_t whole = 0;     ///< ... which come back, and nothing of them was applied
  Mass applied;         ///< of what was
  bool adds_up = true;  ///< value = applied + what comes back for every entry, in f64
};

/// Splits entries that were offered to a sum by their fates: those of which something was applied, integer x step, and
/// those of which something comes back, f32(value - integer x step) computed in f64, as grid_remainder(); in their
/// order, an entry of which both are may be in both.
///
/// indices, values, integers  of the same length: an entry each.
/// step                       a power of 2: the grid's.
/// Threads                    reentrant.
FateCounts split_fates(std::span<const uint32_t> indices, std::span<const float> values,
                       std::span<const int32_t> integers, double step, const FateRoom& room);

/// Of each integer what was taken: all of it where its index, counted from `begin`, is set in `bits`, otherwise
/// nothing. May be done in place.
///
/// indices, integers, taken  of the same length.
/// begin                     modulo 2^32.
/// bits                      bit i is bit i % 32 of word i / 32; every index less `begin` has one.
/// Threads                   reentrant.
void take_where_set(std::span<const uint32_t> indices, uint32_t begin, std::span<const int32_t> integers,
                    std::span<const uint32_t> bits, std::span<int32_t> taken);

}  // namespace millrace
