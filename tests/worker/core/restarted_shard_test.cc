#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/worker/core/scripted_core.h"

/// A shard that is started again, or has moved: the worker follows the start that the membership table names.
namespace millrace::testing {
namespace {

using protocol::Hello;
using worker::Phase;

/// Worker 0 hears processes that have an address of shard `shard` and are not that shard.
class OtherProcesses : public ScriptedCore {
 protected:
  void hear_spare(uint32_t shard) {
    protocol::Message message =
        from_shard(shard, protocol::Refuse{ErrorCode::kUnavailable, "this process is a spare", true});
    message.header.shard_incarnation = 0;
    core().on_message(shard, std::move(message), now_, actions_);
  }
  void hear_other_shard(uint32_t shard) {
    protocol::Message message =
        from_shard(1 - shard, protocol::Refuse{ErrorCode::kShardMapMismatch, "this is the other shard", false});
    core().on_message(shard, std::move(message), now_, actions_);
  }
};

class RestartedShard : public OtherProcesses {};

TEST_F(RestartedShard, OnlyTheStartOfAShardThatTheViewNamesIsHeard) {
  make_running();
  for (const uint64_t start : {0u, 2u}) {
    protocol::Message other = from_shard(0, protocol::Heartbeat{});
    other.header.shard_incarnation = start;
    core().on_message(0, std::move(other), now_, actions_);
    EXPECT_EQ(core().phase(), Phase::kRunning);
  }
  EXPECT_EQ(core().counters().dropped_unexpected, 2u);
}

TEST_F(RestartedShard, ALostHelloIsRepeatedLongBeforeTheMemberLooksDead) {
  config_.spec.dead_after = std::chrono::milliseconds(1'000);
  make_running();
  core().on_disconnected(0, {ErrorCode::kUnavailable, "closed"}, now_, actions_);
  core().on_connected(0, now_, actions_);
  EXPECT_EQ(take_sent<Hello>().size(), 1u);
  pass(kNsPerS / 2);
  EXPECT_EQ(take_sent<Hello>().size(), 4u);
}

TEST_F(RestartedShard, AShardThatWasStartedAgainElsewhereIsFollowed) {
  make_running();
  push({5, 150'000}, {1, 2});
  actions_.clear();
  ++membership_.epoch;
  membership_.shards[0] = {"tcp://elsewhere:9", 2};
  hear(1, protocol::MembershipChange{membership_});
  EXPECT_EQ(actions_.connects, std::vector<uint32_t>{0});
  EXPECT_EQ(core().shard_address(0), "tcp://elsewhere:9");
  take_sent<Hello>();
  core().on_connected(0, now_, actions_);
  EXPECT_EQ(take_sent<Hello>().size(), 1u);
  welcome(0);
  EXPECT_EQ(core().phase(), Phase::kRunning);
  const auto sent = take_sent<protocol::Contribution>();
  ASSERT_EQ(sent.size(), 1u) << "the contribution in flight goes to the new start";
  EXPECT_EQ(sent[0].first, 0u);
  EXPECT_EQ(sent[0].second.header.shard_incarnation, 2u);
}

TEST_F(RestartedShard, AShardThatWasStartedAgainWhereItWasIsNotWaitedForAnyLonger) {
  make_running();
  for (int attempt = 0; attempt < 6; ++attempt) {
    core().on_disconnected(0, {ErrorCode::kUnavailable, "no answer there"}, now_, actions_);
    for (actions_.clear(); actions_.connects.empty(); core().on_tick(now_, actions_)) {
      now_ = std::max(now_ + 1, core().next_deadline());
      hear(1, protocol::Heartbeat{});
    }
  }
  core().on_disconnected(0, {ErrorCode::kUnavailable, "no answer there"}, now_, actions_);
  actions_.clear();
  ++membership_.epoch;
  membership_.shards[0].incarnation = 2;
  hear(1, protocol::MembershipChange{membership_});
  EXPECT_EQ(actions_.connects, std::vector<uint32_t>{0}) << "the next attempt was seconds away";
}

TEST_F(RestartedShard, ShardRestartedAtItsAddress_AnnouncesItselfKeepsConnection) {
  make_running();
  core().on_disconnected(0, {ErrorCode::kUnavailable, "closed"}, now_, actions_);
  pass(kNsPerS / 2);
  core().on_connected(0, now_, actions_);
  ++membership_.epoch;
  membership_.shards[0].incarnation = 2;
  actions_.clear();
  welcome(0);
  EXPECT_TRUE(actions_.connects.empty());
  EXPECT_EQ(core().phase(), Phase::kRunning);
  hear(0, protocol::Heartbeat{});
  EXPECT_EQ(core().counters().dropped_unexpected, 0u);
}

TEST_F(RestartedShard, AProcessThatIsNoLongerTheShardIsNotWelcomed) {
  make_running();
  ++membership_.epoch;
  membership_.shards[0].incarnation = 2;
  hear(1, protocol::MembershipChange{membership_});
  core().on_connected(0, now_, actions_);
  actions_.clear();
  protocol::Welcome old;
  old.membership = membership_;
  protocol::Message zombie = from_shard(0, old);
  zombie.header.shard_incarnation = 1;
  core().on_message(0, std::move(zombie), now_, actions_);
  EXPECT_EQ(core().counters().dropped_unexpected, 1u);
  EXPECT_NE(core().waiting_for().find("not the one that the membership table names"), std::string::npos);
  hear(0, protocol::Abort{ErrorCode::kShardLost, "a later process serves this shard"});
  EXPECT_EQ(core().phase(), Phase::kRunning) << "its successor is looked for";
}

TEST_F(RestartedShard, AnotherShardAtItsAddress_TheMembershipDecides) {
  make_running();
  core().on_disconnected(0, {ErrorCode::kUnavailable, "closed"}, now_, actions_);
  core().on_connected(0, now_, actions_);
  hear_other_shard(0);
  EXPECT_EQ(core().phase(), Phase::kRunning);
  ++membership_.epoch;
  membership_.shards[0] = {"tcp://elsewhere:9", 2};
  actions_.clear();
  hear(1, protocol::MembershipChange{membership_});
  EXPECT_EQ(actions_.connects, std::vector<uint32_t>{0});
  EXPECT_EQ(core().shard_address(0), "tcp://elsewhere:9");
}

TEST_F(RestartedShard, TheShardItselfSaysThatTheListIsWrong_Ends) {
  make_running();
  hear(0, protocol::Refuse{ErrorCode::kShardMapMismatch, "the worker expects shard 0 of 2 here", false});
  expect_ended(ErrorCode::kShardMapMismatch, "the worker expects shard 0 of 2 here");
}

TEST_F(RestartedShard, ASpareAtItsAddressIsNoSignOfLife) {
  make_running();
  core().on_disconnected(0, {ErrorCode::kUnavailable, "closed"}, now_, actions_);
  core().on_connected(0, now_, actions_);
  const TimeNs until = now_ + 2 * config_.shard_silence;
  while (core().phase() == Phase::kRunning && now_ < until) {
    hear_spare(0);
    hear(1, protocol::Heartbeat{});
    now_ = std::max(now_ + 1, core().next_deadline());
    core().on_tick(now_, actions_);
  }
  expect_ended(ErrorCode::kUnavailable, "this process is a spare");
}

TEST_F(RestartedShard, AShardThatRecoversAndRefusesIsAlive) {
  make_running();
  core().on_disconnected(0, {ErrorCode::kUnavailable, "closed"}, now_, actions_);
  core().on_connected(0, now_, actions_);
  const TimeNs until = now_ + 2 * config_.shard_silence;
  while (core().phase() == Phase::kRunning && now_ < until) {
    protocol::Message message = from_shard(0, protocol::Refuse{ErrorCode::kUnavailable, "recovers", true});
    message.header.shard_incarnation = 2;
    core().on_message(0, std::move(message), now_, actions_);
    hear(1, protocol::Heartbeat{});
    now_ = std::max(now_ + 1, core().next_deadline());
    core().on_tick(now_, actions_);
  }
  EXPECT_EQ(core().phase(), Phase::kRunning);
}

TEST_F(RestartedShard, NoAnswerToHelloForLong_ANewConnectionIsMade) {
  make_running();
  core().on_disconnected(0, {ErrorCode::kUnavailable, "closed"}, now_, actions_);
  core().on_connected(0, now_, actions_);
  const TimeNs since = now_;
  for (actions_.clear(); actions_.connects.empty() && now_ < since + 20 * kNsPerS; core().on_tick(now_, actions_)) {
    now_ = std::max(now_ + 1, core().next_deadline());
    hear(1, protocol::Heartbeat{});
  }
  EXPECT_EQ(actions_.connects, std::vector<uint32_t>{0});
  EXPECT_GE(now_ - since, 5 * kNsPerS);
  EXPECT_NE(core().waiting_for().find("does not answer Hello"), std::string::npos) << core().waiting_for();
  core().on_connected(0, now_, actions_);
  welcome(0);
  EXPECT_EQ(core().phase(), Phase::kRunning);
}

/// Shard 1 was at tcp://b:2 when this worker's list of shards was written. Now it is at tcp://elsewhere:9.
class MovedShard : public OtherProcesses {
 protected:
  MovedShard() { membership_.shards[1] = {"tcp://elsewhere:9", 2}; }

  /// Shard 0 welcomes the worker.
  void make_welcomed() {
    make();
    core().on_connected(0, now_, actions_);
    welcome(0);
    actions_.clear();
  }
  void no_answer() { core().on_disconnected(1, {ErrorCode::kUnavailable, "no answer there"}, now_, actions_); }
  /// Lets time pass until the next attempt at shard 1. Returns its address.
  std::string next_attempt() {
    actions_.clear();
    while (actions_.connects.empty() && core().phase() == Phase::kJoining) {
      now_ = std::max(now_ + 1, core().next_deadline());
      core().on_tick(now_, actions_);
      if (actions_.connects.empty()) hear(0, protocol::Heartbeat{});
    }
    actions_.clear();
    return core().shard_address(1);
  }
  void join_shard_1() {
    core().on_connected(1, now_, actions_);
    welcome(1);
    EXPECT_EQ(core().phase(), Phase::kRunning);
  }
  void hear_refusal(ErrorCode code, bool retry) {
    core().on_connected(1, now_, actions_);
    hear(1, protocol::Refuse{code, "not this shard", retry});
    EXPECT_EQ(core().phase(), Phase::kJoining);
  }
};

TEST_F(MovedShard, MovedBeforeTheStart_SoughtWhereTheMembershipSays) {
  make_welcomed();
  EXPECT_EQ(core().shard_address(1), "tcp://b:2") << "a relay may serve it: that attempt continues";
  no_answer();
  EXPECT_EQ(next_attempt(), "tcp://elsewhere:9");
  join_shard_1();
  core().on_disconnected(1, {ErrorCode::kUnavailable, "closed"}, now_, actions_);
  pass(kNsPerS);
  EXPECT_EQ(core().shard_address(1), "tcp://elsewhere:9") << "the address that worked stays";
}

TEST_F(MovedShard, BothAddressesFail_TriedInTurnAndNamed) {
  make_welcomed();
  for (const char* address : {"tcp://elsewhere:9", "tcp://b:2", "tcp://elsewhere:9", "tcp://b:2"}) {
    no_answer();
    EXPECT_EQ(next_attempt(), address);
  }
  while (core().phase() == Phase::kJoining) {
    no_answer();
    next_attempt();
  }
  expect_ended(ErrorCode::kUnavailable, ", also at tcp://");
}

TEST_F(MovedShard, AnAddressWithoutAnyAnswerLeavesTimeForTheOther) {
  config_.connect_timeout = 5 * kNsPerS;
  make_welcomed();
  EXPECT_EQ(next_attempt(), "tcp://elsewhere:9") << "the host of the configured address is down";
  join_shard_1();
}

TEST_F(MovedShard, AProcessThatAnswersNoHelloLeavesTimeForTheOther) {
  config_.connect_timeout = 5 * kNsPerS;
  make_welcomed();
  core().on_connected(1, now_, actions_);
  EXPECT_EQ(next_attempt(), "tcp://elsewhere:9") << "the process at the configured address says nothing";
  join_shard_1();
}

TEST_F(MovedShard, TroublesAtBothAddressesAreReportedAndLoggedOnce) {
  make_welcomed();
  const auto warnings = [&] { return std::ranges::count(actions_.log, Severity::kWarning, &LogLine::severity); };
  int64_t logged = 0;
  const Error no_key = {ErrorCode::kUnauthenticated, "it refuses this key"};
  while (core().phase() == Phase::kJoining) {
    if (core().shard_address(1) == "tcp://b:2") {
      core().on_connected(1, now_, actions_);
      hear_spare(1);
    } else {
      core().on_disconnected(1, no_key, now_, actions_);
    }
    logged += warnings();
    next_attempt();
  }
  EXPECT_EQ(logged, 2) << "one line an address";
  expect_ended(ErrorCode::kUnauthenticated, "this process is a spare");
  expect_ended(ErrorCode::kUnauthenticated, "it refuses this key");
  expect_ended(ErrorCode::kUnauthenticated, "; at tcp://");
}

TEST_F(MovedShard, WaitingForNamesTheTroublesOfBothAddresses) {
  make_welcomed();
  core().on_connected(1, now_, actions_);
  hear_spare(1);
  EXPECT_EQ(next_attempt(), "tcp://elsewhere:9");
  core().on_disconnected(1, {ErrorCode::kUnavailable, "no process there"}, now_, actions_);
  EXPECT_EQ(core().waiting_for(),
            "shard 1 (tcp://elsewhere:9) has not admitted this worker yet: no process there; at tcp://b:2: this "
            "process is a spare");
}

TEST_F(MovedShard, AShardThatMovesBetweenTwoAttemptsIsFound) {
  make_welcomed();
  no_answer();
  EXPECT_EQ(next_attempt(), "tcp://elsewhere:9");
  ++membership_.epoch;
  membership_.shards[1] = {"tcp://third:3", 3};
  hear(0, protocol::MembershipChange{membership_});
  EXPECT_EQ(core().shard_address(1), "tcp://third:3");
  join_shard_1();
}

TEST_F(MovedShard, ASpareAtTheConfiguredAddressIsNotWaitedFor) {
  make_welcomed();
  core().on_connected(1, now_, actions_);
  hear_spare(1);
  EXPECT_EQ(next_attempt(), "tcp://elsewhere:9");
  join_shard_1();
}

TEST_F(MovedShard, ItsOwnRefusalForNow_IsAskedAgainThereUntilItMayJoin) {
  for (const bool moved : {true, false}) {  // false: a relay serves the configured address
    SCOPED_TRACE(moved);
    now_ = kStart;
    make_welcomed();
    if (moved) {
      no_answer();
      EXPECT_EQ(next_attempt(), "tcp://elsewhere:9");
    }
    const std::string address = core().shard_address(1);
    hear_refusal(ErrorCode::kUnavailable, true);
    const TimeNs until = kStart + config_.connect_timeout + TimeNs{config_.spec.dead_after.count()} * kNsPerMs / 2;
    size_t hellos = 0;
    for (actions_.clear(); now_ < until && core().phase() == Phase::kJoining;) {
      now_ = std::max(now_ + 1, core().next_deadline());
      core().on_tick(now_, actions_);
      hear(0, protocol::Heartbeat{});
      EXPECT_TRUE(actions_.connects.empty());
      const size_t more = take_sent<Hello>().size();
      hellos += more;
      if (more > 0) hear(1, protocol::Refuse{ErrorCode::kUnavailable, "the store is being saved", true});
    }
    EXPECT_GT(hellos, 3u);
    EXPECT_EQ(core().shard_address(1), address);
    ASSERT_EQ(core().phase(), Phase::kJoining) << core().error()->message;
    welcome(1);
    EXPECT_EQ(core().phase(), Phase::kRunning);
  }
}

TEST_F(MovedShard, AnotherShardAtTheConfiguredAddressEndsNothing) {
  make_welcomed();
  hear_refusal(ErrorCode::kShardMapMismatch, false);
  EXPECT_EQ(next_attempt(), "tcp://elsewhere:9");
  join_shard_1();
}

TEST_F(MovedShard, ItsRefusalComesBeforeTheMembership_WaitsForThat) {
  make();
  hear_refusal(ErrorCode::kShardMapMismatch, false);
  core().on_connected(0, now_, actions_);
  welcome(0);
  EXPECT_EQ(next_attempt(), "tcp://elsewhere:9");
  join_shard_1();
}

TEST_F(MovedShard, EveryShardSaysThatTheListIsWrong_TheSessionEndsAtOnce) {
  make();
  hear_refusal(ErrorCode::kShardMapMismatch, false);
  core().on_connected(0, now_, actions_);
  hear(0, protocol::Refuse{ErrorCode::kShardMapMismatch, "the worker expects shard 0 of 2 here", false});
  expect_ended(ErrorCode::kShardMapMismatch, "the worker expects shard 0 of 2 here");
}

TEST_F(MovedShard, TheMembershipHasTheConfiguredAddressToo_TheSessionEnds) {
  membership_.shards[1].address = "tcp://b:2";
  make_welcomed();
  core().on_connected(1, now_, actions_);
  hear(1, protocol::Refuse{ErrorCode::kShardMapMismatch, "the worker expects shard 1 of 2 here", false});
  expect_ended(ErrorCode::kShardMapMismatch, "shard 1 (tcp://b:2) refuses: the worker expects shard 1 of 2 here");
}

TEST_F(MovedShard, AShardAtTheWrongPlaceOfTheListIsNamed) {
  make();
  core().on_connected(0, now_, actions_);
  protocol::Welcome welcome;
  welcome.membership = membership_;
  protocol::Message message = from_shard(0, welcome);
  message.header.shard = 1;
  core().on_connected(1, now_, actions_);
  hear(1, protocol::Refuse{ErrorCode::kShardMapMismatch, "this is shard 0", false});
  core().on_message(0, std::move(message), now_, actions_);
  expect_ended(ErrorCode::kShardMapMismatch, "the server at tcp://a:1 is shard 1, but stands at place 0");
}

}  // namespace
}  // namespace millrace::testing
