#include "kernels/select/select.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <set>
#include <string>
#include <vector>

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

constexpr SelectionSpec kSpecs[] = {{.selection = SelectionId::kNone},
                                    {.selection = SelectionId::kTopK, .density = 0.1},
                                    {.selection = SelectionId::kThreshold, .threshold = 0.5},
                                    {.selection = SelectionId::kThresholdReuse, .density = 0.1, .period = 4},
                                    {.selection = SelectionId::kBucketTopK, .density = 0.1, .bucket_size = 64},
                                    {.selection = SelectionId::kTrimmed, .density = 0.1},
                                    {.selection = SelectionId::kBinarySearch, .density = 0.1},
                                    {.selection = SelectionId::kSampled, .density = 0.1, .period = 4},
                                    {.selection = SelectionId::kRadix, .density = 0.1},
                                    {.selection = SelectionId::kBySize, .density = 0.1},
                                    {.selection = SelectionId::kGaussian, .density = 0.1},
                                    {.selection = SelectionId::kRandom, .density = 0.1}};

StreamView dense_view(const std::vector<float>& values) { return {values.size(), true, {}, values}; }

std::unique_ptr<Selector> selector_for(const SelectionSpec& spec, uint64_t dimension) {
  auto made = make_selector(spec, dimension);
  EXPECT_TRUE(made.has_value()) << made.error().message;
  return std::move(*made);
}

// The definition, bucket by bucket: the k of largest magnitude among the entries whose index falls in the bucket.
std::vector<uint32_t> bucket_oracle(const StreamView& stream, uint64_t bucket_size, uint64_t k) {
  std::map<uint64_t, std::vector<uint32_t>> positions_of_bucket;
  for (uint32_t i = 0; i < stream.values.size(); ++i) {
    positions_of_bucket[(stream.dense ? i : stream.indices[i]) / bucket_size].push_back(i);
  }
  std::vector<uint32_t> selected;
  for (const auto& [bucket, positions] : positions_of_bucket) {
    std::vector<float> values;
    for (const uint32_t position : positions) values.push_back(stream.values[position]);
    for (const uint32_t in_bucket : without_zeros(values, top_k_oracle(values, k))) {
      selected.push_back(positions[in_bucket]);
    }
  }
  return selected;
}

TEST(Select, TopKIsTheSortedOracleWithoutZeros) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const Pattern pattern : kPatterns) {
      for (const size_t n : {1, 16, 17, 1000}) {
        const auto values = values_of(pattern, n, 1);
        const auto selector = selector_for({.selection = SelectionId::kTopK, .density = 0.1}, n);
        IndexBuffer positions;
        ASSERT_TRUE(selector->select(dense_view(values), {}, positions).has_value());
        const uint64_t k = (n + 9) / 10;
        ASSERT_EQ(listed(positions), without_zeros(values, top_k_oracle(values, k)));
      }
    }
  });
}

TEST(Select, NoneSelectsEveryNonZeroEntry) {
  for (const Pattern pattern : kPatterns) {
    const auto values = values_of(pattern, 5000, 1);
    const auto selector = selector_for({.selection = SelectionId::kNone}, values.size());
    IndexBuffer positions;
    ASSERT_TRUE(selector->select(dense_view(values), {}, positions).has_value());
    ASSERT_EQ(listed(positions), without_zeros(values, top_k_oracle(values, 5000)));
  }
}

TEST(Select, ThresholdComparesAsInDoublePrecision) {
  const float nearest = static_cast<float>(0.1);
  const std::vector<float> values = {nearest, std::nextafter(nearest, 0.0F), std::nextafter(nearest, 1.0F), -nearest,
                                     0};
  const auto selector = selector_for({.selection = SelectionId::kThreshold, .threshold = 0.1}, values.size());
  IndexBuffer positions;
  ASSERT_TRUE(selector->select(dense_view(values), {}, positions).has_value());
  std::vector<uint32_t> wanted;
  for (uint32_t i = 0; i < values.size(); ++i) {
    if (std::abs(static_cast<double>(values[i])) >= 0.1) wanted.push_back(i);
  }
  EXPECT_EQ(listed(positions), wanted);
}

TEST(Select, BucketTopKIsTheOracleOfEachBucket) {
  for (const Pattern pattern : kPatterns) {
    for (const uint32_t bucket_size : {1, 7, 64, 512, 5000}) {
      const auto values = values_of(pattern, 6007, 4);
      const uint64_t k = std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(0.02 * bucket_size)));
      const auto wanted = bucket_oracle(dense_view(values), bucket_size, k);
      for_each_isa([&](const std::string& isa) {
        SCOPED_TRACE(isa);
        const auto selector = selector_for(
            {.selection = SelectionId::kBucketTopK, .density = 0.02, .bucket_size = bucket_size}, values.size());
        IndexBuffer positions;
        ASSERT_TRUE(selector->select(dense_view(values), {}, positions).has_value());
        ASSERT_EQ(listed(positions), wanted) << testing::name_of(pattern, bucket_size, k);
      });
    }
  }
}

