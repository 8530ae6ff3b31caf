#include "kernels/grid/reselect_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/grid/reselect_kernels.h"

namespace millrace::testing {
namespace {

std::vector<uint16_t> places(size_t count) {
  std::vector<uint16_t> indices(count);
  for (size_t at = 0; at < count; ++at) indices[at] = static_cast<uint16_t>(at * 3);
  return indices;
}

TEST(SumHistogramTest, BinsAreMonotoneInTheMagnitudeOverAllExponents) {
  RandomSequence random(RandomKey::from(1));
  const auto value_of = [](int32_t sum, int8_t exponent) {
    return std::ldexp(std::abs(static_cast<double>(sum)), exponent);
  };
  for (int draw = 0; draw < 200'000; ++draw) {
    const auto a = static_cast<int32_t>(random.next_u32()) >> random.next_below(32);
    const auto b = static_cast<int32_t>(random.next_u32()) >> random.next_below(32);
    const auto e = static_cast<int8_t>(random.next_u32());
    const auto f = static_cast<int8_t>(e + static_cast<int>(random.next_below(7)) - 3);
    if (std::abs(e - f) > 3) continue;
    if (value_of(a, e) <= value_of(b, f)) {
      ASSERT_LE(SumHistogram::bin_of(a, e), SumHistogram::bin_of(b, f)) << a << " " << +e << " " << b << " " << +f;
    }
    if (a != 0 && b != 0 && SumHistogram::bin_of(a, e) == SumHistogram::bin_of(b, f)) {
      ASSERT_LT(value_of(a, e) / value_of(b, f), 1.04);
    }
  }
}

TEST(SumHistogramTest, EdgesAreInRange) {
  EXPECT_EQ(SumHistogram::bin_of(0, 5), 0);
  EXPECT_EQ(SumHistogram::bin_of(1, -128), 1);
  EXPECT_LT(SumHistogram::bin_of(INT32_MIN, 127), SumHistogram::kBins);
  EXPECT_EQ(SumHistogram::bin_of(-6, 2), SumHistogram::bin_of(6, 2));
  EXPECT_EQ(SumHistogram::bin_of(3, 1), SumHistogram::bin_of(6, 0));
  EXPECT_LT(SumHistogram::bin_of(3, 0), SumHistogram::bin_of(1, 2));
}

TEST(SumCutTest, NoKAndTooFewSumsAreTheWholeSum) {
  SumHistogram histogram;
  histogram.add(std::vector<int32_t>{1, 2, 3, 0}, 0);
  EXPECT_EQ(histogram.total(), 3);
  EXPECT_EQ(threshold_of(histogram, 0).bin, 0);
  EXPECT_EQ(threshold_of(histogram, 3).bin, 0);
  EXPECT_EQ(threshold_of(histogram, 2).bin, SumHistogram::bin_of(2, 0));
}

TEST(SumCutTest, TheSameSumsAreCutToTheKLargest) {
  const std::vector<int32_t> sums = {1, -2, 4, -8, 16, -32, 64, 0, 128};
  SumHistogram histogram;
  histogram.add(sums, -3);
  for (uint64_t k = 1; k < 8; ++k) {
    std::vector<uint16_t> indices = places(sums.size());
    std::vector<int32_t> values = sums;
    ASSERT_EQ(apply_threshold(threshold_of(histogram, k), -3, indices, values), k);
    EXPECT_EQ(values[k - 1], 128);
    EXPECT_EQ(indices[k - 1], 24);
  }
}

TEST(SumCutTest, TiesGoByIndexAndMakeNoUpdateLargerThanK) {
  const std::vector<int32_t> sums(100, -5);
  SumHistogram histogram;
  histogram.add(sums, 0);
  std::vector<uint16_t> indices = places(100);
  std::vector<int32_t> values = sums;
  ASSERT_EQ(apply_threshold(threshold_of(histogram, 30), 0, indices, values), 30);
  for (uint16_t at = 0; at < 30; ++at) EXPECT_EQ(indices[at], at * 3);
}

TEST(SumCutTest, ZerosNeverStayUnderACut) {
  std::vector<uint16_t> indices = places(3);
  std::vector<int32_t> values = {0, 9, 0};
  EXPECT_EQ(apply_threshold({.bin = 1, .take = 1, .in_bin = 1}, -128, indices, values), 1);
  EXPECT_EQ(values[0], 9);
}

TEST(SumCutTest, EveryLengthIsCutAndCountedAsOneByOne) {
  RandomSequence random(RandomKey::from(71));
  for (size_t count = 0; count < 150; ++count) {
    std::vector<int32_t> sums(count);
    for (int32_t& sum : sums) sum = static_cast<int32_t>(random.next_u32()) >> random.next_below(32);
    if (count > 2) sums[count / 2] = INT32_MIN;
    SumHistogram histogram;
    histogram.add(sums, 3);
    std::map<uint32_t, uint64_t> expected;
    for (const int32_t sum : sums) ++expected[SumHistogram::bin_of(sum, 3)];
    expected.erase(0);
    uint64_t total = 0;
    for (const auto& [bin, times] : expected) {
      EXPECT_EQ(histogram.count(bin), times);
      total += times;
    }
    EXPECT_EQ(histogram.total(), total);
    EXPECT_EQ(histogram.count(0), 0u);
    for (const uint32_t least : {0u, 1u, 100u, 1u << 20, 1u << 31, UINT32_MAX}) {
      std::vector<uint16_t> indices = places(count);
      std::vector<int32_t> values = sums;
      const uint32_t kept = keep_at_least(least, indices, values);
      size_t at = 0;
      for (size_t i = 0; i < count; ++i) {
        if (static_cast<uint64_t>(std::abs(int64_t{sums[i]})) < least) continue;
        ASSERT_LT(at, kept);
        EXPECT_EQ(values[at], sums[i]);
        EXPECT_EQ(indices[at], places(count)[i]);
        ++at;
      }
      EXPECT_EQ(at, kept);
    }
  }
}

TEST(ReselectionTest, TheFirstStepIsWholeAndTheNextIsCutByItsHistogram) {
  Reselection reselection(2);
  std::vector<uint16_t> indices = places(4);
  std::vector<int32_t> values = {10, 20, 40, 80};
  reselection.on_claim(0);
  EXPECT_EQ(reselection.on_close(0, 0, indices, values), 4);
  reselection.on_claim(1);
  EXPECT_EQ(reselection.threshold().bin, SumHistogram::bin_of(40, 0));
  // The threshold is of step 0 alone: what step 1 itself has does not move it.
  values = {1000, 2000, 4000, 8000};
  EXPECT_EQ(reselection.on_close(1, 0, indices, values), 4);
  values = {30, 20, 10, 5};
  EXPECT_EQ(reselection.on_close(1, 0, indices, values), 0);
}

TEST(ReselectionTest, SlotsCountTogetherAndOneThresholdServesAll) {
  Reselection reselection(3);
  reselection.on_claim(0);
  std::vector<uint16_t> indices = places(3);
  std::vector<int32_t> low = {1, 2, 3};
  std::vector<int32_t> high = {100, 200, 300};
  reselection.on_close(0, 0, indices, low);
  reselection.on_claim(0);
  reselection.on_close(0, 0, indices, high);
  reselection.on_claim(1);
  std::vector<uint16_t> again = places(3);
  EXPECT_EQ(reselection.on_close(1, 0, again, low), 0);
  EXPECT_EQ(reselection.on_close(1, 0, again, high), 3);
}

TEST(ReselectionTest, AStepAfterAGapOrAResetIsWhole) {
  Reselection reselection(1);
  std::vector<uint16_t> indices = places(2);
  std::vector<int32_t> values = {1, 9};
  reselection.on_claim(0);
  reselection.on_close(0, 0, indices, values);
  reselection.on_claim(2);
  EXPECT_EQ(reselection.threshold().bin, 0);
  reselection.on_close(2, 0, indices, values);
  reselection.reset();
  reselection.on_claim(3);
  EXPECT_EQ(reselection.threshold().bin, 0);
}

TEST(SumHistogramTest, ASumAsAValueIsInTheBinOfItsInteger) {
  RandomSequence random(RandomKey::from(11));
  for (int draw = 0; draw < 200'000; ++draw) {
    const int32_t sum = (static_cast<int32_t>(random.next_u32()) >> 7) >> random.next_below(25);
    const auto exponent = static_cast<int8_t>(static_cast<int>(random.next_below(211)) - 120);
    const auto value = static_cast<float>(std::ldexp(static_cast<double>(sum), exponent));
    ASSERT_EQ(SumHistogram::bin_of(value), SumHistogram::bin_of(sum, exponent)) << sum << " at 2^" << +exponent;
  }
  EXPECT_EQ(SumHistogram::bin_of(-0.0F), 0u);
}

TEST(SumHistogramTest, WhatShardsCountIsTheSameHistogram) {
  RandomSequence random(RandomKey::from(12));
  SumHistogram integers;
  MagnitudeHistogram values;
  for (int draw = 0; draw < 20'000; ++draw) {
    const int32_t sum = (static_cast<int32_t>(random.next_u32()) >> 7) >> random.next_below(26);
    const auto exponent = static_cast<int8_t>(static_cast<int>(random.next_below(211)) - 120);
    integers.add(std::vector<int32_t>{sum}, exponent);
    const std::vector<float> value{static_cast<float>(std::ldexp(static_cast<double>(sum), exponent))};
    values.add(std::span<const float>(value));
  }
  SumHistogram converted;
  converted.add(values);
  EXPECT_EQ(converted.total(), integers.total());
  for (uint32_t bin = 0; bin < SumHistogram::kBins; ++bin) ASSERT_EQ(converted.count(bin), integers.count(bin)) << bin;
}

TEST(ApplyCutTest, WindowsOfValuesAreCutAsWindowsOfIntegers) {
  RandomSequence random(RandomKey::from(13));
  constexpr uint32_t kWindow = 64;
  for (int draw = 0; draw < 200; ++draw) {
    std::vector<uint32_t> indices;
    std::vector<float> values;
    std::vector<uint32_t> expected;
    SumHistogram histogram;
    std::vector<std::pair<std::vector<uint16_t>, std::vector<int32_t>>> windows(20);
    for (uint32_t window = 0; window < windows.size(); ++window) {
      const auto exponent = static_cast<int8_t>(-static_cast<int>(window % 3));
      for (uint32_t i = 0; i < kWindow; ++i) {
        if (random.next_below(3) == 0) continue;
        const auto sum = static_cast<int32_t>(random.next_below(9)) - 4;
        windows[window].first.push_back(static_cast<uint16_t>(i));
        windows[window].second.push_back(sum);
        indices.push_back(window * kWindow + i);
        values.push_back(static_cast<float>(std::ldexp(static_cast<double>(sum), exponent)));
      }
      histogram.add(windows[window].second, exponent);
    }
    const SumThreshold cut = threshold_of(histogram, 1 + random.next_below(1500));
    for (uint32_t window = 0; window < windows.size(); ++window) {
      auto& [places_of, sums] = windows[window];
      const uint32_t kept = apply_threshold(cut, static_cast<int8_t>(-static_cast<int>(window % 3)), places_of, sums);
      for (uint32_t i = 0; i < kept; ++i) expected.push_back(window * kWindow + places_of[i]);
    }
    const uint32_t kept = apply_threshold(cut, kWindow, indices, values);
    indices.resize(kept);
    ASSERT_EQ(indices, expected);
  }
}

}  // namespace
}  // namespace millrace::testing
