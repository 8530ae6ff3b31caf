// Workers, switches and a shard under the switch protocol, simulated. A failing seed is run again by
//     MILLRACE_SIM_FIRST_SEED=N MILLRACE_SIM_SEEDS=1 switch_sim_test
#include "tests/sim/switch/switch_sim.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace millrace::testing {
namespace {

uint64_t switch_sim_number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 10);
}

SwitchSimReport run_switch_sim_seeds(uint64_t seeds, const MakeDecider& make) {
  const uint64_t first = switch_sim_number_from("MILLRACE_SIM_FIRST_SEED", 1);
  SwitchSimReport sum;
  for (uint64_t seed = first; seed < first + seeds && sum.faults.size() < 10; ++seed) {
    const SwitchScenario scenario = draw_switch_scenario(seed);
    const SwitchSimReport report = run_switch_sim(scenario, make);
    if (!report.faults.empty()) std::printf("%s\n", describe(scenario).c_str());
    sum += report;
  }
  return sum;
}

void print_switch_sim(uint64_t seeds, const SwitchSimReport& sum) {
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "%llu seeds: %llu packets, %llu turns settled, %llu epochs, %llu restarts (%llu after a strict subset had a "
      "result), %llu deaths, %llu joined, %llu new incarnations, %llu results fetched, %llu resends, %llu results with "
      "a dead worker's "
      "values, %llu entries checked, %llu times no slots, %llu of many jobs, %llu jobs of several lanes, at most %u "
      "sends of a turn in quiet, "
      "%.1f s of virtual time\n",
      number(seeds), number(sum.packets), number(sum.turns), number(sum.epochs), number(sum.restarts),
      number(sum.subset_kills), number(sum.deaths), number(sum.joined), number(sum.new_lives), number(sum.fetches),
      number(sum.resends), number(sum.dead_in_results), number(sum.entries_checked), number(sum.racks.no_slots),
      number(sum.crowds), number(sum.jobs_of_lanes), sum.sends_most, static_cast<double>(sum.took) / kNsPerS);
}

SwitchSimReport expect_all_clean(uint64_t seeds, const MakeDecider& make) {
  const SwitchSimReport sum = run_switch_sim_seeds(seeds, make);
  for (const std::string& fault : sum.faults) ADD_FAILURE() << fault;
  print_switch_sim(seeds, sum);
  if (seeds < 100) return sum;
  EXPECT_GT(sum.subset_kills, 0u);
  EXPECT_GT(sum.fetches, 0u);
  EXPECT_GT(sum.joined, 0u);
  EXPECT_GT(sum.deaths, 0u);
  EXPECT_GT(sum.dead_in_results, 0u);
  EXPECT_GT(sum.jobs_of_lanes, seeds / 10);
  EXPECT_GT(sum.sends_most, 1u);
  for (const auto index : {protocol::WindowIndexCodec::kRaw, protocol::WindowIndexCodec::kGap,
                           protocol::WindowIndexCodec::kBitmap, protocol::WindowIndexCodec::kBloom}) {
    for (const auto value : {protocol::WindowValueCodec::kFixed16, protocol::WindowValueCodec::kFixed32,
                             protocol::WindowValueCodec::kQsgd8, protocol::WindowValueCodec::kQsgd4}) {
      const bool met = sum.contributions.contains({static_cast<uint8_t>(index), static_cast<uint8_t>(value)});
      EXPECT_TRUE(met || seeds < 500) << static_cast<int>(index) << " with " << static_cast<int>(value);
    }
  }
  return sum;
}

TEST(SwitchSim, EverySeedKeepsTheLawAndEndsWithTheProductionAggregator) {
  const uint64_t seeds = switch_sim_number_from("MILLRACE_SIM_SEEDS", MILLRACE_SIM_SEEDS_DEFAULT);
  const SwitchSimReport sum = expect_all_clean(seeds, production_decider());
  if (seeds >= 500) {
    EXPECT_GT(sum.racks.no_slots, 0u);
    EXPECT_GT(sum.crowds, 0u);
  }
}

TEST(SwitchSim, EverySeedKeepsTheLawAndEndsWithTheReference) {
  expect_all_clean(switch_sim_number_from("MILLRACE_SIM_SEEDS", MILLRACE_SIM_SEEDS_DEFAULT) / 2, reference_decider());
}

