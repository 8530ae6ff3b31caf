#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/codec/bloom/bloom_scan.h"

namespace millrace {

/// Words of a block of the blocked filter, a bit of each set by every index: 256 bits, one load of a vector machine.
inline constexpr size_t kBlockedWords = 8;

/// Odd numbers that make eight bits of one hash (Apache Parquet's, "Split Block Bloom Filter").
inline constexpr std::array<uint32_t, kBlockedWords> kBlockedSalts = {
    0x47b6137bu, 0x44974d91u, 0x8824ad5bu, 0xa2b7289du, 0x705495c7u, 0x2df1424bu, 0x9efc4947u, 0x5c6bfb31u};

/// Where an index is in the filter: block floor(mix(i + offsets[0]) * blocks / 2^32); in its word w bit
/// (mix(i + offsets[1]) * salt_w mod 2^32) >> 27. mix and the offsets are those of BloomHashes.
struct BlockedHashes {
  uint32_t blocks = 0;
  std::array<uint32_t, 2> offsets{};

  static BlockedHashes from(uint64_t seed, uint32_t blocks);
  uint32_t block(uint32_t index) const {
    return static_cast<uint32_t>(uint64_t{bloom_mix(index + offsets[0])} * blocks >> 32);
  }
  uint32_t bit(uint32_t index, size_t word) const { return bloom_mix(index + offsets[1]) * kBlockedSalts[word] >> 27; }
};

/// The two words of a block that have the fewest bits set over all blocks, the fewest first. Tested first, they reject
/// most indices, also in a filter that was made to be slow.
using FirstWords = std::array<uint32_t, 2>;
FirstWords sparsest_words(std::span<const uint32_t> words);

/// Writes the indices of [begin, begin + length) whose eight bits are all set, increasing.
///
/// words    [blocks * 8] the filter. length <= kBloomStrip. out [length + kBloomScanSlack].
/// Returns  how many there are.
/// Cost     a gathered word of the block an index, a second one of those that it knows, the whole block of those that
///          both know.
size_t blocked_scan(const BlockedHashes& hashes, std::span<const uint32_t> words, const FirstWords& first,
                    uint32_t begin, size_t length, uint32_t* out);

}  // namespace millrace
