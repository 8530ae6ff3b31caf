#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "protocol/base/limits.h"
#include "protocol/messages/log_digest.h"
#include "tests/worker/core/scripted_core.h"

/// How a worker joins, stays connected and notices that it is not: connections, Hello and Welcome, views, silence.
namespace millrace::testing {
namespace {

using protocol::Hello;
using worker::Phase;

class Handshake : public ScriptedCore {};

TEST_F(Handshake, EveryShardConnected_GreetedAndJobRunsWhenAllHaveJoined) {
  membership_.started = false;
  membership_.members.pop_back();
  make();
  EXPECT_EQ(actions_.connects, (std::vector<uint32_t>{0, 1}));
  core().on_connected(0, now_, actions_);
  const auto hellos = take_sent<Hello>();
  ASSERT_EQ(hellos.size(), 1u);
  EXPECT_EQ(hellos[0].first, 0u);
  EXPECT_EQ(hellos[0].second.header.worker, 0u);
  const auto& hello = std::get<Hello>(hellos[0].second.body);
  EXPECT_EQ(hello.nonce, kNonce);
  EXPECT_EQ(hello.spec, config_.spec);
  EXPECT_EQ(hello.shard_count, 2u);
  EXPECT_EQ(hello.layout_hash, protocol::layout_hash(core().layout()));
  welcome(0);
  EXPECT_EQ(core().phase(), Phase::kJoining);
  EXPECT_NE(core().waiting_for().find("shard 1 (tcp://b:2)"), std::string::npos) << core().waiting_for();
  core().on_connected(1, now_, actions_);
  welcome(1);
  EXPECT_EQ(core().phase(), Phase::kWaiting);
  EXPECT_NE(core().waiting_for().find("not joined: 1"), std::string::npos) << core().waiting_for();
  membership_.started = true;
  ++membership_.epoch;
  membership_.members.push_back({1, 1, 2'000});
  hear(1, protocol::MembershipChange{membership_});
  EXPECT_EQ(core().phase(), Phase::kRunning);
  EXPECT_EQ(core().incarnation(), 1u);
}

TEST_F(Handshake, NothingIsSentBeforeTheJobRuns) {
  membership_.started = false;
  make();
  for (uint32_t shard = 0; shard < 2; ++shard) {
    core().on_connected(shard, now_, actions_);
    welcome(shard);
  }
  push({1}, {1});
  EXPECT_TRUE(take_sent<protocol::Contribution>().empty());
  membership_.started = true;
  ++membership_.epoch;
  hear(0, protocol::MembershipChange{membership_});
  while (core().work(now_, actions_)) {
  }
  EXPECT_EQ(take_sent<protocol::Contribution>().size(), 2u);
}

TEST_F(Handshake, AnUnansweredHelloIsRetransmittedUntilTheTimeOut) {
  config_.connect_timeout = 5 * kNsPerS;
  make();
  core().on_connected(0, now_, actions_);
  welcome(0);
  core().on_connected(1, now_, actions_);
  take_sent<Hello>();
  pass(3 * kNsPerS);
  EXPECT_EQ(take_sent<Hello>().size(), 3u);
  pass(3 * kNsPerS);
  expect_ended(ErrorCode::kUnavailable,
               "shard 1 (tcp://b:2) could not be joined (tried for 5.0 s, 1 attempt): it accepts "
               "connections but does not answer Hello");
}

TEST_F(Handshake, AProcessThatSpeaksNoMillraceIsNamedInTheError) {
  config_.connect_timeout = 3 * kNsPerS;
  make();
  core().on_connected(0, now_, actions_);
  welcome(0);
  core().on_sign(1, worker::ConnectionSign::kAccepted, now_);
  pass(4 * kNsPerS);
  expect_ended(ErrorCode::kUnavailable,
               "shard 1 (tcp://b:2) could not be joined (tried for 3.0 s, 1 attempt): the process that accepts "
               "connections there does not answer as a Millrace server does");
}

TEST_F(Handshake, TheReportedCauseIsThatOfTheLastConnectionAttempt) {
  config_.connect_timeout = 60 * kNsPerS;
  make();
  core().on_connected(0, now_, actions_);
  welcome(0);
  core().on_sign(1, worker::ConnectionSign::kAccepted, now_);
  core().on_disconnected(1, {ErrorCode::kUnavailable, "no process accepts connections there"}, now_, actions_);
  EXPECT_NE(core().waiting_for().find("does not answer as a Millrace server does"), std::string::npos);
  actions_.clear();
  while (actions_.connects.empty()) {
    now_ = core().next_deadline();
    core().on_tick(now_, actions_);
  }
  core().on_disconnected(1, {ErrorCode::kUnavailable, "no process accepts connections there"}, now_, actions_);
  EXPECT_NE(core().waiting_for().find("no process accepts connections there"), std::string::npos)
      << core().waiting_for();
}

TEST_F(Handshake, ShardUnreachable_BackoffDoublesWithJitterAndErrorNamesIt) {
  config_.connect_timeout = 60 * kNsPerS;
  config_.shard_silence = 1'000 * kNsPerS;
  make();
  core().on_connected(0, now_, actions_);
  welcome(0);
  actions_.clear();
  std::vector<TimeNs> gaps;
  for (int attempt = 0; attempt < 9; ++attempt) {
    core().on_disconnected(1, {ErrorCode::kUnavailable, "no answer there"}, now_, actions_);
    const TimeNs since = now_;
    for (actions_.clear(); actions_.connects.empty(); core().on_tick(now_, actions_)) {
      now_ = std::max(now_ + 1, core().next_deadline());
      hear(0, protocol::Heartbeat{});
    }
    EXPECT_EQ(actions_.connects, std::vector<uint32_t>{1});
    gaps.push_back(now_ - since);
  }
  TimeNs expected = 100 * kNsPerMs;
  const TimeNs most =
      TimeNs{config_.spec.dead_after.count()} * kNsPerMs / 4;  // a restarted shard evicts a worker that stays away
  for (const TimeNs gap : gaps) {
    EXPECT_GE(gap, expected * 3 / 4);
    EXPECT_LE(gap, expected * 5 / 4 + 1);
    expected = std::min(expected * 2, most);
  }
  core().on_disconnected(1, {ErrorCode::kUnavailable, "no answer there"}, now_, actions_);
  pass(60 * kNsPerS);
  expect_ended(ErrorCode::kUnavailable, "shard 1 (tcp://b:2) could not be joined (tried for 60.0 s, ");
}

TEST_F(Handshake, ARefusalToBeTriedAgainIsTriedAgainAndItsWordsAreInTheTimeout) {
  make();
  core().on_connected(0, now_, actions_);
  take_sent<Hello>();
  hear(0, protocol::Refuse{ErrorCode::kLimitExceeded, "64 jobs are open (--jobs-max)", true});
  EXPECT_EQ(core().phase(), Phase::kJoining);
  int hellos = 0;
  while (core().phase() == Phase::kJoining) {
    pass(kNsPerS);
    if (take_sent<Hello>().empty()) continue;
    ++hellos;
    hear(0, protocol::Refuse{ErrorCode::kLimitExceeded, "64 jobs are open (--jobs-max)", true});
  }
  EXPECT_GT(hellos, 1);
  expect_ended(ErrorCode::kLimitExceeded, "64 jobs are open (--jobs-max)");
}

TEST_F(Handshake, ShardRefusesForNow_RetriedUntilAnEarlierRunCountsAsDead) {
  make();
  const TimeNs began = now_;
  const protocol::Refuse refuse{ErrorCode::kUnavailable, "an earlier run of job 'job' was not ended", true};
  const auto refuse_until = [&](TimeNs until) {
    while (now_ < until && core().phase() == Phase::kJoining) {
      for (uint32_t shard = 0; shard < 2; ++shard) hear(shard, refuse);
      pass(kNsPerS / 4);
    }
  };
  for (uint32_t shard = 0; shard < 2; ++shard) core().on_connected(shard, now_, actions_);
  const TimeNs dead_after = TimeNs{config_.spec.dead_after.count()} * kNsPerMs;
  refuse_until(began + config_.connect_timeout + dead_after - kNsPerS);
  ASSERT_EQ(core().phase(), Phase::kJoining) << "a name that is free after dead_after is still waited for";
  refuse_until(began + config_.connect_timeout + dead_after + 2 * kNsPerS);
  expect_ended(ErrorCode::kUnavailable, "an earlier run of job 'job' was not ended");
}

TEST_F(Handshake, ShardUnreachable_TimeOutNotExtendedByAnotherShardsRefusal) {
  make();
  const TimeNs began = now_;
  core().on_connected(0, now_, actions_);
  hear(0, protocol::Refuse{ErrorCode::kUnavailable, "an earlier run of job 'job' was not ended", true});
  while (core().phase() == Phase::kJoining && now_ < began + 3 * config_.connect_timeout) pass(kNsPerS / 4);
  EXPECT_LE(now_, began + config_.connect_timeout + kNsPerS);
}

TEST_F(Handshake, APermanentRefusalEndsTheSessionWithTheShardsMessage) {
  make();
  core().on_connected(0, now_, actions_);
  hear(0, protocol::Refuse{ErrorCode::kJobMismatch, "tensor 'w': dimension 10 here, 12 there", false});
  expect_ended(ErrorCode::kJobMismatch, "shard 0 (tcp://a:1) refuses: tensor 'w': dimension 10 here, 12 there");
}

TEST_F(Handshake, AVersionThatThisWorkerDoesNotSpeakEndsTheSession) {
  make();
  core().on_connected(0, now_, actions_);
  protocol::Welcome welcome;
  welcome.version = protocol::kProtocolVersion + 1;
  welcome.membership = membership_;
  hear(0, welcome);
  expect_ended(ErrorCode::kVersionMismatch, "protocol version " + std::to_string(protocol::kProtocolVersion + 1));
}

TEST_F(Handshake, TheLinkHasTheVersionOfTheWelcome) {
  make();
  EXPECT_FALSE(core().link_to(0).has_value()) << "not welcomed";
  for (uint32_t shard = 0; shard < 2; ++shard) {
    core().on_connected(shard, now_, actions_);
    protocol::Welcome welcome;
    welcome.version = protocol::kProtocolVersionMin + shard;
    welcome.membership = membership_;
    hear(shard, welcome);
    ASSERT_TRUE(core().link_to(shard).has_value()) << shard;
    EXPECT_EQ(core().link_to(shard)->version, protocol::kProtocolVersionMin + shard);
  }
}

TEST_F(Handshake, MalformedMessage_CountedAndAVersionMismatchEndsTheSession) {
  make();
  core().on_bad_message(0, {ErrorCode::kMalformed, "not an envelope"}, now_, actions_);
  EXPECT_EQ(core().phase(), Phase::kJoining);
  EXPECT_EQ(core().counters().dropped_malformed, 1u);
  core().on_bad_message(0, {ErrorCode::kVersionMismatch, "version 9"}, now_, actions_);
  expect_ended(ErrorCode::kVersionMismatch, "version 9");
}

/// The difference between the second shard's Welcome and the first one's.
struct Disagreement {
  const char* name;
  void (*bend)(protocol::Membership& membership);
  ErrorCode code;
  const char* words;
};

void PrintTo(const Disagreement& disagreement, std::ostream* out) { *out << disagreement.name; }

class ShardsDisagree : public ScriptedCore, public ::testing::WithParamInterface<Disagreement> {};

TEST_P(ShardsDisagree, AndTheSessionEndsSayingOverWhat) {
  make();
  core().on_connected(0, now_, actions_);
  welcome(0);
  core().on_connected(1, now_, actions_);
  protocol::Welcome welcome;
  welcome.membership = membership_;
  GetParam().bend(welcome.membership);
  hear(1, welcome);
  expect_ended(GetParam().code, GetParam().words);
}

INSTANTIATE_TEST_SUITE_P(
    Views, ShardsDisagree,
    ::testing::Values(Disagreement{"ShardCount", [](protocol::Membership& membership) { membership.shards.pop_back(); },
                                   ErrorCode::kShardMapMismatch, "knows 1 shards, this worker 2"},
                      Disagreement{"MembersOfOneEpoch",
                                   [](protocol::Membership& membership) { membership.members[1].nonce = 1; },
                                   ErrorCode::kShardMapMismatch, "disagrees with another shard about one epoch"},
                      Disagreement{"ShardLife",
                                   [](protocol::Membership& membership) {
                                     ++membership.epoch;
                                     membership.shards[0].incarnation = 0;
                                   },
                                   ErrorCode::kShardMapMismatch, "knows an earlier start of shard 0"},
                      Disagreement{"ThisWorkerIsGone",
                                   [](protocol::Membership& membership) {
                                     ++membership.epoch;
                                     membership.members.erase(membership.members.begin());
                                   },
                                   ErrorCode::kNotAMember, "worker 0 was removed"},
                      Disagreement{"AnotherProcessIsThisWorker",
                                   [](protocol::Membership& membership) {
                                     ++membership.epoch;
                                     membership.members[0].nonce = 5;
                                   },
                                   ErrorCode::kIdentityInUse, "another process is worker 0"}),
    [](const auto& of_case) { return std::string(of_case.param.name); });

/// R11d: Shard 0 ends job 7. Shard 1, which has this worker's first Hello after that, begins job 8.
class TwoNumbers : public ScriptedCore {
 protected:
  static constexpr TimeNs kMax = 2 * kNsPerS;

  void welcome_by_both() {
    make();
    core().on_connected(0, now_, actions_);
    welcome(0);
    core().on_connected(1, now_, actions_);
    welcome_to_next();
  }
  void welcome_to_next() {
    protocol::Welcome next;
    next.membership = membership_;
    next.membership.job = 8;
    hear(1, next);
    EXPECT_EQ(core().phase(), Phase::kJoining);
  }
  void pass(TimeNs time) {
    EXPECT_LE(core().next_deadline(), now_ + time);
    now_ += time;
    core().on_tick(now_, actions_);
  }
  void expect_two_numbers() {
    expect_ended(ErrorCode::kShardMapMismatch, "knows the job as number 8, another shard as number 7");
  }
};

TEST_F(TwoNumbers, TheWorkerEndsWithTheReasonOfTheJobThatEnded) {
  welcome_by_both();
  pass(kMax - 1);
  hear(0, protocol::Abort{ErrorCode::kIo, "the save is damaged"});
  expect_ended(ErrorCode::kIo, "the save is damaged");
}

TEST_F(TwoNumbers, WithoutAReasonTheWorkerEndsInTimeAndSaysThem) {
  welcome_by_both();
  pass(kMax - 1);
  welcome_to_next();  // a Hello was repeated: the time does not begin again
  pass(1);
  expect_two_numbers();
}

TEST_F(TwoNumbers, AShortConnectTimeoutDoesNotHideThem) {
  config_.connect_timeout = kMax / 2;
  welcome_by_both();
  pass(kMax / 2);
  expect_two_numbers();
}

TEST_F(Handshake, AShardThatMovedIsSoughtWhereTheViewSays) {
  make_running();
  ++membership_.epoch;
  membership_.shards[0].address = "tcp://elsewhere:1";
  hear(1, protocol::MembershipChange{membership_});
  EXPECT_EQ(actions_.connects, std::vector<uint32_t>{0});
  EXPECT_EQ(core().shard_address(0), "tcp://elsewhere:1");
  core().on_connected(0, now_, actions_);
  EXPECT_EQ(take_sent<protocol::Hello>().size(), 1u);
  // It takes the job up with that Hello.
  ++membership_.epoch;
  membership_.shards[0].incarnation = 2;
  welcome(0);
  EXPECT_EQ(core().phase(), worker::Phase::kRunning);
  EXPECT_TRUE(actions_.connects.empty()) << "it is there already";
}

TEST_F(Handshake, NewIncarnationBeforeTheStart_AdoptedAndEarlierOneUnused) {
  membership_.started = false;
  make();
  ASSERT_TRUE(core().push_sparse(0, std::vector<uint32_t>{5}, std::vector<float>{1}, 1, now_).has_value());
  for (uint32_t shard = 0; shard < 2; ++shard) {
    core().on_connected(shard, now_, actions_);
    welcome(shard);
  }
  ASSERT_EQ(core().phase(), Phase::kWaiting);
  // Silent for too long and removed, then admitted again by its next Hello: the nonce says that it is the same process.
  ++membership_.epoch;
  membership_.members[0].incarnation = 2;
  incarnation_ = 2;
  welcome(1);
  ASSERT_EQ(core().phase(), Phase::kWaiting);
  EXPECT_EQ(core().incarnation(), 2u);
  EXPECT_TRUE(take_sent<protocol::Contribution>().empty());
  ++membership_.epoch;
  membership_.started = true;
  hear(0, protocol::MembershipChange{membership_});
  ASSERT_EQ(core().phase(), Phase::kRunning);
  while (core().work(now_, actions_)) {
  }
  const auto sent = take_sent<protocol::Contribution>();
  ASSERT_EQ(sent.size(), 2u);
  for (const auto& [shard, message] : sent) EXPECT_EQ(message.header.incarnation, 2u);
}

TEST_F(Handshake, ANewIncarnationInARunningJobEndsTheSession) {
  make_running();
  ++membership_.epoch;
  membership_.members[0].incarnation = 2;
  hear(1, protocol::MembershipChange{membership_});
  expect_ended(ErrorCode::kNotAMember, "worker 0 was removed from the job and is a member under another incarnation");
  EXPECT_EQ(core().incarnation(), 1u) << "all messages were sent under this one";
}

TEST_F(Handshake, AShardRestartBeforeTheJobStartsLosesNothing) {
  membership_.started = false;
  membership_.shards[1].incarnation = 0;  // it was not there when the job was made
  make();
  core().on_connected(0, now_, actions_);
  welcome(0);
  ++membership_.epoch;
  membership_.shards[1].incarnation = 1;
  core().on_connected(1, now_, actions_);
  welcome(1);
  EXPECT_EQ(core().phase(), Phase::kWaiting);
  ++membership_.epoch;
  membership_.shards[1].incarnation = 2;
  membership_.started = true;
  core().on_disconnected(1, {ErrorCode::kUnavailable, "closed"}, now_, actions_);
  core().on_connected(1, now_, actions_);
  welcome(1);
  EXPECT_EQ(core().phase(), Phase::kRunning);
}

TEST_F(Handshake, AnOlderViewChangesNothing) {
  make_running();
  protocol::Membership older = membership_;
  --older.epoch;
  older.members.clear();
  hear(0, protocol::MembershipChange{older});
  EXPECT_EQ(core().phase(), Phase::kRunning);
  EXPECT_EQ(core().membership().epoch, membership_.epoch);
}

TEST_F(Handshake, HeartbeatsGoOutEveryIntervalAndSayHowFarTheWorkerIs) {
  make_running();
  for (int i = 0; i < 3; ++i) {
    pass(TimeNs{config_.spec.heartbeat.count()} * kNsPerMs);
    hear(0, protocol::Heartbeat{});
    hear(1, protocol::Heartbeat{.waited_for = {1}, .decided = {}});
  }
  const auto sent = take_sent<protocol::Heartbeat>();
  ASSERT_EQ(sent.size(), 6u);
  EXPECT_EQ(std::get<protocol::Heartbeat>(sent[5].second.body).sequence, 3u);
  EXPECT_NE(core().waiting_for().find("shard 1 (tcp://b:2) is blocked on contributions of workers 1"),
            std::string::npos)
      << core().waiting_for();
}

TEST_F(Handshake, AFusedTensorThatIsNotPushedIsNamed) {
  config_.spec = toy_spec(2, {10, 20});
  core_ = std::make_unique<WatchedCore>(config_);
  core_->start(now_, actions_);
  for (const uint32_t shard : {0u, 1u}) {
    core_->on_connected(shard, now_, actions_);
    welcome(shard);
  }
  const std::string nothing = core().waiting_for();
  const std::string named = "tensor 't1' travels with 't0' (fuse_below), which has not been pushed for step 0";
  ASSERT_TRUE(core().push_sparse(1, {}, {}, 1, now_).has_value());
  EXPECT_EQ(core().waiting_for(), named);
  hear(1, protocol::Heartbeat{.waited_for = {0}, .decided = {}});
  EXPECT_EQ(core().waiting_for(), named) << "the shard is blocked on this worker";
  hear(1, protocol::Heartbeat{.waited_for = {1}, .decided = {}});
  EXPECT_NE(core().waiting_for().find("is blocked on contributions of workers 1"), std::string::npos);
  hear(1, protocol::Heartbeat{});
  ASSERT_TRUE(core().push_sparse(0, {}, {}, 1, now_).has_value());
  EXPECT_EQ(core().waiting_for(), nothing);
}

TEST_F(Handshake, UpdateApplied_HeartbeatsCarryTheDigestOfEachPart) {
  make_running();
  const auto heartbeat_of = [this](uint32_t shard) {
    pass(TimeNs{config_.spec.heartbeat.count()} * kNsPerMs);
    for (const uint32_t heard : {0u, 1u}) hear(heard, protocol::Heartbeat{});
    std::optional<protocol::Heartbeat> last;
    for (const auto& [to, message] : take_sent<protocol::Heartbeat>()) {
      if (to == shard) last = std::get<protocol::Heartbeat>(message.body);
    }
    return last.value();
  };
  EXPECT_TRUE(heartbeat_of(1).digests.empty());
  uint64_t digest = protocol::kLogDigestStart;
  for (const uint64_t step : {0u, 1u}) {
    push({3, 150'000}, {1, 2});
    const SharedBytes payload = sum_of({{50'000, 4.0f + static_cast<float>(step)}}, part_dimension(1));
    digest = protocol::extend_log_digest(digest, update_of(1, step), payload.bytes);
    hear_update(0, step, {{3, 2}});
    hear(1, update_of(1, step), payload);
    hear(1, update_of(1, step), payload);  // served again: not applied again
  }
  EXPECT_EQ(heartbeat_of(1).digests, (std::vector<protocol::Heartbeat::Digest>{{1, 2, digest}}));
  EXPECT_EQ(core().saved_state().parts[1].log_digest, digest);
}

TEST_F(Handshake, DigestsBeyondOneHeartbeatFollowInTheNext) {
  config_.spec = toy_spec(2, std::vector<uint64_t>(17, 20'000));
  config_.spec.fuse_below = 0;
  config_.spec.parts_per_shard = 64;
  core_ = std::make_unique<WatchedCore>(config_);
  core_->start(now_, actions_);
  for (const uint32_t shard : {0u, 1u}) {
    core_->on_connected(shard, now_, actions_);
    welcome(shard);
  }
  for (uint32_t tensor = 0; tensor < 17; ++tensor) {
    ASSERT_TRUE(core_->push_sparse(tensor, std::vector<uint32_t>{3}, std::vector<float>{1}, 1, now_).has_value());
  }
  while (core_->work(now_, actions_)) {
  }
  std::set<uint32_t> on_shard_0;
  for (const protocol::PartLayout& part : core_->layout().parts) {
    if (part.shard != 0) continue;
    hear(0, update_of(part.part, 0), sum_of({}, part_dimension(part.part)));
    on_shard_0.insert(part.part);
  }
  ASSERT_EQ(on_shard_0.size(), 17u * 64);
  std::set<uint32_t> said;
  for (int beat = 0; beat < 2; ++beat) {
    pass(TimeNs{config_.spec.heartbeat.count()} * kNsPerMs);
    for (const uint32_t shard : {0u, 1u}) hear(shard, protocol::Heartbeat{});
    for (const auto& [to, message] : take_sent<protocol::Heartbeat>()) {
      const auto& digests = std::get<protocol::Heartbeat>(message.body).digests;
      EXPECT_EQ(digests.size(), to == 0 ? protocol::kHeartbeatPartsMax : 0);
      for (const auto& one : digests) said.insert(one.part);
    }
  }
  EXPECT_EQ(said, on_shard_0);
}

TEST_F(Handshake, ASilentShardGetsANewConnectionAndThenEndsTheSession) {
  config_.shard_silence = 20 * kNsPerS;
  make_running();
  TimeNs spoken = now_;
  bool connected_anew = false;
  while (core().phase() == Phase::kRunning && now_ < spoken + 60 * kNsPerS) {
    pass(kNsPerS);
    hear(0, protocol::Heartbeat{});
    for (const uint32_t shard : actions_.connects) {
      EXPECT_EQ(shard, 1u);
      connected_anew = true;
      core().on_connected(shard, now_, actions_);  // connects, and stays mute
    }
    actions_.clear();
  }
  EXPECT_TRUE(connected_anew);
  expect_ended(ErrorCode::kUnavailable, "shard 1 (tcp://b:2) has been silent for 20.0 s");
}

TEST_F(Handshake, AReconnectIsGreetedWithTheSameNonceAndGetsEveryAckAgain) {
  make_running();
  push({3}, {1});
  hear_update(0, 0, {{3, 2}});
  core().end_pass(now_, actions_);
  actions_.clear();
  core().on_disconnected(0, {ErrorCode::kUnavailable, "closed"}, now_, actions_);
  pass(kNsPerS);
  ASSERT_FALSE(actions_.connects.empty());
  core().on_connected(0, now_, actions_);
  const auto hellos = take_sent<Hello>();
  ASSERT_EQ(hellos.size(), 1u);
  EXPECT_EQ(std::get<Hello>(hellos[0].second.body).nonce, kNonce);
  welcome(0);
  core().end_pass(now_, actions_);
  const auto acks = take_sent<protocol::Ack>();
  ASSERT_EQ(acks.size(), 1u);
  const auto& entries = std::get<protocol::Ack>(acks[0].second.body).entries;
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].part, 0u);
  EXPECT_EQ(entries[0].n, 1u);
  EXPECT_EQ(core().counters().reconnects, 1u);
}

TEST_F(Handshake, AnAbortAndAGoodbyeOfAShardEndTheSession) {
  make_running();
  hear(1, protocol::Abort{ErrorCode::kUnavailable, "too few workers are left"});
  expect_ended(ErrorCode::kUnavailable, "shard 1 (tcp://b:2) ended the job: too few workers are left");
  // The other shard is notified, so that no round is blocked on this worker until it counts as silent.
  const auto goodbyes = take_sent<protocol::Goodbye>();
  ASSERT_EQ(goodbyes.size(), 2u);
  EXPECT_EQ(std::get<protocol::Goodbye>(goodbyes[0].second.body).reason, protocol::Goodbye::Reason::kFailed);
  make_running();
  hear(0, protocol::Goodbye{protocol::Goodbye::Reason::kShutdown, "stopped by its operator"});
  expect_ended(ErrorCode::kUnavailable, "has left the job: stopped by its operator");
}

TEST_F(Handshake, AHelloAfterTheJobsEndIsAnsweredByThatEnd) {
  make_running();
  core().on_disconnected(0, {ErrorCode::kUnavailable, "gone"}, now_, actions_);
  pass(kNsPerS);
  core().on_connected(0, now_, actions_);
  const auto hellos = take_sent<Hello>();
  ASSERT_EQ(hellos.size(), 1u);
  EXPECT_EQ(hellos[0].second.header.job, membership_.job);
  hear(0, protocol::Abort{ErrorCode::kStale, "take the model of a worker that finished"});
  expect_ended(ErrorCode::kStale, "ended the job: take the model of a worker that finished");
}

TEST_F(Handshake, WhatDoesNotBelongHereIsDroppedAndCounted) {
  make_running();
  const auto send = [&](auto bend) {
    protocol::Message message = from_shard(0, protocol::MembershipChange{});
    bend(message);
    const uint64_t before = core().counters().dropped_unexpected;
    core().on_message(0, std::move(message), now_, actions_);
    EXPECT_EQ(core().counters().dropped_unexpected, before + 1);
  };
  send([](protocol::Message& m) { m.header.job = 8; });
  send([](protocol::Message& m) { m.header.worker = 1; });
  send([](protocol::Message& m) { m.header.shard = 1; });
  send([](protocol::Message& m) { m.header.incarnation = 2; });
  send([](protocol::Message& m) { m.body = protocol::Hello{}; });
  send([](protocol::Message& m) { m.body = protocol::ThresholdHistogram{}; });
  EXPECT_EQ(core().phase(), Phase::kRunning);
}

}  // namespace
}  // namespace millrace::testing
