#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/buffer.h"

namespace millrace {

/// Indices a full block of the gap code; the last block of a code may hold fewer.
inline constexpr size_t kGapBlock = 256;

/// Interleaved u32 lanes of the low bits of a full block: 32 rows of 8.
inline constexpr size_t kGapLanes = 8;

/// Largest Rice parameter.
inline constexpr uint32_t kGapShiftMax = 31;

/// A block's unary code is never longer. The best parameter b has cost(b) <= cost(b') for the b' with 2^b' >= sum /
/// 256. So the sum of quotients is <= 256 * (b' - b + 1) <= 256 * 25: 6,656 bits with the terminators.
inline constexpr uint32_t kGapUnaryBitsMax = 8192;

/// Bytes that a block never exceeds: parameter, low bits, unary code.
inline constexpr size_t kGapBlockBytesMax = 1 + kGapBlock / 8 * kGapShiftMax + kGapUnaryBitsMax / 8;

/// Says where a run of blocks ended. `at` null: malformed.
struct GapDecoded {
  const uint8_t* at = nullptr;
  uint64_t next = 0;  ///< last index + 1
};

/// Describes the output of gap_encode_blocks().
struct GapEncoded {
  size_t bytes = 0;
  size_t blocks = 0;  ///< fewer than asked for: out of room
};

/// Codes up to `blocks` full blocks with the machine's fastest instruction set; stops where a block might not fit.
///
/// indices  [256 * blocks] strictly increasing, >= next.
/// next     the index before the first one, + 1 (0 at the start).
/// out      capacity bytes; up to 8 bytes behind the code are overwritten.
GapEncoded gap_encode_blocks(const uint32_t* indices, size_t blocks, uint64_t next, uint8_t* out, size_t capacity);

/// Decodes `blocks` full blocks of hostile bytes [begin, end) into out [256 * blocks].
GapDecoded gap_decode_blocks(const uint8_t* begin, const uint8_t* end, size_t blocks, uint64_t next, uint64_t dimension,
                             uint32_t* out);

// The same two without SIMD, bit by bit: for machines without it, and what every instruction set is compared with.
GapEncoded gap_encode_blocks_scalar(const uint32_t* indices, size_t blocks, uint64_t next, uint8_t* out,
                                    size_t capacity);
GapDecoded gap_decode_blocks_scalar(const uint8_t* begin, const uint8_t* end, size_t blocks, uint64_t next,
                                    uint64_t dimension, uint32_t* out);

}  // namespace millrace
