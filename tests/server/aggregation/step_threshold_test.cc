#include "server/aggregation/step_threshold.h"

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

namespace millrace::server {
namespace {

constexpr TimeNs kRepeat = 200;

SharedHistogram counts_of(const std::vector<float>& sums) {
  auto histogram = std::make_shared<MagnitudeHistogram>();
  histogram->add(std::span<const float>(sums));
  return histogram;
}

StepThreshold of_three(uint32_t shard, size_t parts = 1) {
  return StepThreshold({.k = 3, .shard = shard, .shards = {0, 1, 2}, .local_parts = parts, .repeat_ns = kRepeat});
}

TEST(StepThreshold, TheFirstStepHasTheWholeSum) {
  const StepThreshold threshold = of_three(0);
  ASSERT_TRUE(threshold.threshold(0).has_value());
  EXPECT_EQ(threshold.threshold(0)->bin, 0u);
  EXPECT_FALSE(threshold.threshold(1).has_value());
}

TEST(StepThreshold, AStepIsCutByAllShardsCountsOfTheStepBefore) {
  StepThreshold threshold = of_three(0, 2);
  EXPECT_EQ(threshold.on_decided(1, 0, counts_of({8, 1}), 0), nullptr);
  const SharedHistogram own = threshold.on_decided(0, 0, counts_of({4, 0}), 0);
  ASSERT_NE(own, nullptr);
  EXPECT_EQ(own->total(), 3u);
  EXPECT_FALSE(threshold.threshold(1).has_value());
  EXPECT_EQ(threshold.missing(1), (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(threshold.on_remote(2, 0, counts_of({2, 2})), StepThreshold::Remote::kTaken);
  EXPECT_FALSE(threshold.threshold(1).has_value());
  EXPECT_EQ(threshold.missing(1), (std::vector<uint32_t>{1}));
  EXPECT_EQ(threshold.on_remote(1, 0, counts_of({16})), StepThreshold::Remote::kTaken);
  const std::optional<SumThreshold> cut = threshold.threshold(1);
  ASSERT_TRUE(cut.has_value());
  EXPECT_EQ(cut->bin, SumHistogram::bin_of(4.0F));  // 16, 8, 4
  EXPECT_EQ(cut->take, 1u);
  EXPECT_EQ(cut->in_bin, 1u);
}

TEST(StepThreshold, EveryShardFindsTheSameCutInAnyOrder) {
  const std::vector<SharedHistogram> of_shard{counts_of({5, 3, 3}), counts_of({3, 1}), counts_of({3, 9})};
  std::optional<SumThreshold> first;
  for (uint32_t shard = 0; shard < 3; ++shard) {
    StepThreshold threshold = of_three(shard);
    for (uint32_t turn = 0; turn < 3; ++turn) {
      const uint32_t from = (shard + turn * 2) % 3;
      if (from == shard) {
        threshold.on_decided(0, 0, of_shard[from], 0);
      } else {
        threshold.on_remote(from, 0, of_shard[from]);
      }
    }
    const std::optional<SumThreshold> cut = threshold.threshold(1);
    ASSERT_TRUE(cut.has_value());
    if (!first) first = cut;
    EXPECT_EQ(cut->bin, first->bin);
    EXPECT_EQ(cut->take, first->take);
    EXPECT_EQ(cut->in_bin, first->in_bin);
  }
}

TEST(StepThreshold, AShardAsksASilentShardUntilItAnswers) {
  StepThreshold threshold = of_three(0);
  EXPECT_FALSE(threshold.deadline().has_value());
  threshold.on_decided(0, 0, counts_of({1}), 1'000);
  threshold.on_remote(1, 0, counts_of({1}));
  EXPECT_EQ(threshold.deadline(), 1'000 + kRepeat);
  EXPECT_FALSE(threshold.repeat(1'000 + kRepeat - 1).has_value());
  for (TimeNs now = 1'000 + kRepeat; now < 100'000; now += kRepeat) {
    const auto again = threshold.repeat(now);
    ASSERT_TRUE(again.has_value()) << now;
    EXPECT_EQ(again->to, (std::vector<uint32_t>{2}));
    EXPECT_EQ(again->step, 0u);
    EXPECT_EQ(again->own->total(), 1u);
    EXPECT_EQ(threshold.deadline(), now + kRepeat);
    EXPECT_FALSE(threshold.threshold(1).has_value());
  }
  threshold.on_remote(2, 0, counts_of({1}));
  EXPECT_TRUE(threshold.threshold(1).has_value());
  EXPECT_FALSE(threshold.deadline().has_value());
}

TEST(StepThreshold, ARepeatedHistogramIsAnsweredOncePerInterval) {
  StepThreshold threshold = of_three(0);
  threshold.on_decided(0, 0, counts_of({1}), 0);
  threshold.on_remote(1, 0, counts_of({1}));
  threshold.on_remote(2, 0, counts_of({1}));
  threshold.on_decided(0, 1, counts_of({1}), 10);
  EXPECT_EQ(threshold.on_remote(1, 0, counts_of({1})), StepThreshold::Remote::kRepeated);
  EXPECT_EQ(threshold.answer_to(1, 0, kRepeat - 1), nullptr);
  EXPECT_NE(threshold.answer_to(1, 0, kRepeat), nullptr);
  EXPECT_EQ(threshold.answer_to(1, 0, kRepeat + 1), nullptr);
}

TEST(StepThreshold, StepsThatAreAheadOrLateAreDropped) {
  StepThreshold threshold = of_three(0);
  EXPECT_EQ(threshold.on_remote(1, 1, counts_of({1})), StepThreshold::Remote::kAhead);
  EXPECT_EQ(threshold.on_remote(1, 0, counts_of({1})), StepThreshold::Remote::kTaken);
  EXPECT_EQ(threshold.on_remote(0, 0, counts_of({1})), StepThreshold::Remote::kUnknownShard);
  EXPECT_EQ(threshold.on_remote(3, 0, counts_of({1})), StepThreshold::Remote::kUnknownShard);
  for (uint64_t step = 0; step < 5; ++step) {
    threshold.on_decided(0, step, counts_of({1}), 0);
    threshold.on_remote(1, step, counts_of({1}));
    threshold.on_remote(2, step, counts_of({1}));
    EXPECT_TRUE(threshold.threshold(step + 1).has_value());
  }
  EXPECT_EQ(threshold.on_remote(1, 0, counts_of({1})), StepThreshold::Remote::kLate);
  EXPECT_FALSE(threshold.threshold(1).has_value());
}

TEST(StepThreshold, ASingleShardDoesNotWait) {
  StepThreshold threshold({.k = 1, .shard = 0, .shards = {0}, .local_parts = 1, .repeat_ns = kRepeat});
  threshold.on_decided(0, 0, counts_of({4, 2}), 0);
  ASSERT_TRUE(threshold.threshold(1).has_value());
  EXPECT_EQ(threshold.threshold(1)->bin, SumHistogram::bin_of(4.0F));
  EXPECT_FALSE(threshold.deadline().has_value());
}

}  // namespace
}  // namespace millrace::server
