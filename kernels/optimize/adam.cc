#include <array>

#include "kernels/optimize/registry.h"

namespace millrace {
namespace {

// [Adam15, algorithm 1].
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.999;
constexpr double kAdamEpsilon = 1e-8;

constexpr std::array<OptimizerParameter, 4> kAdamParameters = {{
    {"rate", &OptimizerSpec::rate, OptimizerParameter::Range::kAboveZero, std::nullopt},
    {"beta 1", &OptimizerSpec::momentum, OptimizerParameter::Range::kShare, kBeta1},
    {"beta 2", &OptimizerSpec::decay, OptimizerParameter::Range::kShare, kBeta2},
    {"epsilon", &OptimizerSpec::epsilon, OptimizerParameter::Range::kAboveZero, kAdamEpsilon},
}};

/// base^exponent by squaring: the same bits on every machine, which std::pow does not promise.
double power(double base, uint64_t exponent) {
  double result = 1;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result *= base;
    base *= base;
  }
  return result;
}

bool step_of_adam(const OptimizerStep& step) {
  const std::span<float> weights = step.arrays.weights;
  const std::span<float> first = step.arrays.states[0];
  const std::span<float> second = step.arrays.states[1];
  const float per_sum = step.per_sum();
  const float rate = step.rate();
  const float epsilon = static_cast<float>(step.spec.epsilon);
  const float beta1 = static_cast<float>(step.spec.momentum);
  const float beta2 = static_cast<float>(step.spec.decay);
  const float new1 = 1 - beta1;
  const float new2 = 1 - beta2;
  const float correct1 = static_cast<float>(1 / (1 - power(static_cast<double>(beta1), step.step + 1)));
  const float correct2 = static_cast<float>(1 / (1 - power(static_cast<double>(beta2), step.step + 1)));
  return for_each_touched(step, [&](size_t index, float value) {
    const float gradient = per_sum * value;
    first[index] = beta1 * first[index] + new1 * gradient;
    second[index] = beta2 * second[index] + new2 * (gradient * gradient);
    const float root = std::sqrt(correct2 * second[index]) + epsilon;
    weights[index] -= rate * (correct1 * first[index]) / root;
    return std::isfinite(weights[index]) && std::isfinite(first[index]) && std::isfinite(second[index]);
  });
}

}  // namespace

OptimizerEntry adam_optimizer() {
  return {{Optimizer::kAdam, "adam", "adam:RATE[:BETA1[:BETA2[:EPSILON]]]",
           "[Adam15, algorithm 1]; lazy as torch.optim.SparseAdam",
           "moments of g and g^2, bias-corrected; w -= rate m / (sqrt(v) + epsilon)", 2},
          kAdamParameters,
          step_of_adam};
}

}  // namespace millrace
