#include "worker/session/attached_weights.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <thread>

#include "kernels/base/random.h"

namespace millrace::worker {
namespace {

constexpr uint64_t kAttachedWeightsDimension = 64;
constexpr uint64_t kHalf = kAttachedWeightsDimension / 2;

/// An arrival for half of the tensor that begins at `begin`, with `value` at every index.
Arrival arrival(uint64_t begin, uint64_t push, uint64_t step, float value) {
  const auto values = std::make_shared<std::vector<float>>(kHalf, value);
  Arrival made;
  made.push = push;
  made.step = step;
  made.piece = {begin, kHalf, true, {}, *values, 1, 1};
  made.owner = values;
  return made;
}

Arrival replacement(uint64_t begin, uint64_t steps, float value) {
  Arrival made = arrival(begin, 0, 0, value);
  made.replaces = true;
  made.steps = steps;
  return made;
}

class AttachedWeightsTest : public ::testing::Test {
 protected:
  void attach(ApplyWhen when, float scale = 1, Schedule schedule = {}) {
    weights().set_positions({{0, 0}, {kHalf, 0}});
    weights().attach({array_, scale, std::move(schedule), when}, 0);
  }
  AttachedWeights& weights() { return *weights_; }
  std::vector<float> copy() {
    std::vector<float> out(kAttachedWeightsDimension);
    weights().copy_run(0, std::span(out).first(kHalf));
    weights().copy_run(kHalf, std::span(out).last(kHalf));
    return out;
  }
  /// The array's first and second half, each of which holds one value.
  std::pair<float, float> halves() const {
    for (uint64_t i = 0; i < kHalf; ++i) {
      EXPECT_EQ(array_[i], array_[0]);
      EXPECT_EQ(array_[kHalf + i], array_[kHalf]);
    }
    return {array_[0], array_[kHalf]};
  }

