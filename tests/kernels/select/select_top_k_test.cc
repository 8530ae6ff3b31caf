#include "kernels/select/top_k.h"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kernels/magnitude/magnitude_scan.h"
#include "tests/support/isa.h"
#include "tests/support/oracles/select_oracle.h"

namespace millrace {
namespace {

using testing::for_each_isa;
using testing::kPatterns;
using testing::listed;
using testing::Pattern;
using testing::threshold_oracle;
using testing::top_k_oracle;
using testing::values_of;
using testing::without_zeros;

class SelectTopK : public ::testing::Test {
 protected:
  static void expect_as_oracle(std::span<const float> values, uint64_t k) {
    const std::vector<uint32_t> wanted = top_k_oracle(values, k);
    IndexBuffer positions;
    ASSERT_TRUE(select_top_k(values, k, positions).has_value());
    ASSERT_EQ(listed(positions), wanted);
    ASSERT_TRUE(select_top_k_nonzero(values, k, positions).has_value());
    ASSERT_EQ(listed(positions), without_zeros(values, wanted));
    if (k == 0) return;
    float least = std::numeric_limits<float>::infinity();
    for (const uint32_t position : wanted) least = std::min(least, std::abs(values[position]));
    const auto threshold = top_k_threshold(values, k);
    ASSERT_TRUE(threshold.has_value());
    ASSERT_EQ(*threshold, least);
  }
};

TEST_F(SelectTopK, EqualsAFullSortOnEveryPatternAtLengthsAroundTheLaneCount) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const Pattern pattern : kPatterns) {
      for (const size_t n : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 129}) {
        const auto values = values_of(pattern, n, n);
        for (const uint64_t k : std::set<uint64_t>{0, 1, 2, n / 2, n - 1, n}) {
          if (k > n) continue;
          SCOPED_TRACE(testing::name_of(pattern, n, k));
          SelectTopK::expect_as_oracle(values, k);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST_F(SelectTopK, EqualsAFullSortAroundTheBlockAndWhereItSamples) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const Pattern pattern : kPatterns) {
      for (const size_t n : {1025, 4095, 4096, 4097, 6001}) {
        const auto values = values_of(pattern, n, n);
        for (const uint64_t k : {uint64_t{1}, uint64_t{n / 100}, uint64_t{n / 3}, uint64_t{n - 5}}) {
          SCOPED_TRACE(testing::name_of(pattern, n, k));
          SelectTopK::expect_as_oracle(values, k);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST_F(SelectTopK, EqualsAFullSortOnLargeAdversarialInputs) {
  for (const Pattern pattern : kPatterns) {
    const size_t n = 70'001;
    const auto values = values_of(pattern, n, 5);
    for (const uint64_t k : {uint64_t{1}, uint64_t{700}, uint64_t{50'000}}) {
      SCOPED_TRACE(testing::name_of(pattern, n, k));
      SelectTopK::expect_as_oracle(values, k);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_F(SelectTopK, AnyAlignmentOfTheArrayGivesTheSame) {
  const auto values = values_of(Pattern::kGaussian, 1100, 3);
  for_each_isa([&](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (size_t offset = 0; offset < 20; ++offset) {
      SelectTopK::expect_as_oracle(std::span(values).subspan(offset, 1037), 40);
    }
  });
}

TEST_F(SelectTopK, NaNOrInfinityAnywhereIsAnErrorAndSelectsNothing) {
  using Limits = std::numeric_limits<float>;
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const float bad : {Limits::quiet_NaN(), -Limits::quiet_NaN(), Limits::signaling_NaN(), Limits::infinity(),
                            -Limits::infinity()}) {
      for (const size_t n : {1, 5, 16, 37, 70}) {
        for (size_t at = 0; at < n; ++at) {
          auto values = values_of(Pattern::kGaussian, n, 1);
          values[at] = bad;
          for (const uint64_t k : std::set<uint64_t>{0, 1, n / 2, n}) {
            IndexBuffer positions = {7};
            const auto done = select_top_k(values, k, positions);
            ASSERT_FALSE(done.has_value()) << "n " << n << " at " << at << " k " << k;
            ASSERT_EQ(done.error().code, ErrorCode::kNonFinite);
            ASSERT_TRUE(positions.empty());
            ASSERT_FALSE(select_top_k_nonzero(values, k, positions).has_value());
            ASSERT_FALSE(k != 0 && top_k_threshold(values, k).has_value());
          }
          IndexBuffer positions;
          ASSERT_FALSE(select_threshold(values, 1, n, positions).has_value());
          ASSERT_FALSE(std::isfinite(max_magnitude(values)));
        }
      }
    }
  });
}

TEST_F(SelectTopK, NaNIsFoundOnEveryPathOfALargeArray) {
  for (const Pattern pattern : kPatterns) {
    for (const size_t at : {size_t{0}, size_t{12'345}, size_t{39'999}, size_t{40'002}}) {
      auto values = values_of(pattern, 40'003, 2);
      values[at] = std::numeric_limits<float>::quiet_NaN();
      for (const uint64_t k : {1, 400, 30'000}) {
        IndexBuffer positions;
        const auto done = select_top_k(values, k, positions);
        ASSERT_FALSE(done.has_value()) << testing::name_of(pattern, at, k);
        ASSERT_EQ(done.error().code, ErrorCode::kNonFinite);
      }
    }
  }
}

TEST_F(SelectTopK, AllValuesNaNIsAnErrorToo) {
  const std::vector<float> values(10'000, std::numeric_limits<float>::quiet_NaN());
  IndexBuffer positions;
  EXPECT_EQ(select_top_k(values, 100, positions).error().code, ErrorCode::kNonFinite);
}

TEST_F(SelectTopK, WhatLiesAroundTheArrayDoesNotMatter) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (size_t n = 0; n < 40; ++n) {
      std::vector<float> around(n + 128, std::numeric_limits<float>::quiet_NaN());
      const auto inner = values_of(Pattern::kGaussian, n, n);
      std::copy(inner.begin(), inner.end(), around.begin() + 64);
      SelectTopK::expect_as_oracle(std::span<const float>(around).subspan(64, n), n / 2);
    }
  });
}

TEST_F(SelectTopK, MoreThanThereIsIsRefused) {
  const std::vector<float> values(10, 1);
  IndexBuffer positions;
  EXPECT_EQ(select_top_k(values, 11, positions).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(top_k_threshold(values, 11).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(top_k_threshold(values, 0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(select_top_k({}, 0, positions).has_value());
  EXPECT_TRUE(positions.empty());
}

TEST_F(SelectTopK, TheNumberOfThreadsDoesNotChangeTheResult) {
  const size_t n = (size_t{1} << 20) + 4099;
  for (const Pattern pattern : {Pattern::kGaussian, Pattern::kFewDistinct, Pattern::kIncreasing}) {
    auto values = values_of(pattern, n, 9);
    IndexBuffer alone, together;
    {
      const tbb::global_control one(tbb::global_control::max_allowed_parallelism, 1);
      ASSERT_TRUE(select_top_k(values, n / 100, alone).has_value());
    }
    const tbb::global_control four(tbb::global_control::max_allowed_parallelism, 4);
    ASSERT_TRUE(select_top_k(values, n / 100, together).has_value());
    ASSERT_EQ(alone, together);
    values[n - 1] = std::numeric_limits<float>::infinity();
    ASSERT_FALSE(select_top_k(values, n / 100, together).has_value());
  }
}

TEST_F(SelectTopK, ThresholdSelectsAllAtOrAboveItUpToTheLimit) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const Pattern pattern : kPatterns) {
      for (const size_t n : {1, 15, 16, 17, 65, 5000}) {
        const auto values = values_of(pattern, n, n);
        for (const float threshold : {std::numeric_limits<float>::denorm_min(), 0.5F, 2.0F}) {
          for (const uint64_t count_max : std::set<uint64_t>{0, 1, n / 3, n}) {
            IndexBuffer positions;
            ASSERT_TRUE(select_threshold(values, threshold, count_max, positions).has_value());
            ASSERT_EQ(listed(positions), threshold_oracle(values, threshold, count_max))
                << testing::name_of(pattern, n, count_max);
          }
        }
      }
    }
  });
}

TEST_F(SelectTopK, ThresholdFindsNaNPastItsLimit) {
  std::vector<float> values(20'000, 3);
  values.back() = std::numeric_limits<float>::quiet_NaN();
  IndexBuffer positions;
  EXPECT_EQ(select_threshold(values, 1, 5, positions).error().code, ErrorCode::kNonFinite);
  EXPECT_TRUE(positions.empty());
}

TEST_F(SelectTopK, ThresholdThatIsNotPositiveIsRefused) {
  const std::vector<float> values(4, 1);
  IndexBuffer positions;
  for (const float threshold : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(select_threshold(values, threshold, 4, positions).error().code, ErrorCode::kInvalidArgument);
  }
}

TEST_F(SelectTopK, MaxMagnitudeAndCountsAreThoseOfALoop) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const Pattern pattern : kPatterns) {
      for (size_t n = 0; n < 150; n += n < 70 ? 1 : 13) {
        const auto values = values_of(pattern, n, n);
        float largest = 0;
        uint64_t at_least_one = 0;
        for (const float value : values) {
          largest = std::max(largest, std::abs(value));
          at_least_one += std::abs(value) >= 1 ? 1 : 0;
        }
        ASSERT_EQ(max_magnitude(values), largest);
        ASSERT_EQ(count_at_least(values, magnitude_key(1.0F)).found, at_least_one);
      }
    }
  });
}

}  // namespace
}  // namespace millrace
