#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "kernels/draw/draw.h"
#include "kernels/select/select.h"
#include "tests/support/isa.h"
#include "tests/support/oracles/draw_oracle.h"
#include "tests/support/oracles/select_oracle.h"

/// What all selections that draw have in common, and the two that draw without regard to size.
namespace millrace {
namespace {

using testing::draw_many;
using testing::DrawnSums;
using testing::kPatterns;
using testing::listed;
using testing::Pattern;
using testing::values_of;

constexpr SelectionSpec kDrawing[] = {{.selection = SelectionId::kRandom, .density = 0.1},
                                      {.selection = SelectionId::kUniform, .density = 0.1},
                                      {.selection = SelectionId::kGspar, .density = 0.1},
                                      {.selection = SelectionId::kGspar, .k = 20, .iterations = 1},
                                      {.selection = SelectionId::kGsparClosed, .variance = 2}};

StreamView draw_dense_view(const std::vector<float>& values) { return {values.size(), true, {}, values}; }

std::unique_ptr<Selector> draw_selector_for(const SelectionSpec& spec, uint64_t dimension) {
  auto made = make_selector(spec, dimension);
  EXPECT_TRUE(made.has_value()) << made.error().message;
  return std::move(*made);
}

/// Of the positions that may be drawn, the deviations of the means over their standard errors: what normal ones would
/// be.
void expect_draw_unbiased(const SelectionSpec& spec, const std::vector<float>& values, uint64_t seed) {
  SCOPED_TRACE(std::string(selection_name(spec.selection)));
  const auto selector = draw_selector_for(spec, values.size());
  const DrawnSums sums = draw_many(*selector, values, 3'000, seed);
  double worst = 0;
  double squares = 0;
  double random_ones = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double off = sums.mean(i) - static_cast<double>(values[i]);
    if (sums.error(i) <= 1e-9 * std::abs(sums.mean(i))) {
      EXPECT_NEAR(off, 0, 1e-6 * std::abs(static_cast<double>(values[i]))) << "always sent the same, or 0: " << i;
      continue;
    }
    // Drawn too seldom for a mean to be normal.
    if (sums.times[i] < 20) continue;
    random_ones += 1;
    worst = std::max(worst, std::abs(off) / sums.error(i));
    squares += off / sums.error(i) * (off / sums.error(i));
  }
  ASSERT_GT(random_ones, 100);
  EXPECT_LT(worst, 5.5);
  EXPECT_NEAR(squares / random_ones, 1, 0.35);
}

TEST(SelectDraw, DrawnValuesAreUnbiased) {
  const auto values = values_of(Pattern::kGaussian, 256, 3);
  for (const SelectionSpec& spec : kDrawing) expect_draw_unbiased(spec, values, 17);
}

TEST(SelectDraw, ManyZerosAndHeavyTailsAreUnbiasedToo) {
  auto values = values_of(Pattern::kHeavyTail, 300, 4);
  for (size_t i = 0; i < values.size(); i += 3) values[i] = 0;
  for (const SelectionSpec& spec : kDrawing) {
    const auto selector = draw_selector_for(spec, values.size());
    const DrawnSums sums = draw_many(*selector, values, 2'000, 5);
    double total = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == 0) {
        ASSERT_EQ(sums.times[i], 0) << "a zero was drawn";
      }
      total += static_cast<double>(values[i]) * sums.mean(i);
    }
    // The projection on the values: E = |values|^2, and the deviation is known from the draws' norms.
    double square = 0;
    double variance = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      square += static_cast<double>(values[i]) * static_cast<double>(values[i]);
      variance += std::pow(static_cast<double>(values[i]) * sums.error(i), 2);
    }
    EXPECT_NEAR(total, square, 5 * std::sqrt(variance) + 1e-5 * square) << selection_name(spec.selection);
  }
}

TEST(SelectDraw, PositionsIncreaseValuesKeepTheirSignsAndZerosStayOut) {
  for (const SelectionSpec& spec : kDrawing) {
    for (const Pattern pattern : kPatterns) {
      if (pattern == Pattern::kHuge) continue;
      for (const size_t n : {1, 15, 17, 300, 5000}) {
        const auto values = values_of(pattern, n, 8);
        IndexBuffer positions = {9};
        Buffer<float> sent = {1};
        const auto selector = draw_selector_for(spec, n);
        ASSERT_TRUE(selector->draw(draw_dense_view(values), {0, random_key(6)}, positions, sent).has_value())
            << testing::name_of(pattern, n, 0);
        ASSERT_EQ(positions.size(), sent.size());
        for (size_t i = 0; i < positions.size(); ++i) {
          ASSERT_LT(positions[i], n);
          ASSERT_TRUE(i == 0 || positions[i - 1] < positions[i]);
          const float value = values[positions[i]];
          ASSERT_NE(value, 0);
          ASSERT_EQ(std::signbit(sent[i]), std::signbit(value));
          ASSERT_GE(std::abs(sent[i]), std::abs(value)) << "amplified, never less";
          ASSERT_TRUE(std::isfinite(sent[i]));
        }
      }
    }
  }
}

