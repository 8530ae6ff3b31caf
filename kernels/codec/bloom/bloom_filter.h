#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kernels/codec/bloom/bloom_scan.h"
#include "kernels/codec/codec.h"

namespace millrace {

/// Holds the size and the number of hash functions for a false positive rate. Up to a rate of 1/2 by the optimal
/// formulas, m = n ln(1/rate) / (ln 2)^2 and k = m / n ln 2 [DeepReduce21, 4, 9.2]. Above it the optimal k is under 1,
/// and a filter has at least one hash function. So m = n / -ln(1 - rate), the fewest bits with which one function has
/// that rate. (DeepReduce's formula would give fewer, and at 0.9 a rate of 0.99.) Both are the same at 1/2. At least
/// one word.
struct BloomShape {
  uint64_t bits = 0;
  uint32_t probes = 0;

  static BloomShape optimal(uint64_t count, double rate);

  /// Holds the numbers of indices for which it is made, at some rate of at least 2^-(probes + 1/2) and below 1. None:
  /// least > most.
  struct Counts {
    uint64_t least = 0;
    uint64_t most = 0;
  };
  Counts counts() const;

  /// Returns a bound of the bits that `count` indices set: by number, or but for one in 10^30 draws of the hash
  /// functions.
  uint64_t set_most(uint64_t count) const;
};

/// Holds a filter: its hash functions and its bits.
struct BloomFilter {
  BloomHashes hashes;
  Buffer<uint32_t> words;

  /// Makes a filter that accepts `indices`. `seed` is of its hash functions.
  /// Errors  limit_exceeded: over 2^32 bits.
  static Result<BloomFilter> of(IndexSpan indices, double rate, uint64_t seed);

  /// Appends bits u32, probes u32 and the filter; take() is the reverse, of hostile bytes that end with the filter.
  /// Returns nothing where of() makes no such filter for any number of indices in `of`: of another shape, or with too
  /// many bits set. (A filter of ones would pass every hash function for every index; one of of() takes about two.)
  void put(ByteBuffer& out) const;
  static std::optional<BloomFilter> take(uint64_t seed, ByteSpan bytes, BloomShape::Counts of);
  static uint64_t bytes(uint64_t count, double rate) { return 8 + BloomShape::optimal(count, rate).bits / 8; }

  /// Calls visit(indices) with all of [0, dimension) that the filter knows, increasing, some at a time; until it
  /// returns false.
  template <typename Visit>
  void scan(uint64_t dimension, Visit&& visit) const {
    std::array<uint32_t, kBloomStrip + kBloomScanSlack> found;
    for (uint64_t begin = 0; begin < dimension; begin += kBloomStrip) {
      const auto length = static_cast<size_t>(std::min(kBloomStrip, dimension - begin));
      const size_t count = bloom_scan(hashes, words, static_cast<uint32_t>(begin), length, found.data());
      if (!visit(IndexSpan(found.data(), count))) return;
    }
  }
};

/// Returns the seed of a code's hash functions and choices: drawn from the job's, the step's and the part's key. It
/// travels.
uint64_t bloom_seed(const EncodeOptions& options);

/// Refuses a dimension over kBloomDimensionMax. `name` is the codec's.
Status check_bloom_dimension(std::string_view name, uint64_t dimension);

}  // namespace millrace
