#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"

namespace millrace {

/// Returns a key that sorts entries by index and then by the order in which they were given.
constexpr uint64_t index_key(uint32_t index, uint32_t order) { return uint64_t{index} << 32 | order; }
constexpr uint32_t index_of_key(uint64_t key) { return static_cast<uint32_t>(key >> 32); }
constexpr uint32_t order_of_key(uint64_t key) { return static_cast<uint32_t>(key); }

/// Sorts index_key()s whose indices are < 2^index_bits and whose orders are 0, 1, 2 ... as they stand: least
/// significant digit first, so only the digits of the index are looked at and equal indices stay in order.
///
/// scratch  any contents; grows to keys.size().
/// Cost     index_bits / 11 passes (rounded up); a comparison sort where keys are few.
void sort_by_index(Buffer<uint64_t>& keys, uint32_t index_bits, Buffer<uint64_t>& scratch);

}  // namespace millrace