TEST(SelectDraw, NaNAndInfinityAreRefusedAndNothingIsDrawn) {
  for (const SelectionSpec& spec : kDrawing) {
    for (const size_t n : {1, 17, 300}) {
      for (size_t at = 0; at < n; at += 1 + n / 40) {
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
          auto values = values_of(Pattern::kGaussian, n, 1);
          values[at] = bad;
          IndexBuffer positions = {1, 2};
          Buffer<float> sent = {1};
          const auto done = draw_selector_for(spec, n)->draw(draw_dense_view(values), {}, positions, sent);
          ASSERT_FALSE(done.has_value()) << selection_name(spec.selection) << " n " << n << " at " << at;
          ASSERT_EQ(done.error().code, ErrorCode::kNonFinite);
          ASSERT_TRUE(positions.empty() && sent.empty());
        }
      }
    }
  }
}

TEST(SelectDraw, NothingIsDrawnOfNothingAndOfZeros) {
  const std::vector<float> zeros(5000, -0.0F);
  const StreamView empty{5000, false, {}, {}};
  for (const SelectionSpec& spec : kDrawing) {
    const auto selector = draw_selector_for(spec, 5000);
    for (const auto& view : {draw_dense_view(zeros), empty}) {
      IndexBuffer positions = {3};
      Buffer<float> sent = {1};
      ASSERT_TRUE(selector->draw(view, {}, positions, sent).has_value());
      EXPECT_TRUE(positions.empty() && sent.empty()) << selection_name(spec.selection);
    }
  }
}

TEST(SelectDraw, WhatWouldOverflowIsSentWithinTheRangeOrRefused) {
  const float most = std::numeric_limits<float>::max();
  auto values = values_of(Pattern::kHuge, 4000, 2);
  values[7] = most;
  values[8] = -most;
  for (const SelectionSpec& spec : kDrawing) {
    const auto selector = draw_selector_for(spec, values.size());
    IndexBuffer positions;
    Buffer<float> sent;
    const auto done = selector->draw(draw_dense_view(values), {0, random_key(1)}, positions, sent);
    if (spec.selection == SelectionId::kRandom || spec.selection == SelectionId::kUniform) {
      ASSERT_FALSE(done.has_value());
      EXPECT_EQ(done.error().code, ErrorCode::kNonFinite);
      EXPECT_THAT(done.error().message, ::testing::HasSubstr("overflow"));
      continue;
    }
    ASSERT_TRUE(done.has_value());
    EXPECT_GT(positions.size(), 0u);
    for (const float value : sent) ASSERT_LE(std::abs(value), most);
  }
}

