#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/worker/switch_path/switch_cluster.h"
#include "tests/worker/toys/toy_cluster.h"

/// A session's core whose contributions go through its rack's switch, against real aggregators of both roles. Values
/// lie on a binary grid: equality is asked for (worker/core/DESIGN.md, "Path switch").
namespace millrace::testing {
namespace {

using Event = switch_agg::AggregatorEvent;

constexpr float kSwitchRacksGrid = 1.0f / 8;
constexpr uint16_t kRack = SwitchCluster::kRackPort;

SwitchCluster::Options two_racks(uint64_t dimension) {
  SwitchCluster::Options options;
  options.spec = toy_spec(4, {dimension});
  options.spec.fuse_below = 0;
  options.spec.audit = true;
  options.racks = {0b0011, 0b1100};
  return options;
}

class Training {
 public:
  explicit Training(const SwitchCluster::Options& options)
      : cluster(options), random_(random_key(options.seed, 17)), dimension_(options.spec.tensors[0].dimension) {
    cluster.join_all();
  }

  void push_all() {
    for (uint32_t worker = 0; worker < cluster.workers(); ++worker) {
      std::map<uint32_t, float> entries;
      for (int i = 0; i < 40; ++i)
        entries[static_cast<uint32_t>(random_.next_below(dimension_))] =
            kSwitchRacksGrid * static_cast<float>(static_cast<int64_t>(random_.next_below(129)) - 64);
      cluster.push(worker, 0, entries);
    }
  }
  /// One step of all; the law holds before and after, at every index.
  void step() {
    push_all();
    expect_balanced();
    ++steps;
    ASSERT_NO_FATAL_FAILURE(cluster.run_until([&] { return cluster.all_applied(steps); }));
    expect_balanced();
  }
  void take(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) ASSERT_NO_FATAL_FAILURE(step());
  }
  void expect_balanced() {
    const std::vector<double> imbalance = cluster.imbalance(0);
    for (size_t i = 0; i < imbalance.size(); ++i) ASSERT_EQ(imbalance[i], 0) << "index " << i;
  }
  void expect_equal_weights() {
    for (uint32_t worker = 1; worker < cluster.workers(); ++worker)
      EXPECT_EQ(cluster.weights(worker), cluster.weights(0)) << "worker " << worker;
  }
  bool has_said(uint32_t worker, const std::string& words) const {
    for (const std::string& line : cluster.log(worker)) {
      if (line.find(words) != std::string::npos) return true;
    }
    return false;
  }
  /// Until contributions go by the rack again, with steps meanwhile.
  void until_at_rack(uint32_t worker) {
    for (int i = 0; i < 40 && !cluster.core(worker).switch_status()->at_rack; ++i) {
      cluster.pass(100 * kNsPerMs);
      ASSERT_NO_FATAL_FAILURE(step());
    }
    ASSERT_TRUE(cluster.core(worker).switch_status()->at_rack);
  }

  SwitchCluster cluster;
  uint64_t steps = 0;

 private:
  RandomSequence random_;
  uint64_t dimension_;
};

TEST(SwitchRacks, SumsOfRacksGiveTheSameWeightsAsNoRacks) {
  SwitchCluster::Options options = two_racks(500);
  Training with(options);
  // The first contributions go past the racks while these have no session with the decider yet.
  with.cluster.pass(200 * kNsPerMs);
  with.take(6);
  options.racks.clear();
  Training without(options);
  without.cluster.pass(200 * kNsPerMs);
  without.take(6);
  with.expect_equal_weights();
  EXPECT_EQ(with.cluster.weights(0), without.cluster.weights(0));
  for (const uint16_t rack : {kRack, static_cast<uint16_t>(kRack + 1)}) {
    EXPECT_GT(with.cluster.counted_at(rack, Event::kGroupSent), 6u);
    EXPECT_EQ(with.cluster.counted_at(rack, Event::kEntriesNotSelected), 0u);
  }
  EXPECT_GT(with.cluster.counted_at(SwitchCluster::kSwitchPort, Event::kGroupAdded), 12u);
  for (uint32_t worker = 0; worker < 4; ++worker) EXPECT_TRUE(with.cluster.core(worker).switch_status()->at_rack);
}

TEST(SwitchRacks, TheLawHoldsUnderLossAndCopies) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SwitchCluster::Options options = two_racks(500);
    options.seed = seed;
    options.loss = 0.1;
    options.copies = 0.05;
    options.rack_reselect_k = seed % 2 == 0 ? 12 : 0;
    if (seed == 3) options.racks = {0b0111};  // worker 3 is in none
    Training training(options);
    training.take(12);
    training.expect_equal_weights();
    EXPECT_GT(training.cluster.counted_at(SwitchCluster::kSwitchPort, Event::kGroupAdded), 0u);
  }
}

TEST(SwitchRacks, EntriesThatARackOmitsReturnToItsWorkers) {
  SwitchCluster::Options options = two_racks(500);
  options.rack_reselect_k = 10;
  Training training(options);
  training.take(8);
  training.expect_equal_weights();
  EXPECT_GT(training.cluster.counted_at(kRack, Event::kEntriesNotSelected), 100u);
  EXPECT_GT(training.cluster.core(0).residual(0).count(), 0u);
  EXPECT_GT(training.cluster.core(0).bucket_counters(0).entries_returned, 0u);
}

