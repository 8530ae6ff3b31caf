#include "switch_agg/packet_io/dpdk/dpdk_device_text.h"

#include <gtest/gtest.h>

#include "switch_agg/packet_io/dpdk/buffer_count.h"

namespace millrace::switch_agg {
namespace {

TEST(DpdkDeviceText, PciAddressesAreDistinguishedFromDrivers) {
  EXPECT_TRUE(is_pci_address("0000:01:00.0"));
  EXPECT_TRUE(is_pci_address("01:00.0,rx_queues=4"));
  EXPECT_FALSE(is_pci_address("net_af_xdp,iface=eth1"));
  EXPECT_FALSE(is_pci_address("net_tap,mac=00:64:74:61:70:31"));
  EXPECT_FALSE(is_pci_address(""));
}

TEST(DpdkDeviceText, VirtualDevicesGetANumber) {
  EXPECT_EQ(numbered_device("net_af_xdp,iface=eth1"), "net_af_xdp0,iface=eth1");
  EXPECT_EQ(numbered_device("net_af_xdp3,iface=eth1"), "net_af_xdp3,iface=eth1");
  EXPECT_EQ(numbered_device("net_null"), "net_null0");
  EXPECT_EQ(numbered_device(""), "");
}

TEST(DpdkDeviceText, DriversGoByNameWithoutTheNumber) {
  EXPECT_TRUE(has_driver("net_af_xdp,iface=eth1", "net_af_xdp"));
  EXPECT_TRUE(has_driver("net_af_xdp12", "net_af_xdp"));
  EXPECT_FALSE(has_driver("net_af_xdpe,iface=eth1", "net_af_xdp"));
  EXPECT_FALSE(has_driver("net_af_packet,iface=net_af_xdp", "net_af_xdp"));
  EXPECT_FALSE(has_driver("", "net_af_xdp"));
}

TEST(DpdkDeviceText, ArgumentsAreFoundByTheirWholeName) {
  const char* const device = "net_af_packet,qpairs=2,iface=eth1,framesz=4096,blocksz=,framecnt=1x";
  EXPECT_EQ(device_argument(device, "iface"), "eth1");
  EXPECT_EQ(device_argument(device, "face"), std::nullopt);
  EXPECT_EQ(device_argument(device, "blocksz"), "");
  EXPECT_EQ(device_argument("net_af_packet", "iface"), std::nullopt);
  EXPECT_EQ(device_argument("iface=eth1", "iface"), std::nullopt);
  EXPECT_EQ(argument_number(device, "framesz"), 4096u);
  EXPECT_EQ(argument_number(device, "blocksz"), std::nullopt);
  EXPECT_EQ(argument_number(device, "framecnt"), std::nullopt);
  EXPECT_EQ(argument_number(device, "iface"), std::nullopt);
}

TEST(DpdkDeviceText, AfPacketGetsLongSlotsForLongPacketsUnlessTheUserChose) {
  EXPECT_EQ(with_room_for("net_af_packet,iface=far", 1472), "net_af_packet,iface=far");
  EXPECT_EQ(with_room_for("net_af_packet,iface=far", 8972), "net_af_packet,iface=far,framesz=9216,blocksz=36864");
  EXPECT_EQ(with_room_for("net_af_packet,iface=far,framesz=4096", 3000), "net_af_packet,iface=far,framesz=4096");
  EXPECT_EQ(with_room_for("net_af_packet,iface=far,blocksz=8192", 8972), "net_af_packet,iface=far,blocksz=8192");
  EXPECT_EQ(with_room_for("net_af_xdp,iface=far", 8972), "net_af_xdp,iface=far");
  EXPECT_EQ(with_room_for("0000:01:00.0", 8972), "0000:01:00.0");
}

TEST(DpdkDeviceText, WhatAfPacketCopiesIsASlot) {
  EXPECT_EQ(copied_bytes_max("net_af_packet,iface=far"), 2048u);
  EXPECT_EQ(copied_bytes_max("net_af_packet,iface=far,framesz=9216,blocksz=36864"), 9216u);
  EXPECT_EQ(copied_bytes_max("net_af_xdp,iface=far"), 0u);
}

BufferHolders holders_of(uint32_t lanes, uint32_t queues) {
  return {.lanes = lanes,
          .queues = queues,
          .receive_descriptors = 1024,
          .send_descriptors = 1024,
          .ring_frames = 2048,
          .cache = 512,
          .burst = 64};
}

TEST(BufferCount, EveryNumberOfLanesHasBuffersForFullQueuesAndRings) {
  for (uint32_t lanes = 1; lanes <= 64; ++lanes) {
    for (uint32_t queues = 1; queues <= lanes; ++queues) {
      const uint32_t buffers = buffers_for(holders_of(lanes, queues));
      const uint32_t inboxes = lanes > 1 ? lanes * 2048 : 0;
      const uint32_t outbox = queues < lanes ? 2048 : 0;
      EXPECT_GE(buffers, kBuffersMin);
      EXPECT_GE(buffers, queues * 2048 + inboxes + outbox + lanes * (768 + 128)) << lanes << " lanes, " << queues;
    }
  }
}

TEST(BufferCount, FewLanesHaveTheLeastNumber) {
  for (uint32_t lanes = 1; lanes <= 3; ++lanes) EXPECT_EQ(buffers_for(holders_of(lanes, 1)), kBuffersMin);
  EXPECT_GT(buffers_for(holders_of(16, 16)), 16U * 2048 + kBuffersMin);
}

TEST(CardRoom, HoldsTheLongestFrameAfterACardRoundsItDown) {
  constexpr size_t kTagsAndCheck = 2 * 4 + 4;  // two VLAN tags, the check sequence
  for (size_t packet_bytes = 1200; packet_bytes <= 8972; ++packet_bytes) {
    for (const size_t unit : {size_t{128}, size_t{1024}}) {
      const size_t rounded = card_room(packet_bytes) / unit * unit;
      EXPECT_GE(rounded, kUdpHeadersBytes + packet_bytes + kTagsAndCheck) << packet_bytes << " bytes, unit " << unit;
    }
  }
  EXPECT_EQ(card_room(1472), 2048u) << "DPDK's usual room";
}

}  // namespace
}  // namespace millrace::switch_agg