TEST(SelectDraw, ASparseAccumulatorIsDrawnFromAsItsValuesAlone) {
  const auto values = values_of(Pattern::kGaussian, 1000, 2);
  IndexBuffer indices;
  for (uint32_t i = 0; i < values.size(); ++i) indices.push_back(7 * i + 3);
  const StreamView sparse{10'000, false, indices, values};
  for (const SelectionSpec& spec : kDrawing) {
    const auto selector = draw_selector_for(spec, 10'000);
    IndexBuffer positions, wanted;
    Buffer<float> sent, wanted_sent;
    ASSERT_TRUE(selector->draw(sparse, {0, random_key(2)}, positions, sent).has_value());
    ASSERT_TRUE(selector->draw(draw_dense_view(values), {0, random_key(2)}, wanted, wanted_sent).has_value());
    EXPECT_GT(positions.size(), 0u);
    EXPECT_EQ(positions, wanted);
    EXPECT_EQ(sent, wanted_sent);
  }
}

TEST(SelectDraw, EveryInstructionSetAndNumberOfThreadsDrawsTheSame) {
  const size_t n = (size_t{1} << 20) + 517;
  const auto values = values_of(Pattern::kGaussian, n, 2);
  for (const SelectionSpec& spec : kDrawing) {
    IndexBuffer wanted;
    Buffer<float> wanted_sent;
    {
      const tbb::global_control one(tbb::global_control::max_allowed_parallelism, 1);
      ASSERT_TRUE(draw_selector_for(spec, n)
                      ->draw(draw_dense_view(values), {0, random_key(3)}, wanted, wanted_sent)
                      .has_value());
    }
    testing::for_each_isa([&](const std::string& isa) {
      IndexBuffer positions;
      Buffer<float> sent;
      ASSERT_TRUE(
          draw_selector_for(spec, n)->draw(draw_dense_view(values), {0, random_key(3)}, positions, sent).has_value());
      EXPECT_TRUE(positions == wanted && sent == wanted_sent) << isa << " " << selection_name(spec.selection);
    });
  }
}

TEST(SelectDraw, StepsDrawApartAndTheSameKeyDrawsTheSame) {
  const auto values = values_of(Pattern::kGaussian, 3000, 2);
  for (const SelectionSpec& spec : kDrawing) {
    const auto selector = draw_selector_for(spec, values.size());
    std::map<uint64_t, IndexBuffer> of_key;
    for (const uint64_t key : {1, 2, 1}) {
      IndexBuffer positions;
      Buffer<float> sent;
      ASSERT_TRUE(selector->draw(draw_dense_view(values), {0, random_key(key)}, positions, sent).has_value());
      const auto [at, fresh] = of_key.try_emplace(key, positions);
      EXPECT_EQ(at->second, positions);
    }
    EXPECT_NE(of_key[1], of_key[2]);
  }
}

TEST(SelectDraw, SelectingIsRefusedByThoseThatOnlyDraw) {
  const auto values = values_of(Pattern::kGaussian, 30, 2);
  for (const SelectionSpec& spec : kDrawing) {
    if (find_selection(spec.selection)->use == SelectionUse::kBoth) continue;
    IndexBuffer positions = {1};
    const auto done = draw_selector_for(spec, 30)->select(draw_dense_view(values), {}, positions);
    ASSERT_FALSE(done.has_value());
    EXPECT_EQ(done.error().code, ErrorCode::kUnsupported);
    EXPECT_TRUE(positions.empty());
  }
}

// --- draw_by_size ----------------------------------------------------------------------------------------------------

TEST(SelectDraw, BySizeIsTheSlowDrawAtEveryLengthAndScale) {
  for (const Pattern pattern : kPatterns) {
    for (const size_t n : {0, 1, 15, 16, 17, 4095, 4096, 4097, 9000}) {
      const auto values = values_of(pattern, n, 5);
      const float largest = n == 0 ? 1.0F : *std::ranges::max_element(values, {}, [](float x) { return std::abs(x); });
      for (const double part : {0.01, 0.7, 30.0}) {
        const auto magnitude = finite_magnitude(std::abs(static_cast<double>(largest)) * part);
        std::vector<uint32_t> wanted;
        std::vector<float> wanted_sent;
        for (size_t i = 0; i < n; ++i) {
          const double p = std::abs(static_cast<double>(values[i])) / static_cast<double>(magnitude);
          if (p < 1 && !testing::drawn_by_oracle(random_key(4), i, p)) continue;
          wanted.push_back(static_cast<uint32_t>(i));
          wanted_sent.push_back(p < 1 ? std::copysign(magnitude, values[i]) : values[i]);
        }
        testing::for_each_isa([&](const std::string& isa) {
          IndexBuffer positions;
          Buffer<float> sent;
          draw_by_size(values, magnitude, random_key(4), positions, sent);
          ASSERT_EQ(listed(positions), wanted) << isa << ' ' << testing::name_of(pattern, n, 0) << " x " << part;
          ASSERT_EQ(std::vector<float>(sent.begin(), sent.end()), wanted_sent);
        });
      }
    }
  }
}

TEST(SelectDraw, ProbabilitiesBelowAWordOf32BitsAreAsSmallAsTheyShouldBe) {
  // Finds keys whose word at the position is 0 (one in 2^32 is). There the next 32 bits decide; they are the `rest` of
  // 2^32.
  struct Found {
    uint64_t seed;
    size_t at;
    double rest;
  };
  for (const Found& found : {Found{1158023, 2828, 0.565631}, {1636330, 632, 0.423351}, {2712872, 2175, 0.902885}}) {
    for (const double p : {0.3, 0.42, 0.43, 0.56, 0.57, 0.90, 0.91, 1.5}) {
      std::vector<float> values(4096, 0.0F);
      values[found.at] = static_cast<float>(p * 0x1p-32);
      IndexBuffer positions;
      Buffer<float> sent;
      draw_by_size(values, 1.0F, RandomKey::from(found.seed), positions, sent);
      EXPECT_EQ(positions.size(), found.rest < p ? 1u : 0u) << p;
    }
  }
}

// --- random, uniform -------------------------------------------------------------------------------------------------

TEST(SelectDraw, RandomSelectsExactlyKOfThoseThatAreNotZero) {
  for (const Pattern pattern : {Pattern::kGaussian, Pattern::kMostlyZero, Pattern::kFewDistinct, Pattern::kHuge}) {
    for (const size_t n : {1, 2, 17, 5000, 9000}) {
      const auto values = values_of(pattern, n, 9);
      const auto present = static_cast<uint64_t>(std::ranges::count_if(values, [](float x) { return x != 0; }));
      for (const uint64_t k : {uint64_t{1}, uint64_t{2}, uint64_t{n / 3 + 1}, uint64_t{n - n / 4}, uint64_t{n}}) {
        IndexBuffer positions;
        const auto selector = draw_selector_for({.selection = SelectionId::kRandom, .k = k}, n);
        ASSERT_TRUE(selector->select(draw_dense_view(values), {0, random_key(k)}, positions).has_value());
        ASSERT_EQ(positions.size(), std::min(k, present)) << testing::name_of(pattern, n, k);
        for (size_t i = 0; i < positions.size(); ++i) {
          ASSERT_LT(positions[i], n);
          ASSERT_NE(values[positions[i]], 0);
          ASSERT_TRUE(i == 0 || positions[i - 1] < positions[i]);
        }
      }
    }
  }
}

TEST(SelectDraw, RandomTakesEverySetOfKAsOften) {
  // Of 6 entries and a zero between: 15 pairs, and 15 sets of four.
  const std::vector<float> values = {1, -2, 0, 3, 4, -5, 6};
  for (const uint64_t k : {2, 4}) {
    const auto selector = draw_selector_for({.selection = SelectionId::kRandom, .k = k}, values.size());
    std::map<std::vector<uint32_t>, double> times;
    constexpr double kDraws = 30'000;
    for (uint64_t draw = 0; draw < static_cast<uint64_t>(kDraws); ++draw) {
      IndexBuffer positions;
      ASSERT_TRUE(selector->select(draw_dense_view(values), {draw, random_key(8, draw)}, positions).has_value());
      times[listed(positions)] += 1;
    }
    ASSERT_EQ(times.size(), 15u);
    double chi_squared = 0;
    for (const auto& [set, count] : times) chi_squared += (count - kDraws / 15) * (count - kDraws / 15) / (kDraws / 15);
    // 14 degrees of freedom: over 36.1 once in a thousand seeds.
    EXPECT_LT(chi_squared, 36.1) << "k " << k;
  }
}

TEST(SelectDraw, WhatRandomLeavesOutIsRemarkOnesShareOfTheNorm) {
  // E|g - random_k(g)|^2 = (1 - k/d) |g|^2, [DeepReduce21, 10.2, remark 1].
  const auto values = values_of(Pattern::kGaussian, 400, 6);
  const auto selector = draw_selector_for({.selection = SelectionId::kRandom, .k = 100}, values.size());
  double square = 0;
  for (const float value : values) square += static_cast<double>(value) * static_cast<double>(value);
  double left = 0;
  double left_squared = 0;
  constexpr double kDraws = 4'000;
  for (uint64_t draw = 0; draw < static_cast<uint64_t>(kDraws); ++draw) {
    IndexBuffer positions;
    ASSERT_TRUE(selector->select(draw_dense_view(values), {draw, random_key(8, draw)}, positions).has_value());
    double taken = 0;
    for (const uint32_t at : positions) taken += static_cast<double>(values[at]) * static_cast<double>(values[at]);
    left += (square - taken) / square;
    left_squared += (square - taken) / square * (square - taken) / square;
  }
  const double mean = left / kDraws;
  EXPECT_NEAR(mean, 0.75, 5 * std::sqrt((left_squared / kDraws - mean * mean) / kDraws));
}

TEST(SelectDraw, RandomSendsEachScaledByHowManyThereAreOverK) {
  auto values = values_of(Pattern::kGaussian, 100, 6);
  for (size_t i = 0; i < 20; ++i) values[5 * i] = 0;
  const auto selector = draw_selector_for({.selection = SelectionId::kRandom, .k = 16}, values.size());
  IndexBuffer positions;
  Buffer<float> sent;
  ASSERT_TRUE(selector->draw(draw_dense_view(values), {0, random_key(1)}, positions, sent).has_value());
  ASSERT_EQ(positions.size(), 16u);
  for (size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(sent[i], 5 * values[positions[i]]);
}

TEST(SelectDraw, UniformDrawsEachApartWithOneProbability) {
  const auto values = values_of(Pattern::kGaussian, 500, 6);
  const auto selector = draw_selector_for({.selection = SelectionId::kUniform, .density = 0.05}, values.size());
  const DrawnSums sums = draw_many(*selector, values, 4'000, 3);
  EXPECT_NEAR(sums.mean_count(), 25, 5 * sums.count_error());
  // Each apart from the others: the count is binomial, its variance n p (1 - p).
  const double variance = sums.count_error() * sums.count_error() * 4'000;
  EXPECT_NEAR(variance, 500 * 0.05 * 0.95, 2.7) << "5 standard errors of a variance over 4,000 draws";
  double chi_squared = 0;
  for (const double times : sums.times) chi_squared += (times - 200) * (times - 200) / (4'000 * 0.05 * 0.95);
  // 500 degrees of freedom: 500 +- 32.
  EXPECT_NEAR(chi_squared, 500, 160);
  // GSpar's baseline has the variance 1 / p.
  double square = 0;
  for (const float value : values) square += static_cast<double>(value) * static_cast<double>(value);
  EXPECT_NEAR(sums.mean_norm() / square, 20, 5 * sums.norm_error() / square);
}

TEST(SelectDraw, UniformWithProbabilityOneSendsEverythingAsItIs) {
  const auto values = values_of(Pattern::kMostlyZero, 500, 6);
  const auto selector = draw_selector_for({.selection = SelectionId::kUniform, .density = 1}, values.size());
  IndexBuffer positions;
  Buffer<float> sent;
  ASSERT_TRUE(selector->draw(draw_dense_view(values), {0, random_key(1)}, positions, sent).has_value());
  EXPECT_EQ(listed(positions), testing::without_zeros(values, testing::top_k_oracle(values, 500)));
  for (size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(sent[i], values[positions[i]]);
}

TEST(DrawRegistry, ParametersThatCannotBeAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const SelectionSpec refused[] = {
      {.selection = SelectionId::kRandom},
      {.selection = SelectionId::kUniform, .density = 1.5},
      {.selection = SelectionId::kGspar},
      {.selection = SelectionId::kGspar, .density = nan},
      {.selection = SelectionId::kGspar, .density = 0.1, .iterations = 0},
      {.selection = SelectionId::kGsparClosed},
      {.selection = SelectionId::kGsparClosed, .variance = -1},
      {.selection = SelectionId::kGsparClosed, .variance = nan},
      {.selection = SelectionId::kGsparClosed, .variance = infinity},
      {.selection = SelectionId::kGaussian, .density = -0.1},
  };
  for (const SelectionSpec& spec : refused) {
    const auto valid = validate(spec);
    ASSERT_FALSE(valid.has_value()) << selection_name(spec.selection);
    EXPECT_EQ(valid.error().code, ErrorCode::kInvalidArgument);
    EXPECT_FALSE(make_selector(spec, 10).has_value());
  }
  for (const SelectionSpec& spec : kDrawing) EXPECT_TRUE(validate(spec).has_value()) << selection_name(spec.selection);
}

TEST(DrawRegistry, TextsSayTheirParameters) {
  EXPECT_EQ(*selection_from_text("gspar:0.01"), (SelectionSpec{.selection = SelectionId::kGspar, .density = 0.01}));
  EXPECT_EQ(*selection_from_text("gspar:500:7"),
            (SelectionSpec{.selection = SelectionId::kGspar, .k = 500, .iterations = 7}));
  EXPECT_EQ(*selection_from_text("gspar_closed:0.5"),
            (SelectionSpec{.selection = SelectionId::kGsparClosed, .variance = 0.5}));
  EXPECT_EQ(*selection_from_text("uniform:0.2"), (SelectionSpec{.selection = SelectionId::kUniform, .density = 0.2}));
  EXPECT_EQ(*selection_from_text("random:64"), (SelectionSpec{.selection = SelectionId::kRandom, .k = 64}));
  EXPECT_EQ(*selection_from_text("gaussian:0.01"),
            (SelectionSpec{.selection = SelectionId::kGaussian, .density = 0.01}));
  for (const auto* text : {"gspar", "gspar:0.01:0", "gspar_closed", "gspar_closed:0", "gspar_closed:nan",
                           "random:signs", "gspar:0.1:signs", "uniform:2.5"}) {
    EXPECT_FALSE(selection_from_text(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace millrace
