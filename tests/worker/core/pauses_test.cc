#include <gtest/gtest.h>

#include "tests/worker/core/scripted_core.h"

/// reconnect_after_max: the longest pause before another attempt at a lost shard, or at a refused contribution.
namespace millrace::testing {
namespace {

class Pauses : public ScriptedCore {};

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

TEST_F(Pauses, AShardWithoutRoomIsAskedAfterAtMostTheLongestPause) {
  config_.reconnect_after_max = kNsPerS / 2;
  make_running();
  push({5}, {1});
  protocol::Refuse refuse{ErrorCode::kUnavailable, "no room for this step yet", true};
  refuse.about_contribution = true;
  take_sent<protocol::Contribution>();
  for (int i = 0; i < 20; ++i) {
    hear(0, refuse);
    pass(kNsPerS / 2 * 5 / 4 + 1);  // with the jitter
    EXPECT_FALSE(take_sent<protocol::Contribution>().empty()) << i;
  }
}

}  // namespace
}  // namespace millrace::testing
