// Challenge, hello, welcome; epochs, incarnations, suspicion: S5, S6.
#include <gtest/gtest.h>

#include "tests/worker/switch/scripted_switch.h"

namespace millrace::worker::testing {
namespace {

using protocol::DatagramType;
namespace flag = protocol::datagram_flag;

class ClientEpochs : public ::testing::Test {
 protected:
  std::vector<SentPacket> contributions() { return rig_.sink.take(DatagramType::kContribution); }
  void start() { ASSERT_NO_FATAL_FAILURE(rig_.run_from_start()); }
  /// The table raises the epoch; nothing else changes unless told.
  void raise() {
    ++rig_.epoch.epoch;
    rig_.client.set_epoch(rig_.epoch, rig_.now, rig_.sink);
  }
  ClientRig rig_{ClientRig::options()};
};

TEST_F(ClientEpochs, NothingIsSentBeforeTheTableSpoke) {
  rig_.begin(0, {{3, 1.0F}});
  rig_.later(kNsPerS);
  rig_.tick();
  EXPECT_TRUE(rig_.sink.take().empty());
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kOutside);
}

TEST_F(ClientEpochs, HelloCarriesMembershipAndPositions) {
  rig_.client.set_epoch(rig_.epoch, rig_.now, rig_.sink);
  rig_.hand(rig_.aggregator.challenge(rig_.sink.take().front()));
  const auto hellos = rig_.sink.take(DatagramType::kHello);
  ASSERT_EQ(hellos.size(), 1u);
  EXPECT_TRUE(rig_.aggregator.verifies(hellos[0]));
  const auto hello = protocol::read_hello(hellos[0].datagram().extension);
  ASSERT_TRUE(hello.has_value());
  EXPECT_EQ(hello->membership_hash, 77u);
  EXPECT_EQ(hello->live, 3u);
  EXPECT_EQ(hello->slots, 2u);
  EXPECT_EQ(hello->positions[0], 1u);
  EXPECT_EQ(hello->positions[1], 1u);
}

TEST_F(ClientEpochs, ChallengesOfAnotherNonceOrKeyAreRefused) {
  rig_.client.set_epoch(rig_.epoch, rig_.now, rig_.sink);
  const SentPacket request = rig_.sink.take().front();
  SwitchClientOptions others = ClientRig::options();
  others.nonce_seed = 1234;
  ClientRig other(others);
  other.client.set_epoch(other.epoch, other.now, other.sink);
  rig_.hand(rig_.aggregator.challenge(other.sink.take().front()));
  SwitchClientOptions forger = ClientRig::options();
  forger.key.fill(0x43);
  ScriptedSwitch stranger(forger, 6);
  rig_.hand(stranger.challenge(request));
  EXPECT_EQ(rig_.client.counters().forged, 2u);
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kAsking);
  EXPECT_TRUE(rig_.sink.take(DatagramType::kHello).empty());
}

TEST_F(ClientEpochs, AStepThatBeganBeforeTheWelcomeIsSentByIt) {
  rig_.begin(0, {{3, 1.0F}});
  start();
  EXPECT_EQ(contributions().size(), 2u);
}

TEST_F(ClientEpochs, AWelcomeAwayFromThePositionsIsRefused) {
  start();
  raise();
  rig_.hand(rig_.aggregator.welcome(2, {0, 2}));
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kHello);
  EXPECT_EQ(rig_.client.counters().contradiction, 1u);
  rig_.hand(rig_.aggregator.welcome(2, {0, 1}));  // a laggard in slot 1
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kRunning);
}

TEST_F(ClientEpochs, AWelcomeWithOtherSlotsOrWindowsMakesThePathSuspect) {
  start();
  raise();
  rig_.hand(rig_.aggregator.welcome(2, {0, 0, 0}));
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kHello);
  EXPECT_TRUE(rig_.client.path_suspect());
}

TEST_F(ClientEpochs, ANewerEpochDropsResultsOfTheOlderAtOnce) {
  start();
  rig_.begin(0, {{3, 1.0F}});
  const ByteBuffer old = rig_.aggregator.result(1, {.slot = 0, .turn = 1});
  raise();
  rig_.hand(old);
  EXPECT_EQ(rig_.client.counters().wrong_epoch, 1u);
  rig_.hand(rig_.aggregator.result(2, {.slot = 0, .turn = 1}));
  EXPECT_EQ(rig_.client.counters().not_running, 1u);
  EXPECT_TRUE(rig_.told.windows.empty());
}

