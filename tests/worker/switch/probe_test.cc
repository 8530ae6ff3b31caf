#include <gtest/gtest.h>

#include <memory>

#include "tests/worker/switch/scripted_switch.h"
#include "worker/switch/switch_probe.h"

namespace millrace::worker::testing {
namespace {

constexpr TimeNs kEvery = 200 * kNsPerMs;
constexpr TimeNs kHold = kNsPerS;

class Probe : public ::testing::Test {
 protected:
  Probe() : options_(ClientRig::options()), probe_(probe_options()) { restart(1); }

  SwitchProbeOptions probe_options() const {
    SwitchProbeOptions options;
    options.identity = {.job = options_.job, .key = options_.key, .worker = options_.worker, .nonce_seed = 77};
    options.at = endpoint(7);
    options.observation_time = kHold;
    options.every = kEvery;
    return options;
  }

  void restart(uint64_t incarnation) { switch_ = std::make_unique<ScriptedSwitch>(options_, incarnation); }

  /// Lets time pass; the switch answers, or does not.
  enum class Switch { kAnswers, kSilent };
  void pass(TimeNs span, Switch how) {
    const TimeNs end = now_ + span;
    while (probe_.next_deadline() <= end) {
      now_ = probe_.next_deadline();
      probe_.tick(now_, sink_);
      for (const SentPacket& asked : sink_.take()) {
        ++asked_;
        EXPECT_EQ(asked.to, endpoint(7));
        if (how == Switch::kSilent) continue;
        const ByteBuffer answer = switch_->challenge(asked);
        EXPECT_TRUE(probe_.receive(*protocol::parse_datagram(answer), now_));
      }
    }
    now_ = end;
  }
  /// From now until it answers; 0: not within two minutes.
  TimeNs until_answers() {
    const TimeNs begun = now_;
    while (now_ < begun + 120 * kNsPerS) {
      pass(kEvery / 2, Switch::kAnswers);
      if (probe_.answers(now_)) return now_ - begun;
    }
    return 0;
  }

  SwitchClientOptions options_;
  SwitchProbe probe_;
  CollectingSink sink_;
  std::unique_ptr<ScriptedSwitch> switch_;
  TimeNs now_ = kNsPerS;
  int asked_ = 0;
};

TEST_F(Probe, AsksNothingWhileTheSwitchDecides) {
  EXPECT_EQ(probe_.next_deadline(), std::numeric_limits<TimeNs>::max());
  probe_.tick(now_ + 10 * kNsPerS, sink_);
  EXPECT_TRUE(sink_.take().empty());
}

TEST_F(Probe, AnswersForTheHoldTimeAreAnAnswer) {
  probe_.start(SwitchProbe::Cause::kFellBack, now_);
  pass(kHold - kEvery, Switch::kAnswers);
  EXPECT_FALSE(probe_.answers(now_));
  pass(2 * kEvery, Switch::kAnswers);
  EXPECT_TRUE(probe_.answers(now_));
  EXPECT_GE(asked_, 5);
}

TEST_F(Probe, ASilentSwitchIsNoAnswer) {
  probe_.start(SwitchProbe::Cause::kFellBack, now_);
  pass(10 * kHold, Switch::kSilent);
  EXPECT_FALSE(probe_.answers(now_));
}

TEST_F(Probe, AGapResetsTheHoldTime) {
  probe_.start(SwitchProbe::Cause::kFellBack, now_);
  pass(kHold - kEvery, Switch::kAnswers);
  pass(4 * kEvery, Switch::kSilent);
  pass(3 * kEvery, Switch::kAnswers);
  EXPECT_FALSE(probe_.answers(now_));
  pass(kHold, Switch::kAnswers);
  EXPECT_TRUE(probe_.answers(now_));
  pass(5 * kEvery, Switch::kSilent);
  EXPECT_FALSE(probe_.answers(now_));
}

TEST_F(Probe, AnAggregatorRestartResetsTheHoldTime) {
  probe_.start(SwitchProbe::Cause::kFellBack, now_);
  pass(kHold - kEvery, Switch::kAnswers);
  restart(2);
  pass(2 * kEvery, Switch::kAnswers);
  EXPECT_FALSE(probe_.answers(now_));
  pass(kHold, Switch::kAnswers);
  EXPECT_TRUE(probe_.answers(now_));
}

TEST_F(Probe, AnAnswerToAnEarlierQuestionIsNone) {
  probe_.start(SwitchProbe::Cause::kFellBack, now_);
  probe_.tick(now_, sink_);
  const auto asked = sink_.take();
  ASSERT_EQ(asked.size(), 1u);
  const ByteBuffer answer = switch_->challenge(asked[0]);
  EXPECT_TRUE(probe_.receive(*protocol::parse_datagram(answer), now_));
  pass(kEvery, Switch::kSilent);
  EXPECT_FALSE(probe_.receive(*protocol::parse_datagram(answer), now_));
  // Nor does a packet that a sender without the key has made.
  SwitchClientOptions stranger = options_;
  stranger.key[0] ^= 1;
  ScriptedSwitch forger(stranger, 9);
  pass(kEvery, Switch::kSilent);
  probe_.tick(now_ += kEvery, sink_);
  const auto again = sink_.take();
  ASSERT_FALSE(again.empty());
  EXPECT_FALSE(probe_.receive(*protocol::parse_datagram(forger.challenge(again[0])), now_));
}

TEST_F(Probe, EachFallbackDoublesTheTimeAndALongStayHalvesIt) {
  const auto fall_back_after = [&](TimeNs stay) {
    probe_.stop(now_);
    now_ += stay;
    probe_.start(SwitchProbe::Cause::kFellBack, now_);
  };
  probe_.start(SwitchProbe::Cause::kFellBack, now_);
  const TimeNs first = until_answers();
  EXPECT_GE(first, kHold);
  EXPECT_LE(first, kHold + 2 * kEvery);
  fall_back_after(kNsPerS);
  EXPECT_GE(until_answers(), 2 * kHold);
  fall_back_after(kNsPerS);
  EXPECT_GE(until_answers(), 4 * kHold);
  fall_back_after(8 * 4 * kHold);
  const TimeNs forgiven = until_answers();
  EXPECT_GE(forgiven, 2 * kHold);
  EXPECT_LT(forgiven, 4 * kHold);
  for (int i = 0; i < 10; ++i) fall_back_after(kNsPerS);
  EXPECT_EQ(probe_.observation_time(), 32 * kHold);
}

TEST_F(Probe, AJobThatBeginsAtAShardWaitsOnlyOnce) {
  probe_.start(SwitchProbe::Cause::kBegan, now_);
  EXPECT_EQ(probe_.observation_time(), kHold);
}

}  // namespace
}  // namespace millrace::worker::testing
