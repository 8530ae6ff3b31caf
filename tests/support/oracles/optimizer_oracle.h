#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/optimize/optimize.h"

namespace millrace::testing {

/// The rules of kernels/optimize, one weight at a time and as their papers write them: slow and obvious. Weights and
/// state of entries that were never touched keep their initial values.
class OptimizerOracle {
 public:
  OptimizerOracle(const OptimizerSpec& spec, std::vector<float> weights)
      : spec_(spec), weights_(std::move(weights)), first_(weights_.size()), second_(weights_.size()) {}

  /// One step with the gradient sum / denominator; absent entries and zeros are not touched.
  void step(const std::map<uint32_t, float>& sum, double denominator) {
    ++steps_;
    for (const auto& [index, value] : sum) {
      if (value != 0) touch(index, value, denominator);
    }
  }

  /// One step of all entries: those that are absent have a gradient of 0.
  void step_all(const std::map<uint32_t, float>& sum, double denominator) {
    ++steps_;
    for (uint32_t index = 0; index < weights_.size(); ++index) {
      touch(index, sum.contains(index) ? sum.at(index) : 0.0F, denominator);
    }
  }

  const std::vector<float>& weights() const { return weights_; }
  const std::vector<float>& first() const { return first_; }    ///< velocity, sum of squares, first moment
  const std::vector<float>& second() const { return second_; }  ///< second moment

 private:
  void touch(uint32_t index, float value, double denominator) {
    float& w = weights_.at(index);
    float& a = first_.at(index);
    float& b = second_.at(index);
    const float rate = static_cast<float>(spec_.rate);
    const float g = static_cast<float>(1 / denominator) * value;
    const float epsilon = static_cast<float>(spec_.epsilon);
    const float beta1 = static_cast<float>(spec_.momentum);
    const float beta2 = static_cast<float>(spec_.decay);
    switch (spec_.optimizer) {
      case Optimizer::kNone: return;
      case Optimizer::kSgd: w = w + static_cast<float>(-static_cast<double>(rate) / denominator) * value; return;
      case Optimizer::kMomentum:
        a = beta1 * a + g;
        w = w - rate * a;
        return;
      case Optimizer::kAdagrad:
        a = a + g * g;
        w = w - rate * g / (std::sqrt(a) + epsilon);
        return;
      case Optimizer::kAdam:
        a = beta1 * a + (1 - beta1) * g;
        b = beta2 * b + (1 - beta2) * (g * g);
        w = w - rate * (correction(beta1) * a) / (std::sqrt(correction(beta2) * b) + epsilon);
        return;
    }
  }
  float correction(float beta) const {
    // The product in the order in which squaring makes it.
    double power = 1;
    double square = static_cast<double>(beta);
    for (uint64_t left = steps_; left != 0; left /= 2, square *= square) power *= left % 2 == 1 ? square : 1;
    return static_cast<float>(1 / (1 - power));
  }

  OptimizerSpec spec_;
  std::vector<float> weights_;
  std::vector<float> first_;
  std::vector<float> second_;
  uint64_t steps_ = 0;
};

}  // namespace millrace::testing
