#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/reduce/magnitude_histogram.h"

/// Re-selection of integer sums by the step before: the same functions at a switch, at shards and among peers.
namespace millrace {

/// Counts a step's sums by magnitude, on one scale for all slots. A sum is q * 2^exponent. Its bin is the exponent of
/// its leading bit and the five bits behind that (neighbours differ by 1.6 to 3.1 %). Zeros are not counted. Integers
/// only: equal sums give equal bins on every machine.
class SumHistogram {
 public:
  static constexpr uint32_t kFractionBits = 5;
  /// Leading bits from 2^-128 to 2^(127 + 31), and bin 0 for zero.
  static constexpr uint32_t kBins = 1 + ((128 + 127 + 31 + 1) << kFractionBits);

  SumHistogram() : counts_(kBins, 0) {}

  /// Returns a bin that is monotone in |sum| * 2^exponent; 0 for zero.
  static uint32_t bin_of(int32_t sum, int8_t exponent);

  /// Returns the same of a sum as a value. REQUIRES: 0, or a normal f32 (sums on a grid of 2^-120 and coarser are).
  static uint32_t bin_of(float sum);

  void add(std::span<const int32_t> sums, int8_t exponent);
  /// Adds sums as values. REQUIRES: as bin_of().
  void add(std::span<const float> sums);
  /// Adds sums as values, as shards count them. REQUIRES: all were 0, or normal f32.
  void add(const MagnitudeHistogram& sums);
  void clear();
  /// Restores the count of a bin. REQUIRES: bin < kBins, and it has none.
  void restore(uint32_t bin, uint64_t count) {
    counts_[bin] = count;
    total_ += count;
  }
  uint64_t count(uint32_t bin) const { return counts_[bin]; }
  uint64_t total() const { return total_; }

 private:
  std::vector<uint64_t> counts_;
  uint64_t total_ = 0;
};

/// Holds the threshold of the k largest sums of a step: all of higher bins are in, and of the boundary bin `take` of
/// `in_bin`.
struct SumThreshold {
  uint32_t bin = 0;  ///< 0: the whole sum
  uint64_t take = 0;
  uint64_t in_bin = 0;
};

/// Returns the cut; a function of the histogram alone. k of 0, or no more sums than k: the whole sum.
SumThreshold threshold_of(const SumHistogram& histogram, uint64_t k);

/// Keeps of one window's sums those that the cut lets through, in place, indices still increasing; returns how many. Of
/// n in the boundary bin the first round(n * take / in_bin) stay (ties by index): so a step of few distinct magnitudes
/// keeps its k. Zeros do not stay where there is a cut.
///
/// indices, values  of the same length.
/// Source           [OkTopk22, 3.1.3] (a threshold of an earlier step is used again); exact counting is Millrace's own.
uint32_t apply_threshold(const SumThreshold& threshold, int8_t exponent, std::span<uint16_t> indices,
                         std::span<int32_t> values);
/// Does the same with sums as values, of the windows of `window_indices` that the indices lie in, each by itself.
/// REQUIRES: index 0 begins a window; sums as SumHistogram::bin_of().
uint32_t apply_threshold(const SumThreshold& threshold, uint32_t window_indices, std::span<uint32_t> indices,
                         std::span<float> values);

/// Re-selects the sums of one job: the threshold of step t is a function of the histogram of step t - 1 alone. A step
/// without one (the first, and the first after a restart of an aggregator) sends the whole sum.
///
/// Why counting is complete   a worker begins a step with all results of the one before. So every slot's turns of that
///                            step are closed, and counted, when the first turn of the next is claimed.
class Reselection {
 public:
  explicit Reselection(uint64_t k) : k_(k) {}

  /// Notes that a turn of this step is claimed.
  void on_claim(uint32_t step);
  /// Notes that a turn of the step closed with these sums: counts them, then selects. Returns how many stay.
  uint32_t on_close(uint32_t step, int8_t exponent, std::span<uint16_t> indices, std::span<int32_t> values);
  /// Forgets all steps.
  void reset();

  const SumThreshold& threshold() const { return threshold_; }

 private:
  uint64_t k_;
  SumHistogram histogram_;  ///< of step_
  uint32_t step_ = 0;
  bool counting_ = false;   ///< step_ is one that was seen
  SumThreshold threshold_;  ///< in force in step_
};

}  // namespace millrace
