#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/bytes.h"
#include "kernels/base/result.h"
#include "kernels/stream/stream.h"

namespace millrace {

/// Counts entries by magnitude, in bins that grow geometrically. The bin of x is the top 15 bits of |x| as f32 (8
/// exponent, 7 mantissa bits: neighbours differ by less than 0.8 %). Shards exchange these to agree on one global
/// threshold.
///
/// Bin 0 (zeros, and denormals too small for a bin of their own) is not counted. So sparse and dense forms of one
/// stream have equal histograms.
class MagnitudeHistogram {
 public:
  static constexpr uint32_t kBins = 1u << 15;
  /// Bound of total(): sums of 2^16 decoded histograms cannot overflow.
  static constexpr uint64_t kCountMax = uint64_t{1} << 48;

  /// Returns the bin of a finite value. Monotone in |x|; zero is bin 0.
  static uint32_t bin_of(float value);

  /// An occupied bin.
  struct Bin {
    uint32_t bin = 0;
    uint64_t count = 0;
    bool operator==(const Bin&) const = default;
  };

  void add(std::span<const float> values);
  void add(const MagnitudeHistogram& other);
  /// Adds all of them; many at once take less time than one after another.
  void add(std::span<const std::shared_ptr<const MagnitudeHistogram>> others);

  uint64_t count(uint32_t bin) const;
  /// Returns the occupied bins, ascending.
  std::span<const Bin> bins() const { return bins_; }
  uint64_t total() const { return total_; }  ///< entries with a non-zero bin
  bool empty() const { return total_ == 0; }

  /// Appends a compact code: the number of occupied bins, then each as (bin minus the previous one, count), all varints
  /// (LEB128, shortest form). decode: hostile bytes, an error (malformed) or a valid histogram of total() <= kCountMax.
  void encode(ByteBuffer& out) const;
  static Result<MagnitudeHistogram> decode(ByteSpan bytes);

  /// Returns at most 16 bytes for each entry, and 512 KiB.
  uint64_t memory_bytes() const { return bins_.capacity() * sizeof(Bin); }

  bool operator==(const MagnitudeHistogram& other) const = default;

 private:
  class DenseCounts;

  /// Not a dense array: two entries of far magnitudes would cover all bins, and a shard holds a histogram of each part.
  std::vector<Bin> bins_;
  uint64_t total_ = 0;
};

/// Holds the threshold of the k largest of a histogram.
struct HistogramThreshold {
  uint32_t bin = 1;     ///< boundary bin: all entries of higher bins are in
  uint64_t above = 0;   ///< entries in higher bins
  uint64_t in_bin = 0;  ///< entries in the boundary bin
  uint64_t take = 0;    ///< how many of the boundary bin are in: above + take = min(k, total)
};

/// Returns the threshold of the k largest. Zeros (bin 0) are never in. k of 0: the highest bin, take 0. Nothing
/// counted: bin 1, take 0.
HistogramThreshold histogram_threshold(const MagnitudeHistogram& histogram, uint64_t k);

/// Selects the positions of the entries of `values` with a bin above threshold_bin, strictly increasing. Of those in
/// threshold_bin it selects the `take` largest (ties by lower position), or all where there are fewer. Entries of bin 0
/// are never selected, for any threshold_bin.
///
/// values     [n], finite, n <= 2^32.
/// Threads    reentrant.
void select_by_histogram(std::span<const float> values, uint32_t threshold_bin, uint64_t take, IndexBuffer& positions);

}  // namespace millrace
