#pragma once

#include <algorithm>
#include <span>

#include "kernels/quantize/sign_kernels.h"

namespace millrace {

/// Means of magnitudes by sign. A mean is never above the largest magnitude that it is of.
///
/// REQUIRES finite values.
struct SignMeans {
  SignSums sums;

  static SignMeans of(std::span<const float> values) { return {sign_sums(values.data(), values.size())}; }

  /// Returns the mean: `sum` over `count` > 0 values, whose largest magnitude is `largest`.
  static float mean(double sum, uint64_t count, float largest) {
    return std::min(static_cast<float>(sum / static_cast<double>(count)), largest);
  }
};

}  // namespace millrace
