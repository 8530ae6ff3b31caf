#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "kernels/magnitude/magnitude_sample.h"
#include "kernels/select/binary_search.h"
#include "kernels/select/select.h"
#include "tests/support/isa.h"
#include "tests/support/oracles/select_oracle.h"

/// RedSync's selections against a full sort, and against what [RedSync19, 2.1] says of them.
namespace millrace {
namespace {

using testing::for_each_isa;
using testing::kPatterns;
using testing::listed;
using testing::Pattern;
using testing::top_k_oracle;
using testing::values_of;
using testing::without_zeros;

StreamView redsync_dense_view(const std::vector<float>& values) { return {values.size(), true, {}, values}; }

std::unique_ptr<Selector> redsync_selector_for(const SelectionSpec& spec, uint64_t dimension) {
  auto made = make_selector(spec, dimension);
  EXPECT_TRUE(made.has_value()) << made.error().message;
  return std::move(*made);
}

std::vector<uint32_t> redsync_selected_by(Selector& selector, const std::vector<float>& values, uint64_t step = 0) {
  IndexBuffer positions = {7};
  const auto done = selector.select(redsync_dense_view(values), {.step = step}, positions);
  EXPECT_TRUE(done.has_value()) << done.error().message;
  return listed(positions);
}

size_t count_of_nonzero(const std::vector<float>& values) {
  return static_cast<size_t>(std::count_if(values.begin(), values.end(), [](float value) { return value != 0; }));
}

/// Whether the positions are exactly what reaches some threshold above 0.
bool is_by_threshold(const std::vector<float>& values, const std::vector<uint32_t>& positions) {
  const std::set<uint32_t> in(positions.begin(), positions.end());
  float least_in = std::numeric_limits<float>::infinity();
  float most_out = 0;
  for (uint32_t i = 0; i < values.size(); ++i) {
    if (in.contains(i)) {
      least_in = std::min(least_in, std::abs(values[i]));
    } else {
      most_out = std::max(most_out, std::abs(values[i]));
    }
  }
  return least_in > most_out;
}

// --- trimmed, radix
// ---------------------------------------------------------------------------------------------------

TEST(SelectRedSync, TrimmedAndRadixAreTheSortedOracleWithoutZeros) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const Pattern pattern : kPatterns) {
      for (const size_t n : {1, 2, 16, 17, 1025, 4095, 4096, 4097, 6001}) {
        const auto values = values_of(pattern, n, n);
        for (const uint64_t k : std::set<uint64_t>{1, 1 + n / 100, 1 + n / 3, n}) {
          const auto wanted = without_zeros(values, top_k_oracle(values, k));
          for (const SelectionId selection : {SelectionId::kTrimmed, SelectionId::kRadix}) {
            const auto selector = redsync_selector_for({.selection = selection, .k = k}, n);
            ASSERT_EQ(redsync_selected_by(*selector, values), wanted)
                << selection_name(selection) << " " << testing::name_of(pattern, n, k);
          }
        }
      }
    }
  });
}

