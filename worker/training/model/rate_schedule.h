#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/result.h"

namespace millrace::training {

/// Says how the learning rate decreases over the epochs that have passed, t. It is a fraction: steps over the steps of
/// an epoch, so that it does not depend on the number of ranks.
enum class RateForm : uint8_t {
  kConstant = 1,     ///< rate
  kInverse = 2,      ///< rate / (1 + t / epochs)
  kInverseSqrt = 3,  ///< rate / sqrt(1 + t / epochs)
  kStep = 4,         ///< rate * factor^floor(t / epochs)
};

struct RateSchedule {
  RateForm form = RateForm::kConstant;
  double rate = 1;
  double epochs = 1;    ///< until the rate has halved, is over the square root of 2, or goes down a step
  double factor = 0.5;  ///< of kStep

  /// Returns the rate, never above `rate`; a function of its arguments, the same bits on every rank of one machine
  /// type.
  double at(double epochs_passed) const;
};

/// Parses "constant", "inverse[:EPOCHS]", "inverse_sqrt[:EPOCHS]" or "step[:FACTOR[:EPOCHS]]".
///
/// Errors   invalid_argument: another word, epochs not positive, a factor outside (0, 1].
Result<RateSchedule> rate_schedule_from_text(std::string_view text, double rate);
std::string rate_schedule_text(const RateSchedule& schedule);

}  // namespace millrace::training
