#include "kernels/optimize/optimize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/optimize/dense.h"
#include "kernels/reduce/reduce.h"
#include "tests/support/oracles/optimizer_oracle.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using testing::OptimizerOracle;

constexpr const char* kTexts[] = {"sgd:0.1", "momentum:0.1:0.9", "adagrad:0.1:1e-10", "adam:0.001:0.9:0.999:1e-08"};

OptimizerSpec spec_of(std::string_view text) {
  const auto spec = optimizer_from_text(text);
  EXPECT_TRUE(spec.has_value()) << spec.error().message;
  return spec.value_or(OptimizerSpec{});
}

/// Weights and state as the store has them.
struct Arrays {
  Arrays(const OptimizerSpec& spec_, std::vector<float> weights_) : spec(spec_), weights(std::move(weights_)) {
    for (size_t at = 0; at < optimizer_states(spec.optimizer); ++at) states[at].resize(weights.size());
  }
  Status step(const StreamView& sum, double denominator) {
    OptimizerArrays arrays{weights, {}};
    for (size_t at = 0; at < states.size(); ++at) arrays.states[at] = states[at];
    return optimize(spec, arrays, sum, denominator, steps++);
  }
  Status step_all(const StreamView& sum, double denominator) {
    OptimizerArrays arrays{weights, {}};
    for (size_t at = 0; at < states.size(); ++at) arrays.states[at] = states[at];
    return optimize_dense(spec, arrays, sum, denominator, steps++);
  }
  OptimizerSpec spec;
  std::vector<float> weights;
  std::array<std::vector<float>, kOptimizerStatesMax> states;
  uint64_t steps = 0;
};

Stream sparse_of(const std::map<uint32_t, float>& entries, uint64_t dimension) {
  Stream stream = Stream::empty(dimension);
  for (const auto& [index, value] : entries) {
    stream.indices.push_back(index);
    stream.values.push_back(value);
  }
  return stream;
}

bool optimize_same_bits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(a, b,
                            [](float x, float y) { return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y); });
}

std::vector<float> begun(size_t dimension, uint32_t seed) {
  RandomSequence random(random_key(seed, 0, 0));
  std::vector<float> weights(dimension);
  for (float& one : weights) one = static_cast<float>(static_cast<int>(random.next_below(2001)) - 1000) / 512;
  return weights;
}

/// Some entries of which some are explicit zeros.
std::map<uint32_t, float> random_sum(size_t dimension, double density, RandomSequence& random) {
  std::map<uint32_t, float> sum;
  for (uint32_t index = 0; index < dimension; ++index) {
    if (random.next_unit() >= density) continue;
    sum[index] = static_cast<float>(static_cast<int>(random.next_below(17)) - 8) * 0.3F;
  }
  return sum;
}

TEST(Optimize, EveryRuleIsTheOracleToTheBit) {
  for (const char* text : kTexts) {
    for (const size_t dimension : {1, 7, 64, 1000}) {
      for (const double density : {0.0, 0.05, 0.5, 1.0}) {
        RandomSequence random(random_key(dimension, 1, 0));
        Arrays arrays(spec_of(text), begun(dimension, 3));
        OptimizerOracle oracle(arrays.spec, arrays.weights);
        for (uint64_t step = 0; step < 20; ++step) {
          const std::map<uint32_t, float> sum = random_sum(dimension, density, random);
          const double denominator = step % 2 == 0 ? 3 : 4;
          const Stream stream = sparse_of(sum, dimension);
          ASSERT_TRUE(arrays.step(stream.view(), denominator).has_value());
          oracle.step(sum, denominator);
        }
        EXPECT_TRUE(optimize_same_bits(arrays.weights, oracle.weights()))
            << text << ", " << dimension << ", " << density;
        const size_t states = optimizer_states(arrays.spec.optimizer);
        EXPECT_TRUE(states < 1 || optimize_same_bits(arrays.states[0], oracle.first())) << text;
        EXPECT_TRUE(states < 2 || optimize_same_bits(arrays.states[1], oracle.second())) << text;
      }
    }
  }
}

TEST(Optimize, TheFormOfTheStreamChangesNoBit) {
  for (const char* text : kTexts) {
    RandomSequence random(random_key(11, 0, 0));
    Arrays sparse(spec_of(text), begun(200, 5));
    Arrays dense = sparse;
    for (uint64_t step = 0; step < 10; ++step) {
      const Stream sum = sparse_of(random_sum(200, 0.3, random), 200);
      ASSERT_TRUE(sparse.step(sum.view(), 2).has_value());
      ASSERT_TRUE(dense.step(to_dense(sum.view()).view(), 2).has_value());
    }
    EXPECT_TRUE(optimize_same_bits(sparse.weights, dense.weights)) << text;
    EXPECT_TRUE(optimize_same_bits(sparse.states[0], dense.states[0])) << text;
    EXPECT_TRUE(optimize_same_bits(sparse.states[1], dense.states[1])) << text;
  }
}

