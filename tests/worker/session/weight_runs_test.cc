#include "worker/session/weight_runs.h"

#include <gtest/gtest.h>

namespace millrace::worker {
namespace {

constexpr uint64_t kEpoch = 7;

GiveWeights request_of(uint32_t part) {
  return {.shard = 0, .part = part, .for_worker = 1, .for_incarnation = 2, .epoch = kEpoch};
}

std::vector<SendAction> two_runs() { return std::vector<SendAction>(2); }

TEST(WeightRuns, RunsLeaveOneByOneAndThenTheNextRequest) {
  WeightRuns weights;
  EXPECT_TRUE(weights.empty());
  for (const uint32_t part : {0u, 1u}) weights.ask(request_of(part));
  EXPECT_FALSE(weights.take_run());
  EXPECT_EQ(weights.take_request(), request_of(0));
  weights.give(two_runs());
  EXPECT_TRUE(weights.take_run());
  EXPECT_TRUE(weights.take_run());
  EXPECT_FALSE(weights.take_run());
  EXPECT_EQ(weights.take_request(), request_of(1));
  weights.give({});
  EXPECT_FALSE(weights.take_run());
  EXPECT_FALSE(weights.take_request());
  EXPECT_TRUE(weights.empty());
}

TEST(WeightRuns, ARepeatedRequestIsGivenOnce) {
  WeightRuns weights;
  for (int again = 0; again < 3; ++again) weights.ask(request_of(0));
  EXPECT_TRUE(weights.take_request());
  weights.give(two_runs());
  weights.ask(request_of(0));
  EXPECT_TRUE(weights.take_run());
  EXPECT_TRUE(weights.take_run());
  weights.ask(request_of(0));  // the last run still leaves
  EXPECT_FALSE(weights.empty());
  EXPECT_FALSE(weights.take_run());
  EXPECT_TRUE(weights.empty());
  weights.ask(request_of(0));
  EXPECT_TRUE(weights.take_request()) << "the shard lost them";
}

TEST(WeightRuns, AnotherEpochDropsRequestsAndRuns) {
  WeightRuns weights;
  for (const uint32_t part : {0u, 1u}) weights.ask(request_of(part));
  EXPECT_TRUE(weights.take_request());
  weights.give(two_runs());
  weights.keep_epoch(kEpoch);
  EXPECT_TRUE(weights.take_run());
  weights.keep_epoch(kEpoch + 1);
  EXPECT_TRUE(weights.empty());
  EXPECT_FALSE(weights.take_run());
  EXPECT_FALSE(weights.take_request());
}

TEST(WeightRuns, ALostConnectionDropsTheRunsAndTheNextRequestGives) {
  WeightRuns weights;
  weights.ask(request_of(0));
  EXPECT_TRUE(weights.take_request());
  weights.give(two_runs());
  weights.drop_runs();
  EXPECT_TRUE(weights.empty());
  weights.ask(request_of(0));
  EXPECT_EQ(weights.take_request(), request_of(0));
}

}  // namespace
}  // namespace millrace::worker
