#pragma once

#include <cmath>

namespace millrace::testing {

/// The largest f32 that is not over the mean of two.
inline float mean_rounded_down(float low, float high) {
  const double mean = (static_cast<double>(low) + static_cast<double>(high)) / 2;
  auto rounded = static_cast<float>(mean);
  while (static_cast<double>(rounded) > mean) rounded = std::nextafter(rounded, low);
  return rounded;
}

}  // namespace millrace::testing
