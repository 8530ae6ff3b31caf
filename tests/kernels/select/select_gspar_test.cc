#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "kernels/select/select.h"
#include "tests/support/oracles/draw_oracle.h"
#include "tests/support/oracles/select_oracle.h"

/// What [GSpar18] claims: algorithms 2 and 3, proposition 1, lemma 3 and theorem 4.
namespace millrace {
namespace {

using testing::closed_oracle;
using testing::draw_many;
using testing::DrawnSums;
using testing::exchanged;
using testing::greedy_oracle;
using testing::kPatterns;
using testing::Pattern;
using testing::Problem;
using testing::sum_of;
using testing::values_of;

Problem problem_of(const std::vector<float>& values) {
  Problem problem;
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
  // To a scale at which squares are numbers: probabilities do not change.
  const double unit = largest > 0 ? std::ldexp(1, std::clamp(-std::ilogb(largest), -1022, 1022)) : 1;
  for (const float value : values) problem.sizes.push_back(std::abs(static_cast<double>(value)) * unit);
  return problem;
}

/// What entries were drawn with, as their amplification says. Draws until one with p < 1 was drawn, `tries` times at
/// most.
struct Probabilities {
  std::vector<double> p;
  std::optional<float> magnitude;  ///< of those with p < 1
  bool known = true;               ///< false: some were never drawn, and no other says with which p they would be
};
Probabilities probabilities_of(const SelectionSpec& spec, const std::vector<float>& values, int tries = 200) {
  auto selector = make_selector(spec, values.size());
  EXPECT_TRUE(selector.has_value());
  Probabilities found;
  for (int draw = 0; draw < tries && !found.magnitude; ++draw) {
    IndexBuffer positions;
    Buffer<float> sent;
    const StreamView view{values.size(), true, {}, values};
    EXPECT_TRUE((*selector)->draw(view, {0, random_key(77, draw)}, positions, sent).has_value());
    found.known =
        positions.size() == testing::without_zeros(values, testing::top_k_oracle(values, values.size())).size();
    for (size_t i = 0; i < sent.size(); ++i) {
      const float size = std::abs(sent[i]);
      if (size == std::abs(values[positions[i]])) continue;
      if (!found.magnitude) found.magnitude = size;
      EXPECT_EQ(size, *found.magnitude) << "the sign part has one magnitude, to the bit";
    }
  }
  found.known = found.known || found.magnitude.has_value();
  for (const float value : values) {
    const double size = std::abs(static_cast<double>(value));
    const double p = found.magnitude ? size / static_cast<double>(*found.magnitude) : size > 0;
    found.p.push_back(std::min(p, 1.0));
  }
  return found;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& wanted, const std::string& what) {
  const double rounding = 8 * static_cast<double>(std::numeric_limits<float>::epsilon()) + 1e-9;
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_NEAR(found[i], wanted[i], rounding * std::max(wanted[i], 1e-12)) << what << ", entry " << i;
  }
}

TEST(Gspar, GreedyIsAlgorithmThreeLineByLine) {
  uint64_t met = 0;
  for (const Pattern pattern : kPatterns) {
    // There a magnitude has few bits, or would be beyond the range: below.
    if (pattern == Pattern::kDenormal || pattern == Pattern::kHuge) continue;
    const auto values = values_of(pattern, 700, 3);
    for (const uint64_t k : {7, 70, 500}) {
      for (const uint32_t iterations : {1u, 2u, 3u, 100u}) {
        const auto found =
            probabilities_of({.selection = SelectionId::kGspar, .k = k, .iterations = iterations}, values);
        if (!found.magnitude) continue;
        ++met;
        const auto wanted = greedy_oracle(problem_of(values), static_cast<double>(k), iterations);
        expect_near(found.p, wanted, testing::name_of(pattern, 700, k) + ", " + std::to_string(iterations));
      }
    }
  }
  EXPECT_GT(met, 90u);
}

TEST(Gspar, GreedyExpectsAtMostKAndWithEnoughIterationsKOrAll) {
  for (const Pattern pattern : kPatterns) {
    if (pattern == Pattern::kDenormal || pattern == Pattern::kHuge) continue;
    const auto values = values_of(pattern, 700, 5);
    const double present = sum_of([&] {
      std::vector<double> there;
      for (const float value : values) there.push_back(value != 0);
      return there;
    }());
    for (const uint64_t k : {20, 200}) {
      if (pattern == Pattern::kOneSpike) continue;  // all but the spike are too small to be met here
      double before = 0;
      for (const uint32_t iterations : {1u, 2u, 5u, 300u}) {
        const auto found =
            probabilities_of({.selection = SelectionId::kGspar, .k = k, .iterations = iterations}, values);
        if (!found.known) continue;
        const double expected = sum_of(found.p);
        EXPECT_LE(expected, static_cast<double>(k) * (1 + 1e-5)) << testing::name_of(pattern, 700, k);
        EXPECT_GE(expected, before * (1 - 1e-5)) << "an iteration takes nothing back";
        before = expected;
      }
      EXPECT_NEAR(before, std::min(static_cast<double>(k), present), 1e-4 * static_cast<double>(k))
          << testing::name_of(pattern, 700, k);
    }
  }
}

TEST(Gspar, DrawnEntries_AsOftenAsTheirProbabilityAndExactOnesAlways) {
  auto values = values_of(Pattern::kGaussian, 400, 7);
  for (size_t i = 0; i < 10; ++i) values[40 * i] = static_cast<float>(20 + i);
  const SelectionSpec specs[] = {{.selection = SelectionId::kGspar, .density = 0.1},
                                 {.selection = SelectionId::kGsparClosed, .variance = 0.3}};
  for (const SelectionSpec& spec : specs) {
    const auto p = probabilities_of(spec, values).p;
    auto selector = make_selector(spec, values.size());
    constexpr double kDraws = 4'000;
    const DrawnSums sums = draw_many(**selector, values, static_cast<uint64_t>(kDraws), 9);
    double chi_squared = 0;
    double random_ones = 0;
    double exact = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (p[i] == 1) {
        ++exact;
        ASSERT_EQ(sums.times[i], kDraws);
        ASSERT_NEAR(sums.mean(i), static_cast<double>(values[i]), 1e-9 * std::abs(sums.mean(i)));
        continue;
      }
      if (p[i] * kDraws < 10 || (1 - p[i]) * kDraws < 10) continue;
      const double off = sums.times[i] - kDraws * p[i];
      ASSERT_LT(std::abs(off), 5.5 * std::sqrt(kDraws * p[i] * (1 - p[i]))) << "entry " << i;
      chi_squared += off * off / (kDraws * p[i] * (1 - p[i]));
      ++random_ones;
    }
    EXPECT_GE(exact, 5);
    EXPECT_GT(random_ones, 200);
    EXPECT_NEAR(chi_squared / random_ones, 1, 5 * std::sqrt(2 / random_ones));
    EXPECT_NEAR(sums.mean_count(), sum_of(p), 5 * sums.count_error());
    const Problem problem = problem_of(values);
    const double square = std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
    EXPECT_NEAR(sums.mean_norm() / square, problem.variance(p), 5 * sums.norm_error() / square);
  }
}

