// Role combine, simulated: racks' switches in front of a shard, with loss, restarts of both, deaths, changes of path. A
// failing seed is run again by
//     MILLRACE_SIM_FIRST_SEED=N MILLRACE_SIM_SEEDS=1 rack_sim_test
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/sim/switch/switch_sim.h"

namespace millrace::testing {
namespace {

uint64_t rack_sim_number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 10);
}

void print_rack_sim(uint64_t seeds, const SwitchSimReport& sum) {
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "%llu seeds: %llu packets, %llu turns settled, %llu epochs, %llu restarts (%llu after a strict subset had a "
      "result), %llu deaths, %llu results fetched, %llu resends, %llu results with a dead worker's values, %llu "
      "entries "
      "checked, at most %u sends of a turn in quiet, %.1f s of virtual time\n",
      number(seeds), number(sum.packets), number(sum.turns), number(sum.epochs), number(sum.restarts),
      number(sum.subset_kills), number(sum.deaths), number(sum.fetches), number(sum.resends),
      number(sum.dead_in_results), number(sum.entries_checked), sum.sends_most,
      static_cast<double>(sum.took) / kNsPerS);
  std::printf(
      "racks: %llu groups sent (%llu cut), %llu again, %llu taken, %llu parts that overlapped, %llu too long, "
      "%llu units raw, %llu sums flushed, %llu times no slots\n",
      number(sum.racks.groups_sent), number(sum.racks.groups_cut), number(sum.racks.groups_again),
      number(sum.racks.groups_added), number(sum.racks.group_overlaps), number(sum.racks.groups_too_long),
      number(sum.racks.forwarded), number(sum.racks.flushed), number(sum.racks.no_slots));
}

TEST(RackSim, EverySeedKeepsTheLawAndEnds) {
  const uint64_t first = rack_sim_number_from("MILLRACE_SIM_FIRST_SEED", 1);
  const uint64_t seeds = rack_sim_number_from("MILLRACE_SIM_SEEDS", MILLRACE_SIM_SEEDS_DEFAULT);
  SwitchSimReport sum;
  for (uint64_t seed = first; seed < first + seeds && sum.faults.size() < 10; ++seed) {
    const SwitchScenario scenario = draw_rack_scenario(seed);
    const SwitchSimReport report = run_switch_sim(scenario, production_decider());
    if (!report.faults.empty()) std::printf("%s\n", describe(scenario).c_str());
    sum += report;
  }
  for (const std::string& fault : sum.faults) ADD_FAILURE() << fault;
  print_rack_sim(seeds, sum);
  if (seeds < 500) return;
  EXPECT_GT(sum.subset_kills, 0u);
  EXPECT_GT(sum.fetches, 0u);
  EXPECT_GT(sum.dead_in_results, 0u);
  EXPECT_GT(sum.racks.groups_added, 0u);
  EXPECT_GT(sum.racks.groups_cut, 0u);
  EXPECT_GT(sum.racks.groups_again, 0u);
  EXPECT_GT(sum.racks.group_overlaps, 0u);
  EXPECT_GT(sum.racks.groups_too_long, 0u);
  EXPECT_GT(sum.racks.forwarded, 0u);
  EXPECT_GT(sum.racks.flushed, 0u);
  EXPECT_GT(sum.racks.no_slots, 0u);
  EXPECT_GT(sum.crowds, 0u);
  EXPECT_GT(sum.jobs_of_lanes, 0u);
  EXPECT_GT(sum.sends_most, 1u);
}

/// Nothing goes wrong: every contribution goes up in its rack's group, and nothing is sent again.
TEST(RackSim, WithoutLossNothingGoesUpRaw) {
  SwitchScenario scenario = draw_rack_scenario(1);
  scenario.slots_short = 0;
  scenario.jobs = {{.job = 5, .workers = 6, .slots = 4, .window_indices = 256, .windows = 8, .steps = 10}};
  scenario.racks = 2;
  scenario.in_order = true;  // a packet out of order may be taken for lost, and sent again
  scenario.loss = scenario.duplication = scenario.corruption = scenario.slow = scenario.subset_kills = 0;
  scenario.restarts = scenario.rack_restarts = scenario.deaths = scenario.path_changes = scenario.stalls = 0;
  scenario.lease_ns = 10 * kNsPerS;
  const SwitchSimReport report = run_switch_sim(scenario, production_decider());
  for (const std::string& fault : report.faults) ADD_FAILURE() << fault;
  EXPECT_EQ(report.racks.forwarded, 0u);
  EXPECT_EQ(report.racks.flushed, 0u);
  EXPECT_EQ(report.racks.groups_sent, report.racks.groups_added);
  EXPECT_GE(report.racks.groups_added, 2u * 10 * 4);
}