TEST_F(ClientEpochs, HalfAResultOfTheOlderEpochIsForgotten) {
  start();
  rig_.begin(0, {{3, 1.0F}});
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1, .indices = {1}, .sums = {1}, .fragment = 0, .flags = 0}));
  raise();
  rig_.hand(rig_.aggregator.welcome(2, {0, 0}));
  rig_.hand(rig_.aggregator.result(2, {.slot = 0, .turn = 1, .indices = {9}, .sums = {1}, .fragment = 1}));
  EXPECT_TRUE(rig_.told.windows.empty());
  rig_.hand(rig_.aggregator.result(2, {.slot = 0, .turn = 1, .indices = {2}, .sums = {1}, .fragment = 0, .flags = 0}));
  ASSERT_EQ(rig_.told.windows.size(), 1u);
  EXPECT_EQ(rig_.told.windows[0].update, (std::map<uint32_t, int32_t>{{2, 1}, {9, 1}}));
}

TEST_F(ClientEpochs, AWelcomedWorkerResendsItsTurnInTheNewEpoch) {
  start();
  rig_.begin(0, {{3, 1.0F}});
  const auto before = contributions();
  raise();
  EXPECT_EQ(rig_.sink.take(DatagramType::kHello).size(), 1u);
  rig_.hand(rig_.aggregator.welcome(2, {0, 0}));
  const auto after = contributions();
  ASSERT_EQ(after.size(), 2u);
  EXPECT_EQ(after[0].header().epoch, 2u);
  EXPECT_EQ(after[0].header().turn, 1u);
  const auto a = before[0].datagram().payload;
  const auto b = after[0].datagram().payload;
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
}

TEST_F(ClientEpochs, OlderEpochsOfTheTableAreIgnored) {
  start();
  rig_.epoch.epoch = 1;
  rig_.epoch.live = 2;
  rig_.client.set_epoch(rig_.epoch, rig_.now, rig_.sink);
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kRunning);
}

TEST_F(ClientEpochs, AnEpochWithoutThisWorkerSilencesIt) {
  start();
  rig_.begin(0, {});
  rig_.sink.take();
  rig_.epoch.live = 1;
  raise();
  rig_.later(kNsPerS);
  rig_.tick();
  EXPECT_TRUE(rig_.sink.take().empty());
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kOutside);
}

TEST_F(ClientEpochs, AWorkerRetransmitsALostHello) {
  start();
  raise();
  rig_.sink.take();
  rig_.now = rig_.client.next_deadline();
  rig_.tick();
  EXPECT_EQ(rig_.sink.take(DatagramType::kHello).size(), 1u);
}

TEST_F(ClientEpochs, AWorkerRequestsAChallengeFromANewDecider) {
  start();
  rig_.epoch.decider = endpoint(3000);
  raise();
  const auto sent = rig_.sink.take();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].header().type, DatagramType::kChallengeRequest);
  EXPECT_EQ(sent[0].to.port, 3000);
}

TEST_F(ClientEpochs, AChallengeWithTheWorkersNonceReplacesTheIncarnation) {
  start();
  rig_.begin(0, {{3, 1.0F}});
  rig_.sink.take();
  const ByteBuffer old_result = rig_.aggregator.result(1, {.slot = 0, .turn = 1});
  rig_.later(kNsPerMs * 20);
  rig_.hand(rig_.aggregator.notice(protocol::NoticeCode::kUnknownIncarnation, 1, {}));
  const auto requests = rig_.sink.take(DatagramType::kChallengeRequest);
  ASSERT_EQ(requests.size(), 1u);
  ScriptedSwitch restarted(ClientRig::options(), 0xB0B);
  rig_.hand(restarted.challenge(requests[0]));
  const auto hellos = rig_.sink.take(DatagramType::kHello);
  ASSERT_EQ(hellos.size(), 1u);
  EXPECT_EQ(hellos[0].header().incarnation, 0xB0Bu);
  rig_.hand(old_result);
  EXPECT_EQ(rig_.client.counters().wrong_life, 1u);
  EXPECT_TRUE(rig_.told.windows.empty());
  rig_.hand(restarted.welcome(1, {0, 0}));
  EXPECT_EQ(contributions().size(), 2u);
  // Never back.
  rig_.later(kNsPerS);
  rig_.hand(restarted.notice(protocol::NoticeCode::kUnknownIncarnation, 1, {}));
  const auto again = rig_.sink.take(DatagramType::kChallengeRequest);
  ASSERT_EQ(again.size(), 1u);
  rig_.hand(rig_.aggregator.challenge(again[0]));
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kRunning);
  EXPECT_TRUE(rig_.sink.take(DatagramType::kHello).empty());
}