TEST(Gspar, ClosedFormIsTheSmallestKOfElevenBySorting) {
  uint64_t met = 0;
  for (const Pattern pattern : kPatterns) {
    if (pattern == Pattern::kDenormal || pattern == Pattern::kHuge) continue;
    for (const size_t n : {2, 40, 600}) {
      const auto values = values_of(pattern, n, 3);
      for (const double variance : {1e-3, 0.1, 1.0, 30.0}) {
        const auto found = probabilities_of({.selection = SelectionId::kGsparClosed, .variance = variance}, values);
        if (!found.magnitude) continue;
        ++met;
        expect_near(found.p, closed_oracle(problem_of(values), variance),
                    testing::name_of(pattern, n, 0) + ", variance " + std::to_string(variance));
      }
    }
  }
  EXPECT_GT(met, 60u);
}

TEST(Gspar, ClosedFormMeetsItsVarianceAndNeverPassesIt) {
  uint64_t met = 0;
  for (const Pattern pattern : kPatterns) {
    if (pattern == Pattern::kDenormal) continue;
    const auto values = values_of(pattern, 500, 3);
    for (const double variance : {1e-3, 0.1, 1.0, 30.0}) {
      const auto found = probabilities_of({.selection = SelectionId::kGsparClosed, .variance = variance}, values);
      const Problem problem = problem_of(values);
      if (problem.squares() == 0 || !found.known) continue;
      ++met;
      const double reached = problem.variance(found.p) - 1;
      // What rounds here are the test's own sums.
      EXPECT_LE(reached, variance + 1e-12 * (1 + variance)) << testing::name_of(pattern, 500, 0) << ", " << variance;
      // All of it is used where something is left out (and the magnitude that asks for is a number).
      if (found.magnitude && pattern != Pattern::kHuge) {
        EXPECT_GE(reached, variance * (1 - 1e-3) - 1e-6) << testing::name_of(pattern, 500, 0);
      }
    }
  }
  EXPECT_GT(met, 35u);
}