  std::vector<float> array_ = std::vector<float>(kAttachedWeightsDimension, 0.0f);
  std::unique_ptr<AttachedWeights> weights_ = std::make_unique<AttachedWeights>();
};

using Halves = std::pair<float, float>;

TEST_F(AttachedWeightsTest, ACopyIncludesPendingArrivalsAndTheArrayDoesNot) {
  attach(ApplyWhen::kOnAwait, 2);
  weights().arrive(arrival(0, 0, 0, 1), 1);
  std::vector<Arrival> coming;
  coming.push_back(arrival(0, 1, 1, 10));
  coming.push_back(arrival(kHalf, 1, 1, 100));
  std::vector<float> out(kHalf);
  weights().copy_run(0, out, coming);
  EXPECT_EQ(out, std::vector<float>(kHalf, 22));
  coming.push_back(replacement(0, 7, 5));
  weights().copy_run(0, out, coming);
  EXPECT_EQ(out, std::vector<float>(kHalf, 5)) << "in their order";
  weights().catch_up_whole();
  EXPECT_EQ(halves(), (std::pair<float, float>(2, 0)));
}

TEST_F(AttachedWeightsTest, AnArrivalIsScaledAndDividedByItsDenominator) {
  array_.assign(kAttachedWeightsDimension, 1.0f);
  attach(ApplyWhen::kOnArrival, -0.5f);
  const std::vector<uint32_t> indices = {0, 2};
  const std::vector<float> values = {3, 6};
  Arrival sparse;
  sparse.piece = {kHalf, kHalf, false, indices, values, 3, 3};
  weights().arrive(std::move(sparse), 1);
  EXPECT_EQ(array_[kHalf], 0.5f);
  EXPECT_EQ(array_[kHalf + 1], 1.0f);
  EXPECT_EQ(array_[kHalf + 2], 0.0f);
  EXPECT_EQ(array_[0], 1.0f);
}

TEST_F(AttachedWeightsTest, OnAwaitTheArrayGetsAPushesUpdatesEachOnceAndInOrder) {
  attach(ApplyWhen::kOnAwait);
  weights().arrive(arrival(0, 0, 0, 1), 3);
  weights().arrive(arrival(0, 1, 1, 2), 3);
  weights().arrive(arrival(kHalf, 0, 0, 4), 3);
  weights().arrive(arrival(0, 2, 2, 8), 3);
  weights().arrive(arrival(kHalf, 1, 1, 16), 3);
  EXPECT_EQ(halves(), Halves(0, 0));
  weights().take_over();
  EXPECT_EQ(halves(), Halves(0, 0)) << "nothing was replaced";
  weights().catch_up(0);
  EXPECT_EQ(halves(), Halves(1, 4));
  EXPECT_EQ(weights().steps(), 1u);
  weights().catch_up(1);
  EXPECT_EQ(halves(), Halves(3, 20));
  EXPECT_EQ(weights().steps(), 2u);
  weights().catch_up_whole();
  EXPECT_EQ(halves(), Halves(11, 20));
  EXPECT_EQ(weights().steps(), 2u) << "the least over the runs";
}

TEST_F(AttachedWeightsTest, OnArrivalWhatNoPushWaitsForIsNotWrittenBehindTheCallersBack) {
  attach(ApplyWhen::kOnArrival);
  weights().arrive(arrival(0, 0, 0, 1), 1);
  EXPECT_EQ(halves(), Halves(1, 0));
  weights().arrive(arrival(0, 1, 1, 2), 1);  // push 1 has not been made: the caller may be reading
  EXPECT_EQ(halves(), Halves(1, 0));
  weights().arrive(arrival(kHalf, 0, 0, 4), 1);  // nor does a later arrival overtake it
  EXPECT_EQ(halves(), Halves(1, 0));
  weights().take_over();
  EXPECT_EQ(halves(), Halves(3, 4));
  weights().arrive(arrival(kHalf, 1, 1, 8), 2);
  EXPECT_EQ(halves(), Halves(3, 12)) << "at once again";
}

TEST_F(AttachedWeightsTest, WhatReplacesWaitsForItsCallerAndLaterStepsComeAfterIt) {
  for (const ApplyWhen when : {ApplyWhen::kOnArrival, ApplyWhen::kOnAwait}) {
    weights_ = std::make_unique<AttachedWeights>();
    array_.assign(kAttachedWeightsDimension, 1.0f);
    attach(when);
    weights().arrive(arrival(kHalf, 5, 3, 2), 5);
    weights().arrive(replacement(kHalf, 10, 32), 5);
    weights().arrive(arrival(kHalf, 5, 10, 64), 5);
    weights().arrive(arrival(0, 7, 11, 4), 5);
    EXPECT_EQ(halves(), Halves(1, 1));
    EXPECT_FALSE(weights().take_replaced());
    std::vector<float> expected(kAttachedWeightsDimension, 96.0f);
    std::fill_n(expected.begin(), kHalf, 5.0f);
    EXPECT_EQ(copy(), expected);
    weights().take_over();
    EXPECT_EQ(halves(), Halves(5, 96)) << "an update that the replacement has is not added to it";
    EXPECT_EQ(weights().steps(), 11u);
    EXPECT_TRUE(weights().take_replaced());
    EXPECT_FALSE(weights().take_replaced()) << "told once";
  }
}

TEST_F(AttachedWeightsTest, AReplacementMayHaveFewerSteps) {
  attach(ApplyWhen::kOnAwait);
  weights().set_positions({{0, 20}, {kHalf, 20}});
  EXPECT_EQ(weights().steps(), 20u);
  weights().arrive(replacement(0, 7, 1), 0);
  weights().take_over();
  EXPECT_EQ(weights().steps(), 7u);
}

TEST_F(AttachedWeightsTest, StandingIsTheCoresLessWhatWaits) {
  attach(ApplyWhen::kOnAwait);
  weights().arrive(arrival(0, 0, 41, 1), 0);
  weights().arrive(arrival(0, 0, 42, 1), 0);
  weights().set_positions({{0, 43}, {kHalf, 42}});
  EXPECT_EQ(weights().steps(), 41u);
  weights().catch_up_whole();
  EXPECT_EQ(weights().steps(), 42u);
}

TEST_F(AttachedWeightsTest, ACopyEqualsTheCaughtUpArrayBitForBit) {
  RandomSequence random(RandomKey::from(7));
  for (auto& value : array_) value = static_cast<float>(random.next_unit());
  attach(ApplyWhen::kOnAwait, -0.3f, [](uint64_t step, uint64_t, std::span<float> run) {
    for (float& value : run) value *= 0.97f;
    return -0.1f / static_cast<float>(step + 1);
  });
  uint64_t steps[2] = {0, 0};
  for (int i = 0; i < 200; ++i) {
    const uint64_t half = random.next_below(2);
    const uint64_t step = steps[half]++;
    Arrival next = arrival(half * kHalf, step, step, static_cast<float>(random.next_unit()));
    next.piece.denominator = 3;
    weights().arrive(std::move(next), 1'000);
    if (i % 7 == 0) weights().catch_up(random.next_below(step + 1));
  }
  const std::vector<float> ahead = copy();
  EXPECT_NE(ahead, array_);
  weights().catch_up_whole();
  EXPECT_EQ(std::memcmp(ahead.data(), array_.data(), kAttachedWeightsDimension * sizeof(float)), 0);
}

TEST_F(AttachedWeightsTest, TheScheduleIsAskedOnceForEveryStepAndRunOfTheArray) {
  std::vector<std::pair<uint64_t, uint64_t>> asked;
  attach(ApplyWhen::kOnAwait, 1, [&](uint64_t step, uint64_t begin, std::span<float> run) {
    EXPECT_EQ(run.size(), kHalf);
    asked.emplace_back(step, begin);
    return step == 5 ? 2.0f : 0.5f;
  });
  weights().arrive(arrival(0, 0, 5, 1), 1);
  weights().arrive(arrival(kHalf, 0, 5, 1), 1);
  weights().arrive(arrival(0, 0, 6, 1), 1);
  weights().catch_up(0);
  EXPECT_EQ(asked, (std::vector<std::pair<uint64_t, uint64_t>>{{5, 0}, {5, kHalf}, {6, 0}}));
  EXPECT_EQ(halves(), Halves(2.5f, 2));
}

TEST_F(AttachedWeightsTest, AfterANonFiniteScaleTheArrayNeverChanges) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const ApplyWhen when : {ApplyWhen::kOnArrival, ApplyWhen::kOnAwait}) {
      weights_ = std::make_unique<AttachedWeights>();
      array_.assign(kAttachedWeightsDimension, 0.0f);
      attach(when, 1, [bad](uint64_t step, uint64_t, std::span<float>) { return step == 2 ? bad : 1.0f; });
      const auto bring = [&](uint64_t step) {
        const Status arrived = weights().arrive(arrival(0, step, step, 1), step + 1);
        return arrived ? weights().catch_up(step) : arrived;
      };
      EXPECT_TRUE(bring(0) && bring(1));
      std::vector<float> out(kHalf);
      std::vector<Arrival> coming;
      coming.push_back(arrival(0, 2, 2, 1));
      const Status copied = weights().copy_run(0, out, coming);
      ASSERT_FALSE(copied.has_value());
      EXPECT_EQ(copied.error().code, ErrorCode::kNonFinite);
      EXPECT_TRUE(weights().catch_up_whole()) << "a copy that failed is not the array";
      for (const uint64_t step : {2, 3}) {
        const Status brought = bring(step);
        ASSERT_FALSE(brought.has_value());
        EXPECT_EQ(brought.error().code, ErrorCode::kNonFinite);
        EXPECT_NE(brought.error().message.find("step 2 "), std::string::npos) << brought.error().message;
      }
      EXPECT_FALSE(weights().take_over() || weights().catch_up_whole() || weights().copy_run(0, out));
      EXPECT_EQ(halves(), Halves(2, 0));
    }
  }
}

