#pragma once

#include <cstdint>

#include "kernels/base/retained.h"
#include "kernels/magnitude/magnitude_scan.h"

namespace millrace {

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

  Retained retained() const { return {key_, steps_left_}; }
  /// Errors  invalid_argument. Nothing changes then.
  Status restore_retained(std::span<const uint64_t> retained) {
    RetainedReader reader(retained);
    const auto key = static_cast<MagnitudeKey>(reader.next(0, kInfinityKey - 1));
    const auto steps_left = static_cast<uint32_t>(reader.next(0, key == 0 ? 0 : period_ - 1));
    if (Status status = reader.end(); !status) return status;
    key_ = key;
    steps_left_ = steps_left;
    return {};
  }

 private:
  uint32_t period_;
  MagnitudeKey key_ = 0;
  uint32_t steps_left_ = 0;  // that reuse the threshold; 0: search
};

}  // namespace millrace
