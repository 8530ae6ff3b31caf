#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "protocol/messages/handover_frame.h"
#include "tests/worker/switch_path/switch_law.h"

/// Workers that join a job of path switch that runs: new processes and removed ones, against real aggregators.
namespace millrace::testing {
namespace {

using Hears = SwitchCluster::Hears;
using Process = SwitchCluster::Process;

TEST(SwitchReturns, ANewProcessTakesPartFromTheNextStepOn) {
  SwitchCluster cluster(options_for(3, {500, 70}, 1));
  RandomSequence random(random_key(1));
  cluster.join_all();
  run_steps(cluster, 4, random);
  cluster.kill(1);
  cluster.remove(1, Hears::kLater);
  cluster.admit(1, Process::kNew);
  EXPECT_EQ(cluster.core(1).phase(), worker::Phase::kRejoining);
  cluster.run_until([&] { return all_synced(cluster); });
  const uint64_t entry = cluster.core(1).steps_applied(0);
  EXPECT_EQ(entry, cluster.core(0).steps_applied(0));
  EXPECT_EQ(cluster.weights(1), cluster.weights(0));
  run_steps(cluster, entry + 3, random);
  expect_alike(cluster);
  expect_the_law(cluster);
  // It is counted from its first step on: the others do not wait longer. Its pushes are its own process's.
  std::set<uint64_t> answered;
  for (const worker::DeliveredUpdate& update : cluster.delivered(1)) {
    EXPECT_TRUE(update.replaces || update.contributors == 3u);
    if (!update.replaces && update.answers_push) answered.insert(update.push);
  }
  EXPECT_EQ(*answered.begin(), 0u);
  EXPECT_EQ(*answered.rbegin() + 1, answered.size());
}

TEST(SwitchReturns, NoWorkerBeginsAStepDuringAHandover) {
  SwitchCluster cluster(options_for(3, {500}, 2));
  RandomSequence random(random_key(2));
  cluster.join_all();
  run_steps(cluster, 2, random);
  cluster.kill(2);
  cluster.remove(2, Hears::kLater);
  cluster.admit(2, Process::kNew);
  cluster.run_until(
      [&] { return !cluster.sent<protocol::Snapshot>(0).empty() || !cluster.sent<protocol::Snapshot>(1).empty(); });
  // The shards pass nothing more on: the worker that gave weights stalls, and so does the other.
  cluster.passes_on = false;
  for (uint32_t worker = 0; worker < 2; ++worker) push_step(cluster, worker, random);
  cluster.pass(500 * kNsPerMs);
  EXPECT_FALSE(cluster.is_synced(2));
  EXPECT_EQ(cluster.core(0).steps_applied(0), 2u);
  EXPECT_EQ(cluster.core(1).steps_applied(0), 2u);
  // It dies: the next epoch lets the others go on.
  cluster.kill(2);
  cluster.remove(2, Hears::kLater);
  cluster.run_until([&] { return cluster.core(0).steps_applied(0) == 3 && cluster.core(1).steps_applied(0) == 3; });
}

/// Removes worker 2 in the middle of a step, and lets it rejoin: the others report the counted part of its entries in
/// flight. cut: racks in front of the decider trim their sums, so that most of its entries were not counted.
void expect_exact_settlement(uint64_t cut) {
  bool counted = false;
  bool returned = false;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    SwitchCluster::Options options = options_for(3, {1'000}, seed);
    options.slots = 3;
    if (cut != 0) options.racks = {0b011, 0b100};
    options.rack_reselect_k = cut;
    SwitchCluster cluster(options);
    RandomSequence random(random_key(seed));
    cluster.join_all();
    run_steps(cluster, 2, random);
    if (cut != 0) cluster.run_until([&] { return cluster.core(2).switch_status()->at_rack; });
    run_steps(cluster, 4, random);
    for (uint32_t worker = 0; worker < 3; ++worker) push_step(cluster, worker, random);
    const uint64_t results = cluster.core(2).switch_status()->client.results;
    cluster.run_until([&] { return cluster.core(2).switch_status()->client.results >= results + seed % 14; });
    const uint64_t before = cluster.core(2).bucket_counters(0).entries_returned;
    uint64_t had = 0;
    for (const worker::OutstandingView& out : cluster.core(2).outstanding(0)) had += out.sent.count();
    cluster.remove(2, Hears::kNow);
    cluster.run_until([&] { return cluster.core(0).steps_applied(0) >= 5 && cluster.core(1).steps_applied(0) >= 5; });
    cluster.admit(2, Process::kSame);
    cluster.run_until([&] { return all_synced(cluster); });
    run_steps(cluster, cluster.core(0).steps_applied(0) + 2, random);
    expect_alike(cluster);
    expect_the_law(cluster);
    EXPECT_EQ(lost_by(cluster.core(2)), 0);
    EXPECT_TRUE(cluster.gone().empty());
    const uint64_t came_back = cluster.core(2).bucket_counters(0).entries_returned - before;
    returned = returned || came_back > 0;
    counted = counted || came_back < had;
  }
  EXPECT_TRUE(returned);
  EXPECT_TRUE(counted || cut != 0);
}

TEST(SwitchReturns, AnEvictedWorkerResolvesExactlyItsInFlightEntries) { expect_exact_settlement(0); }

TEST(SwitchReturns, AnEvictedWorkerRegainsEntriesThatItsRackOmitted) { expect_exact_settlement(6); }

// Worker 1 alone has the step's last results when worker 2 is removed, and gives them to it: in these worker 2 was
// counted. Then worker 1 is removed too, before worker 2 takes part, and worker 0 computes those turns again without
// both.
TEST(SwitchReturns, GiverRemovedBeforeTheJoinerTakesPart_ItsReportIsRevoked) {
  uint32_t met = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    SwitchCluster::Options options = options_for(3, {500}, seed);
    options.slots = 3;
    SwitchCluster cluster(options);
    RandomSequence random(random_key(seed));
    cluster.join_all();
    run_steps(cluster, 2, random);
    for (uint32_t worker = 0; worker < 3; ++worker) push_step(cluster, worker, random);
    const auto results = [&](uint32_t worker) { return cluster.core(worker).switch_status()->client.results; };
    const uint64_t until = results(0) + 5;
    cluster.run_until([&] { return results(0) >= until && results(2) >= until; });
    cluster.loses_results = [](uint32_t worker) { return worker != 1; };
    cluster.pass(200 * kNsPerMs);
    if (cluster.core(1).steps_applied(0) != 3 || cluster.core(0).steps_applied(0) != 2) continue;
    cluster.remove(2, Hears::kNow);
    cluster.pass(200 * kNsPerMs);
    cluster.admit(2, Process::kSame);
    const auto has_all = [&] {
      for (uint32_t part = 0; part < cluster.core(2).layout().parts.size(); ++part) {
        if (cluster.core(2).part_steps_applied(part) != 3) return false;
      }
      return true;
    };
    const TimeNs late = cluster.now() + 20 * kNsPerS;
    cluster.run_until([&] { return has_all() || cluster.is_synced(2) || cluster.now() > late; });
    if (!has_all() || cluster.is_synced(2)) continue;
    ++met;
    cluster.remove(1, Hears::kNow);
    cluster.loses_results = {};
    cluster.run_until([&] { return cluster.is_synced(2); });
    cluster.admit(1, Process::kSame);
    cluster.run_until([&] { return all_synced(cluster); });
    run_steps(cluster, cluster.core(0).steps_applied(0) + 2, random);
    expect_alike(cluster);
    expect_the_law(cluster);
    for (uint32_t worker = 0; worker < 3; ++worker) EXPECT_EQ(lost_by(cluster.core(worker)), 0);
  }
  EXPECT_GT(met, 0u);
}

std::map<uint32_t, float> residual_of(const WatchedCore& core) {
  const Stream kept = core.residual(0);
  std::map<uint32_t, float> entries;
  for (size_t i = 0; i < kept.values.size(); ++i) {
    if (kept.values[i] != 0) entries[kept.dense ? static_cast<uint32_t>(i) : kept.indices[i]] = kept.values[i];
  }
  return entries;
}

// Worker 1 alone had the last results. The others computed them again without it, and notified it. They are gone before
// it has their weights, and the job continues from its own. Those hold its entries of those turns, which must not be
// returned as well.
TEST(SwitchReturns, RevokedResults_NotReturnedWhereTheJobUsesItsOwnWeights) {
  uint32_t met = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    SwitchCluster::Options options = options_for(3, {500}, seed);
    options.slots = 3;
    SwitchCluster cluster(options);
    RandomSequence random(random_key(seed));
    cluster.join_all();
    run_steps(cluster, 2, random);
    for (uint32_t worker = 0; worker < 3; ++worker) push_step(cluster, worker, random);
    const auto results = [&](uint32_t worker) { return cluster.core(worker).switch_status()->client.results; };
    const uint64_t until = results(0) + 5;
    cluster.run_until([&] { return results(0) >= until && results(2) >= until; });
    cluster.loses_results = [](uint32_t worker) { return worker != 1; };
    cluster.pass(200 * kNsPerMs);
    if (cluster.core(1).steps_applied(0) != 3 || cluster.core(0).steps_applied(0) != 2) continue;
    const std::map<uint32_t, float> residual = residual_of(cluster.core(1));
    const std::vector<std::vector<float>> weights = cluster.weights(1);
    cluster.remove(1, Hears::kNow);
    cluster.loses_results = {};
    cluster.run_until([&] { return cluster.core(0).steps_applied(0) == 3 && cluster.core(2).steps_applied(0) == 3; });
    cluster.admit(1, Process::kSame);
    const auto was_told = [&] {
      return std::ranges::any_of(cluster.log(1), [](const std::string& line) {
        return line.find("no remaining worker had them") != std::string::npos;
      });
    };
    cluster.run_until([&] { return was_told() || cluster.is_synced(1); });
    if (!was_told() || cluster.is_synced(1) || cluster.weights(1) != weights) continue;
    ++met;
    cluster.passes_on = false;
    cluster.kill(0);
    cluster.kill(2);
    cluster.raise([](protocol::Membership& membership) {
      std::erase_if(membership.members, [](const protocol::Member& member) { return member.worker != 1; });
      membership.members.front().state = protocol::MemberState::kSynced;
      membership.cut = membership.epoch;
      membership.cut_worker = 1;
    });
    EXPECT_EQ(cluster.core(1).phase(), worker::Phase::kRunning);
    EXPECT_EQ(cluster.weights(1), weights);
    EXPECT_EQ(residual_of(cluster.core(1)), residual);
  }
  EXPECT_GT(met, 0u);
}

TEST(SwitchReturns, AFinishingWorkerServesAJoinerUntilTheJoinerFinishes) {
  SwitchCluster cluster(options_for(3, {300}, 4));
  RandomSequence random(random_key(4));
  cluster.join_all();
  run_steps(cluster, 3, random);
  cluster.kill(2);
  cluster.remove(2, Hears::kLater);
  for (uint32_t worker = 0; worker < 2; ++worker) {
    ASSERT_TRUE(cluster.core(worker).finish(cluster.now(), cluster.actions(worker)).has_value());
  }
  cluster.admit(2, Process::kNew);
  cluster.run_until([&] { return cluster.core(2).phase() == worker::Phase::kRunning; });
  EXPECT_EQ(cluster.weights(2), cluster.weights(0));
  // It still has steps to which no other worker contributes.
  push_step(cluster, 2, random);
  cluster.run_until([&] { return cluster.core(2).steps_applied(0) >= 1 && cluster.core(2).outstanding(0).empty(); });
  ASSERT_TRUE(cluster.core(2).finish(cluster.now(), cluster.actions(2)).has_value());
  cluster.run_until([&] { return cluster.core(2).phase() == worker::Phase::kFinished; });
}

TEST(SwitchReturns, AMalformedHandoverIsDroppedAndRequestedAgain) {
  SwitchCluster cluster(options_for(2, {300}, 5));
  RandomSequence random(random_key(5));
  cluster.join_all();
  run_steps(cluster, 1, random);
  cluster.kill(1);
  cluster.remove(1, Hears::kLater);
  cluster.passes_on = false;
  cluster.admit(1, Process::kNew);
  protocol::Snapshot run;
  run.part = static_cast<uint32_t>(cluster.core(1).layout().parts.size());
  run.for_worker = 1;
  run.for_incarnation = cluster.membership().members[1].incarnation;
  cluster.hear(1, 0, run);
  EXPECT_EQ(cluster.core(1).counters().dropped_malformed, 1u);
  cluster.hear(1, 1, run);
  EXPECT_EQ(cluster.core(1).counters().dropped_malformed, 1u) << "shard 1 passes none on";
  cluster.passes_on = true;
  cluster.run_until([&] { return all_synced(cluster); });
}

TEST(SwitchReturns, TheShardInTheSwitchsPlaceTakesJoinersToo) {
  SwitchCluster cluster(options_for(3, {300}, 6));
  RandomSequence random(random_key(6));
  cluster.join_all();
  run_steps(cluster, 2, random);
  cluster.stop_aggregator(SwitchCluster::kSwitchPort);
  cluster.set_path(protocol::Path::kServer);
  cluster.kill(0);
  cluster.remove(0, Hears::kLater);
  cluster.admit(0, Process::kNew);
  cluster.run_until([&] { return all_synced(cluster); });
  run_steps(cluster, cluster.core(1).steps_applied(0) + 2, random);
  expect_alike(cluster);
  expect_the_law(cluster);
}

// No worker is synced: the shards choose among the remaining ones by their reports. Only a worker that reports its
// position can be chosen.
TEST(SwitchReturns, AStrandedWorkerReportsItsStepCount) {
  SwitchCluster cluster(options_for(2, {500}, 8));
  RandomSequence random(random_key(8));
  cluster.join_all();
  run_steps(cluster, 4, random);
  cluster.remove(1, Hears::kNow);
  cluster.passes_on = false;
  cluster.forget_sent(1);
  cluster.admit(1, Process::kSame);
  protocol::Settle none;
  none.part = cluster.core(1).layout().parts.back().part;
  none.weights = protocol::Settle::Weights::kNone;
  cluster.hear(1, cluster.core(1).layout().parts.back().shard, none);
  const auto states = cluster.sent<protocol::State>(1);
  ASSERT_FALSE(states.empty());
  EXPECT_TRUE(states.back().second.stranded);
  for (const auto& [shard, state] : states) {
    EXPECT_FALSE(state.synced);
    for (const protocol::State::Part& part : state.parts) {
      EXPECT_EQ(part.n, 4u);
      EXPECT_EQ(part.decided_in, 1u);
    }
  }
}

// A new process has taken over a part when the giver dies, and the other part has not come: no weights to go on with.
TEST(SwitchReturns, AWorkerWithPartsOfDifferentStepsCannotContinueAJob) {
  uint32_t met = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SwitchCluster cluster(options_for(2, {500, 70}, seed));
    RandomSequence random(random_key(seed));
    cluster.join_all();
    run_steps(cluster, 4, random);
    cluster.kill(1);
    cluster.remove(1, Hears::kLater);
    cluster.admit(1, Process::kNew);
    const auto has_parts_at = [&](uint64_t n) {
      for (uint32_t part = 0; part < cluster.core(1).layout().parts.size(); ++part) {
        if (cluster.core(1).part_steps_applied(part) == n) return true;
      }
      return false;
    };
    cluster.run_until([&] { return has_parts_at(4); });
    if (!has_parts_at(0)) continue;  // both at once: the handover came last
    ++met;
    cluster.kill(0);
    cluster.raise([](protocol::Membership& membership) {
      std::erase_if(membership.members, [](const protocol::Member& member) { return member.worker == 0; });
      membership.members.front().state = protocol::MemberState::kSynced;
      membership.cut = membership.epoch;
      membership.cut_worker = 1;
    });
    ASSERT_TRUE(cluster.core(1).error().has_value());
    EXPECT_NE(cluster.core(1).error()->message.find("different steps"), std::string::npos)
        << cluster.core(1).error()->message;
  }
  EXPECT_GT(met, 0u);
}

TEST(SwitchReturns, AReproducibleJobTakesJoinersForTheyHaveItsExponents) {
  SwitchCluster::Options options = options_for(3, {500, 70}, 7);
  options.spec.reproducible = true;
  options.spec.switch_path.value = protocol::WindowValueCodec::kFixed32;
  SwitchCluster cluster(options);
  RandomSequence random(random_key(7));
  cluster.join_all();
  run_steps(cluster, 6, random);
  cluster.kill(1);
  cluster.remove(1, Hears::kLater);
  cluster.admit(1, Process::kNew);
  cluster.run_until([&] { return all_synced(cluster); });
  run_steps(cluster, cluster.core(0).steps_applied(0) + 4, random);
  expect_alike(cluster);
  expect_the_law(cluster);
  // Others' exponents would have been another binding: it would hang, or be counted nowhere.
  EXPECT_EQ(cluster.core(1).counters().not_counted, 0u);
}

}  // namespace
}  // namespace millrace::testing
