// An aggregator behind kernel sockets: the behaviour of a port and a slot machine together that neither shows alone.
#include <gtest/gtest.h>

#include <algorithm>

#include "protocol/address/endpoint_text.h"
#include "switch_agg/packet_io/udp_port.h"
#include "tests/switch_agg/made_up_worker.h"
#include "tests/switch_agg/switch_rig.h"

namespace millrace::switch_agg {
namespace {

using testing::Entries;
using testing::MadeUpWorker;
using testing::SwitchRig;

constexpr int kUdpSwitchPatienceMs = 60'000;
constexpr size_t kJumboBytes = 8972;

/// One worker's socket and the aggregator's, one packet after the other.
class JumboSwitch {
 public:
  JumboSwitch()
      : rig_({.workers = 1, .slots = 1, .window_indices = kIndices, .packet_bytes_max = kJumboBytes}),
        server_(open()),
        client_(open()) {}

  MadeUpWorker& worker() { return rig_.worker(0); }

  /// Returns the packets that the worker hears after it sent `packet`: whole packets, at most `count`.
  std::vector<ByteBuffer> ask(ByteSpan packet, size_t count) {
    const std::span<uint8_t> room = client_->room();
    if (room.size() < packet.size()) return {};
    std::ranges::copy(packet, room.begin());
    client_->send(packet.size(), server_->address());
    client_->flush();
    server_->wait(kUdpSwitchPatienceMs);
    for (const protocol::ReceivedPacket& one : server_->receive()) rig_.aggregator().receive(one, rig_.now, *server_);
    server_->flush();
    std::vector<ByteBuffer> heard;
    while (heard.size() < count) {
      client_->wait(kUdpSwitchPatienceMs);
      const auto burst = client_->receive();
      if (burst.empty()) break;
      for (const protocol::ReceivedPacket& one : burst) heard.emplace_back(one.bytes.begin(), one.bytes.end());
    }
    return heard;
  }

  static constexpr uint32_t kIndices = 8192;

 private:
  static std::unique_ptr<UdpPort> open() {
    return UdpPort::open({.listen = protocol::parse_endpoint("127.0.0.1:0").value(), .packet_bytes_max = kJumboBytes})
        .value();
  }

  SwitchRig rig_;
  std::unique_ptr<UdpPort> server_;
  std::unique_ptr<UdpPort> client_;
};

TEST(UdpSwitch, AResultOfAnMtuOf9000IsOnePacketOfAKernelSocket) {
  JumboSwitch net;
  MadeUpWorker& worker = net.worker();
  const std::vector<ByteBuffer> challenge = net.ask(worker.challenge_request(), 1);
  ASSERT_EQ(challenge.size(), 1u);
  ASSERT_TRUE(worker.take_challenge(challenge[0]));
  ASSERT_FALSE(net.ask(worker.hello({.live = 1, .positions = {1}}), 1).empty());
  Entries entries;
  for (uint16_t index = 0; index < JumboSwitch::kIndices; index += 5) entries[index] = index + 1;
  const ByteBuffer contribution = worker.contribution({.window_indices = JumboSwitch::kIndices}, entries);
  ASSERT_GT(contribution.size(), 1472u);
  const std::vector<ByteBuffer> result = net.ask(contribution, 1);
  ASSERT_EQ(result.size(), 1u);
  EXPECT_GT(result[0].size(), 1472u);
  const auto heard = worker.hear(result[0]);
  ASSERT_TRUE(heard);
  EXPECT_TRUE(heard->authentic);
  EXPECT_EQ(heard->datagram.header.type, protocol::DatagramType::kResult);
  EXPECT_NE(heard->datagram.header.flags & protocol::datagram_flag::kLast, 0) << "one fragment holds all";
  EXPECT_EQ(testing::entries_of(heard->datagram, JumboSwitch::kIndices), entries);
}

}  // namespace
}  // namespace millrace::switch_agg
