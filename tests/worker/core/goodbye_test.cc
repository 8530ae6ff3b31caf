#include <gtest/gtest.h>

#include <map>

#include "tests/worker/core/returning_core.h"

/// The shards to which a worker announces that it leaves.
namespace millrace::testing {
namespace {

class Goodbyes : public ScriptedCore {};

TEST_F(Goodbyes, ARefusedWorkerSendsGoodbyeToEachShardThatGotItsHello) {
  make();
  core().on_connected(0, now_, actions_);
  core().on_connected(1, now_, actions_);
  actions_.clear();
  protocol::Refuse refuse;
  refuse.code = ErrorCode::kLimitExceeded;
  refuse.sentence = "one job is open";
  core().on_message(1, from_shard(1, refuse), now_, actions_);
  expect_ended(ErrorCode::kLimitExceeded, "one job is open");
  const auto told = take_sent<protocol::Goodbye>();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].first, 0u);
  EXPECT_EQ(told[0].second.header, (protocol::Header{.worker = config_.worker}));
  EXPECT_EQ(std::get<protocol::Goodbye>(told[0].second.body).reason, protocol::Goodbye::Reason::kFailed);
  welcome(0);
  EXPECT_TRUE(take_sent<protocol::Goodbye>().empty()) << "it was sent before";
}

TEST_F(Goodbyes, AShardThatGotNoHelloGetsNoGoodbye) {
  make();
  core().on_connected(0, now_, actions_);
  welcome(0);
  actions_.clear();
  core().leave(protocol::Goodbye::Reason::kShutdown, "", now_, actions_);
  const auto told = take_sent<protocol::Goodbye>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].first, 0u);
  EXPECT_EQ(told[0].second.header.incarnation, incarnation_);
}

TEST_F(Goodbyes, AShardOfAnotherClusterGetsAGoodbyeAfterItsWelcome) {
  make();
  core().on_connected(0, now_, actions_);
  welcome(0);
  core().on_connected(1, now_, actions_);
  actions_.clear();
  protocol::Welcome other;
  other.membership = membership_;
  other.membership.job = 8;
  protocol::Message message = from_shard(1, other);
  message.header.job = 8;
  core().on_message(1, std::move(message), now_, actions_);
  now_ += 2 * kNsPerS;
  core().on_tick(now_, actions_);
  expect_ended(ErrorCode::kShardMapMismatch, "number 8");
  const auto told = take_sent<protocol::Goodbye>();
  ASSERT_EQ(told.size(), 2u);
  for (const auto& [shard, goodbye] : told) {
    EXPECT_EQ(goodbye.header.job, shard == 0 ? kJob : 0u) << "its connection identifies it there";
    EXPECT_EQ(goodbye.header.incarnation, shard == 0 ? incarnation_ : 0u);
    EXPECT_EQ(goodbye.header.shard_incarnation, shard == 0 ? 1u : 0u);
    EXPECT_EQ(std::get<protocol::Goodbye>(goodbye.body).reason, protocol::Goodbye::Reason::kFailed);
  }
}

/// Worker 0 has all steps of both parts and asks to finish once `change` has begun an epoch.
class FinishedSteps : public ScriptedCore {
 protected:
  template <typename Change>
  void finish_after(const Change& change) {
    make_running();
    push({5}, {1});
    hear_update(0, 0, {{5, 1}});
    hear_update(1, 0, {});
    ++membership_.epoch;
    change();
    hear(0, protocol::MembershipChange{membership_});
    core().on_connected(1, now_, actions_);
    welcome(1);
    ASSERT_TRUE(core().finish(now_, actions_).has_value());
  }
  /// That shard continues its log as a new branch.
  void activate(uint32_t shard) {
    ++membership_.epoch;
    const uint64_t branch = ++membership_.branches;
    membership_.activations.push_back({shard, branch, branch - 1});
    hear(0, protocol::MembershipChange{membership_});
    core().end_pass(now_, actions_);
  }
};

/// R10f: The worker has one step of both parts, which the shards decided in two epochs.
class Reach : public ScriptedCore {
 protected:
  std::map<uint32_t, std::vector<protocol::LogReach>> told_;  ///< by shard
  std::vector<protocol::LogReach> finish(uint32_t version) {
    config_.spec.staleness = 1;
    make();
    for (uint32_t shard = 0; shard < 2; ++shard) {
      core().on_connected(shard, now_, actions_);
      protocol::Welcome welcome;
      welcome.version = shard == 0 ? version : protocol::kProtocolVersion;
      welcome.membership = membership_;
      hear(shard, welcome);
    }
    push({5}, {1});
    hear_update(0, 0, {{5, 1}});
    ++membership_.epoch;
    hear(1, protocol::MembershipChange{membership_});
    hear_update(1, 0, {});
    EXPECT_TRUE(core().finish(now_, actions_).has_value());
    core().end_pass(now_, actions_);
    const auto told = take_sent<protocol::Goodbye>();
    EXPECT_EQ(told.size(), 2u);
    for (const auto& [shard, goodbye] : told) told_[shard] = std::get<protocol::Goodbye>(goodbye.body).reach;
    return told_[0];
  }
};

