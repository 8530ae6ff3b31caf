#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "switch_agg/packet_io/dpdk/ethernet_frames.h"

/// How many buffers a device's pool needs, and how large. Pure.
namespace millrace::switch_agg {

/// Lists the places that hold buffers of one pool.
struct BufferHolders {
  uint32_t lanes = 1;
  uint32_t queues = 1;               ///< each way: at most one a lane
  uint32_t receive_descriptors = 0;  ///< of a queue: the device holds a buffer for each
  uint32_t send_descriptors = 0;     ///< of a queue: sent buffers stay until the device reuses their places
  uint32_t ring_frames = 0;          ///< of a lane's inbox, and of the outbox
  uint32_t cache = 0;                ///< of a thread: DPDK lets it grow to one and a half times this size
  uint32_t burst = 0;                ///< a lane has one in hand each way
};

/// The least number: for wires of net_ring, which hold frames too.
inline constexpr uint32_t kBuffersMin = 16'384 - 1;

/// Returns a number of buffers such that the pool is not empty while all places are full. With fewer a device of many
/// queues does not start.
constexpr uint32_t buffers_for(const BufferHolders& of) {
  const uint32_t in_queues = of.queues * (of.receive_descriptors + of.send_descriptors);
  const uint32_t inbox = of.lanes > 1 ? of.ring_frames : 0;
  const uint32_t outbox = of.queues < of.lanes ? of.ring_frames : 0;
  const uint32_t in_lanes = of.lanes * (inbox + of.cache + of.cache / 2 + 2 * of.burst);
  return std::max(kBuffersMin, in_queues + in_lanes + outbox);
}

/// Room behind the longest packet. Devices need room for a VLAN tag and the check sequence, and a packet slightly over
/// the limit must be counted as such.
inline constexpr size_t kRoomBehind = 64;

/// Returns the data room of a buffer that holds the longest frame.
constexpr size_t frame_room(size_t packet_bytes_max) { return kUdpHeadersBytes + packet_bytes_max + kRoomBehind; }

/// Returns the same for a network card. Cards get the room rounded down: Intel's i40e, iavf and ice to a multiple of
/// 128 bytes, ixgbe to 1024. A frame that is longer than that is spread over two buffers, and dropped here.
constexpr size_t card_room(size_t packet_bytes_max) {
  constexpr size_t kUnit = 1024;
  return (frame_room(packet_bytes_max) + kUnit - 1) / kUnit * kUnit;
}

}  // namespace millrace::switch_agg