TEST(Optimize, EntriesThatTheSumOmitsStayUnchanged) {
  for (const char* text : kTexts) {
    Arrays arrays(spec_of(text), {1, 2, 3});
    ASSERT_TRUE(arrays.step(sparse_of({{0, 1.0F}, {1, 1.0F}}, 3).view(), 1).has_value());
    const Arrays before = arrays;
    ASSERT_TRUE(arrays.step(sparse_of({{1, 1.0F}, {2, 0.0F}}, 3).view(), 1).has_value());
    for (const size_t index : {0, 2}) {
      EXPECT_EQ(arrays.weights[index], before.weights[index]) << text;
      for (size_t at = 0; at < optimizer_states(arrays.spec.optimizer); ++at)
        EXPECT_EQ(arrays.states[at][index], before.states[at][index]) << text << ": also a carried 0";
    }
    EXPECT_NE(arrays.weights[1], before.weights[1]) << text;
    EXPECT_EQ(arrays.weights[2], 3.0F) << text;
  }
}

TEST(OptimizeDense, EveryRuleIsTheOracleOfAllEntriesToTheBitInEitherForm) {
  for (const char* text : kTexts) {
    for (const double density : {0.0, 0.05, 0.5, 1.0}) {
      RandomSequence random(random_key(17, 2, 0));
      Arrays sparse(spec_of(text), begun(200, 4));
      Arrays dense = sparse;
      OptimizerOracle oracle(sparse.spec, sparse.weights);
      for (uint64_t step = 0; step < 20; ++step) {
        const std::map<uint32_t, float> sum = random_sum(200, density, random);
        const Stream stream = sparse_of(sum, 200);
        ASSERT_TRUE(sparse.step_all(stream.view(), 3).has_value());
        ASSERT_TRUE(dense.step_all(to_dense(stream.view()).view(), 3).has_value());
        oracle.step_all(sum, 3);
      }
      for (const Arrays* arrays : {&sparse, &dense}) {
        EXPECT_TRUE(optimize_same_bits(arrays->weights, oracle.weights())) << text << ", " << density;
        const size_t states = optimizer_states(arrays->spec.optimizer);
        EXPECT_TRUE(states < 1 || optimize_same_bits(arrays->states[0], oracle.first())) << text;
        EXPECT_TRUE(states < 2 || optimize_same_bits(arrays->states[1], oracle.second())) << text;
      }
    }
  }
}

TEST(OptimizeDense, EntriesThatTheSumOmitsMoveByTheirMomentum) {
  for (const char* text : kTexts) {
    Arrays arrays(spec_of(text), {1, 2});
    ASSERT_TRUE(arrays.step_all(sparse_of({{0, 1.0F}}, 2).view(), 1).has_value());
    EXPECT_EQ(arrays.weights[1], 2) << text;
    const float before = arrays.weights[0];
    ASSERT_TRUE(arrays.step_all(sparse_of({{1, 1.0F}}, 2).view(), 1).has_value());
    const bool has_momentum = arrays.spec.momentum > 0;
    EXPECT_EQ(arrays.weights[0] < before, has_momentum) << text;
  }
}

TEST(Optimize, SgdIsAnUpdateScaledByMinusTheRate) {
  RandomSequence random(random_key(1, 0, 0));
  for (const double rate : {0.1, 0.5, 1.0 / 3}) {
    for (const double denominator : {1.0, 3.0, 7.0}) {
      Arrays arrays(spec_of("sgd:" + std::to_string(rate)), begun(500, 9));
      std::vector<float> plain = arrays.weights;
      const Stream sum = sparse_of(random_sum(500, 0.4, random), 500);
      ASSERT_TRUE(arrays.step(sum.view(), denominator).has_value());
      const float scale = -static_cast<float>(arrays.spec.rate);
      add_scaled(plain, sum.view(), static_cast<float>(static_cast<double>(scale) / denominator));
      EXPECT_TRUE(optimize_same_bits(arrays.weights, plain)) << rate << ", " << denominator;
    }
  }
}

// One weight, three gradients, in f64 with the formulas of the papers.
TEST(Optimize, WorkedNumbers) {
  const double g[] = {0.5, -1, 2};
  const auto after = [&g](const char* text) {
    Arrays arrays(spec_of(text), {1});
    for (const double one : g) {
      const Stream sum = sparse_of({{0, static_cast<float>(2 * one)}}, 1);
      EXPECT_TRUE(arrays.step(sum.view(), 2).has_value());
    }
    return static_cast<double>(arrays.weights[0]);
  };
  EXPECT_EQ(after("sgd:0.5"), 1 - 0.5 * (0.5 - 1 + 2));
  const double v2 = 0.5 * 0.5 - 1;
  EXPECT_EQ(after("momentum:0.5:0.5"), 1 - 0.5 * (0.5 + v2 + (0.5 * v2 + 2)));
  double w = 1;
  double a = 0;
  for (const double one : g) {
    a += one * one;
    w -= 0.1 * one / (std::sqrt(a) + 1e-10);
  }
  EXPECT_NEAR(after("adagrad:0.1:1e-10"), w, 1e-6);
  w = 1;
  double m = 0;
  double v = 0;
  for (int t = 1; t <= 3; ++t) {
    m = 0.9 * m + 0.1 * g[t - 1];
    v = 0.999 * v + 0.001 * g[t - 1] * g[t - 1];
    w -= 0.1 * (m / (1 - std::pow(0.9, t))) / (std::sqrt(v / (1 - std::pow(0.999, t))) + 1e-8);
  }
  EXPECT_NEAR(after("adam:0.1:0.9:0.999:1e-8"), w, 1e-5);
}

