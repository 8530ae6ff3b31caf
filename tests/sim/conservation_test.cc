// Tests that nothing is lost, over thousands of steps: production cores on a perfect network, gradients on a binary
// grid. The law is asserted per tensor and index by equality (see SimWorker::check_law and ClusterOracle). The ledgers
// stay empty, except where the codec drops its errors.
#include <gtest/gtest.h>

#include <string>

#include "tests/sim/cluster_sim.h"

namespace millrace::testing {
namespace {

/// Two tensors, one of them over all shards; 3 workers on 2 shards.
Scenario long_run(uint64_t seed) {
  Scenario scenario;
  scenario.seed = seed;
  scenario.shards = 2;
  scenario.spec.name = "sim";
  scenario.spec.tensors.resize(2);
  scenario.spec.tensors[0].name = "small";
  scenario.spec.tensors[0].dimension = 257;
  scenario.spec.tensors[1].name = "large";
  scenario.spec.tensors[1].dimension = 2 * 4'096 + 3;
  scenario.spec.workers = 3;
  scenario.spec.fuse_below = 1;
  scenario.spec.seed = seed;
  scenario.spec.select = {.selection = SelectionId::kTopK, .density = 0.02, .k = 0, .threshold = 0};
  scenario.steps.assign(3, MILLRACE_CONSERVATION_STEPS);
  scenario.density_max = 0.05;
  scenario.link.latency_max = 5 * kNsPerMs;
  return scenario;
}

SimReport expect_balanced(const Scenario& scenario) {
  EXPECT_TRUE(protocol::validate(scenario.spec).has_value()) << protocol::validate(scenario.spec).error().message;
  const SimReport report = run_cluster(scenario);
  std::string faults;
  for (const auto& fault : report.faults) faults += "  " + fault + "\n";
  EXPECT_TRUE(report.faults.empty()) << describe(scenario) << faults;
  EXPECT_EQ(report.finished, scenario.spec.workers);
  EXPECT_GE(report.steps_decided, scenario.spec.workers * scenario.steps[0]);
  EXPECT_GT(report.law_checks, scenario.steps[0] / 20);
  return report;
}

void expect_conserved(const Scenario& scenario) {
  EXPECT_EQ(expect_balanced(scenario).lost, 0.0) << describe(scenario);
}

TEST(Conservation, TopKUpWholeSumDown) { expect_conserved(long_run(1)); }

TEST(Conservation, TopKUpTopKDown) {
  Scenario scenario = long_run(2);
  scenario.spec.reselect = {.reselect = protocol::Reselect::kTopK, .density = 0.01};
  expect_conserved(scenario);
}

TEST(Conservation, TopKDownByAReusedThreshold) {
  Scenario scenario = long_run(3);
  scenario.spec.reselect = {.reselect = protocol::Reselect::kTopK, .density = 0.01, .k = 0, .threshold_period = 8};
  scenario.spec.staleness = 2;
  expect_conserved(scenario);
}

TEST(Conservation, BloomFiltersBothWays) {
  Scenario scenario = long_run(4);
  scenario.spec.codec_up.index = IndexCodecId::kBloom;
  scenario.spec.codec_up.bloom_false_positive_rate = 0.05;
  scenario.spec.codec_down = scenario.spec.codec_up;
  scenario.spec.reselect = {.reselect = protocol::Reselect::kTopK, .density = 0.01};
  expect_conserved(scenario);
}

TEST(Conservation, QuantizerWhoseErrorIsRetained) {
  Scenario scenario = long_run(5);
  scenario.spec.codec_up = codec_from_text("gap+three_lc:1").value();  // -max, 0, max: on the grid
  expect_conserved(scenario);
}

TEST(Conservation, QuantizerWhoseErrorIsDroppedIntoTheLedger) {
  Scenario scenario = long_run(6);
  scenario.spec.codec_up.value = ValueCodecId::kQsgd;
  scenario.spec.codec_up.qsgd_bits = 2;
  scenario.spec.codec_error = protocol::CodecError::kDrop;
  scenario.spec.combine = protocol::Combine::kMean;
  EXPECT_GT(expect_balanced(scenario).lost, 0.0) << "the case must drop errors to say something";
}

/// Bytes decide, coding and bytes, coding alone; the last one sends all of a part, zeros too.
TEST(Conservation, CodecsChosenOnTheWay) {
  for (const double rate : {1e5, 1e9, 1e15}) {
    Scenario scenario = long_run(8);
    scenario.spec.codec_up.automatic = true;
    scenario.spec.codec_down.automatic = true;
    scenario.spec.select.density = rate > 1e12 ? 0.9 : 0.02;
    scenario.density_max = rate > 1e12 ? 1 : 0.05;
    scenario.link_rate = rate;
    expect_conserved(scenario);
  }
}

TEST(Conservation, CodecsChosenForAnUpdateThatIsCut) {
  Scenario scenario = long_run(9);
  scenario.spec.codec_up = codec_from_text("auto+three_lc:1").value();
  scenario.spec.codec_down.automatic = true;
  scenario.spec.reselect = {.reselect = protocol::Reselect::kTopK, .density = 0.5};
  scenario.link_rate = 1e15;
  scenario.density_max = 1;
  expect_conserved(scenario);
}

TEST(Conservation, EverythingPushedGoesThroughWithStaleness) {
  Scenario scenario = long_run(7);
  scenario.spec.select = {};
  scenario.spec.staleness = 3;
  scenario.spec.combine = protocol::Combine::kWeightedMean;
  scenario.spec.parts_per_shard = 3;
  expect_conserved(scenario);
}

}  // namespace
}  // namespace millrace::testing
