#include <gtest/gtest.h>

#include <map>

#include "tests/worker/core/returning_core.h"

/// Messages that take longer than their time-outs: bytes that arrive or leave delay these.
namespace millrace::testing {
namespace {

using worker::ConnectionSign;
using worker::Phase;

class SlowLinks : public ReturningCore {
 protected:
  static constexpr TimeNs kTurn = kNsPerS / 4;

  /// Lets time pass in which `bytes` arrive from each shard in each turn.
  void arrive_for(TimeNs span, uint64_t bytes) {
    for (const TimeNs end = now_ + span; now_ < end; pass(kTurn)) {
      for (const uint32_t shard : {0, 1}) core().on_sign(shard, ConnectionSign::kReceived, now_, bytes);
    }
  }
  /// Answers the heartbeats that are among the messages to send.
  void answer_heartbeats() {
    std::map<uint32_t, protocol::Heartbeat> answers;
    for (const worker::SendAction& send : actions_.sends) {
      if (const auto* beat = std::get_if<protocol::Heartbeat>(&send.message.body))
        answers[send.shard].sequence = beat->sequence;
    }
    for (const auto& [shard, answer] : answers) hear(shard, answer);
  }
};

TEST_F(SlowLinks, AStateIsNotRepeatedWhileItsAnswerArrives) {
  make_joining(2);
  EXPECT_FALSE(take_sent<protocol::State>().empty());
  actions_.clear();
  arrive_for(2 * config_.shard_silence, 100'000);
  EXPECT_EQ(core().phase(), Phase::kRejoining);
  EXPECT_TRUE(take_sent<protocol::State>().empty());
  arrive_for(3 * kNsPerS, 100);
  EXPECT_FALSE(take_sent<protocol::State>().empty()) << "heartbeats alone";
}

TEST_F(SlowLinks, AStateIsRepeatedAfterARunThatDoesNotFitWhileBytesArrive) {
  make_joining(2);
  take_sent<protocol::State>();
  hear_run(0, 1, 1, 100, 50);
  arrive_for(2 * kNsPerS, 100'000);
  EXPECT_EQ(shards_of(take_sent<protocol::State>()), std::vector<uint32_t>{0});
}

TEST_F(SlowLinks, BytesDelayTheEndOfARejoinForABoundedTime) {
  make_joining(2);
  arrive_for(3 * config_.shard_silence, 4'000'000);
  EXPECT_EQ(core().phase(), Phase::kEnded) << "nothing of all that was an answer";
}

TEST_F(SlowLinks, AContributionIsNotSentAgainWhileItsUpdateArrives) {
  make_running();
  push({1, 150'000}, {1, 2});
  ASSERT_EQ(take_sent<protocol::Contribution>().size(), 2u);
  arrive_for(60 * kNsPerS, 100'000);
  EXPECT_TRUE(take_sent<protocol::Contribution>().empty());
  EXPECT_TRUE(actions_.connects.empty());
  protocol::Heartbeat decided;
  decided.decided = {{0, 1}};
  hear(0, decided);
  arrive_for(kNsPerS, 100'000);
  const auto again = take_sent<protocol::Contribution>();
  ASSERT_EQ(again.size(), 1u) << "the update left before the heartbeat, and did not come";
  EXPECT_EQ(again[0].first, 0u);
  arrive_for(config_.resend_after + kNsPerS, 100);
  EXPECT_FALSE(take_sent<protocol::Contribution>().empty()) << "heartbeats alone";
}

TEST_F(SlowLinks, OtherBytesHideALostContributionForABoundedTime) {
  make_running();
  push({1, 150'000}, {1, 2});
  take_sent<protocol::Contribution>();
  for (const TimeNs end = now_ + 65 * kNsPerS; now_ < end; answer_heartbeats()) arrive_for(kNsPerS, 100'000);
  EXPECT_EQ(take_sent<protocol::Contribution>().size(), 2u);
}

TEST_F(SlowLinks, LeavingBytesHideALostContributionForABoundedTime) {
  make_running();
  push({1, 150'000}, {1, 2});
  take_sent<protocol::Contribution>();
  const auto leave_for = [this](TimeNs span) {
    for (const TimeNs end = now_ + span; now_ < end; pass(kTurn)) {
      for (const uint32_t shard : {0, 1}) core().on_sign(shard, ConnectionSign::kSent, now_);
      for (const uint32_t shard : {0, 1}) core().on_sign(shard, ConnectionSign::kReceived, now_, 100);
    }
  };
  leave_for(120 * kNsPerS);
  EXPECT_TRUE(take_sent<protocol::Contribution>().empty()) << "it may be among those that wait";
  for (const TimeNs end = now_ + 65 * kNsPerS; now_ < end; answer_heartbeats()) leave_for(kNsPerS);
  EXPECT_EQ(take_sent<protocol::Contribution>().size(), 2u);
}

}  // namespace
}  // namespace millrace::testing
