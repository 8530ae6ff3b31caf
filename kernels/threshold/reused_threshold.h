#pragma once

#include <cstdint>

#include "kernels/base/retained.h"
#include "kernels/magnitude/magnitude_scan.h"

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
/// The state is three numbers (retained()); without them a step evaluates exactly.
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

  Retained retained() const;
  /// Errors  invalid_argument. Nothing changes then.
  Status restore_retained(std::span<const uint64_t> retained);

 private:
  void follow(double over_k);

  uint32_t period_;
  float threshold_ = 0;
  double slope_ = 1;
  uint32_t steps_left_ = 0;  // that reuse the threshold; 0: evaluate
};

}  // namespace millrace
