#include "switch_agg/packet_io/udp_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "protocol/address/endpoint_text.h"
#include "protocol/datagram/header.h"
#include "switch_agg/packet_io/lane_of_datagram.h"

namespace millrace::switch_agg {
namespace {

constexpr int kUdpPortPatienceMs = 60'000;

std::unique_ptr<UdpPort> open_udp_port(const char* address, size_t packet_bytes_max = 1472) {
  auto port =
      UdpPort::open({.listen = protocol::parse_endpoint(address).value(), .packet_bytes_max = packet_bytes_max});
  EXPECT_TRUE(port) << port.error().message;
  return port ? std::move(*port) : nullptr;
}

void send_udp_port(UdpPort& port, const std::vector<uint8_t>& bytes, const protocol::Endpoint& to) {
  const std::span<uint8_t> room = port.room();
  ASSERT_GE(room.size(), bytes.size());
  std::ranges::copy(bytes, room.begin());
  port.send(bytes.size(), to);
}

/// The next burst that is not empty; empty when none comes.
std::span<const protocol::ReceivedPacket> next_burst(UdpPort& port) {
  std::span<const protocol::ReceivedPacket> burst = port.receive();
  if (burst.empty()) {
    port.wait(kUdpPortPatienceMs);
    burst = port.receive();
  }
  return burst;
}

TEST(UdpPort, PacketsComeWithTheirSendersAddress) {
  for (const char* address : {"127.0.0.1:0", "[::1]:0"}) {
    auto opened = UdpPort::open({.listen = protocol::parse_endpoint(address).value()});
    if (!opened) continue;  // a machine without IPv6
    UdpPort& a = **opened;
    const auto b = open_udp_port(address);
    ASSERT_TRUE(b);
    send_udp_port(a, {1, 2, 3}, b->address());
    a.flush();
    const auto burst = next_burst(*b);
    ASSERT_EQ(burst.size(), 1u) << address;
    EXPECT_THAT(burst[0].bytes, ::testing::ElementsAre(1, 2, 3));
    EXPECT_EQ(burst[0].from, a.address());
    EXPECT_EQ(a.counters().packets_out, 1u);
    EXPECT_EQ(a.counters().bytes_out, 3u);
    EXPECT_EQ(b->counters().packets_in, 1u);
    EXPECT_EQ(b->counters().bytes_in, 3u);
  }
}

TEST(UdpPort, ASocketForAllAddressesTakesIpv4) {
  auto both = UdpPort::open({.listen = protocol::parse_endpoint("[::]:0").value()});
  if (!both) GTEST_SKIP() << "no IPv6 on this machine: " << both.error().message;
  const auto four = open_udp_port("127.0.0.1:0");
  protocol::Endpoint to = protocol::parse_endpoint("127.0.0.1:0").value();
  to.port = (*both)->address().port;
  send_udp_port(*four, {9}, to);
  four->flush();
  const auto burst = next_burst(**both);
  ASSERT_EQ(burst.size(), 1u);
  EXPECT_EQ(burst[0].from, four->address()) << endpoint_text(burst[0].from);
}

TEST(UdpPort, MoreThanABurstIsSentAndReceived) {
  const auto a = open_udp_port("127.0.0.1:0");
  const auto b = open_udp_port("127.0.0.1:0");
  constexpr uint8_t kPackets = 150;
  for (uint8_t i = 0; i < kPackets; ++i) send_udp_port(*a, {i}, b->address());
  a->flush();
  uint8_t seen = 0;
  while (seen < kPackets) {
    const auto burst = next_burst(*b);
    ASSERT_FALSE(burst.empty()) << int{seen};
    for (const protocol::ReceivedPacket& packet : burst) EXPECT_THAT(packet.bytes, ::testing::ElementsAre(seen++));
  }
  EXPECT_TRUE(b->receive().empty());
}

TEST(UdpPort, BytesForSeveralReceiversStayIntactOverFullBursts) {
  const auto a = open_udp_port("127.0.0.1:0");
  const auto b = open_udp_port("127.0.0.1:0");
  // Of three receivers one is refused. 70 times 2 packets and one between them: buffers go round while others are
  // gathered.
  const std::vector<protocol::Endpoint> to = {b->address(), protocol::parse_endpoint("[2001:db8::1]:9").value(),
                                              b->address()};
  std::vector<int> expected;
  for (uint8_t i = 0; i < 70; ++i) {
    EXPECT_EQ(a->send_to_each(std::vector<uint8_t>{i}, to), 3u);
    send_udp_port(*a, {static_cast<uint8_t>(100 + i)}, b->address());
    for (const int byte : {i + 0, i + 0, 100 + i}) expected.push_back(byte);
  }
  a->flush();
  std::vector<int> seen;
  while (seen.size() < expected.size()) {
    const auto burst = next_burst(*b);
    ASSERT_FALSE(burst.empty()) << seen.size();
    for (const protocol::ReceivedPacket& packet : burst) seen.push_back(packet.bytes[0]);
  }
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(a->counters().send_refused, 70u);
  EXPECT_EQ(a->counters().packets_out, 210u);
}

// Several are one piece for the kernel, whose segments have one length: zeros fill the shorter ones.
TEST(UdpPort, DatagramsOfAnyLengthsComeWholeAndInOrder) {
  const auto a = open_udp_port("127.0.0.1:0");
  const auto b = open_udp_port("127.0.0.1:0");
  const auto c = open_udp_port("127.0.0.1:0");
  std::vector<std::vector<uint8_t>> sent;
  for (int i = 0; i < 300; ++i) {
    const int length = 80 + i * 37 % 120 + (i % 7 == 0 ? 1000 : 0);
    sent.push_back(std::vector<uint8_t>(static_cast<size_t>(length), static_cast<uint8_t>(1 + i % 250)));
    send_udp_port(*a, sent.back(), b->address());
    send_udp_port(*a, sent.back(), c->address());
  }
  a->flush();
  EXPECT_EQ(a->counters().packets_out, 600u);
  for (UdpPort* port : {b.get(), c.get()}) {
    size_t at = 0;
    while (at < sent.size()) {
      const auto burst = next_burst(*port);
      ASSERT_FALSE(burst.empty()) << at;
      for (const protocol::ReceivedPacket& packet : burst) {
        ASSERT_GE(packet.bytes.size(), sent[at].size()) << at;
        EXPECT_TRUE(std::ranges::equal(packet.bytes.first(sent[at].size()), sent[at])) << at;
        for (const uint8_t behind : packet.bytes.subspan(sent[at].size())) EXPECT_EQ(behind, 0) << at;
        ++at;
      }
    }
    EXPECT_EQ(port->counters().packets_in, sent.size());
  }
}

TEST(UdpPort, APacketThatIsTooLongIsDroppedAndCounted) {
  const auto a = open_udp_port("127.0.0.1:0", 200);
  const auto b = open_udp_port("127.0.0.1:0", 100);
  send_udp_port(*a, std::vector<uint8_t>(101, 1), b->address());
  send_udp_port(*a, std::vector<uint8_t>(100, 2), b->address());
  a->flush();
  std::vector<size_t> sizes;
  while (b->counters().packets_in + b->counters().too_long < 2) {
    for (const protocol::ReceivedPacket& packet : next_burst(*b)) sizes.push_back(packet.bytes.size());
  }
  EXPECT_THAT(sizes, ::testing::ElementsAre(100));
  EXPECT_EQ(b->counters().too_long, 1u);
}

TEST(UdpPort, OneDestinationThatIsRefusedDoesNotHoldUpOthers) {
  const auto a = open_udp_port("127.0.0.1:0");
  const auto b = open_udp_port("127.0.0.1:0");
  send_udp_port(*a, {1}, protocol::parse_endpoint("255.255.255.255:9").value());  // without SO_BROADCAST: not permitted
  send_udp_port(*a, {2}, protocol::parse_endpoint("[2001:db8::1]:9").value());    // of another family
  send_udp_port(*a, {3}, b->address());
  a->flush();
  const auto burst = next_burst(*b);
  ASSERT_EQ(burst.size(), 1u);
  EXPECT_THAT(burst[0].bytes, ::testing::ElementsAre(3));
  EXPECT_EQ(a->counters().send_refused, 2u);
}

TEST(UdpPort, AnErrorNamesAnAddressInUse) {
  const auto a = open_udp_port("127.0.0.1:0");
  const auto again = UdpPort::open({.listen = a->address()});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kIo);
  EXPECT_THAT(again.error().message, ::testing::HasSubstr(endpoint_text(a->address())));
}

TEST(UdpPort, AnAddressOfAnotherMachineIsAnIoError) {
  const auto port = UdpPort::open({.listen = protocol::parse_endpoint("192.0.2.1:0").value()});
  ASSERT_FALSE(port);
  EXPECT_EQ(port.error().code, ErrorCode::kIo);
}

TEST(UdpPort, LanesOfOneAddressGetThePacketsOfTheirJobs) {
  constexpr uint32_t kLanes = 3;
  auto lanes = UdpPort::open_lanes({.listen = protocol::parse_endpoint("127.0.0.1:0").value()}, kLanes);
  ASSERT_TRUE(lanes) << lanes.error().message;
  const auto worker = open_udp_port("127.0.0.1:0");
  const protocol::Endpoint to = (*lanes)[0]->address();
  const auto send_udp_port = [&](std::span<const uint8_t> bytes) {
    std::ranges::copy(bytes, worker->room().begin());
    worker->send(bytes.size(), to);
    worker->flush();
  };
  for (const uint32_t job : {7u, 8u, 9u, 0x0201'0007u, 0xFFFF'FFFFu}) {
    std::array<uint8_t, 70> packet{};
    protocol::DatagramHeader header;
    header.job = job;
    protocol::put_header(header, packet);
    send_udp_port(packet);
    UdpPort& lane = *(*lanes)[lane_of_job(job, kLanes)];
    EXPECT_EQ(lane.address(), to);
    const auto burst = next_burst(lane);
    ASSERT_EQ(burst.size(), 1u) << job;
    EXPECT_EQ(burst[0].bytes.size(), packet.size());
    EXPECT_EQ(protocol::job_number_of(burst[0].bytes), job);
  }
  send_udp_port(std::array<uint8_t, 7>{1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(next_burst(*(*lanes)[0]).size(), 1u) << "too short for a job's number";
}

/// A burst goes to the system in pieces of several datagrams, and one of those goes whole to one socket.
TEST(UdpPort, JobsOfOneBurstComeToTheirLanesAll) {
  constexpr uint32_t kLanes = 2;
  auto lanes = UdpPort::open_lanes({.listen = protocol::parse_endpoint("127.0.0.1:0").value()}, kLanes);
  ASSERT_TRUE(lanes) << lanes.error().message;
  const auto worker = open_udp_port("127.0.0.1:0");
  for (uint32_t number = 0; number < 12; ++number) {
    protocol::DatagramHeader header;
    header.job = 40 + number / 3 % 2;
    protocol::put_header(header, worker->room());
    worker->send(400, (*lanes)[0]->address());
  }
  worker->flush();
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    size_t count = 0;
    for (; count < 6;) {
      const auto burst = next_burst(*(*lanes)[lane]);
      ASSERT_FALSE(burst.empty()) << "lane " << lane << " has " << count;
      for (const protocol::ReceivedPacket& packet : burst) EXPECT_EQ(protocol::job_number_of(packet.bytes), 40 + lane);
      count += burst.size();
    }
    EXPECT_EQ(count, 6u);
  }
}

TEST(UdpPort, APortThatLanesShareIsInUseForOthers) {
  const auto lanes = UdpPort::open_lanes({.listen = protocol::parse_endpoint("127.0.0.1:0").value()}, 2);
  ASSERT_TRUE(lanes) << lanes.error().message;
  EXPECT_FALSE(UdpPort::open_lanes({.listen = (*lanes)[0]->address()}, 2));
}

}  // namespace
}  // namespace millrace::switch_agg
