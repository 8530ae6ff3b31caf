// A worker whose contributions go through a rack's switch (S7.6, S7.7).
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "tests/worker/switch/scripted_switch.h"

namespace millrace::worker::testing {
namespace {

using protocol::DatagramType;
namespace flag = protocol::datagram_flag;

class ClientRack : public ::testing::Test {
 protected:
  ClientRack() { rig_.epoch.role = SwitchRole::kCombine; }
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(rig_.run_from_start());
    ASSERT_NO_FATAL_FAILURE(rig_.welcome_by_rack());
  }
  std::vector<SentPacket> contributions() { return rig_.sink.take(DatagramType::kContribution); }
  /// Where the contributions of slot 0 go at the next time-out, and whether with FLUSH.
  std::vector<std::pair<bool, uint16_t>> after_timeout() {
    std::vector<std::pair<bool, uint16_t>> seen;
    rig_.now = rig_.client.next_deadline();
    rig_.tick();
    for (const SentPacket& packet : contributions()) {
      if (packet.header().slot == 0) seen.emplace_back((packet.header().flags & flag::kFlush) != 0, packet.to.port);
    }
    return seen;
  }
  ClientRig rig_{ClientRig::options()};
};

TEST_F(ClientRack, ContributionsGoToTheRackUnderItsSession) {
  rig_.begin(0, {{3, 1.0F}});
  const auto sent = contributions();
  ASSERT_FALSE(sent.empty());
  for (const SentPacket& packet : sent) {
    EXPECT_EQ(packet.to.port, 2000);
    EXPECT_TRUE(rig_.rack.verifies(packet));
    EXPECT_EQ(packet.header().incarnation, rig_.rack.incarnation());
    EXPECT_EQ(packet.header().flags & flag::kFlush, 0);
  }
}

/// The job has no slots there: past it, and the way to the decider is as good as it was. It asks again later, and goes
/// there once there are slots.
TEST(ClientRackSlots, ARackWithoutSlotsIsPassedUntilItHasSome) {
  ClientRig rig(ClientRig::options());
  rig.epoch.role = SwitchRole::kCombine;
  ASSERT_NO_FATAL_FAILURE(rig.run_from_start());
  ASSERT_TRUE(rig.rack_request.has_value());
  const auto asked = protocol::read_challenge_request(rig.rack_request->datagram().extension);
  ASSERT_TRUE(asked.has_value());
  rig.hand_from_rack(rig.rack.notice(protocol::NoticeCode::kNoSlots, 0, asked->worker_nonce));
  EXPECT_FALSE(rig.client.at_rack());
  EXPECT_FALSE(rig.client.path_suspect());
  rig.sink.take();
  rig.begin(0, {{3, 1.0F}});
  auto sent = rig.sink.take(DatagramType::kContribution);
  ASSERT_EQ(sent.size(), 2u);
  for (const SentPacket& packet : sent) EXPECT_EQ(packet.to.port, 1000);
  // Asks again; contributions and retransmissions meanwhile go past the rack.
  std::optional<SentPacket> again;
  for (int time = 0; time < 50 && !again; ++time) {
    rig.now = rig.client.next_deadline();
    rig.tick();
    for (SentPacket& packet : rig.sink.take()) {
      if (packet.to == rig.epoch.rack && packet.header().type == DatagramType::kChallengeRequest) again = packet;
      if (packet.header().type != DatagramType::kContribution) continue;
      EXPECT_EQ(packet.to.port, 1000);
    }
  }
  ASSERT_TRUE(again.has_value());
  rig.rack_request = again;
  ASSERT_NO_FATAL_FAILURE(rig.welcome_by_rack());
  EXPECT_TRUE(rig.client.at_rack());
}

TEST_F(ClientRack, ItsHelloToTheRackHasNoPositions) {
  ++rig_.epoch.epoch;
  rig_.client.set_epoch(rig_.epoch, rig_.now, rig_.sink);
  const auto hellos = rig_.sink.take(DatagramType::kHello);
  ASSERT_EQ(hellos.size(), 2u);
  for (const SentPacket& packet : hellos) {
    const auto hello = protocol::read_hello(packet.datagram().extension);
    ASSERT_TRUE(hello.has_value());
    EXPECT_EQ(hello->slots, packet.to == rig_.epoch.rack ? 0u : 2u);
    EXPECT_EQ(hello->live, 3u);
    EXPECT_EQ(hello->membership_hash, 77u);
  }
}

TEST_F(ClientRack, AWorkerWithoutARackWelcomeSendsToTheDecider) {
  ++rig_.epoch.epoch;
  rig_.client.set_epoch(rig_.epoch, rig_.now, rig_.sink);
  rig_.sink.take();
  rig_.hand(rig_.aggregator.welcome(2, {0, 0}));
  rig_.begin(0, {{3, 1.0F}});
  for (const SentPacket& packet : contributions()) {
    EXPECT_EQ(packet.to.port, 1000);
    EXPECT_TRUE(rig_.aggregator.verifies(packet));
  }
}

TEST_F(ClientRack, ResendsCarryFlushFromTheSecondTimeoutAndGoPastASilentRack) {
  rig_.begin(0, {});
  contributions();
  std::vector<std::pair<bool, uint16_t>> seen;
  while (seen.size() < 3) {
    const auto more = after_timeout();
    seen.insert(seen.end(), more.begin(), more.end());
  }
  EXPECT_EQ(seen, (std::vector<std::pair<bool, uint16_t>>{{false, 2000}, {true, 2000}, {false, 1000}}));
}

TEST_F(ClientRack, ARackThatDoesNotAnswerIsLeftAndAskedAgain) {
  rig_.begin(0, {});
  contributions();
  for (int i = 0; i < 12 && rig_.client.counters().rack_lost == 0; ++i) after_timeout();
  EXPECT_EQ(rig_.client.counters().rack_lost, 1u);
  std::vector<SentPacket> requests;
  for (int i = 0; i < 20 && requests.empty(); ++i) {
    rig_.now = rig_.client.next_deadline();
    rig_.tick();
    for (const SentPacket& packet : rig_.sink.take()) {
      EXPECT_FALSE(packet.header().type == DatagramType::kContribution && packet.to.port == 2000);
      if (packet.header().type == DatagramType::kChallengeRequest && packet.to.port == 2000) requests.push_back(packet);
    }
  }
  ASSERT_FALSE(requests.empty());
  rig_.rack_request = requests.back();
  rig_.welcome_by_rack();
  EXPECT_EQ(rig_.client.counters().rack_welcomes, 2u);
}

TEST_F(ClientRack, ALeavingWorkerStopsAskingItsRack) {
  rig_.begin(0, {});
  for (int i = 0; i < 12 && rig_.client.counters().rack_lost == 0; ++i) after_timeout();
  ASSERT_EQ(rig_.client.counters().rack_lost, 1u) << "the rack is being asked";
  rig_.client.leave();
  EXPECT_EQ(rig_.client.next_deadline(), std::numeric_limits<TimeNs>::max()) << "its owner would turn round and round";
}

TEST_F(ClientRack, ALeavingWorkerHasNoRack) {
  ASSERT_TRUE(rig_.client.at_rack());
  rig_.client.leave();
  EXPECT_FALSE(rig_.client.at_rack());
  EXPECT_EQ(rig_.client.counters().rack_lost, 0u) << "the rack works as before";
}

TEST_F(ClientRack, ARackThatAnswersAChallengeIsKept) {
  rig_.begin(0, {});
  contributions();
  std::optional<SentPacket> request;
  for (int i = 0; i < 6 && !request; ++i) {
    rig_.now = rig_.client.next_deadline();
    rig_.tick();
    for (const SentPacket& packet : rig_.sink.take(DatagramType::kChallengeRequest)) {
      if (packet.to.port == 2000) request = packet;
    }
  }
  ASSERT_TRUE(request.has_value());
  rig_.hand_from_rack(rig_.rack.challenge(*request));
  after_timeout();
  EXPECT_EQ(rig_.client.counters().rack_lost, 0u);
}

/// Its address may have changed: the rack's notices go to that of its latest HELLO.
TEST_F(ClientRack, ADoubtedRackGetsAHelloUnderItsSession) {
  rig_.begin(0, {});
  contributions();
  std::vector<SentPacket> hellos;
  for (int i = 0; i < 6 && hellos.empty(); ++i) {
    rig_.now = rig_.client.next_deadline();
    rig_.tick();
    for (const SentPacket& packet : rig_.sink.take(DatagramType::kHello)) {
      if (packet.to == rig_.epoch.rack) hellos.push_back(packet);
    }
  }
  ASSERT_EQ(hellos.size(), 1u);
  EXPECT_TRUE(rig_.rack.verifies(hellos[0]));
  EXPECT_TRUE(rig_.client.at_rack());
  rig_.hand_from_rack(rig_.rack.welcome(1, {0, 0}));
  EXPECT_TRUE(rig_.client.at_rack());
  EXPECT_EQ(rig_.client.counters().rack_welcomes, 1u);
}

TEST_F(ClientRack, ARestartedRackIsGreetedAgain) {
  ScriptedSwitch other(rig_.client_options, 0xB0B);
  rig_.hand_from_rack(other.notice(protocol::NoticeCode::kUnknownIncarnation, 1, {}));
  rig_.later(kNsPerS);
  rig_.hand_from_rack(other.notice(protocol::NoticeCode::kUnknownIncarnation, 1, {}));
  const auto requests = rig_.sink.take(DatagramType::kChallengeRequest);
  ASSERT_FALSE(requests.empty());
  EXPECT_EQ(requests.back().to.port, 2000);
  rig_.hand_from_rack(other.challenge(requests.back()));
  const auto hellos = rig_.sink.take(DatagramType::kHello);
  ASSERT_EQ(hellos.size(), 1u);
  EXPECT_EQ(hellos[0].to.port, 2000);
  EXPECT_TRUE(other.verifies(hellos[0]));
  EXPECT_EQ(rig_.client.phase(), SwitchPhase::kRunning) << "the decider's session stays";
}

TEST_F(ClientRack, ARackThatDoesNotTakeContributionsIsPassedBy) {
  rig_.hand_from_rack(rig_.rack.notice(protocol::NoticeCode::kSayHello, 1, {}));
  rig_.begin(0, {{3, 1.0F}});
  for (const SentPacket& packet : contributions()) EXPECT_EQ(packet.to.port, 1000);
  EXPECT_EQ(rig_.client.counters().rack_lost, 1u);
}

TEST_F(ClientRack, APacketThatTheRackLostIsRetransmittedToTheRack) {
  rig_.begin(0, {{3, 1.0F}});
  const auto sent = contributions();
  const uint64_t sequence = sent.front().header().sequence;
  rig_.hand_from_rack(rig_.rack.notice(protocol::NoticeCode::kLost, 1, protocol::put_lost({sequence, 0})));
  const auto again = contributions();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again.front().to.port, 2000);
  EXPECT_TRUE(rig_.rack.verifies(again.front()));
  EXPECT_EQ(again.front().header().flags, sent.front().header().flags) << "no FLUSH";
  EXPECT_TRUE(rig_.client.at_rack());
  EXPECT_EQ(rig_.client.counters().rack_lost, 0u);
}

