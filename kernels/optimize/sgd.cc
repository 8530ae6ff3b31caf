#include <array>

#include "kernels/optimize/registry.h"

namespace millrace {
namespace {

constexpr std::array<OptimizerParameter, 1> kSgdParameters = {{
    {"rate", &OptimizerSpec::rate, OptimizerParameter::Range::kAboveZero, std::nullopt},
}};

bool step_of_sgd(const OptimizerStep& step) {
  const std::span<float> weights = step.arrays.weights;
  // As a worker applies an update with the scale -rate: the same bits.
  const float factor = static_cast<float>(-static_cast<double>(step.rate()) / step.denominator);
  return for_each_touched(step, [&](size_t index, float value) {
    weights[index] += factor * value;
    return std::isfinite(weights[index]);
  });
}

}  // namespace

OptimizerEntry sgd_optimizer() {
  return {{Optimizer::kSgd, "sgd", "sgd:RATE", "[RobbinsMonro51]", "w -= rate g", 0}, kSgdParameters, step_of_sgd};
}

}  // namespace millrace
