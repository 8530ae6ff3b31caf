// The DPDK path over net_ring: frames in, frames out. Skips where DPDK cannot start. One environment a process: every
// test has a wire of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "protocol/address/endpoint_text.h"
#include "protocol/datagram/header.h"
#include "switch_agg/packet_io/dpdk/open_dpdk.h"

namespace millrace::switch_agg {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr uint16_t kPort = 7700;
const WireAddress kDpdkPortWorker = {{0x02, 0, 0, 0, 0, 0x77}, {10, 0, 0, 7}};
constexpr Ipv4Address kSwitchIp = {10, 0, 0, 1};

std::unique_ptr<DpdkRingWire> open_wire(uint32_t lanes = 1, size_t packet_bytes_max = 1472,
                                        std::optional<Ipv4Address> gateway = {}) {
  auto wire = DpdkRingWire::open({.address = kSwitchIp,
                                  .gateway = gateway,
                                  .port = kPort,
                                  .lanes = lanes,
                                  .packet_bytes_max = packet_bytes_max,
                                  .memory_mib = 1536});
  static bool started = false;
  if (wire) {
    started = true;
    return std::move(*wire);
  }
  EXPECT_FALSE(started) << "only the first wire may fail: " << wire.error().message;
  EXPECT_TRUE(wire.error().code == ErrorCode::kUnsupported || wire.error().code == ErrorCode::kIo)
      << wire.error().message;
  return nullptr;
}

#define OPEN_OR_SKIP(wire, ...)             \
  const auto wire = open_wire(__VA_ARGS__); \
  if (!wire) GTEST_SKIP() << "DPDK cannot start here"

Bytes frame_from(const WireAddress& sender, const DpdkRingWire& wire) {
  Bytes frame(kUdpHeadersBytes + 10);
  build_udp_headers({sender, wire.address(), 4000, kPort}, frame);
  return frame;
}

Bytes dpdk_port_udp_frame(const DpdkRingWire& wire, size_t payload_bytes, uint16_t to_port = kPort) {
  Bytes frame(kUdpHeadersBytes + payload_bytes);
  std::iota(frame.begin() + kUdpHeadersBytes, frame.end(), uint8_t{0});
  build_udp_headers({kDpdkPortWorker, wire.address(), 4000, to_port}, frame);
  return frame;
}

/// Of a job that the lane has, where there are fewer than 256 lanes.
Bytes lanes_frame(const DpdkRingWire& wire, size_t payload_bytes, uint32_t lane) {
  Bytes frame(kUdpHeadersBytes + payload_bytes);
  frame[kUdpHeadersBytes + protocol::kJobNumberAt] = static_cast<uint8_t>(lane);
  build_udp_headers({kDpdkPortWorker, wire.address(), 4000, kPort}, frame);
  return frame;
}

std::vector<Bytes> frames_sent(DpdkRingWire& wire) {
  std::vector<Bytes> frames;
  wire.take_frames([&](ByteSpan frame) { frames.emplace_back(frame.begin(), frame.end()); });
  return frames;
}

void send_dpdk_port(PacketPort& port, const Bytes& bytes, const protocol::Endpoint& to) {
  const std::span<uint8_t> room = port.room();
  ASSERT_GE(room.size(), bytes.size());
  std::ranges::copy(bytes, room.begin());
  port.send(bytes.size(), to);
  port.flush();
}

TEST(DpdkPort, APacketIsReceivedAndAnsweredToWhereItCameFrom) {
  OPEN_OR_SKIP(wire);
  PacketPort& port = *wire->ports().front();
  port.enter_thread();
  const Bytes frame = dpdk_port_udp_frame(*wire, 1400);
  ASSERT_TRUE(wire->inject_frame(frame));
  const auto burst = port.receive();
  ASSERT_EQ(burst.size(), 1u);
  EXPECT_TRUE(std::ranges::equal(burst[0].bytes, ByteSpan(frame).subspan(kUdpHeadersBytes)));
  EXPECT_EQ(burst[0].from, (protocol::Endpoint{protocol::mapped_address(kDpdkPortWorker.ip), 4000}));
  send_dpdk_port(port, {1, 2, 3}, burst[0].from);
  const std::vector<Bytes> sent = frames_sent(*wire);
  ASSERT_EQ(sent.size(), 1u);
  const auto answer = parse_udp_frame(sent[0]);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->from, wire->address());
  EXPECT_EQ(answer->to, kDpdkPortWorker);
  EXPECT_EQ(answer->from_port, kPort);
  EXPECT_EQ(answer->to_port, 4000);
  EXPECT_THAT(answer->payload, ::testing::ElementsAre(1, 2, 3));
}

