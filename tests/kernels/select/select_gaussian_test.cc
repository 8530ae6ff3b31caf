#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/magnitude/tail_sums.h"
#include "kernels/select/select.h"
#include "tests/support/isa.h"
#include "tests/support/oracles/select_oracle.h"

namespace millrace {
namespace {

using testing::kPatterns;
using testing::listed;
using testing::Pattern;
using testing::top_k_oracle;
using testing::values_of;
using testing::without_zeros;

IndexBuffer selected(const std::vector<float>& values, uint64_t k) {
  auto selector = make_selector({.selection = SelectionId::kGaussian, .k = k}, std::max<size_t>(values.size(), 1));
  EXPECT_TRUE(selector.has_value());
  IndexBuffer positions = {1};
  const Status done = (*selector)->select({values.size(), true, {}, values}, {}, positions);
  EXPECT_TRUE(done.has_value()) << done.error().message;
  return positions;
}

TEST(GaussianK, AnyValues_SelectsBetweenThreeQuartersAndTwiceKOfTheLargest) {
  for (const Pattern pattern : kPatterns) {
    for (const size_t n : {1, 2, 17, 1000, 9000}) {
      const auto values = values_of(pattern, n, 6);
      const size_t present = without_zeros(values, top_k_oracle(values, n)).size();
      for (const uint64_t k :
           {uint64_t{1}, uint64_t{n / 100 + 1}, uint64_t{n / 10 + 1}, uint64_t{n / 2 + 1}, uint64_t{n}}) {
        const IndexBuffer positions = selected(values, k);
        ASSERT_GE(4 * positions.size(), std::min<uint64_t>(3 * k, 4 * present)) << testing::name_of(pattern, n, k);
        ASSERT_LE(positions.size(), 2 * k) << testing::name_of(pattern, n, k);
        ASSERT_EQ(listed(positions), without_zeros(values, top_k_oracle(values, positions.size())))
            << testing::name_of(pattern, n, k);
      }
    }
  }
}

TEST(GaussianK, TheThresholdLeavesKNormalValuesForAnyMean) {
  constexpr size_t kCount = 200'000;
  const auto centred = values_of(Pattern::kGaussian, kCount, 12);
  for (const double mean : {0.0, 0.3, -2.0}) {
    for (const double scale : {1.0, 1e-9}) {
      auto values = centred;
      for (float& value : values) value = static_cast<float>((static_cast<double>(value) + mean) * scale);
      for (const uint64_t k : {200, 2'000, 20'000}) {
        const auto count = static_cast<double>(selected(values, k).size());
        EXPECT_NEAR(count, static_cast<double>(k),
                    5 * std::sqrt(static_cast<double>(k)) + 0.01 * static_cast<double>(k))
            << mean << ", k " << k;
      }
    }
  }
}

TEST(GaussianK, HeavyTail_NormalThresholdLeavesTooFewAndScalingRepairsIt) {
  // The cube of a normal: the unscaled threshold for 1 % is above all but 0.5 %.
  auto values = values_of(Pattern::kGaussian, 100'000, 12);
  double square = 0;
  for (float& value : values) {
    value = value * value * value;
    square += static_cast<double>(value) * static_cast<double>(value);
  }
  // 2.326 deviations bound 1 % of a normal's one side, 2.576 of both.
  const double threshold = 2.576 * std::sqrt(square / 100'000);
  const auto unscaled =
      std::ranges::count_if(values, [&](float x) { return std::abs(static_cast<double>(x)) >= threshold; });
  ASSERT_GT(unscaled, 0);
  for (const uint64_t k : {1'000, 10'000}) {
    if (k == 10'000) {
      ASSERT_LT(unscaled, 7'500);
    }
    const size_t count = selected(values, k).size();
    EXPECT_GE(count, k * 3 / 4);
    EXPECT_LE(count, 2 * k);
  }
}

TEST(GaussianK, EveryInstructionSetSelectsTheSame) {
  const auto values = values_of(Pattern::kHeavyTail, 70'001, 12);
  const IndexBuffer wanted = selected(values, 500);
  testing::for_each_isa([&](const std::string& isa) { EXPECT_EQ(selected(values, 500), wanted) << isa; });
}

TEST(GaussianK, TailSumsAreThoseOfALoopWithTheSameBitsOnEveryInstructionSet) {
  for (const Pattern pattern : kPatterns) {
    for (const size_t n : {0, 1, 15, 16, 17, 33, 4000, (1 << 18) + 3}) {
      const auto values = values_of(pattern, n, 2);
      const float middle = n == 0 ? 1.0F : std::abs(values[n / 2]);
      for (const auto cut : {magnitude_key(middle), kInfinityKey}) {
        TailSums slow;
        for (const float value : values) {
          if (magnitude_key(value) >= cut) {
            ++slow.above;
            continue;
          }
          const double wide = static_cast<double>(value);
          slow.sum += wide;
          slow.magnitude += std::abs(wide);
          slow.squares += wide * wide;
        }
        const TailSums first = tail_sums(values, cut);
        EXPECT_EQ(first.above, slow.above);
        EXPECT_NEAR(first.sum, slow.sum, 1e-12 * slow.magnitude);
        EXPECT_NEAR(first.magnitude, slow.magnitude, 1e-12 * slow.magnitude);
        EXPECT_NEAR(first.squares, slow.squares, 1e-12 * slow.squares);
        EXPECT_TRUE(std::isfinite(first.squares));
        testing::for_each_isa([&](const std::string& isa) {
          const TailSums sums = tail_sums(values, cut);
          EXPECT_EQ(sums.above, first.above) << isa;
          EXPECT_EQ(sums.sum, first.sum) << isa;
          EXPECT_EQ(sums.magnitude, first.magnitude) << isa;
          EXPECT_EQ(sums.squares, first.squares) << isa;
        });
      }
    }
  }
}

}  // namespace
}  // namespace millrace
