#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/stream/stream.h"

namespace millrace {

/// Holds the remainder of one sparse stream: entries [at, end) of index and value.
struct Lane {
  const uint32_t* index = nullptr;
  const float* value = nullptr;
  size_t at = 0;
  size_t end = 0;
};

/// Holds the scratch of a scattered slice: the sums by index, and a bit for each index that has one. Between slices no
/// bit is set, and all sums are -0. This is the identity of addition for every value (0 would turn a lone -0 into 0).
struct SliceScratch {
  static constexpr uint64_t kWidth = uint64_t{1}
                                     << 14;  ///< 64 KiB of f32, 2 KiB of bits: the inner half of an L2 cache
  static constexpr size_t kOverrun = 64;     ///< sums past the last are read, and not used

  SliceScratch() {
    sums.fill(-0.0F);
    present.fill(0);
  }

  /// Aligned to a cache line: clearing a word's sums must not straddle lines (measured: 1.6 times the whole sum).
  alignas(64) std::array<float, kWidth + kOverrun> sums;
  alignas(64) std::array<uint64_t, kWidth / 64> present;
};

/// Entries past the last that the extraction writes.
inline constexpr size_t kSliceOutputSlack = 4;

/// Sums the lanes' entries into out_index and out_value, index by index in the order of the lanes. All entries lie in
/// [begin, end). Leaves the lanes at their ends. Returns the number of entries written; kSliceOutputSlack more are
/// clobbered.
///
/// Cost     O(entries + (end - begin) / 64).
size_t sum_scattered(std::span<Lane> lanes, uint64_t begin, uint64_t end, SliceScratch& scratch, uint32_t* out_index,
                     float* out_value);

/// Computes the sum of streams of which at least one is dense, as `out` [dimension], in slices that stay in cache.
void sum_into_dense(std::span<const StreamView> streams, std::span<float> out);

/// Computes target += scale * values, each product rounded before it is added; equal sizes.
void add_scaled_dense(std::span<float> target, std::span<const float> values, float scale);

}  // namespace millrace