TEST(Gspar, BothAreTheBestOfAllProbabilities) {
  for (const Pattern pattern : {Pattern::kGaussian, Pattern::kHeavyTail, Pattern::kOneSpike, Pattern::kPeriodic}) {
    for (const uint64_t seed : {1, 2, 3}) {
      const auto values = values_of(pattern, 12, seed);
      const Problem problem = problem_of(values);
      for (const uint64_t k : {2, 5, 9}) {
        const auto p = probabilities_of({.selection = SelectionId::kGspar, .k = k, .iterations = 40}, values).p;
        // No p of the same sum has less variance than the greedy one, once it has converged ...
        const double best = problem.variance(exchanged(problem, sum_of(p)));
        EXPECT_NEAR(problem.variance(p), best, 1e-4 * best) << testing::name_of(pattern, 12, k);
      }
      for (const double variance : {0.05, 0.5, 3.0}) {
        const auto closed = probabilities_of({.selection = SelectionId::kGsparClosed, .variance = variance}, values);
        if (!closed.magnitude) continue;
        // ... and none that sums to less than the closed form's stays within its budget.
        const double fewer = sum_of(closed.p) * (1 - 1e-3);
        EXPECT_GT(problem.variance(exchanged(problem, fewer)), 1 + variance);
      }
    }
  }
}

TEST(Gspar, GreedyWithTwoIterationsIsNearTheBestOfItsSum) {
  // "generates good enough high-quality approximation" [GSpar18, 4]: the same sum, spent at best, has this much less
  // variance.
  for (const Pattern pattern : {Pattern::kGaussian, Pattern::kHeavyTail}) {
    const auto values = values_of(pattern, 400, 4);
    const Problem problem = problem_of(values);
    for (const uint64_t k : {20, 120}) {
      const auto two = probabilities_of({.selection = SelectionId::kGspar, .k = k}, values);
      const auto best = probabilities_of({.selection = SelectionId::kGspar, .k = k, .iterations = 200}, values);
      ASSERT_TRUE(two.magnitude.has_value());
      EXPECT_LE(problem.variance(best.p), problem.variance(two.p) * (1 + 1e-6));
      EXPECT_LE(problem.variance(two.p), problem.variance(best.p) * 1.1) << testing::name_of(pattern, 400, k);
    }
  }
}

TEST(Gspar, MagnitudesBeyondTheRangeAreTheLargestOrTheSmallestThereIs) {
  for (const Pattern pattern : {Pattern::kDenormal, Pattern::kHuge}) {
    const auto values = values_of(pattern, 900, 3);
    const SelectionSpec specs[] = {{.selection = SelectionId::kGspar, .k = 9},
                                   {.selection = SelectionId::kGsparClosed, .variance = 200}};
    for (const SelectionSpec& spec : specs) {
      const auto found = probabilities_of(spec, values);
      ASSERT_TRUE(found.magnitude.has_value());
      ASSERT_GT(*found.magnitude, 0);
      if (pattern == Pattern::kHuge) {
        EXPECT_EQ(*found.magnitude, std::numeric_limits<float>::max());
      }
      const double expected = sum_of(found.p);
      auto selector = make_selector(spec, values.size());
      const DrawnSums sums = draw_many(**selector, values, 500, 2);
      EXPECT_NEAR(sums.mean_count(), expected, 5 * sums.count_error()) << "still unbiased";
    }
  }
}

// --- section 3 -------------------------------------------------------------------------------------------------------