TEST(DpdkPort, MarksOfTheNetworkAreReadAndHandedOn) {
  using protocol::Ecn;
  OPEN_OR_SKIP(wire);
  PacketPort& port = *wire->ports().front();
  port.enter_thread();
  std::vector<protocol::Endpoint> to;
  for (const Ecn ecn : {Ecn::kNotEct, Ecn::kEct0, Ecn::kCe}) {
    Bytes frame = dpdk_port_udp_frame(*wire, 100);
    build_udp_headers({kDpdkPortWorker, wire->address(), 4000, kPort, ecn}, frame);
    ASSERT_TRUE(wire->inject_frame(frame));
    const auto burst = port.receive();
    ASSERT_EQ(burst.size(), 1u);
    EXPECT_EQ(burst[0].ecn, ecn);
    to.push_back(burst[0].from);
  }
  send_dpdk_port(port, {1}, to[0]);
  port.send_to_each(Bytes{2}, to);
  port.set_ecn(Ecn::kCe);
  send_dpdk_port(port, {3}, to[0]);
  port.send_to_each(Bytes{4}, to);
  port.set_ecn(Ecn::kEct0);
  send_dpdk_port(port, {5}, to[0]);
  std::vector<std::pair<int, Ecn>> seen;
  for (const Bytes& frame : frames_sent(*wire)) {
    const auto udp = parse_udp_frame(frame);
    ASSERT_TRUE(udp);
    seen.emplace_back(udp->payload[0], udp->ecn);
  }
  const std::vector<std::pair<int, Ecn>> expected = {{1, Ecn::kEct0}, {2, Ecn::kEct0}, {2, Ecn::kEct0},
                                                     {2, Ecn::kEct0}, {3, Ecn::kCe},   {4, Ecn::kCe},
                                                     {4, Ecn::kCe},   {4, Ecn::kCe},   {5, Ecn::kEct0}};
  EXPECT_EQ(seen, expected);
}