TEST(SwitchRacks, WorkersBypassARackThatDiesMidStepUntilItRecovers) {
  SwitchCluster::Options options = two_racks(500);
  options.rack_reselect_k = 10;
  Training training(options);
  training.take(4);
  ASSERT_NO_FATAL_FAILURE(training.until_at_rack(0));
  training.push_all();
  for (int i = 0; i < 12; ++i) training.cluster.step();
  training.cluster.stop_aggregator(kRack);
  ++training.steps;
  training.cluster.run_until([&] { return training.cluster.all_applied(training.steps); });
  training.expect_balanced();
  training.take(4);
  EXPECT_FALSE(training.cluster.core(0).switch_status()->at_rack);
  EXPECT_TRUE(training.cluster.core(2).switch_status()->at_rack) << "the other rack's workers stay with theirs";
  EXPECT_TRUE(training.cluster.core(0).switch_status()->at_switch) << "the decider was never away";
  EXPECT_TRUE(training.has_said(0, "rack does not answer"));
  training.cluster.start_aggregator(kRack);
  ASSERT_NO_FATAL_FAILURE(training.until_at_rack(0));
  ASSERT_NO_FATAL_FAILURE(training.until_at_rack(1));
  training.take(4);
  training.expect_equal_weights();
  EXPECT_TRUE(training.has_said(0, "rack adds up again"));
  EXPECT_GT(training.cluster.counted_at(kRack, Event::kGroupSent), 0u) << "of the new incarnation";
}

TEST(SwitchRacks, DuringFallbackWorkersSendNothingToRacks) {
  Training training(two_racks(500));
  training.take(3);
  ASSERT_NO_FATAL_FAILURE(training.until_at_rack(0));
  training.cluster.stop_aggregator(SwitchCluster::kSwitchPort);
  training.cluster.set_path(protocol::Path::kServer);
  const uint64_t sent = training.cluster.core(0).switch_status()->client.sent_to_rack;
  training.take(4);
  EXPECT_EQ(training.cluster.core(0).switch_status()->client.sent_to_rack, sent);
  EXPECT_FALSE(training.cluster.core(0).switch_status()->at_rack);
  training.cluster.start_aggregator(SwitchCluster::kSwitchPort);
  training.cluster.set_path(protocol::Path::kSwitch);
  ASSERT_NO_FATAL_FAILURE(training.until_at_rack(0));
  training.expect_equal_weights();
}

TEST(SwitchRacks, ShardZeroDecidesBehindRacksOnEitherPath) {
  SwitchCluster::Options options = two_racks(500);
  options.address = "shard:7600";
  Training training(options);
  training.take(3);
  ASSERT_NO_FATAL_FAILURE(training.until_at_rack(0));
  EXPECT_GT(training.cluster.counted_at(SwitchCluster::kShardPort, Event::kGroupAdded), 0u);
  // A word of silence raises the epoch to the other path: it leads to the same aggregator, and the racks serve it as
  // before.
  training.cluster.set_path(protocol::Path::kServer);
  ASSERT_NO_FATAL_FAILURE(training.until_at_rack(0));
  training.take(3);
  training.expect_equal_weights();
}

TEST(SwitchRacks, AWorkerThatDiesIsLeftOutOfItsRacksSums) {
  Training training(two_racks(500));
  training.take(3);
  ASSERT_NO_FATAL_FAILURE(training.until_at_rack(0));
  training.push_all();
  training.cluster.kill(1);
  training.cluster.raise([](protocol::Membership& membership) {
    std::erase_if(membership.members, [](const auto& one) { return one.worker == 1; });
  });
  ++training.steps;
  training.cluster.run_until([&] { return training.cluster.all_applied(training.steps); });
  const uint64_t sent = training.cluster.counted_at(kRack, Event::kGroupSent);
  for (int i = 0; i < 6; ++i) {
    for (const uint32_t worker : {0u, 2u, 3u}) training.cluster.push(worker, 0, {{worker, 1.0f}});
    ++training.steps;
    training.cluster.run_until([&] { return training.cluster.all_applied(training.steps); });
    training.cluster.pass(50 * kNsPerMs);
  }
  EXPECT_GT(training.cluster.counted_at(kRack, Event::kGroupSent), sent)
      << "its rack sums up the remaining contributions";
}

/// A worker that rejoins has a client of its own that continues. Its counts, and the loss of its rack, belong to the
/// session.
TEST(SwitchRacks, ARejoiningWorkerKeepsItsCountsAndRepeatsNoRackReport) {
  Training training(two_racks(500));
  SwitchCluster& cluster = training.cluster;
  training.take(3);
  cluster.stop_aggregator(kRack);
  training.take(6);
  cluster.start_aggregator(kRack);
  ASSERT_NO_FATAL_FAILURE(training.until_at_rack(0));
  const auto said = [&] {
    return std::ranges::count_if(
        cluster.log(0), [](const std::string& line) { return line.find("rack does not") != std::string::npos; });
  };
  ASSERT_EQ(said(), 1);
  const worker::SwitchClientCounters before = cluster.core(0).switch_status()->client;
  cluster.remove(0, SwitchCluster::Hears::kNow);
  cluster.pass(100 * kNsPerMs);
  cluster.admit(0, SwitchCluster::Process::kSame);
  cluster.run_until([&] { return cluster.is_synced(0) && cluster.core(0).phase() == worker::Phase::kRunning; });
  cluster.pass(100 * kNsPerMs);
  const worker::SwitchClientCounters after = cluster.core(0).switch_status()->client;
  EXPECT_GE(after.results, before.results);
  EXPECT_GE(after.sent_to_rack, before.sent_to_rack);
  EXPECT_GT(after.rack_welcomes, before.rack_welcomes);
  EXPECT_EQ(said(), 1);
}

}  // namespace
}  // namespace millrace::testing
