#include "worker/switch/named_peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "protocol/datagram/header.h"

/// Aggregators by name: which of its addresses a packet goes to.
namespace millrace::worker {
namespace {

using protocol::DatagramType;
using protocol::Endpoint;
using ::testing::ElementsAre;

Endpoint at(uint8_t host) {
  Endpoint endpoint{{}, 7800};
  endpoint.address.back() = host;
  return endpoint;
}

/// Where each packet went, by the last byte of its receiver.
class Recorder final : public protocol::PacketSink {
 public:
  std::span<uint8_t> room() override { return bytes_; }
  void send(size_t bytes, const Endpoint& to) override {
    sizes.push_back(bytes);
    went.push_back(to.address.back());
  }
  std::vector<int> take() { return std::exchange(went, {}); }
  std::vector<int> went;
  std::vector<size_t> sizes;

 private:
  std::array<uint8_t, 256> bytes_{};
};

struct NamedPeersTest : ::testing::Test {
  Recorder out;
  NamedPeers peers{out};
  std::array<uint8_t, protocol::kDatagramHeaderBytes> packet{};

  void send(DatagramType type, const Endpoint& to) {
    protocol::DatagramHeader header;
    header.type = type;
    protocol::put_header(header, peers.room());
    peers.send(protocol::kDatagramHeaderBytes, to);
  }
  void ask(const Endpoint& to) { send(DatagramType::kChallengeRequest, to); }
  Endpoint comes(DatagramType type, const Endpoint& from) {
    protocol::DatagramHeader header;
    header.type = type;
    protocol::put_header(header, packet);
    return peers.received({.bytes = packet, .from = from}).from;
  }
};

TEST_F(NamedPeersTest, OneAddressIsTheNamesEndpoint) {
  EXPECT_EQ(peers.set("switch:7800", {at(1)}), at(1));
  EXPECT_EQ(peers.endpoint_of("switch:7800"), at(1));
  EXPECT_FALSE(peers.endpoint_of("rack:7800"));
  for (const DatagramType type : {DatagramType::kChallengeRequest, DatagramType::kHello, DatagramType::kContribution})
    send(type, at(1));
  EXPECT_THAT(out.take(), ElementsAre(1, 1, 1));
  EXPECT_EQ(comes(DatagramType::kChallenge, at(1)), at(1));
}

TEST_F(NamedPeersTest, AnUnnamedEndpointKeepsItsAddress) {
  peers.set("switch:7800", {at(1), at(2)});
  ask(at(9));
  send(DatagramType::kHello, at(9));
  EXPECT_THAT(out.take(), ElementsAre(9, 9));
  EXPECT_EQ(comes(DatagramType::kResult, at(9)), at(9));
}

TEST_F(NamedPeersTest, EveryAddressIsAskedUntilOneAnswersAndThatOneIsUsed) {
  const Endpoint name = peers.set("switch:7800", {at(1), at(2), at(3)});
  EXPECT_EQ(name, at(1));
  ask(name);
  EXPECT_THAT(out.take(), ElementsAre(1, 2, 3));
  EXPECT_EQ(comes(DatagramType::kChallenge, at(2)), name);
  ask(name);
  send(DatagramType::kHello, name);
  send(DatagramType::kContribution, name);
  EXPECT_THAT(out.take(), ElementsAre(2, 2, 2));
  EXPECT_EQ(comes(DatagramType::kResult, at(2)), name);
}

TEST_F(NamedPeersTest, TheAnswersOfTwoAddressesOfOneSwitchDoNotAlternate) {
  const Endpoint name = peers.set("switch:7800", {at(1), at(2)});
  ask(name);
  comes(DatagramType::kChallenge, at(2));
  EXPECT_EQ(comes(DatagramType::kChallenge, at(1)), name) << "known all the same";
  for (int round = 0; round < 5; ++round) {
    out.take();
    ask(name);
    send(DatagramType::kContribution, name);
    EXPECT_THAT(out.take(), ElementsAre(2, 2));
    comes(DatagramType::kChallenge, at(1));
    comes(DatagramType::kChallenge, at(2));
  }
}

TEST_F(NamedPeersTest, AnAddressThatFallsSilentIsLeftForOneThatAnswers) {
  const Endpoint name = peers.set("switch:7800", {at(1), at(2)});
  ask(name);
  comes(DatagramType::kChallenge, at(1));
  out.take();
  ask(name);
  ask(name);
  ask(name);
  EXPECT_THAT(out.take(), ElementsAre(1, 1, 1, 2)) << "two requests were left unanswered: the third goes to both";
  comes(DatagramType::kChallenge, at(2));
  send(DatagramType::kHello, name);
  EXPECT_THAT(out.take(), ElementsAre(2));
}

TEST_F(NamedPeersTest, OnlyAnAnswerToARequestMovesPackets) {
  const Endpoint name = peers.set("switch:7800", {at(1), at(2)});
  for (const DatagramType type : {DatagramType::kResult, DatagramType::kNotice, DatagramType::kWelcome})
    EXPECT_EQ(comes(type, at(2)), name);
  send(DatagramType::kHello, name);
  EXPECT_THAT(out.take(), ElementsAre(1));
}

TEST_F(NamedPeersTest, TwoNamesAreApart) {
  const Endpoint decider = peers.set("switch:7800", {at(1), at(2)});
  const Endpoint rack = peers.set("rack:7800", {at(5), at(6)});
  ask(rack);
  EXPECT_THAT(out.take(), ElementsAre(5, 6));
  comes(DatagramType::kChallenge, at(6));
  send(DatagramType::kContribution, rack);
  send(DatagramType::kContribution, decider);
  EXPECT_THAT(out.take(), ElementsAre(6, 1));
}

TEST_F(NamedPeersTest, ANameThatMovedKeepsItsEndpoint) {
  const Endpoint name = peers.set("switch:7800", {at(1)});
  for (int requests = 0; requests < 16; ++requests) {
    EXPECT_EQ(peers.take_silent(), "") << requests;
    ask(name);
  }
  EXPECT_EQ(peers.take_silent(), "switch:7800");
  EXPECT_EQ(peers.take_silent(), "") << "once in several requests";
  EXPECT_EQ(peers.set("switch:7800", {at(7), at(8)}), name);
  out.take();
  ask(name);
  EXPECT_THAT(out.take(), ElementsAre(7, 8));
  EXPECT_EQ(comes(DatagramType::kChallenge, at(8)), name);
  send(DatagramType::kHello, name);
  EXPECT_THAT(out.take(), ElementsAre(8));
  EXPECT_EQ(comes(DatagramType::kChallenge, at(1)), at(1)) << "no address of the name any more";
}

TEST_F(NamedPeersTest, ALookupThatFindsTheUsedAddressAgainChangesNothing) {
  const Endpoint name = peers.set("switch:7800", {at(1), at(2)});
  ask(name);
  comes(DatagramType::kChallenge, at(2));
  peers.set("switch:7800", {at(3), at(2)});
  out.take();
  ask(name);
  send(DatagramType::kContribution, name);
  EXPECT_THAT(out.take(), ElementsAre(2, 2));
}

TEST_F(NamedPeersTest, AnAnswerMakesANameHeardAgain) {
  const Endpoint name = peers.set("switch:7800", {at(1)});
  for (int requests = 0; requests < 15; ++requests) ask(name);
  comes(DatagramType::kChallenge, at(1));
  ask(name);
  EXPECT_EQ(peers.take_silent(), "");
}

TEST_F(NamedPeersTest, PacketsThatAreNoDatagramsAreNotLookedInto) {
  peers.set("switch:7800", {at(1), at(2)});
  const std::array<uint8_t, 2> stump{protocol::kDatagramMagic, static_cast<uint8_t>(DatagramType::kChallenge)};
  EXPECT_EQ(peers.received({.bytes = stump, .from = at(2)}).from, at(1));
  peers.room();
  peers.send(1, at(1));
  EXPECT_THAT(out.take(), ElementsAre(1));
}

}  // namespace
}  // namespace millrace::worker
