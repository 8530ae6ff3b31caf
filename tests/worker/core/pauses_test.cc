#include <gtest/gtest.h>

#include <algorithm>
#include <ranges>

#include "tests/worker/core/scripted_core.h"

/// The longest pause before another attempt: reconnect_after_max for a lost shard and a refused contribution, less for
/// a Hello whose number is in use.
namespace millrace::testing {
namespace {

class Pauses : public ScriptedCore {
 protected:
  /// Refuses every Hello to shard 0 for `span`. Returns the pauses until the next Hello, each with its beginning.
  std::vector<std::pair<TimeNs, TimeNs>> refuse_for(TimeNs span, ErrorCode code) {
    std::vector<std::pair<TimeNs, TimeNs>> pauses;
    for (const TimeNs began = now_; now_ < began + span;) {
      hear(0, protocol::Refuse{code, "not now", true});
      const TimeNs since = now_;
      for (actions_.clear(); take_sent<protocol::Hello>().empty(); core().on_tick(now_, actions_))
        now_ = std::max(now_ + 1, core().next_deadline());
      pauses.emplace_back(since - began, now_ - since);
    }
    return pauses;
  }

  /// Returns the time until the contribution to shard 0 is sent again. Neither shard says anything about it.
  TimeNs until_sent_again() {
    const TimeNs since = now_;
    for (bool again = false; !again && now_ < since + 60 * kNsPerS;) {
      pass(kTurn);
      for (const uint32_t shard : {0, 1}) hear(shard, protocol::Heartbeat{});
      for (const auto& [shard, message] : take_sent<protocol::Contribution>()) again |= shard == 0;
    }
    return now_ - since;
  }

  /// Has shard 0 refuse the contribution for want of room, ten times.
  void refuse_ten_times() {
    for (int i = 0; i < 10; ++i) {
      hear(0, no_room());
      EXPECT_LE(until_sent_again(), 7 * kNsPerS) << i;
    }
  }

  static protocol::Refuse no_room() {
    protocol::Refuse refuse{ErrorCode::kUnavailable, "no room for this step yet", true};
    refuse.about_contribution = true;
    return refuse;
  }

