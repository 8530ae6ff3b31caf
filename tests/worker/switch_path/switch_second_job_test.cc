#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/worker/switch_path/switch_cluster.h"
#include "tests/worker/toys/toy_cluster.h"

/// A job whose number at the switch was another job's. Both tables begin with the same epoch and incarnations, and
/// their workers have the same numbers. The second job gets only its own packets, however the first one ended, and it
/// begins.
namespace millrace::testing {
namespace {

using Event = switch_agg::AggregatorEvent;

constexpr uint32_t kSwitchSecondJobDimension = 500;

SwitchCluster::Options switch_second_job_options_for(uint64_t seed, bool through_racks) {
  SwitchCluster::Options options;
  options.spec = toy_spec(through_racks ? 4 : 3, {kSwitchSecondJobDimension});
  options.spec.fuse_below = 0;
  options.spec.audit = true;
  options.seed = seed;
  options.loss = seed % 3 == 0 ? 0.05 : 0;
  options.copies = seed % 3 == 1 ? 0.05 : 0;
  if (through_racks) options.racks = {0b0011, 0b1100};
  return options;
}

/// Each worker pushes `value` everywhere: so every window of a step closes with a sum that tells whose job it is of.
void push_all(SwitchCluster& cluster, float value) {
  for (uint32_t worker = 0; worker < cluster.workers(); ++worker)
    cluster.push_dense(worker, 0, std::vector<float>(kSwitchSecondJobDimension, value));
}

void expect_switch_second_job_balanced(SwitchCluster& cluster) {
  const std::vector<double> imbalance = cluster.imbalance(0);
  EXPECT_EQ(std::ranges::count_if(imbalance, [](double one) { return one != 0; }), 0);
}

/// Steps of the job that came second, and nothing of the first one in them.
void expect_second_job_whole(SwitchCluster& cluster, uint64_t steps) {
  for (uint64_t step = 0; step < steps; ++step) {
    push_all(cluster, 0.25f);
    ASSERT_NO_FATAL_FAILURE(cluster.run_until([&] { return cluster.all_applied(step + 1); }));
    expect_switch_second_job_balanced(cluster);
  }
  const std::vector<float> wanted(kSwitchSecondJobDimension, 0.25f * static_cast<float>(cluster.workers() * steps));
  for (uint32_t worker = 0; worker < cluster.workers(); ++worker)
    ASSERT_EQ(cluster.weights(worker)[0], wanted) << "worker " << worker;
}

/// Runs that number of steps of the network, then kills all processes of the job.
void begin_and_kill(SwitchCluster& cluster, uint64_t network_steps) {
  cluster.join_all();
  push_all(cluster, 2.0f);
  for (uint64_t at = 0; at < network_steps; ++at) {
    cluster.step();
    if (cluster.all_applied(1)) push_all(cluster, 2.0f);
    if (cluster.all_applied(1)) break;
  }
}

void finish_all(SwitchCluster& cluster) {
  for (uint32_t worker = 0; worker < cluster.workers(); ++worker)
    ASSERT_TRUE(cluster.core(worker).finish(cluster.now(), cluster.actions(worker)).has_value());
  ASSERT_NO_FATAL_FAILURE(cluster.run_until([&] {
    for (uint32_t worker = 0; worker < cluster.workers(); ++worker) {
      if (cluster.core(worker).phase() != worker::Phase::kFinished) return false;
    }
    return true;
  }));
}

class SwitchSecondJob : public ::testing::TestWithParam<bool> {};

TEST_P(SwitchSecondJob, GetsNothingOfOneThatWasKilledInItsFirstTurns) {
  uint64_t half = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SwitchCluster cluster(switch_second_job_options_for(seed, GetParam()));
    ASSERT_NO_FATAL_FAILURE(begin_and_kill(cluster, 20 + 7 * seed));
    half += cluster.counted_at(SwitchCluster::kSwitchPort, Event::kAdded) > 0 ? 1 : 0;
    cluster.begin_job_anew();
    ASSERT_NO_FATAL_FAILURE(expect_second_job_whole(cluster, 2));
  }
  EXPECT_GT(half, 20u) << "few jobs were killed with something at the switch";
}

TEST_P(SwitchSecondJob, BeginsSoonBehindOneThatHasEnded) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SwitchCluster cluster(switch_second_job_options_for(seed, GetParam()));
    cluster.join_all();
    push_all(cluster, 2.0f);
    ASSERT_NO_FATAL_FAILURE(cluster.run_until([&] { return cluster.all_applied(1); }));
    ASSERT_NO_FATAL_FAILURE(finish_all(cluster));
    cluster.begin_job_anew();
    const TimeNs began = cluster.now();
    ASSERT_NO_FATAL_FAILURE(expect_second_job_whole(cluster, 3));
    EXPECT_LT(cluster.now() - began, 8 * kNsPerS) << "it waited for the lease";
    EXPECT_EQ(cluster.counted_at(SwitchCluster::kSwitchPort, Event::kLeaseExpired), 0u);
    EXPECT_EQ(cluster.counted_at(SwitchCluster::kSwitchPort, Event::kBegunAnew), 1u);
    if (GetParam()) {
      EXPECT_GT(cluster.counted_at(SwitchCluster::kSwitchPort, Event::kGroupAdded), 0u);
      EXPECT_EQ(cluster.counted_at(SwitchCluster::kRackPort, Event::kBegunAnew), 1u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, SwitchSecondJob, ::testing::Values(false, true),
                         [](const auto& way) { return way.param ? "ThroughRacks" : "Straight"; });

/// Its lease is long; the tests check the status that a user sees meanwhile.
TEST(SwitchSecondJobWaits, TellsItsUserWhatFor) {
  SwitchCluster cluster(switch_second_job_options_for(1, false));
  cluster.join_all();
  push_all(cluster, 2.0f);
  ASSERT_NO_FATAL_FAILURE(cluster.run_until([&] { return cluster.all_applied(1); }));
  cluster.begin_job_anew();
  push_all(cluster, 0.25f);
  cluster.pass(5 * kNsPerS);
  const auto says = [&] {
    return std::ranges::count_if(cluster.log(0), [](const std::string& line) {
      return line.find("another job of this switch job number") != std::string::npos;
    });
  };
  EXPECT_EQ(says(), 1);
  EXPECT_NE(cluster.core(0).waiting_for().find("another job of this switch job number"), std::string::npos)
      << cluster.core(0).waiting_for();
  ASSERT_NO_FATAL_FAILURE(cluster.run_until([&] { return cluster.all_applied(1); }));
  EXPECT_EQ(says(), 1);
  EXPECT_EQ(cluster.core(0).waiting_for().find("another job"), std::string::npos);
  expect_switch_second_job_balanced(cluster);
}

/// An epoch that the table has not told yet is no other job.
TEST(SwitchSecondJobWaits, ANewerEpochIsNoOtherJob) {
  SwitchCluster cluster(switch_second_job_options_for(1, false));
  cluster.join_all();
  for (int time = 0; time < 5; ++time) {
    cluster.raise([](protocol::Membership&) {});
    push_all(cluster, 1.0f);
    ASSERT_NO_FATAL_FAILURE(cluster.run_until([&] { return cluster.all_applied(static_cast<uint64_t>(time) + 1); }));
  }
  for (const std::string& line : cluster.log(0)) EXPECT_EQ(line.find("another job"), std::string::npos) << line;
}

}  // namespace
}  // namespace millrace::testing