TEST(SelectRedSync, TrimmedAndRadixAreTheSortedOracleOfLargeAdversarialArrays) {
  for (const Pattern pattern : kPatterns) {
    const auto values = values_of(pattern, 70'001, 5);
    for (const uint64_t k : {1, 70, 700, 50'000}) {
      const auto wanted = without_zeros(values, top_k_oracle(values, k));
      for (const SelectionId selection : {SelectionId::kTrimmed, SelectionId::kRadix}) {
        const auto selector = redsync_selector_for({.selection = selection, .k = k}, values.size());
        ASSERT_EQ(redsync_selected_by(*selector, values), wanted)
            << selection_name(selection) << " " << testing::name_of(pattern, values.size(), k);
      }
    }
  }
}

// --- binary search
// ----------------------------------------------------------------------------------------------------

TEST(SelectRedSync, BinarySearchSelectsBetweenKAnd2kByAThreshold) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const Pattern pattern : kPatterns) {
      for (const size_t n : {1, 2, 17, 1000, 4095, 4096, 6001, 30'011}) {
        const auto values = values_of(pattern, n, n);
        for (const uint64_t k : std::set<uint64_t>{1, 1 + n / 1000, 1 + n / 100, 1 + n / 3, n}) {
          SCOPED_TRACE(testing::name_of(pattern, n, k));
          IndexBuffer positions;
          const auto key = select_k_to_2k(values, k, positions);
          ASSERT_TRUE(key.has_value());
          const auto got = listed(positions);
          for (const uint32_t position : got) ASSERT_NE(values[position], 0);
          ASSERT_LE(got.size(), 2 * k);
          ASSERT_GE(got.size(), std::min<uint64_t>(k, count_of_nonzero(values)));
          // The k largest are among them, the lower index first where magnitudes are equal.
          const auto largest = without_zeros(values, top_k_oracle(values, k));
          ASSERT_TRUE(std::includes(got.begin(), got.end(), largest.begin(), largest.end()));
          if (*key != 0) {
            ASSERT_TRUE(is_by_threshold(values, got));
            ASSERT_GE(magnitude_key(values[got[0]]), *key);
          }
        }
      }
    }
  });
}

