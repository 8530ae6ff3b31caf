#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/reduce/slice_kernels.h"

namespace millrace {

/// Entries past the last that sum_scattered_at_least() writes.
inline constexpr size_t kSliceSumSlack = 4;

/// Does sum_scattered(), but takes out only the sums of magnitude `edge` and more, with the same bits.
///
/// edge     > 0: what no lane has an entry of is never taken.
/// Cost     O(entries + (end - begin) / 64), or O(entries + (end - begin)) where they are many; the scratch is as it
///          was.
size_t sum_scattered_at_least(std::span<Lane> lanes, uint64_t begin, uint64_t end, SliceScratch& scratch, float edge,
                              uint32_t* out_index, float* out_value);

}  // namespace millrace