TEST_F(ClientRack, ARackOfAnotherShapeIsNoRack) {
  ++rig_.epoch.epoch;
  rig_.client.set_epoch(rig_.epoch, rig_.now, rig_.sink);
  rig_.sink.take();
  rig_.hand_from_rack(rig_.rack.welcome(2, {0, 0, 0}));
  EXPECT_EQ(rig_.client.counters().refused, 1u);
  EXPECT_FALSE(rig_.client.path_suspect());
  rig_.hand(rig_.aggregator.welcome(2, {0, 0}));
  rig_.begin(0, {{3, 1.0F}});
  for (const SentPacket& packet : contributions()) EXPECT_EQ(packet.to.port, 1000);
}

TEST_F(ClientRack, ARackSaysNoResults) {
  rig_.begin(0, {{3, 1.0F}});
  rig_.hand_from_rack(rig_.rack.result(1, {.slot = 0, .turn = 1, .indices = {3}, .sums = {1}}));
  EXPECT_TRUE(rig_.told.windows.empty());
  EXPECT_EQ(rig_.client.counters().unexpected_type, 1u);
}

TEST_F(ClientRack, AnUpdatedEntryThatTheRackOmittedIsReturned) {
  rig_.begin(0, {{3, 1.0F}, {5, 2.0F}, {7, 4.0F}});
  rig_.hand(
      rig_.aggregator.result(1, {.slot = 0, .turn = 1, .selected = 2, .kept = 2, .indices = {3, 5}, .sums = {1, 2}}));
  ASSERT_EQ(rig_.told.windows.size(), 1u);
  EXPECT_EQ(rig_.told.windows[0].returned, (std::map<uint32_t, float>{{3, 1.0F}, {7, 4.0F}}));
}

TEST_F(ClientRack, WhatAnotherRackCutIsNothingToThisWorker) {
  rig_.begin(0, {{3, 1.0F}, {5, 2.0F}});
  rig_.hand(
      rig_.aggregator.result(1, {.slot = 0, .turn = 1, .selected = 1, .kept = 2, .indices = {3, 5}, .sums = {1, 2}}));
  ASSERT_EQ(rig_.told.windows.size(), 1u);
  EXPECT_TRUE(rig_.told.windows[0].returned.empty());
}

}  // namespace
}  // namespace millrace::worker::testing
