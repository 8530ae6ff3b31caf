#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/magnitude/magnitude_scan.h"

namespace millrace {

/// Returns the k-th largest of `keys` (1 <= k <= keys.size()), by most-significant-digit radix selection.
///
/// Cost     at most one pass per digit over the remaining candidates (3 digits), for any keys: never quadratic.
///          `scratch` holds the survivors of the first digit.
/// Threads  reentrant.
/// Source   [RedSync19, 2.1]; radixSelect: [Alabi12]; here on the CPU.
MagnitudeKey kth_largest_key(std::span<const MagnitudeKey> keys, uint64_t k, Buffer<MagnitudeKey>& scratch);

/// Returns the k-th largest key of an array of values (1 <= k <= values.size()), for when no good threshold is known
/// beforehand. Empty when a value is NaN or infinite.
///
/// Cost     as kth_largest_key, over the values themselves; survivors are copied once they are at most a quarter.
std::optional<MagnitudeKey> kth_largest_key_of_values(std::span<const float> values, uint64_t k);

}  // namespace millrace
