#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/base/clock.h"

namespace millrace::timeline {

/// Estimates the distance between another process's clock and this one's, from requests and their answers.
///
/// The other clock was read between a request and its answer. So the midpoint of both is wrong by half of the round
/// trip at most. The request with the shortest round trip gives the offset.
class ClockAlignment {
 public:
  /// Takes one request: this clock before and after it, and the other clock as the answer has it.
  void add(TimeNs asked, TimeNs answered, TimeNs said) {
    const TimeNs half = (answered - asked + 1) / 2;
    samples_.push_back({said - (asked + (answered - asked) / 2), half});
    if (half < samples_[best_].half) best_ = samples_.size() - 1;
  }

  bool known() const { return !samples_.empty(); }
  /// Returns the other clock minus this one. REQUIRES: known().
  TimeNs offset() const { return samples_[best_].offset; }
  /// Returns the bound of the offset's error over the time of all requests. It is half of the shortest round trip, or
  /// more where another request proves that the clocks drifted apart. REQUIRES: known().
  TimeNs error() const {
    TimeNs bound = samples_[best_].half;
    for (const Sample& sample : samples_) {
      const TimeNs apart = sample.offset - offset();
      bound = std::max(bound, std::max(apart, -apart) - sample.half);
    }
    return bound;
  }
  TimeNs to_own(TimeNs other) const { return other - offset(); }

 private:
  struct Sample {
    TimeNs offset = 0;
    TimeNs half = 0;  ///< of the round trip
  };
  std::vector<Sample> samples_;
  size_t best_ = 0;
};

}  // namespace millrace::timeline