  static constexpr TimeNs kTurn = kNsPerS / 50;
};

TEST_F(Pauses, ShardUnreachable_PausesGrowToTheLongestOne) {
  config_.connect_timeout = 60 * kNsPerS;
  config_.reconnect_after_max = kNsPerS / 4;
  make();
  core().on_connected(0, now_, actions_);
  welcome(0);
  actions_.clear();
  for (int attempt = 0; attempt < 9; ++attempt) {
    core().on_disconnected(1, {ErrorCode::kUnavailable, "no answer there"}, now_, actions_);
    const TimeNs since = now_;
    for (actions_.clear(); actions_.connects.empty(); core().on_tick(now_, actions_)) {
      now_ = std::max(now_ + 1, core().next_deadline());
      hear(0, protocol::Heartbeat{});
    }
    EXPECT_LE(now_ - since, kNsPerS / 4 * 5 / 4 + 1) << attempt;
  }
}

TEST_F(Pauses, BytesWithoutAWholeMessageKeepTheConnection) {
  make_running();
  for (const TimeNs end = now_ + 60 * kNsPerS; now_ < end; pass(kNsPerS / 4)) {
    for (const uint32_t shard : {0, 1}) core().on_sign(shard, worker::ConnectionSign::kReceived, now_);
  }
  EXPECT_TRUE(actions_.connects.empty());
  EXPECT_EQ(core().phase(), worker::Phase::kRunning);
  pass(5 * kNsPerS);
  EXPECT_FALSE(actions_.connects.empty()) << "nothing arrives any more";
}

TEST_F(Pauses, ContributionThatStillLeavesIsNotSentAgain) {
  make_running();
  push({1, 150'000}, {1, 2});
  ASSERT_EQ(take_sent<protocol::Contribution>().size(), 2u);
  for (const TimeNs end = now_ + 60 * kNsPerS; now_ < end; pass(kNsPerS / 4)) {
    for (const uint32_t shard : {0, 1}) core().on_sign(shard, worker::ConnectionSign::kSent, now_);
    EXPECT_TRUE(actions_.connects.empty());
    EXPECT_TRUE(take_sent<protocol::Contribution>().empty());
  }
  EXPECT_LE(until_sent_again(), config_.resend_after + kNsPerS) << "the shard has it, and does not answer";
}

TEST_F(Pauses, BytesOfAnotherProgramDoNotDelayTheEnd) {
  make_running();
  const TimeNs lost_at = now_;
  core().on_disconnected(0, {ErrorCode::kUnavailable, "gone"}, now_, actions_);
  while (core().phase() == worker::Phase::kRunning && now_ < lost_at + 2 * config_.shard_silence) {
    for (const uint32_t shard : {0, 1}) core().on_sign(shard, worker::ConnectionSign::kReceived, now_);
    pass(kNsPerS / 4);
  }
  EXPECT_EQ(core().phase(), worker::Phase::kEnded);
  EXPECT_LE(now_ - lost_at, config_.shard_silence + kNsPerS);
}

TEST_F(Pauses, NumberInUse_AskedForSoonDuringThreeHeartbeatsAndThenRarely) {
  config_.connect_timeout = 1'000 * kNsPerS;
  for (const int64_t heartbeat_ms : {100, 1'000, 2'000}) {
    SCOPED_TRACE(heartbeat_ms);
    config_.spec.heartbeat = std::chrono::milliseconds(heartbeat_ms);
    make();
    core().on_connected(0, now_, actions_);
    // The number of a killed process is free after two of them (R9).
    const TimeNs beat = std::max<TimeNs>(heartbeat_ms, 500) * kNsPerMs;
    const TimeNs soon = beat / 4 * 5 / 4 + 1;  // with the jitter
    const TimeNs most = TimeNs{config_.spec.dead_after.count()} * kNsPerMs / 4;
    const auto of_others = refuse_for(3 * beat, ErrorCode::kUnavailable);
    EXPECT_GT(std::ranges::max(of_others | std::views::values), soon) << "no number is in use";
    const auto pauses = refuse_for(60 * kNsPerS, ErrorCode::kIdentityInUse);
    for (const auto& [at, pause] : pauses) {
      if (at >= 3 * beat) break;
      EXPECT_LE(pause, soon) << "at " << at << " ns";
    }
    EXPECT_GE(pauses.back().second, most * 3 / 4) << "a live process has the number";
    // Another refusal, as of a key that asks too often, changes nothing.
    refuse_for(1, ErrorCode::kUnavailable);
    const auto later = refuse_for(60 * kNsPerS, ErrorCode::kIdentityInUse);
    EXPECT_GE(std::ranges::min(later | std::views::values), most * 3 / 4);
  }
}

TEST_F(Pauses, AShardWithoutRoomIsAskedAfterAtMostTheLongestPause) {
  config_.reconnect_after_max = kNsPerS / 2;
  make_running();
  push({5}, {1});
  take_sent<protocol::Contribution>();
  for (int i = 0; i < 20; ++i) {
    hear(0, no_room());
    pass(kNsPerS / 2 * 5 / 4 + 1);  // with the jitter
    EXPECT_FALSE(take_sent<protocol::Contribution>().empty()) << i;
  }
}

TEST_F(Pauses, RefusalsAreNoLosses) {
  make_running();
  push({5}, {1});
  take_sent<protocol::Contribution>();
  refuse_ten_times();
  EXPECT_LE(until_sent_again(), config_.resend_after * 5 / 4 + kTurn) << "the last one was lost";
}

TEST_F(Pauses, ARefusalAfterTheShardHadTheContributionIsTheFirstOne) {
  make_running();
  push({5}, {1});
  take_sent<protocol::Contribution>();
  refuse_ten_times();
  hear(0, protocol::Duplicate{0, 0});
  hear(0, no_room());
  EXPECT_LE(until_sent_again(), config_.reconnect_after * 5 / 4 + kTurn);
}

TEST_F(Pauses, LossesOverAnEarlierConnectionDoNotCount) {
  make_running();
  push({5}, {1});
  take_sent<protocol::Contribution>();
  for (int i = 0; i < 4; ++i) until_sent_again();
  EXPECT_GE(until_sent_again(), 8 * config_.resend_after) << "doubled each time";
  core().on_disconnected(0, {ErrorCode::kUnavailable, "the connection broke"}, now_, actions_);
  for (actions_.connects.clear(); actions_.connects.empty();) pass(kTurn);
  core().on_connected(0, now_, actions_);
  welcome(0);
  EXPECT_EQ(take_sent<protocol::Contribution>().size(), 1u) << "at once";
  EXPECT_LE(until_sent_again(), config_.resend_after * 5 / 4 + kTurn);
}

}  // namespace
}  // namespace millrace::testing
