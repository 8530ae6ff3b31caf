#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/worker/switch_path/switch_cluster.h"
#include "tests/worker/toys/toy_cluster.h"

/// A session's core on path switch, against real aggregators. Values lie on a binary grid: equality is asked for.
namespace millrace::testing {
namespace {

constexpr float kSwitchPathGrid = 1.0f / 8;

SwitchCluster::Options switch_path_options_for(uint32_t workers, const std::vector<uint64_t>& dimensions) {
  SwitchCluster::Options options;
  options.spec = toy_spec(workers, dimensions);
  options.spec.fuse_below = 0;
  options.spec.audit = true;
  return options;
}

float switch_path_grid_value(RandomSequence& random) {
  return kSwitchPathGrid * static_cast<float>(static_cast<int64_t>(random.next_below(129)) - 64);
}

/// Some gradient: nothing at all now and then, dense now and then.
void push_something_switch_path(SwitchCluster& cluster, uint32_t worker, uint32_t tensor, RandomSequence& random) {
  const uint64_t dimension = cluster.core(worker).spec().tensors[tensor].dimension;
  if (random.next_below(5) == 0) return cluster.push(worker, tensor, {});
  if (random.next_below(4) == 0) {
    std::vector<float> gradient(dimension);
    for (float& value : gradient) value = random.next_below(3) == 0 ? switch_path_grid_value(random) : 0.0f;
    return cluster.push_dense(worker, tensor, gradient);
  }
  std::map<uint32_t, float> entries;
  for (int i = 0; i < 30; ++i)
    entries[static_cast<uint32_t>(random.next_below(dimension))] = switch_path_grid_value(random);
  cluster.push(worker, tensor, entries);
}

void push_step(SwitchCluster& cluster, RandomSequence& random) {
  for (uint32_t worker = 0; worker < cluster.workers(); ++worker) {
    for (uint32_t tensor = 0; tensor < cluster.core(worker).spec().tensors.size(); ++tensor)
      push_something_switch_path(cluster, worker, tensor, random);
  }
}

void expect_switch_path_balanced(SwitchCluster& cluster) {
  for (uint32_t bucket = 0; bucket < cluster.core(0).layout().buckets.size(); ++bucket) {
    const std::vector<double> imbalance = cluster.imbalance(bucket);
    for (size_t i = 0; i < imbalance.size(); ++i) ASSERT_EQ(imbalance[i], 0) << "bucket " << bucket << ", index " << i;
  }
  for (uint32_t worker = 0; worker < cluster.workers(); ++worker) {
    worker::Actions actions;
    const worker::AuditSums audit = cluster.core(worker).audit(actions);
    EXPECT_EQ(audit.imbalance, 0) << "worker " << worker;
    EXPECT_TRUE(actions.log.empty());
  }
}

void expect_equal_weights(SwitchCluster& cluster) {
  for (uint32_t worker = 1; worker < cluster.workers(); ++worker)
    EXPECT_EQ(cluster.weights(worker), cluster.weights(0)) << "worker " << worker;
}

uint64_t switch_path_entries_of(const std::vector<std::vector<float>>& weights) {
  uint64_t count = 0;
  for (const auto& bucket : weights) {
    for (const float value : bucket) count += value != 0;
  }
  return count;
}

TEST(SwitchPath, WorkersGetEqualSumsAndTheLawHoldsExactly) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SwitchCluster::Options options = switch_path_options_for(3, {500, 70, 1'000});
    options.seed = seed;
    options.loss = seed % 2 == 0 ? 0.1 : 0;
    options.copies = 0.05;
    if (seed == 3) options.spec.select = {.selection = SelectionId::kTopK, .k = 12};
    if (seed == 4) options.spec.fuse_below = 200;
    SwitchCluster cluster(options);
    RandomSequence random(random_key(seed));
    cluster.join_all();
    for (uint64_t step = 0; step < 12; ++step) {
      push_step(cluster, random);
      expect_switch_path_balanced(cluster);
      cluster.run_until([&] { return cluster.all_applied(step + 1); });
      expect_switch_path_balanced(cluster);
    }
    expect_equal_weights(cluster);
    EXPECT_GT(switch_path_entries_of(cluster.weights(0)), 100u);
    if (seed == 1) {
      // Wide enough for these values from the first step on: nothing at all is left behind.
      EXPECT_EQ(cluster.core(0).bucket_counters(0).entries_returned, 0u);
    }
  }
}

TEST(SwitchPath, AnUpdateIsTheSumOfThePushes) {
  SwitchCluster cluster(switch_path_options_for(2, {300}));
  cluster.join_all();
  cluster.push(0, 0, {{3, 1.5f}, {64, -2.0f}, {299, 0.25f}});
  cluster.push(1, 0, {{3, 0.5f}, {200, 4.0f}});
  cluster.run_until([&] { return cluster.all_applied(1); });
  std::vector<float> wanted(300, 0.0f);
  wanted[3] = 2.0f;
  wanted[64] = -2.0f;
  wanted[299] = 0.25f;
  wanted[200] = 4.0f;
  EXPECT_EQ(cluster.weights(0)[0], wanted);
  EXPECT_EQ(cluster.weights(1)[0], wanted);
  const auto& delivered = cluster.delivered(0);
  ASSERT_EQ(delivered.size(), cluster.core(0).layout().parts.size());
  EXPECT_TRUE(delivered.back().step_complete);
  for (const worker::DeliveredUpdate& update : delivered) {
    EXPECT_TRUE(update.answers_push);
    EXPECT_TRUE(update.counted);
    EXPECT_EQ(update.contributors, 2u);
    EXPECT_EQ(update.denominator, 1);
    EXPECT_EQ(update.decided_in, 3u);
  }
}

TEST(SwitchPath, UncarriedEntriesReturnToTheirWorkers) {
  SwitchCluster::Options options = switch_path_options_for(2, {600});
  options.reselect_k = 5;
  SwitchCluster cluster(options);
  RandomSequence random(random_key(5));
  cluster.join_all();
  for (uint64_t step = 0; step < 6; ++step) {
    for (uint32_t worker = 0; worker < 2; ++worker) {
      std::map<uint32_t, float> entries;
      for (int i = 0; i < 30; ++i)
        entries[static_cast<uint32_t>(random.next_below(600))] = switch_path_grid_value(random);
      cluster.push(worker, 0, entries);
    }
    cluster.run_until([&] { return cluster.all_applied(step + 1); });
    expect_switch_path_balanced(cluster);
  }
  expect_equal_weights(cluster);
  EXPECT_GT(cluster.core(0).bucket_counters(0).entries_returned, 0u);
  EXPECT_GT(cluster.core(0).residual(0).count(), 0u);
}

TEST(SwitchPath, OffersAreSettledInQuietMomentsOrWhereSomethingDependsOnThem) {
  uint64_t unsettled_met = 0;
  struct End {
    std::vector<std::vector<float>> weights;
    std::vector<uint32_t> indices;
    std::vector<float> values;
    bool operator==(const End&) const = default;
  };
  // pieces  at most this many are resolved after a step; the rest when the next one is selected.
  const auto run = [&unsettled_met](uint64_t pieces) {
    SwitchCluster::Options options = switch_path_options_for(2, {600, 300});
    options.reselect_k = 5;
    SwitchCluster cluster(options);
    RandomSequence random(random_key(6));
    cluster.join_all();
    for (uint64_t step = 0; step < 10; ++step) {
      push_step(cluster, random);
      cluster.run_until([&] { return cluster.all_applied(step + 1); });
      for (uint32_t worker = 0; worker < 2; ++worker) {
        worker::SessionCore& core = cluster.core(worker);
        unsettled_met += core.all_resolved() ? 0 : 1;
        for (uint64_t piece = 0; piece < pieces && !core.all_resolved(); ++piece)
          EXPECT_TRUE(core.resolve_one_deferred());
      }
    }
    End end{.weights = cluster.weights(0), .indices = {}, .values = {}};
    for (uint32_t bucket = 0; bucket < 2; ++bucket) {
      const Stream left = cluster.core(1).residual(bucket);
      end.indices.insert(end.indices.end(), left.indices.begin(), left.indices.end());
      end.values.insert(end.values.end(), left.values.begin(), left.values.end());
    }
    expect_switch_path_balanced(cluster);
    return end;
  };
  const End never = run(0);
  EXPECT_FALSE(never.values.empty());
  EXPECT_GE(unsettled_met, 10u) << "an update is delivered before its offers are settled";
  EXPECT_EQ(run(1), never);
  EXPECT_EQ(run(100), never);
}

TEST(SwitchPath, AStepBeginsWhenEveryTensorWasPushed) {
  SwitchCluster cluster(switch_path_options_for(2, {300, 100}));
  cluster.join_all();
  for (uint32_t worker = 0; worker < 2; ++worker) cluster.push(worker, 0, {{1, 1.0f}});
  cluster.pass(50 * kNsPerMs);
  EXPECT_FALSE(cluster.all_applied(1));
  EXPECT_EQ(cluster.core(0).switch_status()->client.results, 0u);
  EXPECT_NE(cluster.core(0).waiting_for().find("'t1'"), std::string::npos) << cluster.core(0).waiting_for();
  EXPECT_FALSE(cluster.core(0).finish(cluster.now(), cluster.actions(0)).has_value());
  expect_switch_path_balanced(cluster);
  for (uint32_t worker = 0; worker < 2; ++worker) cluster.push(worker, 1, {{2, 2.0f}});
  cluster.run_until([&] { return cluster.all_applied(1); });
  EXPECT_EQ(cluster.weights(0)[0][1], 2.0f);
  EXPECT_EQ(cluster.weights(0)[1][2], 4.0f);
}

TEST(SwitchPath, ShardsSeeNoStepAtAll) {
  SwitchCluster cluster(switch_path_options_for(2, {3'000}));
  RandomSequence random(random_key(9));
  cluster.join_all();
  for (uint64_t step = 0; step < 3; ++step) {
    push_step(cluster, random);
    cluster.run_until([&] { return cluster.all_applied(step + 1); });
  }
  cluster.raise([](protocol::Membership&) {});
  cluster.hear(0, 1, protocol::Collect{});
  cluster.pass(3 * kNsPerS);
  EXPECT_TRUE(cluster.sent<protocol::Contribution>(0).empty());
  EXPECT_TRUE(cluster.sent<protocol::Ack>(0).empty());
  const auto heartbeats = cluster.sent<protocol::Heartbeat>(0);
  ASSERT_FALSE(heartbeats.empty());
  for (const auto& [shard, heartbeat] : heartbeats) {
    EXPECT_EQ(heartbeat.steps_applied, 0u);
    EXPECT_TRUE(heartbeat.digests.empty());
    EXPECT_EQ(heartbeat.switch_state, protocol::Heartbeat::Switch::kNoReport);
  }
  const auto states = cluster.sent<protocol::State>(0);
  ASSERT_EQ(states.size(), 1u);
  EXPECT_TRUE(states[0].second.synced);
  for (const protocol::State::Part& part : states[0].second.parts) {
    EXPECT_EQ(part.n, 0u);
    EXPECT_EQ(part.decided_in, 0u);
  }
}

TEST(SwitchPath, AnUpdateOfAShardIsNotApplied) {
  SwitchCluster cluster(switch_path_options_for(2, {300}));
  cluster.join_all();
  cluster.push(0, 0, {{3, 1.0f}});
  protocol::Update update;
  update.contributors = {{0, 1}, {1, 1}};
  cluster.hear(0, 0, update);
  EXPECT_EQ(cluster.core(0).counters().dropped_unexpected, 1u);
  EXPECT_EQ(cluster.core(0).part_steps_applied(0), 0u);
}

// Half of a dead worker's windows are closed with it, the others are not. Each is whole, and a closed one counts.
TEST(SwitchPath, ADeadWorkersOpenWindowsAreClosedWithoutIt) {
  bool some_with = false;
  bool some_without = false;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SwitchCluster::Options options = switch_path_options_for(3, {1'000});
    options.seed = seed;
    options.slots = 2;
    options.spec.combine = protocol::Combine::kMean;
    SwitchCluster cluster(options);
    cluster.join_all();
    std::map<uint32_t, float> all;
    for (uint32_t i = 0; i < 1'000; i += 20) all[i] = 1.0f;
    for (uint32_t worker = 0; worker < 3; ++worker) cluster.push(worker, 0, all);
    cluster.run_until([&] { return cluster.core(0).switch_status()->client.results >= 4 + seed % 3; });
    cluster.kill(2);
    cluster.raise([](protocol::Membership& membership) { membership.members.pop_back(); });
    cluster.run_until([&] { return cluster.all_applied(1); });
    EXPECT_EQ(cluster.weights(0), cluster.weights(1));
    const std::vector<double> lacking = cluster.imbalance(0);
    for (const auto& [index, value] : all) {
      // The living got all of theirs in; of the dead one all of an entry, or nothing.
      const double of_dead = -lacking[index];
      ASSERT_TRUE(of_dead == 0 || of_dead == 1) << of_dead;
      (of_dead == 1 ? some_with : some_without) = true;
      // A mean over the workers that took part in the window: 1 either way.
      ASSERT_EQ(cluster.weights(0)[0][index], 1.0f) << index;
    }
  }
  EXPECT_TRUE(some_with && some_without);
}

TEST(SwitchPath, APathToTheShardAndBackLosesNothingAndCountsNothingTwice) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SwitchCluster::Options options = switch_path_options_for(3, {900, 200});
    options.seed = seed;
    options.loss = 0.05;
    options.slots = 3;
    SwitchCluster cluster(options);
    RandomSequence random(random_key(seed));
    cluster.join_all();
    for (uint64_t step = 0; step < 3; ++step) {
      push_step(cluster, random);
      cluster.run_until([&] { return cluster.all_applied(step + 1); });
    }
    push_step(cluster, random);
    // The switch dies when it has told some workers, and not others, of the step's results.
    cluster.blocked = [&](const protocol::Endpoint& from, const protocol::Endpoint& to) {
      return from.port == SwitchCluster::kSwitchPort && to.port == 1'002;
    };
    // A worker that hears nothing asks with its first turn only: its other lost packets stay lost.
    const uint64_t before = cluster.core(0).switch_status()->client.results;
    cluster.run_until([&] { return cluster.core(0).switch_status()->client.results > before; });
    cluster.pass(static_cast<TimeNs>(seed % 3) * 20 * kNsPerMs);
    cluster.stop_aggregator(SwitchCluster::kSwitchPort);
    cluster.blocked = {};
    cluster.set_path(protocol::Path::kServer);
    cluster.run_until([&] { return cluster.all_applied(4); });
    expect_switch_path_balanced(cluster);
    push_step(cluster, random);
    cluster.run_until([&] { return cluster.core(1).switch_status()->client.results % 2 == 1; });
    cluster.start_aggregator(SwitchCluster::kSwitchPort);
    cluster.set_path(protocol::Path::kSwitch);
    cluster.run_until([&] { return cluster.all_applied(5); });
    expect_switch_path_balanced(cluster);
    expect_equal_weights(cluster);
    EXPECT_EQ(cluster.core(0).switch_status()->fallbacks, 1u);
    EXPECT_EQ(cluster.core(0).switch_status()->came_back, 1u);
  }
}

TEST(SwitchPath, WorkersReportASilentOrRecoveredSwitchToShard0) {
  SwitchCluster cluster(switch_path_options_for(2, {300}));
  cluster.join_all();
  cluster.push(0, 0, {{3, 1.0f}});
  cluster.push(1, 0, {{3, 1.0f}});
  cluster.run_until([&] { return cluster.all_applied(1); });
  cluster.stop_aggregator(SwitchCluster::kSwitchPort);
  cluster.forget_sent(0);
  using Word = protocol::Heartbeat::Switch;
  const auto told = [&](Word word) {
    const auto heartbeats = cluster.sent<protocol::Heartbeat>(0);
    return std::ranges::any_of(heartbeats, [word](const auto& one) { return one.second.switch_state == word; });
  };
  cluster.run_until([&] { return told(Word::kSilent); });
  cluster.set_path(protocol::Path::kServer);
  cluster.forget_sent(0);
  cluster.pass(2 * kNsPerS);
  EXPECT_FALSE(told(Word::kSilent));
  EXPECT_FALSE(told(Word::kAnswers));
  cluster.start_aggregator(SwitchCluster::kSwitchPort);
  const TimeNs started = cluster.now();
  cluster.run_until([&] { return told(Word::kAnswers); });
  EXPECT_GE(cluster.now() - started, kNsPerS);
  for (const auto& [shard, heartbeat] : cluster.sent<protocol::Heartbeat>(0)) {
    if (shard == 1) {
      EXPECT_EQ(heartbeat.switch_state, Word::kNoReport);
    }
  }
}

TEST(SwitchPath, AJobOfASmallModelRunsOnASwitchOfMoreSlots) {
  SwitchCluster::Options options = switch_path_options_for(3, {300});
  options.slots_at_switch = 16;
  SwitchCluster cluster(options);
  RandomSequence random(random_key(5));
  cluster.join_all();
  for (uint64_t step = 0; step < 5; ++step) {
    push_step(cluster, random);
    cluster.run_until([&] { return cluster.all_applied(step + 1); });
    expect_switch_path_balanced(cluster);
  }
  expect_equal_weights(cluster);
  EXPECT_GT(cluster.counted_at(SwitchCluster::kSwitchPort, switch_agg::AggregatorEvent::kClosed), 0u);
}

TEST(SwitchPath, WorkersLeaveASwitchThatHasTooFewSlots) {
  SwitchCluster::Options options = switch_path_options_for(2, {300});
  options.slots_at_switch = 2;
  SwitchCluster cluster(options);
  cluster.join_all();
  cluster.push(0, 0, {{3, 1.0f}});
  cluster.push(1, 0, {{3, 1.0f}});
  cluster.run_until([&] {
    const auto heartbeats = cluster.sent<protocol::Heartbeat>(0);
    return std::ranges::any_of(
        heartbeats, [](const auto& one) { return one.second.switch_state == protocol::Heartbeat::Switch::kSilent; });
  });
  cluster.set_path(protocol::Path::kServer);
  cluster.run_until([&] { return cluster.all_applied(1); });
  EXPECT_EQ(cluster.weights(0)[0][3], 2.0f);
}

TEST(SwitchPath, EachWorkerReportsItsBlockerAndStepCountToShard0) {
  SwitchCluster cluster(switch_path_options_for(2, {300}));
  cluster.join_all();
  using Wait = protocol::Heartbeat::SwitchWait;
  const auto last_said = [&](uint32_t worker) {
    cluster.forget_sent(worker);
    cluster.pass(2 * kNsPerS);
    std::optional<protocol::Heartbeat> last;
    for (const auto& [shard, heartbeat] : cluster.sent<protocol::Heartbeat>(worker)) {
      if (shard == 0) {
        last = heartbeat;
      } else {
        EXPECT_EQ(heartbeat.switch_wait, Wait::kNotReported) << "only shard 0 is notified";
      }
    }
    EXPECT_TRUE(last.has_value());
    return last ? std::pair(last->switch_wait, last->switch_steps) : std::pair(Wait::kNotReported, uint64_t{0});
  };
  cluster.push(0, 0, {{3, 1.0f}});
  EXPECT_EQ(last_said(0), std::pair(Wait::kContributions, uint64_t{0}));
  EXPECT_EQ(last_said(1), std::pair(Wait::kNothing, uint64_t{0}));
  cluster.push(1, 0, {{3, 1.0f}});
  cluster.run_until([&] { return cluster.all_applied(1); });
  EXPECT_EQ(last_said(0), std::pair(Wait::kNothing, uint64_t{1}));
  EXPECT_EQ(last_said(1), std::pair(Wait::kNothing, uint64_t{1}));
  cluster.stop_aggregator(SwitchCluster::kSwitchPort);
  cluster.push(0, 0, {{3, 1.0f}});
  cluster.pass(5 * kNsPerS);
  EXPECT_EQ(last_said(0), std::pair(Wait::kAnswer, uint64_t{1}));
}

TEST(SwitchPath, ASwitchThatAnswersInSomeLanesOnlyIsNotGoneBackTo) {
  SwitchCluster::Options options = switch_path_options_for(2, {300});
  options.lanes = 2;
  SwitchCluster cluster(options);
  cluster.join_all();
  cluster.push(0, 0, {{3, 1.0f}});
  cluster.push(1, 0, {{3, 1.0f}});
  cluster.run_until([&] { return cluster.all_applied(1); });
  cluster.stop_aggregator(SwitchCluster::kSwitchPort);
  cluster.set_path(protocol::Path::kServer);
  using Word = protocol::Heartbeat::Switch;
  const auto says_that_it_answers = [&] {
    const auto heartbeats = cluster.sent<protocol::Heartbeat>(0);
    return std::ranges::any_of(heartbeats, [](const auto& one) { return one.second.switch_state == Word::kAnswers; });
  };
  cluster.lanes_at_switch = 1;
  cluster.start_aggregator(SwitchCluster::kSwitchPort);
  cluster.forget_sent(0);
  cluster.pass(20 * kNsPerS);  // the job's return_after is one second
  EXPECT_FALSE(says_that_it_answers());
  cluster.lanes_at_switch = 2;
  cluster.start_aggregator(SwitchCluster::kSwitchPort);
  cluster.run_until(says_that_it_answers);
  cluster.set_path(protocol::Path::kSwitch);
  cluster.push(0, 0, {{3, 1.0f}});
  cluster.push(1, 0, {{3, 1.0f}});
  cluster.run_until([&] { return cluster.all_applied(2); });
  expect_switch_path_balanced(cluster);
}

TEST(SwitchPath, WithoutADeciderWorkersApplyNothingAndLogTheReason) {
  SwitchCluster::Options options = switch_path_options_for(2, {300});
  options.has_fallback = false;
  SwitchCluster cluster(options);
  cluster.join_all();
  cluster.push(0, 0, {{3, 1.0f}});
  cluster.push(1, 0, {{3, 1.0f}});
  // Before any result can have arrived.
  cluster.set_path(protocol::Path::kServer);
  cluster.pass(kNsPerS);
  EXPECT_FALSE(cluster.all_applied(1));
  EXPECT_NE(cluster.core(0).waiting_for().find("takes no datagrams"), std::string::npos)
      << cluster.core(0).waiting_for();
  const auto says = [](const std::string& line) { return line.find("no decider") != std::string::npos; };
  EXPECT_TRUE(std::ranges::any_of(cluster.log(0), says));
  cluster.set_path(protocol::Path::kSwitch);
  cluster.run_until([&] { return cluster.all_applied(1); });
  expect_switch_path_balanced(cluster);
}

TEST(SwitchPath, AnEvictedWorkerWithoutWeightsEnds) {
  SwitchCluster::Options options = switch_path_options_for(3, {300});
  options.has_weights = false;
  SwitchCluster cluster(options);
  cluster.join_all();
  cluster.raise([](protocol::Membership& membership) { membership.members.erase(membership.members.begin()); });
  ASSERT_EQ(cluster.core(0).phase(), worker::Phase::kEnded);
  EXPECT_EQ(cluster.core(0).error()->code, ErrorCode::kNotAMember);
}

TEST(SwitchPath, EpochsBeyond32BitsEndTheSession) {
  SwitchCluster cluster(switch_path_options_for(2, {300}));
  cluster.join_all();
  cluster.raise([](protocol::Membership& membership) { membership.epoch = uint64_t{1} << 32; });
  ASSERT_EQ(cluster.core(0).phase(), worker::Phase::kEnded);
  EXPECT_EQ(cluster.core(0).error()->code, ErrorCode::kLimitExceeded);
}

TEST(SwitchPath, ANonFinitePushIsRefusedAndSendsNothing) {
  SwitchCluster cluster(switch_path_options_for(2, {300}));
  cluster.join_all();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<uint32_t> index{3};
  EXPECT_FALSE(cluster.core(0).push_sparse(0, index, std::vector<float>{nan}, 1, cluster.now()).has_value());
  cluster.push(0, 0, {{3, 1.0f}});
  cluster.push(1, 0, {{3, 1.0f}});
  cluster.run_until([&] { return cluster.all_applied(1); });
  EXPECT_EQ(cluster.weights(0)[0][3], 2.0f);
  expect_switch_path_balanced(cluster);
}

TEST(SwitchPath, ValuesFarOverTheGridSaturateAndTheRestComesLater) {
  SwitchCluster cluster(switch_path_options_for(2, {300}));
  cluster.join_all();
  cluster.push(0, 0, {{3, 1048576.0f}, {4, 0.125f}});
  cluster.push(1, 0, {{3, -8.0f}});
  cluster.run_until([&] { return cluster.all_applied(1); });
  expect_switch_path_balanced(cluster);
  EXPECT_LT(cluster.weights(0)[0][3], 1'000.0f);
  for (uint64_t step = 1; step < 12; ++step) {
    cluster.push(0, 0, {});
    cluster.push(1, 0, {});
    cluster.run_until([&] { return cluster.all_applied(step + 1); });
  }
  EXPECT_EQ(cluster.weights(0)[0][3], 1048568.0f);
  EXPECT_EQ(cluster.weights(0)[0][4], 0.125f);
  expect_switch_path_balanced(cluster);
}

TEST(SwitchPath, AWorkerLeavesWhenAllHaveFinished) {
  SwitchCluster cluster(switch_path_options_for(3, {300}));
  cluster.join_all();
  const auto finish = [&](uint32_t worker) {
    ASSERT_TRUE(cluster.core(worker).finish(cluster.now(), cluster.actions(worker)).has_value());
  };
  finish(0);
  cluster.pass(200 * kNsPerMs);
  EXPECT_EQ(cluster.core(0).phase(), worker::Phase::kFinishing);
  // The others go on meanwhile, and it answers.
  for (uint64_t step = 0; step < 2; ++step) {
    for (uint32_t worker = 1; worker < 3; ++worker) cluster.push(worker, 0, {{7, 1.0f}});
    cluster.run_until(
        [&] { return cluster.core(1).steps_applied(0) > step && cluster.core(2).steps_applied(0) > step; });
  }
  EXPECT_EQ(cluster.weights(1)[0][7], 4.0f);
  EXPECT_EQ(cluster.weights(0)[0][7], 0.0f);
  finish(1);
  cluster.pass(200 * kNsPerMs);
  EXPECT_EQ(cluster.core(1).phase(), worker::Phase::kFinishing);
  finish(2);
  cluster.run_until([&] {
    return cluster.core(0).phase() == worker::Phase::kFinished && cluster.core(1).phase() == worker::Phase::kFinished &&
           cluster.core(2).phase() == worker::Phase::kFinished;
  });
  EXPECT_EQ(cluster.sent<protocol::Goodbye>(0).size(), 2u);
}

TEST(SwitchPath, AWorkerLeavesAllTheSameWhenNothingMoves) {
  SwitchCluster cluster(switch_path_options_for(2, {300}));
  cluster.join_all();
  ASSERT_TRUE(cluster.core(0).finish(cluster.now(), cluster.actions(0)).has_value());
  cluster.kill(1);
  cluster.pass(20 * kNsPerS);
  EXPECT_EQ(cluster.core(0).phase(), worker::Phase::kFinishing);
  cluster.pass(15 * kNsPerS);
  EXPECT_EQ(cluster.core(0).phase(), worker::Phase::kFinished);
}

TEST(SwitchPath, ASavedStateIncludesInFlightEntries) {
  SwitchCluster cluster(switch_path_options_for(2, {300}));
  cluster.join_all();
  cluster.push(0, 0, {{3, 1.5f}});
  const worker::SavedState state = cluster.core(0).saved_state();
  ASSERT_EQ(state.tensors[0].residual.count(), 1u);
  EXPECT_EQ(state.tensors[0].residual.values[0], 1.5f);
}

TEST(SwitchPath, VelocityEndsWhereAnEntryWasAppliedAndNowhereElse) {
  SwitchCluster::Options options = switch_path_options_for(2, {300});
  options.spec.momentum = {protocol::Momentum::kCorrection, 0.5, true};
  options.spec.select = {.selection = SelectionId::kTopK, .k = 1};
  SwitchCluster cluster(options);
  cluster.join_all();
  cluster.push(0, 0, {{3, 8.0f}, {4, 1.0f}});
  cluster.push(1, 0, {{3, 8.0f}});
  cluster.run_until([&] { return cluster.all_applied(1); });
  // 3 was applied: its velocity is over. 4 was not sent: velocity 1, residual 1, and 0.5 enters.
  cluster.push(0, 0, {});
  cluster.push(1, 0, {});
  cluster.run_until([&] { return cluster.all_applied(2); });
  EXPECT_EQ(cluster.weights(0)[0][3], 16.0f);
  EXPECT_EQ(cluster.weights(0)[0][4], 1.5f);
}

}  // namespace
}  // namespace millrace::testing