TEST(SwitchSim, EverySeedKeepsTheLawAndEndsWhereOneFollowsTheOther) {
  expect_all_clean(switch_sim_number_from("MILLRACE_SIM_SEEDS", MILLRACE_SIM_SEEDS_DEFAULT) / 2, mixed_decider());
}

TEST(SwitchSim, EqualSeedsGiveEqualRuns) {
  const SwitchScenario scenario = draw_switch_scenario(7);
  const SwitchSimReport one = run_switch_sim(scenario, reference_decider());
  const SwitchSimReport other = run_switch_sim(scenario, reference_decider());
  EXPECT_EQ(one.packets, other.packets);
  EXPECT_EQ(one.took, other.took);
  EXPECT_EQ(one.entries_checked, other.entries_checked);
}

/// The switch's short datagrams reach the workers, its results do not. Such a path must be left as a silent one is.
TEST(SwitchSim, APathThatLosesLongDatagramsToWorkersIsLeft) {
  SwitchScenario scenario;
  scenario.seed = 1;
  scenario.switch_bytes_max = 600;
  scenario.jobs.push_back(
      {.job = 100, .workers = 2, .slots = 2, .window_indices = 256, .windows = 4, .steps = 3, .density = 1.0});
  for (const MakeDecider& make : {production_decider(), reference_decider()}) {
    const SwitchSimReport report = run_switch_sim(scenario, make);
    for (const std::string& fault : report.faults) ADD_FAILURE() << fault;
    EXPECT_EQ(report.epochs, 2u) << "the first, and that of the shard";
  }
}

/// Some of the seeds that the tests above run, and few: they are drawn so, and the aggregators then have that many jobs
/// at once.
TEST(SwitchSim, AFewPercentOfTheSeedsHaveManySmallJobs) {
  constexpr uint64_t kSeeds = 1000;
  uint64_t crowds = 0;
  uint64_t with_racks = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto is_crowd = [](const SwitchScenario& scenario) {
      if (scenario.jobs.size() < kCrowdJobsMin) return false;
      EXPECT_LE(scenario.jobs.size(), 16u);
      EXPECT_LE(scenario.slots_short, slots_wanted(scenario));
      for (const SwitchSimJob& job : scenario.jobs) {
        EXPECT_LE(job.steps * job.windows * job.window_indices, 4u * 4 * 64);
        EXPECT_LE(job.slots, job.windows);
        EXPECT_LE(job.workers + job.joiners, 5u);
      }
      return true;
    };
    crowds += is_crowd(draw_switch_scenario(seed)) ? 1 : 0;
    with_racks += is_crowd(draw_rack_scenario(seed)) ? 1 : 0;
  }
  EXPECT_GE(crowds, kSeeds / 100);
  EXPECT_LE(crowds, kSeeds / 20);
  EXPECT_EQ(with_racks, crowds);
}

/// A decider that breaks a rule is found out within a few seeds: the simulation can fail.
class SwitchSimMutation : public ::testing::TestWithParam<SwitchMutation> {};

TEST_P(SwitchSimMutation, IsFoundOut) {
  const SwitchSimReport sum = run_switch_sim_seeds(MILLRACE_SIM_MUTATION_SEEDS, reference_decider(GetParam()));
  EXPECT_FALSE(sum.faults.empty());
}

/// An aggregator that is only slow breaks no law, and mostly ends before the time-out does: the rounds show it.
TEST(SwitchSim, AnswersThatTakeTooManyRoundsAreFoundOut) {
  const SwitchSimReport sum =
      run_switch_sim_seeds(MILLRACE_SIM_MUTATION_SEEDS, reference_decider(SwitchMutation::kSeldomKeptResult));
  EXPECT_TRUE(
      std::ranges::any_of(sum.faults, [](const std::string& fault) { return fault.contains("rounds: a turn took"); }));
}

INSTANTIATE_TEST_SUITE_P(Rules, SwitchSimMutation,
                         ::testing::Values(SwitchMutation::kIgnoreFragments, SwitchMutation::kAddTwice,
                                           SwitchMutation::kOpenWithoutAll, SwitchMutation::kKeepSumsOverEpochs,
                                           SwitchMutation::kNoFetch, SwitchMutation::kNoKeptResult));

}  // namespace
}  // namespace millrace::testing
