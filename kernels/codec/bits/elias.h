#pragma once

#include <bit>
#include <cstdint>

#include "kernels/codec/bits/bit_stream.h"

namespace millrace {

/// Elias gamma code of value in [1, 2^32]: n = floor(log2(value)) bits 0, a bit 1, and the n bits of value below its
/// highest. The lengths are Elias's; the bits come lowest first, as in all of this folder.
inline void put_elias_gamma(BitWriter& writer, uint64_t value) {
  const auto n = static_cast<uint32_t>(std::bit_width(value)) - 1;
  writer.put(uint64_t{1} << n, n + 1);
  writer.put(value - (uint64_t{1} << n), n);
}

/// Takes a code from hostile bytes. Returns 0 for any code that has more than n_max bits below the highest, or is
/// invalid.
inline uint64_t take_elias_gamma(BitReader& reader, uint32_t n_max) {
  const uint64_t bits = reader.window();
  const auto n = static_cast<uint32_t>(std::countr_zero(bits));
  if (n > n_max) return 0;
  if (2 * n + 1 <= 57) [[likely]] {
    reader.skip(2 * n + 1);
    return uint64_t{1} << n | (bits >> (n + 1) & ((uint64_t{1} << n) - 1));
  }
  reader.skip(n + 1);
  return uint64_t{1} << n | reader.take(n);
}

}  // namespace millrace
