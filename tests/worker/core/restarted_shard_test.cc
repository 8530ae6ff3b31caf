#include <gtest/gtest.h>

#include <algorithm>

#include "tests/worker/core/scripted_core.h"

/// A shard that is started again while the job runs: the worker follows the start that the membership table names.
namespace millrace::testing {
namespace {

using protocol::Hello;
using worker::Phase;

class RestartedShard : public ScriptedCore {};

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

}  // namespace
}  // namespace millrace::testing
