#pragma once

#include "kernels/cuda/queue/block_kernel.h"
#include "kernels/cuda/select_kernels.h"

/// The kernels of whole arrays: add, take, give back, apply, and the Bloom filter.
namespace millrace::cuda {

/// Adds an array to another, and counts the highest digit of the sums' magnitudes: the first digit of a radix
/// selection.
struct AddArrays {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = kBins;
  static constexpr uint32_t kEach = 4;
  const float* values;
  float* sums;
  uint64_t count;
  float weight;          ///< of the values; 1: as they are
  uint32_t is_aligned;   ///< 1: both arrays are at multiples of 16 bytes
  uint64_t* bins;        ///< [kBins], added to; null: not wanted
  uint32_t* non_finite;  ///< set to 1 where a sum is NaN or infinite

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    auto shared = block.template shared<uint32_t>(0);
    if (bins != nullptr) {
      block.phase([&](auto t) {
        for (uint32_t bin = t.rank; bin < kBins; bin += kThreads) shared.store(t, bin, 0);
      });
    }
    block.phase([&](auto t) {
      stride_over<kThreads, kEach>(block, t, count, [&](uint64_t i) { add_four(block, t, shared, i); });
    });
    if (bins == nullptr) return;
    block.step([&](auto t) {
      for (uint32_t bin = t.rank; bin < kBins; bin += kThreads) {
        const uint32_t counted = shared.load(t, bin);
        if (counted != 0) block.add_global(bins + bin, uint64_t{counted});
      }
    });
  }

  template <class Block, class Thread, class Shared>
  MILLRACE_DEVICE void add_four(Block& block, Thread t, const Shared& shared, uint64_t first) const {
    const bool is_whole = is_aligned != 0 && first + kEach <= count;
    Float4 added{};
    Float4 sum{};
    if (is_whole) {
      added = block.load4(values + first);
      sum = block.load4(sums + first);
    }
    for (uint32_t c = 0; c < kEach && first + c < count; ++c) {
      const float value = is_whole ? added.at[c] : values[first + c];
      const float before = is_whole ? sum.at[c] : sums[first + c];
      sum.at[c] = before + (weight == 1.0F ? value : weight * value);
      const uint32_t key = key_of(sum.at[c]);
      if (key >= kKeyInfinity) *non_finite = 1;
      if (bins != nullptr) shared.add(t, key >> kTopShift, 1);
      if (!is_whole) sums[first + c] = sum.at[c];
    }
    if (is_whole) block.stream4(sums + first, sum);
  }
};

/// values[i] = array[positions[i]], and 0 stays there where `takes` is 1.
struct TakeEntries {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  float* array;
  const uint32_t* positions;
  uint64_t count;
  uint32_t takes;
  float* values;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      const uint64_t i = uint64_t{block.index()} * kThreads + t.rank;
      if (i >= count) return;
      values[i] = array[positions[i]];
      if (takes != 0) array[positions[i]] = 0;
    });
  }
};

/// array[positions[i]] += factor * values[i], the product rounded first. REQUIRES positions that differ.
struct ScatterAdd {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  const uint32_t* positions;
  const float* values;
  uint64_t count;
  float factor;
  float* array;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      const uint64_t i = uint64_t{block.index()} * kThreads + t.rank;
      if (i < count) array[positions[i]] += factor * values[i];
    });
  }
};

/// array[positions[i]] = first[i] - second[i].
struct ScatterDifference {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  const uint32_t* positions;
  const float* first;
  const float* second;
  uint64_t count;
  float* array;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      const uint64_t i = uint64_t{block.index()} * kThreads + t.rank;
      if (i < count) array[positions[i]] = first[i] - second[i];
    });
  }
};

/// A Bloom filter's hash functions, as BloomHashes of kernels/codec.
struct BloomProbes {
  static constexpr uint32_t kMost = 32;
  uint32_t bits;
  uint32_t probes;
  uint32_t offsets[kMost];

  MILLRACE_DEVICE uint32_t bit(uint32_t index, uint32_t probe) const {
    return static_cast<uint32_t>(uint64_t{mix(index + offsets[probe])} * bits >> 32);
  }
};

/// Adds indices to a filter.
struct BloomInsert {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  BloomProbes hashes;
  const uint32_t* indices;
  uint64_t count;
  uint32_t* words;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      const uint64_t i = uint64_t{block.index()} * kThreads + t.rank;
      if (i >= count) return;
      for (uint32_t probe = 0; probe < hashes.probes; ++probe) {
        const uint32_t bit = hashes.bit(indices[i], probe);
        block.or_global(words + bit / 32, 1u << (bit % 32));
      }
    });
  }
};

/// Indices of [0, count) that a filter knows: a test for Collect.
struct BloomTest {
  BloomProbes hashes;
  const uint32_t* words;
  uint64_t count;

  /// Nothing is kept of an entry; all have a key above a cut of 0.
  struct Entries {
    MILLRACE_DEVICE uint32_t key(uint32_t, uint32_t) const { return 1; }
  };

  MILLRACE_DEVICE bool has(uint32_t index, uint32_t probe) const {
    const uint32_t bit = hashes.bit(index, probe);
    return ((words[bit / 32] >> (bit % 32)) & 1u) != 0;
  }

  /// Half of the indices drop out at each probe: the first is asked of all at once, the others of those left.
  template <class Block>
  MILLRACE_DEVICE uint32_t mask(Block&, uint64_t first, Entries&) const {
    uint32_t left = 0;
    MILLRACE_UNROLL
    for (uint32_t j = 0; j < kRows; ++j) {
      MILLRACE_UNROLL
      for (uint32_t c = 0; c < 4; ++c) {
        const uint64_t i = first + j * kRowOfWarp + c;
        left |= (i < count && has(static_cast<uint32_t>(i), 0) ? 1u : 0u) << (4 * j + c);
      }
    }
    for (uint32_t probe = 1; probe < hashes.probes && left != 0; ++probe) {
      for (uint32_t asked = left; asked != 0; asked &= asked - 1) {
        const uint32_t place = bit_count((asked & (~asked + 1)) - 1);
        const uint64_t i = first + place / 4 * kRowOfWarp + place % 4;
        if (!has(static_cast<uint32_t>(i), probe)) left &= ~(1u << place);
      }
    }
    return left;
  }
};

}  // namespace millrace::cuda