struct Sparseness {
  double rho = 0;
  double s = 0;
};
/// Definition 2: the top s, and rho = the rest's sum over theirs.
Sparseness sparseness(std::vector<double> sizes, size_t s) {
  std::ranges::sort(sizes, std::greater<>());
  const double top = std::accumulate(sizes.begin(), sizes.begin() + static_cast<ptrdiff_t>(s), 0.0);
  return {(sum_of(sizes) - top) / top, static_cast<double>(s)};
}

TEST(Gspar, LemmaThreeBoundsTheExpectedCount) {
  uint64_t met = 0;
  for (const Pattern pattern : kPatterns) {
    if (pattern == Pattern::kAllZero || pattern == Pattern::kDenormal || pattern == Pattern::kHuge) continue;
    const auto values = values_of(pattern, 300, 3);
    const Problem problem = problem_of(values);
    for (const size_t s : {1, 3, 10, 60, 200}) {
      const Sparseness of = sparseness(problem.sizes, s);
      if (of.rho == 0) continue;
      const auto [p, magnitude, known] =
          probabilities_of({.selection = SelectionId::kGsparClosed, .variance = of.rho}, values);
      if (!known) continue;
      ++met;
      EXPECT_LE(sum_of(p), (1 + of.rho) * of.s * (1 + 1e-6)) << testing::name_of(pattern, 300, s);
      EXPECT_LE(problem.variance(p), (1 + of.rho) * (1 + 1e-9)) << testing::name_of(pattern, 300, s);
      // What theorem 4 rests on: not more than s are exact.
      EXPECT_LE(std::ranges::count(p, 1.0), static_cast<ptrdiff_t>(s)) << testing::name_of(pattern, 300, s);
    }
  }
  EXPECT_GT(met, 40u);
}

/// Bits of theorem 4's code (b = 32): for an exact entry its place and its value, for another its place, once the
/// scale.
struct CodeLength {
  double without_signs = 0;
  double with_signs = 0;
  double theorem = 0;    ///< s (b + log2 d) + rho s log2 d + b
  double corrected = 0;  ///< s (b + log2 d) + rho s (log2 d + 1) + b
};
CodeLength code_length(const std::vector<double>& p, const Sparseness& of) {
  constexpr double b = 32;
  const double place = std::log2(static_cast<double>(p.size()));
  const auto exact = static_cast<double>(std::ranges::count(p, 1.0));
  const double signs = sum_of(p) - exact;
  CodeLength length;
  length.without_signs = exact * (b + place) + signs * place + b;
  length.with_signs = length.without_signs + signs;
  length.theorem = of.s * (b + place) + of.rho * of.s * place + b;
  length.corrected = length.theorem + of.rho * of.s;
  return length;
}

TEST(Gspar, TheoremFourHoldsButForTheSignsWhichItDoesNotCount) {
  for (const Pattern pattern : {Pattern::kGaussian, Pattern::kHeavyTail, Pattern::kAllEqual, Pattern::kIncreasing}) {
    const auto values = values_of(pattern, 1024, 3);
    for (const size_t s : {1, 10, 200}) {
      const Sparseness of = sparseness(problem_of(values).sizes, s);
      const auto p = probabilities_of({.selection = SelectionId::kGsparClosed, .variance = of.rho}, values).p;
      const CodeLength length = code_length(p, of);
      EXPECT_LE(length.without_signs, length.theorem * (1 + 1e-6)) << testing::name_of(pattern, 1024, s);
      EXPECT_LE(length.with_signs, length.corrected * (1 + 1e-6)) << testing::name_of(pattern, 1024, s);
    }
  }
  // Section 2.3 sends "the non-zero coordinates i and its sign". Here one entry is large, and the small ones add up to
  // 40 times its size. Some 41 signs are more than the 32 bits that the bound has left.
  std::vector<float> values(size_t{1} << 20, static_cast<float>(40 * 0x1p-20));
  values[5] = 1;
  const Sparseness of = sparseness(problem_of(values).sizes, 1);
  const CodeLength length =
      code_length(probabilities_of({.selection = SelectionId::kGsparClosed, .variance = of.rho}, values).p, of);
  EXPECT_LE(length.without_signs, length.theorem);
  EXPECT_GT(length.with_signs, length.theorem) << "the counterexample";
  EXPECT_LE(length.with_signs, length.corrected);
}

}  // namespace
}  // namespace millrace
