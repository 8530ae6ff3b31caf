#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/magnitude/magnitude_scan.h"

namespace millrace {

/// Arrays below this are added to without a collection: they stay in a cache, where a scan is cheap (measured).
inline constexpr size_t kCollectFrom = size_t{1} << 20;

/// Entries past the last that add_and_collect_block() writes.
inline constexpr size_t kCollectSlack = 2;

/// Returns all_finite(values), on several threads above a size.
bool all_finite_on_threads(std::span<const float> values);

/// Computes target := scale * values, on several threads above a size. REQUIRES: equal sizes; `target` is `values`, or
/// does not overlap it.
void scale_on_threads(std::span<const float> values, float scale, std::span<float> target);

/// Computes target += scale * values with the bits of add_scaled(). The same pass collects every entry of the sum from
/// a magnitude on. A sample of the sum suggests the magnitude, so that most likely at least `wanted` entries reach it.
///
/// wanted   0: collects nothing.
/// largest  out: written over; its arrays are reused.
/// Returns  whether `largest` is such a list, and the sum is finite. False: the values are added all the same. The
///          array is small, many entries are wanted, the sample misled, a sum is not finite, or memory ended.
/// Throws   std::bad_alloc: nothing was added.
/// Threads  uses TBB above a size; the result does not depend on it.
bool add_and_collect(std::span<float> target, std::span<const float> values, float scale, uint64_t wanted,
                     Candidates& largest);

/// Computes one block of add_and_collect(), of at most kScanBlock entries. Writes the entries as scan_block() does;
/// `positions` and `keys` have room for count + kCollectSlack. Returns how many.
size_t add_and_collect_block(std::span<float> target, std::span<const float> values, float scale, uint32_t position,
                             MagnitudeKey key_min, uint32_t* positions, MagnitudeKey* keys);

}  // namespace millrace