TEST(Optimize, AdamsFirstStepIsTheRateInTheGradientsDirection) {
  for (const float gradient : {1e-3F, 1.0F, 1e3F}) {
    Arrays arrays(spec_of("adam:0.125"), {0, 0});
    ASSERT_TRUE(arrays.step(sparse_of({{0, gradient}, {1, -gradient}}, 2).view(), 1).has_value());
    EXPECT_NEAR(arrays.weights[0], -0.125F, 1e-5F) << gradient;
    EXPECT_EQ(arrays.weights[1], -arrays.weights[0]) << gradient;
  }
}

TEST(Optimize, OverflowIsAnError) {
  const float large = std::numeric_limits<float>::max();
  for (const char* text : {"sgd:2", "momentum:2:0.9", "adagrad:0.1", "adam:0.1"}) {
    for (const bool dense : {false, true}) {
      Arrays arrays(spec_of(text), {0, 0});
      const Stream sum = sparse_of({{0, 1.0F}, {1, large}}, 2);
      const Stream form = dense ? to_dense(sum.view()) : to_sparse(sum.view());
      const Status done = arrays.step(form.view(), 1);
      ASSERT_FALSE(done.has_value()) << text;
      EXPECT_EQ(done.error().code, ErrorCode::kNonFinite) << text;
    }
  }
}

TEST(OptimizerText, EveryRuleIsReadAndWritten) {
  for (const char* text : kTexts) EXPECT_EQ(optimizer_text(spec_of(text)), text);
  EXPECT_EQ(optimizer_text(spec_of("none")), "none");
  EXPECT_EQ(spec_of("momentum:0.1"), spec_of("momentum:0.1:0.9"));
  EXPECT_EQ(spec_of("adagrad:0.1"), spec_of("adagrad:0.1:1e-10"));
  EXPECT_EQ(spec_of("adam:0.1"), spec_of("adam:0.1:0.9:0.999:1e-8"));
  EXPECT_EQ(spec_of("adam:0.1:0.5"), spec_of("adam:0.1:0.5:0.999:1e-8"));
  for (const OptimizerInfo& info : optimizers()) EXPECT_EQ(optimizer_name(info.optimizer), info.name);
}

TEST(OptimizerText, WhatCannotBeIsRefusedWithTheReason) {
  const auto reason = [](std::string_view text) {
    const auto spec = optimizer_from_text(text);
    EXPECT_FALSE(spec.has_value()) << text;
    return spec ? std::string() : spec.error().message;
  };
  EXPECT_THAT(reason("adamw:0.1"), HasSubstr("known are none, sgd:RATE"));
  EXPECT_THAT(reason("sgd:0.1:0.9"), HasSubstr("is not an optimizer"));
  EXPECT_THAT(reason("none:1"), HasSubstr("is not an optimizer"));
  for (const char* text : {"sgd", "sgd:", "sgd:x", "sgd:0.1x", "momentum:0.1:"}) {
    EXPECT_THAT(reason(text), HasSubstr("is not a number")) << text;
  }
  for (const char* text : {"sgd:0", "sgd:-1", "sgd:nan", "sgd:inf", "sgd:1e300", "sgd:1e-300"}) {
    EXPECT_THAT(reason(text), HasSubstr("rate must be finite and above 0")) << text;
  }
  EXPECT_THAT(reason("momentum:0.1:1"), HasSubstr("momentum must be in [0, 1)"));
  EXPECT_THAT(reason("momentum:0.1:0.99999999999"), HasSubstr("in f32 too")) << "1 in f32";
  EXPECT_THAT(reason("adam:0.1:0.9:-0.1"), HasSubstr("beta 2 must be in [0, 1)"));
  EXPECT_THAT(reason("adagrad:0.1:0"), HasSubstr("epsilon must be finite and above 0"));
  EXPECT_THAT(reason("adam:0.1:0.9:0.999:1e-60"), HasSubstr("epsilon must be finite and above 0"));
}

TEST(OptimizerText, ParametersOfAnotherRuleAreRefused) {
  OptimizerSpec spec = spec_of("sgd:0.1");
  spec.momentum = 0.5;
  EXPECT_FALSE(validate(spec).has_value());
  spec = {};
  spec.rate = 0.1;
  EXPECT_FALSE(validate(spec).has_value());
  spec = {};
  spec.optimizer = static_cast<Optimizer>(9);
  EXPECT_EQ(validate(spec).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(optimizer_name(spec.optimizer), "unknown");
}

}  // namespace
}  // namespace millrace
