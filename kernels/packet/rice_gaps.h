#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/base/buffer.h"

namespace millrace {

/// Holds the indices of one window (below 2^16) as Rice-coded gaps with one parameter. Two streams, which vector
/// machines read without a branch, hold the low bits of all gaps and the unary code of the quotients.
///
///     gap_0 = index_0 - first, gap_j = index_j - index_(j-1) - 1.
///     lows      count x shift bits, low bit first, filled up to a byte.
///     quotients for each gap (gap >> shift) bits 0 and a bit 1, filled up to a byte with 0.
struct RiceGaps {
  uint32_t first = 0;
  uint32_t shift = 0;  ///< <= kRiceShiftMax
  uint32_t count = 0;  ///< <= kRiceCountMax
};

inline constexpr uint32_t kRiceShiftMax = 15;
inline constexpr uint32_t kRiceCountMax = 18'000;
/// Bytes of a code that is taken apart: no datagram is longer.
inline constexpr size_t kRiceBytesMax = 9'000;
/// Entries behind its result that rice_gaps_decode() may overwrite.
inline constexpr size_t kRiceSlack = 16;

constexpr size_t rice_low_bytes(uint32_t count, uint32_t shift) { return (size_t{count} * shift + 7) / 8; }

/// Decodes hostile bytes: lows, then quotients to the end.
///
/// code     count >= 1.
/// bytes    at most kRiceBytesMax.
/// out      [count + kRiceSlack]; strictly increasing.
/// Returns  the last index, which may be any number below 2^32: the caller refuses one outside of its window. The
///          contents of `out` are right only where the last index is below 2^16. Nothing: truncated, or bytes left
///          over.
/// Cost     about a nanosecond an index with vectors of 256 bits; no allocation, about 80 KiB of stack.
/// Threads  reentrant.
std::optional<uint32_t> rice_gaps_decode(const RiceGaps& code, ByteSpan bytes, uint16_t* out);

/// Returns the sum of gap_j >> shift over all indices; gap_0 counts as 0 (the encoder puts index_0 into `first`).
uint64_t rice_quotient_sum(std::span<const uint16_t> indices, uint32_t shift);

/// Returns rice_quotient_sum() of three parameters in one pass.
std::array<uint64_t, 3> rice_quotient_sums(std::span<const uint16_t> indices, const std::array<uint32_t, 3>& shifts);

/// Writes lows and quotients of indices into `out` [rice_low_bytes + (count + quotient sum + 7) / 8 + 16]; returns
/// their bytes.
///
/// code     first = indices[0], count = indices.size().
size_t rice_gaps_encode(const RiceGaps& code, std::span<const uint16_t> indices, uint8_t* out);

}  // namespace millrace