/// Bytes a step, without loss: the first steps are not counted, they have no threshold yet.
struct Bytes {
  double to_decider = 0;
  double codes = 0;    ///< of the sums of each rack's workers' entries: without headers
  double packets = 0;  ///< in as few packets as hold it
  double entries = 0;
};

struct Fleet {
  uint32_t racks = 0;
  uint64_t rack_reselect_k = 0;
  uint32_t cluster = 1;
  uint32_t window_indices = 16'384;
};

constexpr uint32_t kDimension = 1 << 17;
constexpr uint32_t kWorkers = 8;
constexpr uint32_t kMore = 4;                    ///< steps that count
constexpr uint64_t kEntries = kDimension / 100;  ///< a worker's, of a step

Bytes bytes_of(const Fleet& fleet) {
  const auto run = [&](uint32_t steps) {
    SwitchScenario scenario;
    scenario.seed = 3;
    scenario.jobs = {{.job = 5,
                      .workers = kWorkers,
                      .slots = 2,
                      .window_indices = fleet.window_indices,
                      .windows = kDimension / fleet.window_indices,
                      .steps = steps,
                      .density = 0.01,
                      .rack_reselect_k = fleet.rack_reselect_k,
                      .cluster = fleet.cluster}};
    scenario.racks = fleet.racks;
    scenario.has_singles = false;
    scenario.adds_up_unions = true;
    scenario.packet_bytes = 1472;
    const SwitchSimReport report = run_switch_sim(scenario, production_decider());
    for (const std::string& fault : report.faults) ADD_FAILURE() << fault;
    return report;
  };
  constexpr uint32_t kFirst = 2;
  const SwitchSimReport before = run(kFirst);
  const SwitchSimReport all = run(kFirst + kMore);
  const auto more = [](uint64_t now, uint64_t then) { return static_cast<double>(now - then) / kMore; };
  return {.to_decider = more(all.bytes_to_decider, before.bytes_to_decider),
          .codes = more(all.unions.codes, before.unions.codes),
          .packets = more(all.unions.packets, before.unions.packets),
          .entries = more(all.unions.entries, before.unions.entries)};
}

/// 8 workers in 2 racks. The coded union is made of the very entries that reached the racks (CodedUnion). The offers
/// depend on earlier rounding, saturation and trimming, and so on the number of workers.
TEST(RackSim, BytesIntoTheShard) {
  for (const uint32_t cluster : {1u, 64u}) {
    for (const uint32_t window_indices : {16'384u, 65'536u}) {
      const double raw = bytes_of({.cluster = cluster, .window_indices = window_indices}).to_decider;
      const Bytes whole = bytes_of({.racks = 2, .cluster = cluster, .window_indices = window_indices});
      const auto cut_to = [&](uint64_t k) {
        return bytes_of({.racks = 2, .rack_reselect_k = k, .cluster = cluster, .window_indices = window_indices})
            .to_decider;
      };
      const double each_k = cut_to(kEntries);
      const double share = cut_to(kEntries / 2);
      std::printf(
          "%s, 1 %%, windows of %u: raw %.0f bytes a step; racks' whole sums %.0f entries, %.3f of raw, %.3f of the "
          "coded unions in packets, %.3f of their codes alone; each rack's sum cut to a worker's k %.3f of raw, to "
          "half "
          "of it %.3f\n",
          cluster == 1 ? "uniform" : "clustered", window_indices, raw, whole.entries, whole.to_decider / raw,
          whole.to_decider / whole.packets, whole.to_decider / whole.codes, each_k / raw, share / raw);
      // A worker without an answer may ask once.
      EXPECT_LE(whole.to_decider, 1.01 * whole.packets + 1472.0 / kMore);
      EXPECT_LE(share, 0.2 * raw);
      // Headers are 104 bytes a packet of 1472: few packets of a window are half empty where windows are long.
      if (window_indices == 65'536 && cluster == 1) {
        EXPECT_LE(whole.to_decider, 1.1 * whole.codes);
      }
    }
  }
}

}  // namespace
}  // namespace millrace::testing
