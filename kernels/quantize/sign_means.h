#pragma once

#include <algorithm>
#include <span>

#include "kernels/quantize/sign_kernels.h"

namespace millrace {

/// Means of magnitudes by sign, for f32 and f64. A mean is never above the largest magnitude that it is of.
///
/// REQUIRES finite values.
struct SignMeans {
  SignSums sums;
  double factor = 1;  ///< of the sums

  /// largest   the largest magnitude of the values.
  template <typename T>
  static SignMeans of(std::span<const T> values, T largest) {
    if constexpr (sizeof(T) == sizeof(float)) {
      return {sign_sums(values.data(), values.size()), 1};
    } else {
      const double factor = largest > 0x1p900 ? 0x1p-100 : 1;  // 2^32 of them are below 2^1024
      return {sign_sums(values.data(), values.size(), factor), factor};
    }
  }

  /// `sum` over `count` > 0 values.
  template <typename T>
  T mean(double sum, uint64_t count, T largest) const {
    return std::min(static_cast<T>(sum / static_cast<double>(count) / factor), largest);
  }
};

}  // namespace millrace
