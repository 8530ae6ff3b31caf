#pragma once

#include <cstdint>

#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/magnitude/tail_sums.h"

namespace millrace {

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
