#pragma once

#include <cmath>
#include <limits>

namespace millrace {

/// Returns the largest f32 that does not exceed the mean of a bucket's bounds, so that means increase as bounds do.
inline float mean_rounded_down(float low, float high) {
  const double mean = (static_cast<double>(low) + static_cast<double>(high)) / 2;
  const auto rounded = static_cast<float>(mean);
  const bool is_over = static_cast<double>(rounded) > mean;
  return is_over ? std::nextafter(rounded, -std::numeric_limits<float>::infinity()) : rounded;
}

}  // namespace millrace
