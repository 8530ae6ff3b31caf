#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "worker/training/model/rate_schedule.h"

namespace millrace::training {

struct DescentOptions {
  RateSchedule schedule;  ///< by the whole epochs that have passed
  double l2 = 0;          ///< REQUIRES: schedule.rate * l2 < 1
  uint64_t steps_per_epoch = 1;
  uint32_t epochs = 1;
  uint64_t intercept = 0;  ///< index of the parameter that is not shrunk
};

/// Computes the changes of a LinearModel's parameters in a step of mini-batch SGD with L2, beside adding the sum of the
/// gradients. A function of the step's number. So a worker that joins later applies every step as the others have, to
/// the bit.
///
/// Threads  any: nothing changes after the constructor.
class Descent {
 public:
  explicit Descent(const DescentOptions& options);

  double rate(uint64_t step) const;
  /// Returns LinearModel::scale() after `steps` steps.
  float scale_after(uint64_t steps) const;
  /// Returns whether the common factor goes into the values before that step: LinearModel's values change by 2^-40 at
  /// once then.
  bool folds_before(uint64_t steps) const { return shrinking_after(steps).folds > 0; }
  /// Prepares the values [begin, begin + run.size()) for the addition of a step's sum. The intercept keeps its value
  /// under the new scale; where the scale has become small, it is multiplied into the values. Returns the factor of the
  /// sum.
  float before_step(uint64_t step, uint64_t begin, std::span<float> run) const;
  /// Returns the result of before_step() for every step, where that is one number and nothing else is done; steps may
  /// be merged then.
  std::optional<float> constant_factor() const;

 private:
  /// Holds a factor in (0, 1] without underflow: mantissa * 2^exponent, mantissa in [0.5, 1).
  struct Scaled {
    double mantissa = 0.5;
    int64_t exponent = 1;
    Scaled times(const Scaled& other) const;
    Scaled power(uint64_t count) const;
  };
  struct Shrinking {
    float scale = 1;
    int64_t folds = 0;  ///< times 2^-40 that are in the values
  };
  static Scaled scaled(double factor);
  double rate_of_epoch(uint64_t epoch) const;
  uint64_t epoch_of(uint64_t step) const;
  Shrinking shrinking_after(uint64_t steps) const;

  DescentOptions options_;
  std::vector<Scaled> at_epoch_;  ///< by what all weights are shrunk when an epoch begins
};

}  // namespace millrace::training
