#include "switch_agg/packet_io/memory_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace millrace::switch_agg {
namespace {

protocol::Endpoint endpoint(uint16_t port) { return {{}, port}; }

TEST(MemoryPort, PacketsArriveInOrderAndInBursts) {
  MemoryPort port({.packet_bytes_max = 100, .arriving_max = 200, .sent_max = 1});
  std::vector<uint8_t> bytes(100);
  for (uint16_t i = 0; i < 100; ++i) ASSERT_TRUE(port.inject(ByteSpan(bytes).first(i), endpoint(i)));
  uint16_t seen = 0;
  for (std::span<const protocol::ReceivedPacket> burst = port.receive(); !burst.empty(); burst = port.receive()) {
    EXPECT_LE(burst.size(), PacketPort::kBurst);
    for (const protocol::ReceivedPacket& packet : burst) {
      EXPECT_EQ(packet.from, endpoint(seen));
      EXPECT_EQ(packet.bytes.size(), seen);
      ++seen;
    }
  }
  EXPECT_EQ(seen, 100);
  EXPECT_EQ(port.counters().packets_in, 100u);
  EXPECT_EQ(port.counters().bytes_in, 99u * 100 / 2);
}

TEST(MemoryPort, WhatDoesNotFitIsDroppedAndCounted) {
  MemoryPort port({.packet_bytes_max = 10, .arriving_max = 2, .sent_max = 1});
  const std::vector<uint8_t> bytes(11);
  EXPECT_FALSE(port.inject(bytes, endpoint(1)));
  EXPECT_TRUE(port.inject(ByteSpan(bytes).first(10), endpoint(1)));
  EXPECT_TRUE(port.inject(ByteSpan(bytes).first(10), endpoint(2)));
  EXPECT_FALSE(port.inject(ByteSpan(bytes).first(10), endpoint(3)));
  EXPECT_EQ(port.counters().too_long, 1u);
  EXPECT_EQ(port.counters().lane_full, 1u);
  EXPECT_EQ(port.receive().size(), 2u);
  EXPECT_TRUE(port.inject(ByteSpan(bytes).first(10), endpoint(4)));
}

TEST(MemoryPort, ASentPacketIsVisibleAfterTheFlush) {
  MemoryPort port({.packet_bytes_max = 10, .arriving_max = 1, .sent_max = 2});
  port.room()[0] = 99;  // room that is not used is given again
  port.room()[0] = 7;
  port.send(1, endpoint(5));
  EXPECT_TRUE(port.sent().empty());
  port.flush();
  ASSERT_EQ(port.sent().size(), 1u);
  EXPECT_THAT(port.sent()[0].bytes, ::testing::ElementsAre(7));
  EXPECT_EQ(port.sent()[0].to, endpoint(5));
  port.room()[0] = 8;
  port.send(1, endpoint(6));
  EXPECT_TRUE(port.room().empty());
  EXPECT_EQ(port.counters().no_buffer, 1u);
  port.flush();
  port.clear_sent();
  EXPECT_FALSE(port.room().empty());
}

TEST(MemoryPort, APacketForSeveralReceiversIsOneBuffer) {
  MemoryPort port({.packet_bytes_max = 10, .arriving_max = 1, .sent_max = 4});
  port.room()[0] = 1;
  port.send(1, endpoint(1));
  const std::vector<uint8_t> bytes = {7, 8};
  EXPECT_EQ(port.send_to_each(bytes, std::vector{endpoint(2), endpoint(3)}), 2u);
  port.room()[0] = 9;
  port.send(1, endpoint(4));
  port.flush();
  ASSERT_EQ(port.sent().size(), 4u);
  EXPECT_THAT(port.sent()[0].bytes, ::testing::ElementsAre(1));
  for (const size_t at : {1, 2}) {
    EXPECT_THAT(port.sent()[at].bytes, ::testing::ElementsAre(7, 8));
    EXPECT_EQ(port.sent()[at].to, endpoint(static_cast<uint16_t>(1 + at)));
  }
  EXPECT_EQ(port.sent()[1].bytes.data(), port.sent()[2].bytes.data());
  EXPECT_THAT(port.sent()[3].bytes, ::testing::ElementsAre(9));
  EXPECT_EQ(port.counters().packets_out, 4u);
  EXPECT_EQ(port.counters().bytes_out, 6u);
}

TEST(MemoryPort, SaysToHowManyOfSeveralItHadRoom) {
  MemoryPort port({.packet_bytes_max = 10, .arriving_max = 1, .sent_max = 2});
  const std::vector<uint8_t> bytes = {7};
  EXPECT_EQ(port.send_to_each(bytes, std::vector{endpoint(2), endpoint(3), endpoint(4)}), 2u);
  EXPECT_EQ(port.send_to_each(bytes, std::vector{endpoint(5)}), 0u);
  EXPECT_EQ(port.counters().no_buffer, 2u);
  EXPECT_EQ(port.counters().packets_out, 2u);
}

}  // namespace
}  // namespace millrace::switch_agg