TEST_F(ClientEpochs, AHintOfAnUnknownLifeAloneChangesNothing) {
  start();
  rig_.begin(0, {{3, 1.0F}});
  rig_.later(kNsPerMs * 20);
  for (int i = 0; i < 5; ++i) rig_.hand(rig_.aggregator.notice(protocol::NoticeCode::kUnknownIncarnation, 1, {}));
  EXPECT_EQ(rig_.sink.take(DatagramType::kChallengeRequest).size(), 1u);  // and it is limited in rate
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kRunning);
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1, .indices = {3}, .sums = {1}}));
  EXPECT_EQ(rig_.told.windows.size(), 1u);
}

TEST_F(ClientEpochs, TheSameLifesChallengeLeavesARunningWorkerAsItIs) {
  start();
  rig_.begin(0, {});
  rig_.sink.take();
  ScriptedSwitch prober = rig_.aggregator;  // its nonces change by the probe, the client's session must not
  rig_.later(kNsPerMs * 20);
  rig_.hand(rig_.aggregator.notice(protocol::NoticeCode::kUnknownIncarnation, 1, {}));
  rig_.hand(prober.challenge(rig_.sink.take(DatagramType::kChallengeRequest).front()));
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kRunning);
  rig_.later(kNsPerS);
  rig_.tick();
  const auto sent = contributions();
  ASSERT_FALSE(sent.empty());
  EXPECT_TRUE(rig_.aggregator.verifies(sent[0]));
}

TEST_F(ClientEpochs, SilenceIsProbedThenSuspectedAndAWordEndsIt) {
  start();
  rig_.begin(0, {});
  rig_.sink.take();
  int rounds = 0;
  while (!rig_.client.path_suspect() && rounds < 100) {
    rig_.now = rig_.client.next_deadline();
    rig_.tick();
    ++rounds;
  }
  EXPECT_GE(rounds, 10);
  EXPECT_LT(rounds, 40);
  EXPECT_FALSE(rig_.sink.take(DatagramType::kChallengeRequest).empty());
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1}));
  EXPECT_FALSE(rig_.client.path_suspect());
}

/// Its address may have changed: results go to that of its latest HELLO.
TEST_F(ClientEpochs, SilenceInATurnRepeatsTheHelloUnderItsSession) {
  start();
  rig_.begin(0, {});
  rig_.sink.take();
  std::vector<SentPacket> hellos;
  for (int round = 0; round < 40 && hellos.empty(); ++round) {
    rig_.now = rig_.client.next_deadline();
    rig_.tick();
    hellos = rig_.sink.take(DatagramType::kHello);
  }
  ASSERT_EQ(hellos.size(), 1u);
  EXPECT_EQ(hellos[0].to, rig_.epoch.decider);
  EXPECT_TRUE(rig_.aggregator.verifies(hellos[0]));
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kRunning);
  EXPECT_FALSE(rig_.client.path_suspect());
}

/// It is short: the job's results may be too long for the path.
TEST_F(ClientEpochs, AWelcomeDoesNotEndARunningWorkersSilence) {
  start();
  rig_.begin(0, {});
  size_t welcomes = 0;
  for (int round = 0; round < 100 && !rig_.client.path_suspect(); ++round) {
    rig_.now = rig_.client.next_deadline();
    rig_.tick();
    for (const SentPacket& hello : rig_.sink.take(DatagramType::kHello)) {
      EXPECT_EQ(hello.to, rig_.epoch.decider);
      rig_.hand(rig_.aggregator.welcome(1, {0, 0}));
      ++welcomes;
    }
  }
  EXPECT_TRUE(rig_.client.path_suspect());
  EXPECT_GT(welcomes, 0u);
}

/// The way down loses the longer fragment of each result.
TEST_F(ClientEpochs, AFragmentThatIsKnownDoesNotEndASilence) {
  start();
  rig_.begin(0, {});
  size_t resends = 0;
  for (int round = 0; round < 100 && !rig_.client.path_suspect(); ++round) {
    rig_.now = rig_.client.next_deadline();
    rig_.tick();
    for (const SentPacket& sent : contributions()) {
      if (sent.header().slot != 0) continue;
      rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1, .indices = {9}, .sums = {1}, .fragment = 1}));
      ++resends;
    }
  }
  EXPECT_TRUE(rig_.client.path_suspect());
  EXPECT_EQ(rig_.client.counters().duplicates + 1, resends);
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1, .indices = {2}, .sums = {1}, .fragment = 0, .flags = 0}));
  EXPECT_FALSE(rig_.client.path_suspect());
}

