#pragma once

#include <cstdint>
#include <optional>

#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/magnitude/tail_sums.h"

namespace millrace {

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

}  // namespace millrace
