#include <gtest/gtest.h>

#include "tests/worker/core/scripted_core.h"

/// The shards to which a worker announces that it leaves.
namespace millrace::testing {
namespace {

class Goodbyes : public ScriptedCore {};

TEST_F(Goodbyes, WhoIsRefusedByOneShardSaysGoodbyeToThoseThatMayYetLetItIn) {
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

TEST_F(Goodbyes, WhoLeavesBeforeItHasSaidHelloSaysNothing) {
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

TEST_F(Goodbyes, AShardOfAnotherClusterThatAdmittedThisWorkerIsToldThatItGoes) {
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

}  // namespace
}  // namespace millrace::testing
