#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/codec/index/adaptive_tables.h"

namespace millrace {

/// Indices of a full block of the adaptive code; the last block may hold fewer.
inline constexpr size_t kAdaptiveBlock = 16'384;

/// A block is coded as 4 streams of about equal length, one behind the other in the indices; a small one as one.
inline constexpr size_t kAdaptiveStreams = 4;
inline constexpr size_t kAdaptiveStreamsFrom = 256;

/// Bytes that a block of `count` never exceeds, and 8 that may be overwritten before it: header, states, 42 bits an
/// index.
inline constexpr size_t adaptive_bytes_max(size_t count) { return 16 + count * 6; }

using AdaptiveStreamLevels = std::array<AdaptiveLevels, kAdaptiveStreams>;

/// Holds the buffers for coding a block of 1 to kAdaptiveBlock gaps.
struct AdaptiveScratch {
  uint32_t* gaps = nullptr;     // [count]
  uint16_t* bins = nullptr;     // [count] context * kAdaptiveBins + bin
  uint8_t* code_end = nullptr;  // behind adaptive_bytes_max(count) bytes
};

/// Codes a block backwards from scratch.code_end. Returns where it begins.
///
/// indices  strictly increasing, >= next: the index before the first one, + 1.
/// levels   in: the expected levels at the beginning of each stream; out: those behind it.
const uint8_t* adaptive_encode_block(std::span<const uint32_t> indices, uint64_t next, AdaptiveStreamLevels& levels,
                                     const AdaptiveScratch& scratch);

/// Decodes a block of out.size() gaps, hostile, from [at, end). Returns where it ends; null: malformed.
const uint8_t* adaptive_decode_block(const uint8_t* at, const uint8_t* end, AdaptiveStreamLevels& levels,
                                     std::span<uint32_t> gaps);

}  // namespace millrace
