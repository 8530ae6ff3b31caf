// Production clients and aggregators with contributions in every pair of codecs, over links that lose packets. Checks
// that offered values are applied or returned, and that all workers have the same updates (switch_oracle).
#include <gtest/gtest.h>

#include <tuple>

#include "tests/sim/switch/switch_sim.h"

namespace millrace::testing {
namespace {

using protocol::WindowIndexCodec;
using protocol::WindowValueCodec;
using Pair = std::tuple<WindowIndexCodec, WindowValueCodec>;

SwitchScenario lossy_scenario(const Pair& codecs) {
  SwitchScenario out;
  out.seed = 5;
  // Sparse enough that runs are no shorter, with QSGD's rests in residuals too. Where values have 32 bits, two packets
  // a window and more.
  out.jobs = {{.job = 5,
               .workers = 3,
               .slots = 2,
               .window_indices = 8192,
               .windows = 4,
               .steps = 6,
               .density = 0.03,
               .codecs = {std::get<0>(codecs), std::get<1>(codecs)}}};
  out.loss = 0.1;
  out.duplication = 0.05;
  out.slow = 0.1;
  out.slow_max = 3 * kNsPerMs;
  out.calm_from = 600 * kNsPerS;
  return out;
}

class SwitchCodecs : public ::testing::TestWithParam<Pair> {
 protected:
  /// All contributions were in these codecs, but for runs, which are dense by themselves.
  static void expect_lawful(const SwitchScenario& scenario) {
    const SwitchSimReport report = run_switch_sim(scenario, production_decider());
    for (const std::string& fault : report.faults) ADD_FAILURE() << fault;
    const auto index = static_cast<uint8_t>(std::get<0>(GetParam()));
    const auto value = static_cast<uint8_t>(std::get<1>(GetParam()));
    const auto dense = static_cast<uint8_t>(WindowIndexCodec::kDense);
    uint64_t others = 0;
    for (const auto& [codecs, count] : report.contributions) {
      if (codecs.second != value || (codecs.first != index && codecs.first != dense)) others += count;
    }
    EXPECT_EQ(others, 0u);
    const auto found = report.contributions.find({index, value});
    ASSERT_NE(found, report.contributions.end());
    EXPECT_GT(found->second, 50u);
    EXPECT_GT(report.resends, 10u);
    EXPECT_GT(report.entries_checked, 5'000u);
  }
};

TEST_P(SwitchCodecs, TheLawHoldsBehindASwitch) { expect_lawful(lossy_scenario(GetParam())); }

TEST_P(SwitchCodecs, TheLawHoldsBehindRacks) {
  SwitchScenario scenario = lossy_scenario(GetParam());
  scenario.racks = 2;
  expect_lawful(scenario);
}

/// The contributions of a dead worker are computed with the same codecs.
TEST_P(SwitchCodecs, TheLawHoldsWithContributionsOfDeadWorkers) {
  SwitchScenario scenario = lossy_scenario(GetParam());
  scenario.jobs[0].workers = 6;
  scenario.jobs[0].window_indices = 1024;
  scenario.jobs[0].density = 0.1;
  scenario.jobs[0].steps = 20;
  scenario.jobs[0].think_max = 10 * kNsPerMs;
  scenario.deaths = 4;
  scenario.calm_from = 300 * kNsPerMs;
  const SwitchSimReport report = run_switch_sim(scenario, production_decider());
  for (const std::string& fault : report.faults) ADD_FAILURE() << fault;
  EXPECT_GT(report.dead_in_results, 0u) << report.deaths << " deaths, " << report.turns << " turns, " << report.took;
}

std::string switch_codecs_name_of(const ::testing::TestParamInfo<Pair>& info) {
  constexpr const char* kIndex[] = {"", "Raw", "Gap", "Bitmap", "Bloom"};
  constexpr const char* kValue[] = {"", "Fixed16", "Fixed32", "Qsgd8", "Qsgd4"};
  return std::string(kIndex[static_cast<size_t>(std::get<0>(info.param))]) +
         kValue[static_cast<size_t>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(Pairs, SwitchCodecs,
                         ::testing::Combine(::testing::Values(WindowIndexCodec::kRaw, WindowIndexCodec::kGap,
                                                              WindowIndexCodec::kBitmap, WindowIndexCodec::kBloom),
                                            ::testing::Values(WindowValueCodec::kFixed16, WindowValueCodec::kFixed32,
                                                              WindowValueCodec::kQsgd8, WindowValueCodec::kQsgd4)),
                         switch_codecs_name_of);

}  // namespace
}  // namespace millrace::testing
