#include <array>

#include "kernels/optimize/registry.h"

namespace millrace {
namespace {

constexpr double kAdagradEpsilon = 1e-10;  // torch.optim.Adagrad's

constexpr std::array<OptimizerParameter, 2> kAdagradParameters = {{
    {"rate", &OptimizerSpec::rate, OptimizerParameter::Range::kAboveZero, std::nullopt},
    {"epsilon", &OptimizerSpec::epsilon, OptimizerParameter::Range::kAboveZero, kAdagradEpsilon},
}};

bool step_of_adagrad(const OptimizerStep& step) {
  const std::span<float> weights = step.arrays.weights;
  const std::span<float> squares = step.arrays.states[0];
  const float per_sum = step.per_sum();
  const float rate = step.rate();
  const float epsilon = static_cast<float>(step.spec.epsilon);
  return for_each_touched(step, [&](size_t index, float value) {
    const float gradient = per_sum * value;
    squares[index] += gradient * gradient;
    weights[index] -= rate * gradient / (std::sqrt(squares[index]) + epsilon);
    return std::isfinite(weights[index]) && std::isfinite(squares[index]);
  });
}

}  // namespace

OptimizerEntry adagrad_optimizer() {
  return {{Optimizer::kAdagrad, "adagrad", "adagrad:RATE[:EPSILON]", "[Adagrad11, figure 1], diagonal",
           "a += g^2; w -= rate g / (sqrt(a) + epsilon)", 1},
          kAdagradParameters,
          step_of_adagrad};
}

}  // namespace millrace
