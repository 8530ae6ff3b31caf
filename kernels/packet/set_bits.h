#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

/// Writes the numbers of the set bits of a bitmap of at most 2^16 bits, increasing; returns how many there are.
///
/// out      [64 * words.size()]; what stands behind the result is overwritten.
/// Cost     about a nanosecond for each four bits or word.
/// Threads  reentrant.
size_t set_bits(std::span<const uint64_t> words, std::span<uint16_t> out);

}  // namespace millrace
