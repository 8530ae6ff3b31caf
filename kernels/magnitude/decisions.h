#pragma once

#include <cstdint>
#include <optional>

#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/magnitude/tail_sums.h"

/// Decisions of selections from counts and sums, apart from their passes over the values. kernels/cuda has passes of
/// its own, and the same decisions.
namespace millrace {

/// Holds the threshold of `threshold_reuse` from step to step.
///
/// The paper reuses it unchanged. Then a scale that grows by 1 % a step selects 8 % more entries each step (Gaussian, 1
/// % density), twice k after ten. So after a step whose count is off, the count moves the threshold. Near the threshold
/// the count falls as threshold^-slope, with the slope measured at the exact evaluation. The rest is bounds:
///
///   - count over 2k or under k/2        the exact top-k is taken at once (and memory stays within O(k))
///   - count outside [3/4 k, 4/3 k]      the next step evaluates exactly
///
/// The state is three numbers; without them a step evaluates exactly.
class ReusedThreshold {
 public:
  explicit ReusedThreshold(uint32_t period) : period_(period) {}

  /// Returns whether this step evaluates exactly.
  bool is_due() const { return steps_left_ == 0; }
  /// Returns the key of the threshold. REQUIRES: !is_due().
  MagnitudeKey key() const { return magnitude_key(threshold_); }
  /// Returns the most entries that a reused threshold may select.
  static uint64_t count_max(uint64_t k) { return 2 * k; }
  /// Returns the rank whose key keep() measures the slope with; k: no slope is measured.
  static uint64_t inner_rank(uint64_t k);

  /// Ends a step whose `count` entries reach the key, and moves the threshold. Returns false, and changes nothing,
  /// where the step must evaluate exactly.
  bool accept(uint64_t count, uint64_t k);
  /// Ends an exact evaluation. at, inner: the keys of ranks k and inner_rank(k), neither of them 0.
  void keep(uint64_t k, MagnitudeKey at, MagnitudeKey inner);
  /// Ends an exact evaluation that found fewer than k entries: there is no threshold that is worth keeping.
  void forget();

 private:
  void follow(double over_k);

  uint32_t period_;
  float threshold_ = 0;
  double slope_ = 1;
  uint32_t steps_left_ = 0;  // that reuse the threshold; 0: evaluate
};

/// Holds the threshold of `sampled` from step to step.
///
/// The paper does not bound the number of entries over a reused threshold. Over 4k entries, or under k/2, it is
/// searched at once. So memory stays within O(k), and no step sends nothing.
class SampledThreshold {
 public:
  explicit SampledThreshold(uint32_t period) : period_(period) {}

  /// Returns whether this step searches a threshold.
  bool is_due() const { return steps_left_ == 0; }
  /// Returns the key of the threshold. REQUIRES: !is_due().
  MagnitudeKey key() const { return key_; }
  /// Returns the most entries that a reused threshold may select.
  static uint64_t count_max(uint64_t k) { return 4 * k; }

  /// Ends a step whose `count` entries reach the key. Returns false, and changes nothing, where it must search.
  bool accept(uint64_t count, uint64_t k) {
    if (count > count_max(k) || 2 * count < k) return false;
    --steps_left_;
    return true;
  }
  /// Ends a step that searched. A key of 0 is no threshold: there is nothing to reuse.
  void keep(MagnitudeKey key) {
    key_ = key;
    steps_left_ = key == 0 ? 0 : period_ - 1;
  }

 private:
  uint32_t period_;
  MagnitudeKey key_ = 0;
  uint32_t steps_left_ = 0;  // that reuse the threshold; 0: search
};

/// Returns the key that the k largest of n normal values would reach, of the mean and deviation of `sums`.
MagnitudeKey normal_key(const TailSums& sums, uint64_t n, uint64_t k);

/// Searches a threshold that 3k/4 to 2k of n entries reach: scales a first guess up or down until then.
class GaussianSearch {
 public:
  GaussianSearch(MagnitudeKey first, uint64_t n, uint64_t k) : n_(n), k_(k), key_(first) {}

  /// Returns whether another threshold is to be tried. If not, exactly k entries are selected.
  bool goes_on() const { return tried_ < kThresholdsMax && too_low_ < key_ && key_ < too_high_; }
  /// Returns the key to try.
  MagnitudeKey key() const { return key_; }
  /// Returns the most entries that a threshold may select.
  uint64_t count_max() const { return 2 * k_; }
  /// Takes the number of entries that reach the key; empty: more than count_max(). Returns whether they are selected.
  bool accept(std::optional<uint64_t> count);

 private:
  // Thresholds that are tried; then the exact top-k is taken (ties, mostly: no threshold gives about k).
  static constexpr int kThresholdsMax = 16;

  double down(uint64_t found) const;

  uint64_t n_;
  uint64_t k_;
  MagnitudeKey key_;
  MagnitudeKey too_low_ = 0;              // leaves more than 2k
  MagnitudeKey too_high_ = kInfinityKey;  // leaves fewer than 3k/4
  int tried_ = 0;
};

/// Iterates to the magnitude that `gspar` draws by. Each iteration needs the sums of the values below key().
class GsparMagnitude {
 public:
  /// sum  of all magnitudes.
  GsparMagnitude(double sum, uint64_t k, uint32_t iterations)
      : k_(k), iterations_left_(iterations), magnitude_(sum / static_cast<double>(k)) {}

  bool goes_on() const { return iterations_left_ > 0; }
  MagnitudeKey key() const { return magnitude_key(value()); }
  void take(const TailSums& tail);
  /// Returns the magnitude, positive and finite.
  float value() const;

 private:
  uint64_t k_;
  uint32_t iterations_left_;
  double magnitude_;
};

}  // namespace millrace