/// The way up loses the longer fragment of each contribution.
TEST_F(ClientEpochs, ANoticeOfALossDoesNotEndASilence) {
  start();
  rig_.begin(0, {});
  size_t notices = 0;
  for (int round = 0; round < 100 && !rig_.client.path_suspect(); ++round) {
    rig_.now = rig_.client.next_deadline();
    rig_.tick();
    for (const SentPacket& sent : contributions()) {
      const protocol::Nonce lost = protocol::put_lost({sent.header().sequence, 0});
      rig_.hand(rig_.aggregator.notice(protocol::NoticeCode::kLost, 1, lost));
      ++notices;
    }
    contributions();  // that the notices asked for
  }
  EXPECT_TRUE(rig_.client.path_suspect());
  EXPECT_GT(notices, 0u);
}

TEST_F(ClientEpochs, AFetchDoesNotEndASilence) {
  start();
  raise();
  for (int round = 0; round < 100 && !rig_.client.path_suspect(); ++round) {
    rig_.now = rig_.client.next_deadline();
    rig_.tick();
    rig_.hand(rig_.aggregator.fetch(2, 0, 1));
  }
  EXPECT_TRUE(rig_.client.path_suspect());
}

TEST_F(ClientEpochs, AnIdleWorkerProbesItsAggregatorAndFollowsARestart) {
  start();
  rig_.now = rig_.client.next_deadline();
  rig_.tick();
  const auto requests = rig_.sink.take(DatagramType::kChallengeRequest);
  ASSERT_EQ(requests.size(), 1u);
  rig_.tick();
  EXPECT_TRUE(rig_.sink.take().empty());
  ScriptedSwitch restarted(ClientRig::options(), 0xB0B);
  rig_.hand(restarted.challenge(requests[0]));
  EXPECT_EQ(rig_.sink.take(DatagramType::kHello).size(), 1u);
}

/// It holds the lease of a job whose steps take long (S6.10).
TEST_F(ClientEpochs, AnIdleWorkerRepeatsItsHelloUnderItsSession) {
  start();
  size_t hellos = 0;
  for (const TimeNs until = rig_.now + 2 * kNsPerS; rig_.client.next_deadline() <= until;) {
    rig_.now = rig_.client.next_deadline();
    rig_.tick();
    for (const SentPacket& hello : rig_.sink.take(DatagramType::kHello)) {
      EXPECT_TRUE(rig_.aggregator.verifies(hello));
      ++hellos;
    }
  }
  EXPECT_GE(hellos, 3u);
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kRunning);
}

/// A path or a switch that drops packets of this length answers nothing, so it is left.
TEST_F(ClientEpochs, ARequestIsAsLongAsTheJobsLongestPacket) {
  rig_.client.set_epoch(rig_.epoch, rig_.now, rig_.sink);
  const auto requests = rig_.sink.take(DatagramType::kChallengeRequest);
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].bytes.size(), rig_.client_options.packet_bytes_max);
  rig_.hand(rig_.aggregator.challenge(requests[0]));
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kHello);
}

TEST_F(ClientEpochs, NoSlotsIsBelievedOnlyAsTheAnswerToThisWorkersRequest) {
  rig_.client.set_epoch(rig_.epoch, rig_.now, rig_.sink);
  const auto request = rig_.sink.take().front();
  rig_.hand(rig_.aggregator.notice(protocol::NoticeCode::kNoSlots, 0, {}));
  EXPECT_FALSE(rig_.client.path_suspect());
  const auto asked = protocol::read_challenge_request(request.datagram().extension);
  rig_.hand(rig_.aggregator.notice(protocol::NoticeCode::kNoSlots, 0, asked->worker_nonce));
  EXPECT_TRUE(rig_.client.path_suspect());
  raise();
  EXPECT_FALSE(rig_.client.path_suspect());
}

TEST_F(ClientEpochs, AWelcomeAfterARefusalEndsTheSuspicion) {
  rig_.client.set_epoch(rig_.epoch, rig_.now, rig_.sink);
  const SentPacket request = rig_.sink.take().front();
  const auto asked = protocol::read_challenge_request(request.datagram().extension);
  rig_.hand(rig_.aggregator.notice(protocol::NoticeCode::kNoSlots, 0, asked->worker_nonce));
  EXPECT_TRUE(rig_.client.path_suspect());
  rig_.hand(rig_.aggregator.challenge(request));
  EXPECT_TRUE(rig_.client.path_suspect()) << "the slots may still be missing";
  rig_.hand(rig_.aggregator.welcome(1, {0, 0}));
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kRunning);
  EXPECT_FALSE(rig_.client.path_suspect());
}

