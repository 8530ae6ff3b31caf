#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"

namespace millrace {

/// Orders magnitudes as unsigned integers: the bits of |x|. Monotone in |x|; both zeros are 0; infinity is kInfinityKey
/// and every NaN is above it. So one integer comparison orders magnitudes and finds non-finite values, denormals
/// included.
using MagnitudeKey = uint32_t;

inline constexpr MagnitudeKey kInfinityKey = 0x7F800000u;

constexpr MagnitudeKey magnitude_key(float value) { return std::bit_cast<MagnitudeKey>(value) & 0x7FFFFFFFu; }

constexpr float magnitude_of_key(MagnitudeKey key) { return std::bit_cast<float>(key); }

/// Number of entries in one call of scan_block, so that its output stays in the first-level cache.
inline constexpr size_t kScanBlock = 4096;
/// Number of entries that scan_block may write (garbage) past its result: one vector of any ISA.
inline constexpr size_t kScanSlack = 64;

/// Holds how many entries a scan found, and the largest key of all entries that it read; 0 if there were none. A key
/// from kInfinityKey on: not all values are finite.
struct ScannedBlock {
  size_t found = 0;
  MagnitudeKey largest = 0;
};

/// Writes position and key of every entry whose key is >= key_min, in order, without a branch per entry.
///
/// values     [count], any alignment.
/// position   of values[0].
/// positions, keys   out: capacity count + kScanSlack each.
ScannedBlock scan_block(const float* values, size_t count, uint32_t position, MagnitudeKey key_min, uint32_t* positions,
                        MagnitudeKey* keys);

/// Does the same as scan_block, without the keys: in a cache three quarters of the time.
ScannedBlock scan_positions(const float* values, size_t count, uint32_t position, MagnitudeKey key_min,
                            uint32_t* positions);

/// Returns the largest key of the array (0 if it is empty): the memory pass. Above or equal to kInfinityKey: something
/// in it is not finite.
MagnitudeKey max_key(std::span<const float> values);

/// Holds entries with their keys, in the order of their positions.
struct Candidates {
  IndexBuffer positions;
  Buffer<MagnitudeKey> keys;
};

/// Writes the candidates of all chunks to `all`, in the chunks' order; its arrays are reused. Chunks without keys give
/// none.
///
/// Throws   std::bad_alloc.
/// Threads  uses TBB from a number of chunks on.
void join_chunks(std::span<const Candidates> chunks, Candidates& all);

enum class ScanEnd : uint8_t {
  kComplete,   ///< everything was looked at and is finite
  kOverLimit,  ///< there are more than `limit`; discard the output
  kNonFinite,  ///< NaN or infinity; discard the output
};

/// Collects every entry whose key is >= key_min (key_min <= kInfinityKey).
///
/// limit    more entries end with kOverLimit, soon after it is passed. Where it is above an eighth of the values, that
///          may be after a read pass. Memory stays within O(limit).
/// Cost     one memory pass, and the entries found; on several threads a second pass where many are found.
/// Threads  reentrant; uses TBB above a size; the result does not depend on it.
ScanEnd collect_at_least(std::span<const float> values, MagnitudeKey key_min, uint64_t limit, Candidates& candidates);

/// Does the same as collect_at_least, without the keys.
ScanEnd collect_positions(std::span<const float> values, MagnitudeKey key_min, uint64_t limit, IndexBuffer& positions);

/// Counts the entries whose key is >= key_min; one read pass.
ScannedBlock count_at_least(std::span<const float> values, MagnitudeKey key_min);

}  // namespace millrace