TEST(DpdkPort, ManyBurstsLoseNothingAndLeakNothing) {
  OPEN_OR_SKIP(wire);
  PacketPort& port = *wire->ports().front();
  const Bytes frame = dpdk_port_udp_frame(*wire, 1400);
  size_t received = 0;
  // More than the pool has: a buffer that is not given back would be missed.
  for (int round = 0; round < 300; ++round) {
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(wire->inject_frame(frame)) << round;
    for (auto burst = port.receive(); !burst.empty(); burst = port.receive()) {
      received += burst.size();
      for (const protocol::ReceivedPacket& packet : burst) {
        ASSERT_FALSE(port.room().empty());
        port.send(64, packet.from);
      }
      port.flush();
    }
    ASSERT_EQ(frames_sent(*wire).size(), 100u);
  }
  EXPECT_EQ(received, 30'000u);
  EXPECT_EQ(port.counters().packets_in, 30'000u);
  EXPECT_EQ(port.counters().bytes_in, 30'000u * 1400);
  EXPECT_EQ(port.counters().packets_out, 30'000u);
}

TEST(DpdkPort, ABufferForManyReceiversReturnsToThePool) {
  OPEN_OR_SKIP(wire);
  PacketPort& port = *wire->ports().front();
  port.enter_thread();
  ASSERT_TRUE(wire->inject_frame(dpdk_port_udp_frame(*wire, 10)));  // the neighbour is known now
  ASSERT_EQ(port.receive().size(), 1u);
  const protocol::Endpoint stranger{protocol::mapped_address({10, 0, 0, 99}), 5000};
  std::vector<protocol::Endpoint> to;
  for (uint16_t i = 0; i < 6; ++i)
    to.push_back({protocol::mapped_address(kDpdkPortWorker.ip), static_cast<uint16_t>(4000 + i)});
  to.insert(to.begin() + 2, stranger);
  Bytes packet(1301);
  // More than the pools have: a buffer that is not given back would be missed.
  for (uint32_t round = 0; round < 20'000; ++round) {
    std::ranges::fill(packet, static_cast<uint8_t>(round));
    ASSERT_EQ(port.send_to_each(packet, to), to.size()) << round;
    port.flush();
    uint16_t receiver = 4000;
    size_t questions = 0;
    wire->take_frames([&](ByteSpan frame) {
      const auto udp = parse_udp_frame(frame);
      if (!udp) {
        questions += read_arp(frame, kDpdkPortWorker).has_value();
        return;
      }
      EXPECT_EQ(udp->to_port, receiver++);
      EXPECT_EQ(udp->to, kDpdkPortWorker);
      EXPECT_TRUE(std::ranges::equal(udp->payload, packet));
      if (round > 0) return;
      Bytes whole(frame.begin(), frame.end());
      build_udp_headers({wire->address(), kDpdkPortWorker, kPort, udp->to_port}, whole);
      EXPECT_TRUE(std::ranges::equal(frame, whole)) << "headers are those of a frame in one piece";
    });
    ASSERT_EQ(receiver, 4006) << round;
    EXPECT_LE(questions, 1u);
  }
  EXPECT_EQ(port.counters().packets_out, 120'000u);
  EXPECT_EQ(port.counters().bytes_out, 120'000u * 1301);
  EXPECT_EQ(port.counters().no_neighbour, 20'000u);
  EXPECT_EQ(port.counters().no_buffer, 0u);
}

TEST(DpdkPort, AFullQueueReturnsSharedBuffersToThePool) {
  OPEN_OR_SKIP(wire);
  PacketPort& port = *wire->ports().front();
  ASSERT_TRUE(wire->inject_frame(dpdk_port_udp_frame(*wire, 10)));
  const auto burst = port.receive();
  ASSERT_EQ(burst.size(), 1u);
  const std::vector<protocol::Endpoint> to(40, burst[0].from);
  const Bytes packet(100);
  size_t came = 0;
  for (int lap = 0; lap < 10; ++lap) {
    for (int i = 0; i < 500; ++i) {  // 20,000 frames into a queue of 4,096
      ASSERT_EQ(port.send_to_each(packet, to), to.size()) << lap << " " << i;
      port.flush();
    }
    came += frames_sent(*wire).size();
  }
  EXPECT_GT(port.counters().send_full, 0u);
  EXPECT_EQ(came + port.counters().send_full, 200'000u);
  EXPECT_EQ(port.counters().no_buffer, 0u);
}

TEST(DpdkPort, ArpAndEchoAreAnswered) {
  OPEN_OR_SKIP(wire);
  PacketPort& port = *wire->ports().front();
  Bytes question(kArpFrameBytes);
  build_arp_question(kDpdkPortWorker, kSwitchIp, question);
  ASSERT_TRUE(wire->inject_frame(question));
  EXPECT_TRUE(port.receive().empty());
  port.flush();
  std::vector<Bytes> sent = frames_sent(*wire);
  ASSERT_EQ(sent.size(), 1u);
  const auto arp = read_arp(sent[0], kDpdkPortWorker);
  ASSERT_TRUE(arp);
  EXPECT_EQ(arp->sender, wire->address());
  EXPECT_EQ(sent[0].size(), 60u);

  Bytes echo = dpdk_port_udp_frame(*wire, 56);
  echo[kEthernetBytes + 9] = 1;  // ICMP
  const std::span<uint8_t> icmp = std::span(echo).subspan(kEthernetBytes + kIpv4Bytes);
  std::ranges::copy(Bytes{8, 0, 0, 0, 0, 1, 0, 1}, icmp.begin());
  const auto put_sum = [](std::span<uint8_t> bytes, size_t at) {
    bytes[at] = bytes[at + 1] = 0;
    const uint16_t sum = internet_checksum(internet_sum(bytes));
    bytes[at] = static_cast<uint8_t>(sum >> 8);
    bytes[at + 1] = static_cast<uint8_t>(sum);
  };
  put_sum(icmp, 2);
  put_sum(std::span(echo).subspan(kEthernetBytes, kIpv4Bytes), 10);
  ASSERT_TRUE(wire->inject_frame(echo));
  EXPECT_TRUE(port.receive().empty());
  port.flush();
  sent = frames_sent(*wire);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0][kEthernetBytes + kIpv4Bytes], 0) << "echo reply";
  EXPECT_EQ(port.counters().arp_answered, 1u);
  EXPECT_EQ(port.counters().echo_answered, 1u);
}

TEST(DpdkPort, AnUnknownNeighbourIsAskedForAndKnownThen) {
  OPEN_OR_SKIP(wire);
  PacketPort& port = *wire->ports().front();
  const protocol::Endpoint shard{protocol::mapped_address(kDpdkPortWorker.ip), 9000};
  send_dpdk_port(port, {1}, shard);
  std::vector<Bytes> sent = frames_sent(*wire);
  ASSERT_EQ(sent.size(), 1u);
  const auto asked = read_arp(sent[0], kDpdkPortWorker);
  ASSERT_TRUE(asked);
  EXPECT_TRUE(asked->asks_for_self);
  EXPECT_EQ(port.counters().no_neighbour, 1u);
  Bytes answer(kArpFrameBytes);
  build_arp_answer(kDpdkPortWorker, wire->address(), answer);
  ASSERT_TRUE(wire->inject_frame(answer));
  EXPECT_TRUE(port.receive().empty());
  send_dpdk_port(port, {2}, shard);
  sent = frames_sent(*wire);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(parse_udp_frame(sent[0])->to, kDpdkPortWorker);
}

TEST(DpdkPort, AFrameOfAnotherHostDoesNotMoveAWorkersAnswers) {
  OPEN_OR_SKIP(wire);
  PacketPort& port = *wire->ports().front();
  WireAddress other = kDpdkPortWorker;
  other.mac[5] = 0x99;
  const protocol::Endpoint worker{protocol::mapped_address(kDpdkPortWorker.ip), 4000};
  for (const WireAddress& sender : {kDpdkPortWorker, other}) {
    ASSERT_TRUE(wire->inject_frame(frame_from(sender, *wire)));
    EXPECT_EQ(port.receive().size(), 1u);
  }
  send_dpdk_port(port, {1}, worker);
  std::vector<Bytes> sent = frames_sent(*wire);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(parse_udp_frame(sent[0])->to, kDpdkPortWorker);
  Bytes moved(kArpFrameBytes);
  build_arp_question(other, kSwitchIp, moved);
  ASSERT_TRUE(wire->inject_frame(moved));
  port.receive();
  port.flush();
  (void)frames_sent(*wire);  // the answer
  send_dpdk_port(port, {2}, worker);
  sent = frames_sent(*wire);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(parse_udp_frame(sent[0])->to, other) << "ARP moves a host";
}

TEST(DpdkPort, AMulticastSenderTeachesNothing) {
  OPEN_OR_SKIP(wire);
  PacketPort& port = *wire->ports().front();
  WireAddress group = kDpdkPortWorker;
  group.mac[0] = 0x01;
  ASSERT_TRUE(wire->inject_frame(frame_from(group, *wire)));
  EXPECT_EQ(port.receive().size(), 1u);
  send_dpdk_port(port, {1}, {protocol::mapped_address(group.ip), 4000});
  EXPECT_EQ(port.counters().no_neighbour, 1u);
}

TEST(DpdkPort, AHostOfAnotherNetworkIsReachedByTheGateway) {
  const WireAddress router = {{0x02, 0, 0, 0, 0, 0xFE}, {10, 0, 0, 254}};
  OPEN_OR_SKIP(wire, 1, 1472, router.ip);
  PacketPort& port = *wire->ports().front();
  const WireAddress far = {kDpdkPortWorker.mac, {192, 0, 2, 9}};
  const protocol::Endpoint worker{protocol::mapped_address(far.ip), 4000};
  ASSERT_TRUE(wire->inject_frame(frame_from(far, *wire)));
  EXPECT_EQ(port.receive().size(), 1u);
  send_dpdk_port(port, {1}, worker);
  EXPECT_EQ(port.counters().no_neighbour, 1u) << "the frame told no address";
  (void)frames_sent(*wire);  // the question for the gateway
  Bytes answer(kArpFrameBytes);
  build_arp_answer(router, wire->address(), answer);
  ASSERT_TRUE(wire->inject_frame(answer));
  EXPECT_TRUE(port.receive().empty());
  send_dpdk_port(port, {2}, worker);
  const std::vector<Bytes> sent = frames_sent(*wire);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(parse_udp_frame(sent[0])->to, (WireAddress{router.mac, far.ip}));
}

TEST(DpdkPort, AHostBehindARouterIsAnsweredWhereItsFramesComeFrom) {
  OPEN_OR_SKIP(wire);
  PacketPort& port = *wire->ports().front();
  WireAddress far = {kDpdkPortWorker.mac, {192, 0, 2, 9}};
  for (const uint8_t router : {uint8_t{1}, uint8_t{2}}) {
    far.mac[5] = router;
    ASSERT_TRUE(wire->inject_frame(frame_from(far, *wire)));
    EXPECT_EQ(port.receive().size(), 1u);
    send_dpdk_port(port, {1}, {protocol::mapped_address(far.ip), 4000});
    const std::vector<Bytes> sent = frames_sent(*wire);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(parse_udp_frame(sent[0])->to, far);
  }
}

TEST(DpdkPort, UnusableFramesAreDroppedAndCounted) {
  OPEN_OR_SKIP(wire);
  PacketPort& port = *wire->ports().front();
  Bytes other_host = dpdk_port_udp_frame(*wire, 10);
  build_udp_headers({kDpdkPortWorker, {wire->address().mac, {10, 0, 0, 2}}, 4000, kPort}, other_host);
  Bytes malformed = dpdk_port_udp_frame(*wire, 10);
  malformed[kEthernetBytes] = 0x41;
  Bytes ipv6 = dpdk_port_udp_frame(*wire, 10);
  ipv6[12] = 0x86;
  ipv6[13] = 0xDD;
  for (const Bytes& frame : {other_host, malformed, ipv6, dpdk_port_udp_frame(*wire, 10, kPort + 1),
                             dpdk_port_udp_frame(*wire, 10, kPort - 1), dpdk_port_udp_frame(*wire, 1473)})
    ASSERT_TRUE(wire->inject_frame(frame));
  EXPECT_TRUE(port.receive().empty());
  EXPECT_EQ(port.counters().other_destination, 3u);
  EXPECT_EQ(port.counters().malformed_frame, 1u);
  EXPECT_EQ(port.counters().other_protocol, 1u);
  EXPECT_EQ(port.counters().too_long, 1u);
  port.flush();
  EXPECT_TRUE(frames_sent(*wire).empty());
}

TEST(DpdkPort, PacketsOfAnMtuOf9000PassBothWaysAndLongerOnesAreCounted) {
  OPEN_OR_SKIP(wire, 1, 8972);
  PacketPort& port = *wire->ports().front();
  EXPECT_EQ(port.room().size(), 8972u);
  for (const size_t bytes : {1473, 8971, 8972}) {
    const Bytes frame = dpdk_port_udp_frame(*wire, bytes);
    ASSERT_TRUE(wire->inject_frame(frame));
    const auto burst = port.receive();
    ASSERT_EQ(burst.size(), 1u) << bytes;
    EXPECT_TRUE(std::ranges::equal(burst[0].bytes, ByteSpan(frame).subspan(kUdpHeadersBytes))) << bytes;
    Bytes answer(bytes);
    std::iota(answer.begin(), answer.end(), uint8_t{7});
    send_dpdk_port(port, answer, burst[0].from);
    EXPECT_EQ(port.send_to_each(answer, std::vector(3, burst[0].from)), 3u);
    port.flush();
    const std::vector<Bytes> sent = frames_sent(*wire);
    ASSERT_EQ(sent.size(), 4u) << bytes;
    for (const Bytes& one : sent) {
      const auto udp = parse_udp_frame(one);
      ASSERT_TRUE(udp) << bytes;
      EXPECT_TRUE(std::ranges::equal(udp->payload, answer)) << bytes;
    }
  }
  ASSERT_TRUE(wire->inject_frame(dpdk_port_udp_frame(*wire, 8973)));
  EXPECT_TRUE(port.receive().empty());
  EXPECT_EQ(port.counters().too_long, 1u);
  EXPECT_EQ(port.counters().packets_in, 3u);
}

TEST(DpdkPort, EveryTruncatedFrameIsDropped) {
  OPEN_OR_SKIP(wire);
  PacketPort& port = *wire->ports().front();
  const Bytes frame = dpdk_port_udp_frame(*wire, 30);
  for (size_t bytes = 1; bytes < frame.size(); ++bytes) {
    ASSERT_TRUE(wire->inject_frame(ByteSpan(frame).first(bytes)));
    EXPECT_TRUE(port.receive().empty()) << bytes;
  }
  EXPECT_EQ(port.counters().malformed_frame, frame.size() - 1);
}

TEST(DpdkPort, LanesShareOneQueueByTheirJobs) {
  OPEN_OR_SKIP(wire, 3);
  std::vector<std::unique_ptr<PacketPort>>& ports = wire->ports();
  ASSERT_EQ(ports.size(), 3u);
  for (uint16_t lane = 0; lane < 3; ++lane)
    ASSERT_TRUE(wire->inject_frame(lanes_frame(*wire, 100 + size_t{lane}, lane)));
  for (uint16_t lane = 0; lane < 3; ++lane) {
    const auto burst = ports[lane]->receive();
    ASSERT_EQ(burst.size(), 1u) << lane;
    EXPECT_EQ(burst[0].bytes.size(), 100u + lane);
    ports[lane]->room();
    ports[lane]->send(8, burst[0].from);
    ports[lane]->flush();
  }
  ports[0]->receive();  // takes over the packets of the others
  ports[0]->flush();
  std::vector<uint16_t> from;
  for (const Bytes& frame : frames_sent(*wire)) from.push_back(parse_udp_frame(frame)->from_port);
  EXPECT_THAT(from, testing::Each(kPort));
  EXPECT_EQ(from.size(), 3u);
}

TEST(DpdkPort, ArpAnswersReachLanesThatHaveNoQueue) {
  OPEN_OR_SKIP(wire, 2);
  std::vector<std::unique_ptr<PacketPort>>& ports = wire->ports();
  Bytes answer(kArpFrameBytes);
  build_arp_answer(kDpdkPortWorker, wire->address(), answer);
  ASSERT_TRUE(wire->inject_frame(answer));
  ports[0]->receive();
  ports[1]->receive();
  send_dpdk_port(*ports[1], {1}, {protocol::mapped_address(kDpdkPortWorker.ip), 9000});
  ports[0]->receive();
  ports[0]->flush();
  EXPECT_EQ(frames_sent(*wire).size(), 1u);
  EXPECT_EQ(ports[1]->counters().no_neighbour, 0u);
}

TEST(DpdkPort, AnArpQuestionMovesItsSenderOnEveryLane) {
  OPEN_OR_SKIP(wire, 2);
  std::vector<std::unique_ptr<PacketPort>>& ports = wire->ports();
  WireAddress moved = kDpdkPortWorker;
  moved.mac[5] = 0x99;
  Bytes question(kArpFrameBytes);
  for (const WireAddress& sender : {kDpdkPortWorker, moved}) {
    build_arp_question(sender, kSwitchIp, question);
    ASSERT_TRUE(wire->inject_frame(question));
    ports[0]->receive();
    ports[1]->receive();
  }
  ports[0]->flush();
  EXPECT_EQ(frames_sent(*wire).size(), 2u) << "one lane answers each question";
  for (uint8_t lane = 0; lane < 2; ++lane) {
    send_dpdk_port(*ports[lane], {lane}, {protocol::mapped_address(kDpdkPortWorker.ip), 4000});
    ports[0]->receive();
    ports[0]->flush();
    const std::vector<Bytes> sent = frames_sent(*wire);
    ASSERT_EQ(sent.size(), 1u) << int{lane};
    EXPECT_EQ(parse_udp_frame(sent[0])->to, moved) << int{lane};
  }
}

TEST(DpdkPort, AFullInboxDropsAndCounts) {
  OPEN_OR_SKIP(wire, 2);
  std::vector<std::unique_ptr<PacketPort>>& ports = wire->ports();
  const Bytes frame = lanes_frame(*wire, 10, 1);
  size_t injected = 0;
  for (; injected < 3000; ++injected) {
    ASSERT_TRUE(wire->inject_frame(frame));
    ports[0]->receive();
  }
  size_t received = 0;
  for (auto burst = ports[1]->receive(); !burst.empty(); burst = ports[1]->receive()) received += burst.size();
  EXPECT_GT(ports[0]->counters().lane_full, 0u);
  EXPECT_EQ(received + ports[0]->counters().lane_full, injected);
}

}  // namespace
}  // namespace millrace::switch_agg
