#include "worker/training/model/descent.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace millrace::training {
namespace {

/// The scale stays above 2^-40: f32 has room for values that are 2^40 times as large.
constexpr int kFoldBits = 40;

}  // namespace

Descent::Scaled Descent::scaled(double factor) {
  int exponent = 0;
  const double mantissa = std::frexp(factor, &exponent);
  return {mantissa, exponent};
}

Descent::Scaled Descent::Scaled::times(const Scaled& other) const {
  Scaled product = scaled(mantissa * other.mantissa);
  product.exponent += exponent + other.exponent;
  return product;
}

// Multiplications alone, so that every machine gets the same bits.
Descent::Scaled Descent::Scaled::power(uint64_t count) const {
  Scaled result;
  for (Scaled square = *this; count > 0; count >>= 1, square = square.times(square)) {
    if ((count & 1) != 0) result = result.times(square);
  }
  return result;
}

Descent::Descent(const DescentOptions& options) : options_(options) {
  MILLRACE_CHECK(options_.steps_per_epoch > 0 && options_.epochs > 0, options_.steps_per_epoch, options_.epochs);
  if (options_.l2 == 0) return;
  at_epoch_.reserve(options_.epochs);
  at_epoch_.push_back({});
  for (uint32_t epoch = 0; epoch + 1 < options_.epochs; ++epoch) {
    const Scaled step = scaled(1 - rate_of_epoch(epoch) * options_.l2);
    at_epoch_.push_back(at_epoch_.back().times(step.power(options_.steps_per_epoch)));
  }
}

double Descent::rate_of_epoch(uint64_t epoch) const { return options_.schedule.at(static_cast<double>(epoch)); }

uint64_t Descent::epoch_of(uint64_t step) const {
  return std::min<uint64_t>(step / options_.steps_per_epoch, options_.epochs - 1);
}

double Descent::rate(uint64_t step) const { return rate_of_epoch(epoch_of(step)); }

Descent::Shrinking Descent::shrinking_after(uint64_t steps) const {
  if (options_.l2 == 0 || steps == 0) return {};
  const uint64_t epoch = epoch_of(steps - 1);
  const Scaled step = scaled(1 - rate_of_epoch(epoch) * options_.l2);
  const Scaled all = at_epoch_[epoch].times(step.power(steps - epoch * options_.steps_per_epoch));
  Shrinking shrinking;
  shrinking.folds = -all.exponent / kFoldBits;
  shrinking.scale =
      static_cast<float>(std::ldexp(all.mantissa, static_cast<int>(all.exponent + shrinking.folds * kFoldBits)));
  return shrinking;
}

float Descent::scale_after(uint64_t steps) const { return shrinking_after(steps).scale; }

float Descent::before_step(uint64_t step, uint64_t begin, std::span<float> run) const {
  const double rate_now = rate(step);
  if (options_.l2 == 0) return static_cast<float>(-rate_now);
  const Shrinking before = shrinking_after(step);
  const Shrinking after = shrinking_after(step + 1);
  const bool has_intercept = options_.intercept >= begin && options_.intercept - begin < run.size();
  const float intercept = has_intercept ? run[options_.intercept - begin] : 0;
  if (after.folds != before.folds) {
    const float fold = std::ldexp(1.0F, static_cast<int>(kFoldBits * (before.folds - after.folds)));
    for (float& value : run) value *= fold;
  }
  if (has_intercept) {
    run[options_.intercept - begin] = static_cast<float>(
        static_cast<double>(intercept) * static_cast<double>(before.scale) / static_cast<double>(after.scale));
  }
  return static_cast<float>(-rate_now / static_cast<double>(after.scale));
}

std::optional<float> Descent::constant_factor() const {
  const bool one_rate = options_.schedule.form == RateForm::kConstant || options_.epochs == 1;
  return options_.l2 == 0 && one_rate ? std::optional(static_cast<float>(-options_.schedule.rate)) : std::nullopt;
}

}  // namespace millrace::training