TEST_F(ClientEpochs, ANoticeOfANewerEpochOnlyRaisesEpochSeen) {
  start();
  rig_.hand(rig_.aggregator.notice(protocol::NoticeCode::kOldEpoch, 9, {}));
  EXPECT_EQ(rig_.client.epoch_seen(), 9u);
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kRunning);
}

TEST_F(ClientEpochs, FetchIsAnsweredWithTheLastResultAsItCame) {
  start();
  rig_.begin(0, {{3, 1.0F}});
  const ByteBuffer bytes = rig_.aggregator.result(1, {.slot = 0, .turn = 1, .indices = {3, 8}, .sums = {1, 7}});
  rig_.hand(bytes);
  raise();
  rig_.sink.take();
  rig_.hand(rig_.aggregator.fetch(2, 0, 1));
  const auto kept = rig_.sink.take(DatagramType::kKept);
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].header().epoch, 2u);
  const auto original = protocol::parse_datagram(bytes).value();
  const auto copy = kept[0].datagram();
  EXPECT_TRUE(std::equal(original.payload.begin(), original.payload.end(), copy.payload.begin(), copy.payload.end()));
  EXPECT_TRUE(
      std::equal(original.extension.begin(), original.extension.end(), copy.extension.begin(), copy.extension.end()));
  EXPECT_EQ(copy.header.next, original.header.next);
  EXPECT_EQ(copy.header.window, original.header.window);
  rig_.hand(rig_.aggregator.fetch(2, 0, 2));  // this worker does not have it
  rig_.hand(rig_.aggregator.fetch(2, 1, 1));
  EXPECT_TRUE(rig_.sink.take(DatagramType::kKept).empty());
}

TEST_F(ClientEpochs, ALaggardTakesTheKeptResultThatAnOlderEpochDecided) {
  start();
  rig_.begin(0, {{3, 1.0F}});
  raise();
  rig_.hand(rig_.aggregator.welcome(2, {1, 0}));  // slot 0: others have turn 1's result
  rig_.hand(rig_.aggregator.result(2, {.slot = 0, .turn = 1, .contributors = 7, .indices = {3}, .sums = {4}}));
  ASSERT_EQ(rig_.told.windows.size(), 1u);
  EXPECT_EQ(rig_.told.windows[0].contributors, 7u);
  EXPECT_TRUE(rig_.told.windows[0].returned.empty());
}

TEST_F(ClientEpochs, AJoinerContinuesFromItsHandover) {
  start();
  rig_.begin(0, {{3, 1.0F}});
  rig_.hand(rig_.aggregator.result(1, {.slot = 0, .turn = 1, .indices = {3}, .sums = {1 << 20}}));
  rig_.hand(rig_.aggregator.result(1, {.slot = 1, .turn = 1, .window = 1}));
  const SwitchHandover handover = rig_.client.handover();
  SwitchClientOptions options = ClientRig::options();
  options.worker = 0;
  Told told;
  SwitchClient joiner(options, told, handover);
  CollectingSink sink;
  ScriptedSwitch aggregator(options, 4);
  joiner.set_epoch(rig_.epoch, rig_.now, sink);
  const auto receive = [&](const ByteBuffer& bytes) {
    joiner.receive({.bytes = bytes, .from = endpoint(1000)}, rig_.now, sink);
  };
  receive(aggregator.challenge(sink.take().front()));
  const auto hello = protocol::read_hello(sink.take(DatagramType::kHello).front().datagram().extension);
  EXPECT_EQ(hello->positions[0], 2u);
  receive(aggregator.fetch(1, 0, 1));
  EXPECT_EQ(sink.take(DatagramType::kKept).size(), 1u);
  receive(aggregator.welcome(1, {1, 1}));
  ASSERT_TRUE(joiner.begin_step(1, {}, {}, rig_.now, sink).has_value());
  const auto sent = sink.take(DatagramType::kContribution);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].header().turn, 2u);
  EXPECT_EQ(sent[0].header().step, 1u);
  EXPECT_EQ(sent[0].header().exponent, 21 + 2 - 14);
}

}  // namespace
}  // namespace millrace::worker::testing
