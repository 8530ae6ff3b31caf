#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

inline constexpr uint32_t kBloomProbesMax = 32;

/// Largest dimension whose every index a decoder is willing to ask a filter for.
inline constexpr uint64_t kBloomDimensionMax = uint64_t{1} << 28;

/// Indices that one bloom_scan() covers at most, and entries behind its result that it may overwrite.
inline constexpr uint64_t kBloomStrip = 1024;
inline constexpr size_t kBloomScanSlack = 16;

/// Applies the 32-bit finalizer of MurmurHash3.
inline uint32_t bloom_mix(uint32_t h) {
  h = (h ^ h >> 16) * 0x85ebca6bu;
  h = (h ^ h >> 13) * 0xc2b2ae35u;
  return h ^ h >> 16;
}

/// Holds the hash functions of a filter: probe p of index i is bit floor(bloom_mix(i + offsets[p]) * bits / 2^32),
/// offsets drawn from the seed.
struct BloomHashes {
  uint32_t bits = 0;
  uint32_t probes = 0;
  std::array<uint32_t, kBloomProbesMax> offsets{};

  static BloomHashes from(uint64_t seed, uint32_t bits, uint32_t probes);
  uint32_t bit(uint32_t index, uint32_t probe) const {
    return static_cast<uint32_t>(uint64_t{bloom_mix(index + offsets[probe])} * bits >> 32);
  }
};

/// Writes the indices of [begin, begin + length) whose bits are all set, increasing.
///
/// words    [bits / 32] the filter, bit i in word i / 32.
/// length   <= kBloomStrip. out [length + kBloomScanSlack].
/// Returns  how many there are.
/// Cost     about 2 probes an index for a filter of optimal size. Each probe removes half of the candidates, and the
///          rest is packed together before the next one.
size_t bloom_scan(const BloomHashes& hashes, std::span<const uint32_t> words, uint32_t begin, size_t length,
                  uint32_t* out);

}  // namespace millrace