TEST_F(Reach, AWorkerThatHasFinishedSaysHowFarItsModelGoes) {
  const auto reach = finish(protocol::kGoodbyeReachSince);
  ASSERT_EQ(reach.size(), 2u) << "each Goodbye is about all shards";
  EXPECT_EQ(reach[0], (protocol::LogReach{.steps = 1, .decided_in = 3}));
  EXPECT_EQ(reach[1], (protocol::LogReach{.steps = 1, .decided_in = 4}));
}

TEST_F(Reach, AShardOfAnEarlierVersionIsNotTold) {
  EXPECT_TRUE(finish(protocol::kGoodbyeReachSince - 1).empty());
  EXPECT_EQ(told_[1].size(), 2u);
}

TEST_F(Reach, ModesThatMayLeaveWorkersOutHaveNone) {
  config_.spec.mode = protocol::Mode::kPartial;
  EXPECT_TRUE(finish(protocol::kGoodbyeReachSince).empty());
}

TEST_F(Reach, AWorkerThatFailsHasNone) {
  make_running();
  core().leave(protocol::Goodbye::Reason::kFailed, "disk full", now_, actions_);
  const auto told = take_sent<protocol::Goodbye>();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_TRUE(std::get<protocol::Goodbye>(told[0].second.body).reach.empty());
}

class ReachAfterReturn : public ReturningCore {};

/// R10f: The shards make it synced by the Synced before the Goodbye.
TEST_F(ReachAfterReturn, AWorkerThatLeavesOnceSettledReportsItsLogReach) {
  make_running();
  push({5}, {1});
  hear_update(0, 0, {{5, 1}});
  hear_update(1, 0, {});
  lose_place();
  enter(2);
  for (uint32_t part = 0; part < 2; ++part) hear(part, settle_of(part, 1));
  ASSERT_EQ(core().phase(), worker::Phase::kRejoining);
  ASSERT_TRUE(core().finish(now_, actions_).has_value());
  EXPECT_EQ(core().phase(), worker::Phase::kFinished);
  const auto told = take_sent<protocol::Goodbye>();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(std::get<protocol::Goodbye>(told[0].second.body).reach, (std::vector<protocol::LogReach>{{1, 3}, {1, 3}}));
}

/// R10f: Seed 4,000 of the simulator. The worker was the only one that had a step of the restarted shard.
TEST_F(FinishedSteps, AWorkerStaysWhileARestartedShardRecovers) {
  finish_after([this] { membership_.shards[1].incarnation = 2; });
  EXPECT_EQ(core().phase(), worker::Phase::kFinishing);
  EXPECT_TRUE(take_sent<protocol::Goodbye>().empty());
  EXPECT_NE(core().waiting_for().find("shard 1 (tcp://b:2) recovers"), std::string::npos) << core().waiting_for();
  activate(1);
  EXPECT_EQ(core().phase(), worker::Phase::kFinished);
  EXPECT_EQ(take_sent<protocol::Goodbye>().size(), 2u);
}

TEST_F(FinishedSteps, AWorkerLeavesAShardWhoseRecoveryItMissed) {
  finish_after([this] {
    membership_.shards[1].incarnation = 2;
    membership_.epoch += 1;
    membership_.branches = 1;
    membership_.activations = {{1, 1, 0}};
  });
  EXPECT_EQ(core().phase(), worker::Phase::kFinished);
}

/// R10e: A cut makes every shard recover.
TEST_F(FinishedSteps, AWorkerStaysUntilEveryShardHasTakenUpACut) {
  finish_after([this] {
    membership_.cut = membership_.epoch;
    membership_.branches = 1;
    membership_.activations = {{0, 1, 0}, {1, 1, 0}};
  });
  EXPECT_EQ(core().phase(), worker::Phase::kFinishing);
  activate(1);
  EXPECT_EQ(core().phase(), worker::Phase::kFinishing) << "shard 0 recovers";
  activate(0);
  EXPECT_EQ(core().phase(), worker::Phase::kFinished);
}

}  // namespace
}  // namespace millrace::testing
