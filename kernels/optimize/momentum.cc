#include <array>

#include "kernels/optimize/registry.h"

namespace millrace {
namespace {

constexpr double kMomentum = 0.9;  // [Sutskever13, 3], and most later work

constexpr std::array<OptimizerParameter, 2> kMomentumParameters = {{
    {"rate", &OptimizerSpec::rate, OptimizerParameter::Range::kAboveZero, std::nullopt},
    {"momentum", &OptimizerSpec::momentum, OptimizerParameter::Range::kShare, kMomentum},
}};

bool step_of_momentum(const OptimizerStep& step) {
  const std::span<float> weights = step.arrays.weights;
  const std::span<float> velocity = step.arrays.states[0];
  const float per_sum = step.per_sum();
  const float rate = step.rate();
  const float left = static_cast<float>(step.spec.momentum);
  return for_each_touched(step, [&](size_t index, float value) {
    velocity[index] = left * velocity[index] + per_sum * value;
    weights[index] -= rate * velocity[index];
    return std::isfinite(weights[index]) && std::isfinite(velocity[index]);
  });
}

}  // namespace

OptimizerEntry momentum_optimizer() {
  return {{Optimizer::kMomentum, "momentum", "momentum:RATE[:MOMENTUM]",
           "[Polyak64], with the rate outside of the velocity", "v = momentum v + g; w -= rate v", 1},
          kMomentumParameters,
          step_of_momentum};
}

}  // namespace millrace