TEST(SelectRedSync, BinarySearchFindsAThresholdWhereverMagnitudesAreDistinct) {
  // Few far outliers are what bisects a ratio of mean and maximum to its epsilon without an answer.
  for (const float outlier : {1.0F, 1e6F, 1e30F}) {
    for (const size_t n : {500, 5000, 50'000}) {
      std::vector<float> values(n);
      for (size_t i = 0; i < n; ++i) values[i] = 1.0F + static_cast<float>((i * 7919) % n);
      values[n / 3] = outlier * static_cast<float>(2 * n);
      for (const uint64_t k : {1, 3, 50}) {
        IndexBuffer positions;
        const auto key = select_k_to_2k(values, k, positions);
        ASSERT_TRUE(key.has_value());
        ASSERT_NE(*key, 0u) << n << " " << k;
        ASSERT_GE(positions.size(), k);
        ASSERT_LE(positions.size(), 2 * k);
      }
    }
  }
}

TEST(SelectRedSync, BinarySearchTakesExactlyKWhereTiesLeaveNoThreshold) {
  for (const size_t n : {100, 9000}) {
    std::vector<float> values(n, -2.0F);
    values[n - 1] = 5;
    const auto selector = redsync_selector_for({.selection = SelectionId::kBinarySearch, .k = 10}, n);
    EXPECT_EQ(redsync_selected_by(*selector, values), top_k_oracle(values, 10));
    IndexBuffer positions;
    EXPECT_EQ(*select_k_to_2k(values, 10, positions), 0u);
  }
}

// Algorithm 3 with ratios for bounds, as it must be meant; `too_few` is the count under which it lowers the threshold.
uint64_t count_by_algorithm_3(const std::vector<float>& values, uint64_t k, double too_few) {
  const double max = *std::max_element(values.begin(), values.end());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  double low = 0;
  double high = 1;
  uint64_t count = 0;
  while (high - low > 1e-3) {
    const double ratio = low + (high - low) / 2;
    const double threshold = mean + ratio * (max - mean);
    count = static_cast<uint64_t>(std::count_if(values.begin(), values.end(), [&](float v) { return v > threshold; }));
    if (count > k && 2 * k > count) break;
    (static_cast<double>(count) < too_few ? high : low) = ratio;
  }
  return count;
}

TEST(SelectRedSyncPaper, ComparingWithHalfOfKEndsWithFewerThanK) {
  // 3 of 4, 3 of 2, the rest of 0.1. The first threshold leaves 3: more than half of k = 4, so that the algorithm as
  // printed raises it.
  std::vector<float> values(100, 0.1F);
  for (const size_t at : {10, 20, 30}) values[at] = 4;
  for (const size_t at : {15, 25, 35}) values[at] = 2;
  EXPECT_EQ(count_by_algorithm_3(values, 4, 4.0 / 2), 3u);
  EXPECT_EQ(count_by_algorithm_3(values, 4, 4.0), 6u);
  IndexBuffer positions;
  ASSERT_TRUE(select_k_to_2k(values, 4, positions).has_value());
  EXPECT_EQ(listed(positions), (std::vector<uint32_t>{10, 15, 20, 25, 30, 35}));
}

TEST(SelectRedSyncPaper, BisectingARatioMayEndWithoutAnAnswer) {
  // One entry far above the others: every threshold that a ratio of 1e-3 or more gives is above all of them.
  std::vector<float> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1 + static_cast<float>(i) / 1000;
  values[500] = 1e6F;
  EXPECT_EQ(count_by_algorithm_3(values, 10, 10.0), 1u);
  IndexBuffer positions;
  ASSERT_TRUE(select_k_to_2k(values, 10, positions).has_value());
  EXPECT_GE(positions.size(), 10u);
  EXPECT_LE(positions.size(), 20u);
}

// --- sampled
// ----------------------------------------------------------------------------------------------------------

TEST(SelectRedSync, SampledSearchesOncePerPeriodAndReusesTheThresholdInBetween) {
  const size_t n = 20'000;
  const SelectionSpec spec{.selection = SelectionId::kSampled, .k = 200, .period = 5};
  const auto sampled = redsync_selector_for(spec, n);
  uint64_t reused = 0;
  MagnitudeKey key = 0;
  for (uint64_t step = 0; step < 20; ++step) {
    auto values = values_of(Pattern::kGaussian, n, step);
    for (float& value : values) value *= 1.0F + 0.02F * static_cast<float>(step % 5);
    IndexBuffer fresh;
    const auto now = select_k_to_2k(values, 200, fresh);
    if (step % 5 == 0) {
      key = *now;
      ASSERT_EQ(redsync_selected_by(*sampled, values), listed(fresh));
      continue;
    }
    std::vector<uint32_t> wanted;
    for (uint32_t i = 0; i < n; ++i) {
      if (magnitude_key(values[i]) >= key) wanted.push_back(i);
    }
    ASSERT_EQ(redsync_selected_by(*sampled, values), wanted);
    reused += wanted == listed(fresh) ? 0 : 1;
  }
  EXPECT_GT(reused, 0u);  // else this would hold of a search in every step
}

TEST(SelectRedSync, SampledThresholdFarOff_SearchesAtOnce) {
  const size_t n = 20'000;
  const auto base = values_of(Pattern::kGaussian, n, 1);
  const auto selector = redsync_selector_for({.selection = SelectionId::kSampled, .k = 200, .period = 1000}, n);
  for (uint64_t step = 0; step < 12; ++step) {
    const float scale = step % 3 == 0 ? 1.0F : step % 3 == 1 ? 40.0F : 0.02F;
    std::vector<float> values(n);
    for (size_t i = 0; i < n; ++i) values[i] = base[i] * scale;
    const auto got = redsync_selected_by(*selector, values, step);
    ASSERT_GE(got.size(), 200u);
    ASSERT_LE(got.size(), 400u);
  }
}

TEST(SelectRedSync, SampledNeverSelectsMoreThanFourTimesK) {
  const auto selector = redsync_selector_for({.selection = SelectionId::kSampled, .k = 50, .period = 7}, 5000);
  for (uint64_t step = 0; step < 80; ++step) {
    const auto values = values_of(kPatterns[step % std::size(kPatterns)], 5000, step);
    const auto got = redsync_selected_by(*selector, values, step);
    ASSERT_LE(got.size(), 200u);
    ASSERT_GE(got.size(), std::min<size_t>(25, count_of_nonzero(values)));
    for (const uint32_t position : got) ASSERT_NE(values[position], 0);
  }
}

}  // namespace
}  // namespace millrace