TEST_F(AttachedWeightsTest, AScaleThatIsFiniteMustBeSoOverItsDenominator) {
  attach(ApplyWhen::kOnAwait, 3e38f);
  Arrival light = arrival(0, 0, 0, 1);
  light.piece.denominator = 0.5;
  ASSERT_TRUE(weights().arrive(std::move(light), 1));
  const Status caught_up = weights().catch_up(0);
  ASSERT_FALSE(caught_up.has_value());
  EXPECT_EQ(caught_up.error().code, ErrorCode::kNonFinite);
  EXPECT_EQ(halves(), Halves(0, 0));
}

TEST_F(AttachedWeightsTest, AnArrayGetsEarlierUpdatesOnlyOfPushesAfterItsAttachment) {
  weights().set_positions({{0, 0}, {kHalf, 0}});
  weights().arrive(arrival(0, 0, 0, 1), 1);
  weights().arrive(arrival(0, 1, 1, 2), 1);  // a step without this worker
  EXPECT_EQ(weights().steps(), 0u);
  weights().attach({array_, 1, {}, ApplyWhen::kOnAwait}, 1);
  weights().arrive(arrival(0, 1, 2, 4), 2);
  weights().catch_up(1);
  EXPECT_EQ(halves(), Halves(6, 0));
}

TEST_F(AttachedWeightsTest, OneThreadBringsAndCopiesWhileAnotherCatchesUp) {
  for (const ApplyWhen when : {ApplyWhen::kOnArrival, ApplyWhen::kOnAwait}) {
    weights_ = std::make_unique<AttachedWeights>();
    array_.assign(kAttachedWeightsDimension, 0.0f);
    attach(when);
    constexpr uint64_t kSteps = 3'000;
    std::atomic<bool> done = false;
    std::thread caller([&] {
      for (uint64_t push = 0; !done; ++push) {
        weights().take_over();
        weights().catch_up(push);
        const uint64_t steps = weights().steps();
        // The caller may read it: with kOnAwait no other thread writes to it.
        if (when == ApplyWhen::kOnAwait) {
          EXPECT_GE(array_[0], static_cast<float>(steps));
        }
      }
    });
    for (uint64_t step = 0; step < kSteps; ++step) {
      for (const uint64_t begin : {uint64_t{0}, kHalf}) {
        if (step % 100 == 99) {
          weights().arrive(replacement(begin, step + 1, static_cast<float>(step + 1)), step + 1);
        } else {
          weights().arrive(arrival(begin, step, step, 1), step + 1);
        }
      }
      if (step % 10 == 0) {
        EXPECT_EQ(copy(), std::vector<float>(kAttachedWeightsDimension, static_cast<float>(step + 1)));
      }
    }
    done = true;
    caller.join();
    weights().catch_up_whole();
    EXPECT_EQ(halves(), Halves(kSteps, kSteps));
    EXPECT_EQ(weights().steps(), kSteps);
  }
}

}  // namespace
}  // namespace millrace::worker