TEST(Select, BucketTopKOfASparseAccumulatorGoesByIndex) {
  for (const Pattern pattern : kPatterns) {
    const auto values = values_of(pattern, 900, 4);
    RandomSequence random(random_key(77));
    std::set<uint32_t> indices = {0, 511, 512, 4'294'967'295u};
    while (indices.size() < values.size()) indices.insert(static_cast<uint32_t>(random.next_below(20'000)));
    const IndexBuffer sorted(indices.begin(), indices.end());
    const StreamView view{kDimensionMax, false, sorted, values};
    const auto selector = selector_for({.selection = SelectionId::kBucketTopK, .density = 0.005}, kDimensionMax);
    IndexBuffer positions;
    ASSERT_TRUE(selector->select(view, {}, positions).has_value());
    ASSERT_EQ(listed(positions), bucket_oracle(view, 512, 3));
  }
}

TEST(Select, EverySelectionRefusesNaNAndInfinityAndSelectsNothing) {
  for (const SelectionSpec& spec : kSpecs) {
    for (const size_t n : {1, 17, 300}) {
      for (size_t at = 0; at < n; at += 1 + n / 40) {
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
          auto values = values_of(Pattern::kGaussian, n, 1);
          values[at] = bad;
          IndexBuffer positions = {1, 2};
          const auto done = selector_for(spec, n)->select(dense_view(values), {}, positions);
          ASSERT_FALSE(done.has_value()) << selection_name(spec.selection) << " n " << n << " at " << at;
          ASSERT_EQ(done.error().code, ErrorCode::kNonFinite);
          ASSERT_TRUE(positions.empty());
        }
      }
    }
  }
}

TEST(Select, AnErrorLeavesTheStateAsItWas) {
  for (const SelectionSpec& spec : kSpecs) {
    auto disturbed = selector_for(spec, 2000);
    auto undisturbed = selector_for(spec, 2000);
    for (uint64_t step = 0; step < 20; ++step) {
      const auto values = values_of(Pattern::kGaussian, 2000, step);
      auto broken = values;
      broken[1999] = std::numeric_limits<float>::infinity();
      IndexBuffer positions, wanted;
      ASSERT_FALSE(disturbed->select(dense_view(broken), {.step = step}, positions).has_value());
      ASSERT_TRUE(disturbed->select(dense_view(values), {.step = step}, positions).has_value());
      ASSERT_TRUE(undisturbed->select(dense_view(values), {.step = step}, wanted).has_value());
      ASSERT_EQ(positions, wanted) << selection_name(spec.selection);
    }
  }
}

TEST(Select, NothingIsSelectedOfNothingAndOfZeros) {
  for (const SelectionSpec& spec : kSpecs) {
    const auto selector = selector_for(spec, 5000);
    const std::vector<float> zeros(5000, -0.0F);
    const StreamView empty{5000, false, {}, {}};
    for (int step = 0; step < 3; ++step) {
      IndexBuffer positions = {3};
      ASSERT_TRUE(selector->select(dense_view(zeros), {}, positions).has_value());
      EXPECT_TRUE(positions.empty()) << selection_name(spec.selection);
      ASSERT_TRUE(selector->select(empty, {}, positions).has_value());
      EXPECT_TRUE(positions.empty()) << selection_name(spec.selection);
    }
  }
}

TEST(Select, EverySelectionGivesIncreasingPositionsWithoutZeros) {
  for (const SelectionSpec& spec : kSpecs) {
    const auto selector = selector_for(spec, 3000);
    for (const Pattern pattern : kPatterns) {
      const auto values = values_of(pattern, 3000, 8);
      IndexBuffer positions;
      ASSERT_TRUE(selector->select(dense_view(values), {}, positions).has_value());
      for (size_t i = 0; i < positions.size(); ++i) {
        ASSERT_LT(positions[i], values.size());
        ASSERT_TRUE(i == 0 || positions[i - 1] < positions[i]);
        ASSERT_NE(values[positions[i]], 0);
      }
    }
  }
}

// --- threshold reuse -------------------------------------------------------------------------------------------------

TEST(Select, ReuseEvaluatesExactlyAtTheFirstStepAndWithPeriodOneAlways) {
  auto selector = selector_for({.selection = SelectionId::kThresholdReuse, .density = 0.01, .period = 1}, 20'000);
  for (uint64_t step = 0; step < 5; ++step) {
    const auto values = values_of(Pattern::kGaussian, 20'000, step);
    IndexBuffer positions;
    ASSERT_TRUE(selector->select(dense_view(values), {.step = step}, positions).has_value());
    ASSERT_EQ(listed(positions), top_k_oracle(values, 200));
  }
}

TEST(Select, ReuseSelectsByTheSameThresholdWhereNothingChanges) {
  const auto values = values_of(Pattern::kGaussian, 20'000, 3);
  auto selector = selector_for({.selection = SelectionId::kThresholdReuse, .density = 0.01, .period = 8}, 20'000);
  for (uint64_t step = 0; step < 20; ++step) {
    IndexBuffer positions;
    ASSERT_TRUE(selector->select(dense_view(values), {.step = step}, positions).has_value());
    ASSERT_EQ(listed(positions), top_k_oracle(values, 200));
  }
}

// Returns counts over k on data whose every entry is new at each step, with a given scale. Where the scale drifts by 1
// % a step, the count at a fixed threshold would drift by 8 %.
std::vector<double> counts_over_k(double (*scale_of)(uint64_t step), Pattern pattern, uint64_t steps) {
  const size_t n = 100'000;
  auto selector = selector_for({.selection = SelectionId::kThresholdReuse, .density = 0.01, .period = 32}, n);
  const auto base = values_of(pattern, n, 21);
  std::vector<double> counts;
  for (uint64_t step = 0; step < steps; ++step) {
    const size_t offset = (step * 7919) % n;
    std::vector<float> values(n);
    for (size_t i = 0; i < n; ++i) values[i] = base[(i + offset) % n] * static_cast<float>(scale_of(step));
    IndexBuffer positions;
    EXPECT_TRUE(selector->select(dense_view(values), {.step = step}, positions).has_value());
    counts.push_back(static_cast<double>(positions.size()) / 1000);
  }
  return counts;
}

TEST(Select, ReuseHoldsTheCountWithinATenthWhileTheScaleDrifts) {
  const auto swing = [](uint64_t step) { return std::exp(0.3 * std::sin(2 * std::numbers::pi * double(step) / 256)); };
  for (const Pattern pattern : {Pattern::kGaussian, Pattern::kHeavyTail}) {
    for (const double over_k : counts_over_k(swing, pattern, 70)) {
      EXPECT_GE(over_k, 0.9);
      EXPECT_LE(over_k, 1.1);
    }
  }
}

TEST(Select, ReuseDoesNotOscillateWhereTheCountFallsSteeply) {
  // Uniform magnitudes: the count falls a hundred times faster than the threshold rises.
  const auto swing = [](uint64_t step) { return std::exp(0.02 * std::sin(2 * std::numbers::pi * double(step) / 256)); };
  for (const double over_k : counts_over_k(swing, Pattern::kDecreasing, 50)) {
    EXPECT_GE(over_k, 0.9);
    EXPECT_LE(over_k, 1.1);
  }
}

TEST(Select, ReuseTakesTheExactTopKAtOnceWhenTheScaleJumps) {
  const auto jump = [](uint64_t step) { return step < 5 ? 1.0 : step < 10 ? 50.0 : 0.01; };
  const auto counts = counts_over_k(jump, Pattern::kGaussian, 15);
  EXPECT_EQ(counts[5], 1.0);
  EXPECT_EQ(counts[10], 1.0);
  for (const double over_k : counts) EXPECT_NEAR(over_k, 1, 0.1);
}

TEST(Select, ReuseNeverSelectsMoreThanTwiceK) {
  auto selector = selector_for({.selection = SelectionId::kThresholdReuse, .k = 50, .period = 32}, 3000);
  for (uint64_t step = 0; step < 60; ++step) {
    const auto values = values_of(kPatterns[step % std::size(kPatterns)], 3000, step);
    IndexBuffer positions;
    ASSERT_TRUE(selector->select(dense_view(values), {.step = step}, positions).has_value());
    ASSERT_LE(positions.size(), 100u);
  }
}

TEST(SelectReuse, ReuseOfOneEntrySelectsSomethingInEveryStep) {
  constexpr size_t kEntries = 1000;
  auto selector = selector_for({.selection = SelectionId::kThresholdReuse, .k = 1, .period = 32}, kEntries);
  std::vector<float> residual(kEntries, 0.0F);
  for (uint64_t step = 0; step < 100; ++step) {
    const auto gradient = values_of(Pattern::kGaussian, kEntries, step);
    for (size_t i = 0; i < kEntries; ++i) residual[i] += gradient[i];
    IndexBuffer positions;
    ASSERT_TRUE(selector->select(dense_view(residual), {.step = step}, positions).has_value());
    EXPECT_GE(positions.size(), 1u) << step;
    EXPECT_LE(positions.size(), 2u) << step;
    for (const uint32_t position : positions) residual[position] = 0;
  }
}

TEST(SelectReuse, ReuseWorksAtTheEndsOfTheNumberRange) {
  for (const Pattern pattern : {Pattern::kDenormal, Pattern::kHuge}) {
    auto selector = selector_for({.selection = SelectionId::kThresholdReuse, .k = 100, .period = 16}, 5000);
    for (uint64_t step = 0; step < 20; ++step) {
      const auto values = values_of(pattern, 5000, step);
      IndexBuffer positions;
      ASSERT_TRUE(selector->select(dense_view(values), {.step = step}, positions).has_value());
      EXPECT_GE(positions.size(), 50u);
      EXPECT_LE(positions.size(), 200u);
    }
  }
}

// --- registry --------------------------------------------------------------------------------------------------------

TEST(SelectRegistry, NamesGoBothWaysAndAreDistinct) {
  std::set<std::string_view> names;
  for (const SelectionInfo& info : selections()) {
    EXPECT_EQ(selection_by_name(info.name), info.selection);
    EXPECT_EQ(selection_name(info.selection), info.name);
    EXPECT_FALSE(info.paper.empty());
    EXPECT_FALSE(info.summary.empty());
    names.insert(info.name);
  }
  EXPECT_EQ(names.size(), selections().size());
  for (const char* name : {"none", "topk", "threshold", "threshold_reuse", "bucket_topk", "trimmed", "binary_search",
                           "sampled", "radix", "by_size", "gaussian", "random", "gspar", "gspar_closed", "uniform"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
}

TEST(SelectRegistry, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const auto found = selection_by_name("best");
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(found.error().message, ::testing::HasSubstr("threshold_reuse"));
}

TEST(SelectRegistry, ParametersThatCannotBeAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const SelectionSpec refused[] = {
      {.selection = SelectionId::kTopK},
      {.selection = SelectionId::kTopK, .density = 1.5},
      {.selection = SelectionId::kTopK, .density = -0.1},
      {.selection = SelectionId::kTopK, .density = nan},
      {.selection = SelectionId::kThreshold},
      {.selection = SelectionId::kThreshold, .threshold = -1},
      {.selection = SelectionId::kThreshold, .threshold = infinity},
      {.selection = SelectionId::kThreshold, .threshold = nan},
      {.selection = SelectionId::kThreshold, .threshold = 1e39},
      {.selection = SelectionId::kThresholdReuse, .density = 0.1, .period = 0},
      {.selection = SelectionId::kThresholdReuse},
      {.selection = SelectionId::kBucketTopK, .density = 0.1, .bucket_size = 0},
      {.selection = SelectionId::kBucketTopK, .density = 2, .k = 1},
      {.selection = SelectionId::kBucketTopK},
  };
  for (const SelectionSpec& spec : refused) {
    const auto valid = validate(spec);
    ASSERT_FALSE(valid.has_value()) << selection_name(spec.selection);
    EXPECT_EQ(valid.error().code, ErrorCode::kInvalidArgument);
    EXPECT_FALSE(make_selector(spec, 10).has_value());
  }
  for (const SelectionSpec& spec : kSpecs) EXPECT_TRUE(validate(spec).has_value()) << selection_name(spec.selection);
  const double largest = double{std::numeric_limits<float>::max()};
  EXPECT_TRUE(validate({.selection = SelectionId::kThreshold, .threshold = largest}).has_value());
  EXPECT_EQ(validate({.selection = static_cast<SelectionId>(99)}).error().code, ErrorCode::kUnsupported);
  EXPECT_FALSE(make_selector(kSpecs[0], 0).has_value());
  EXPECT_FALSE(make_selector(kSpecs[0], kDimensionMax + 1).has_value());
}

TEST(SelectRegistry, KIsGivenOrComesFromTheDensityRoundedUp) {
  EXPECT_EQ(k_of({.k = 7}, 100), 7u);
  EXPECT_EQ(k_of({.k = 700}, 100), 100u);
  EXPECT_EQ(k_of({.density = 0.011}, 100), 2u);
  EXPECT_EQ(k_of({.density = 0.0001}, 100), 1u);
  EXPECT_EQ(k_of({.density = 1}, 100), 100u);
  EXPECT_EQ(k_of({.density = 0.5, .k = 3}, 100), 3u);
}

}  // namespace
}  // namespace millrace
