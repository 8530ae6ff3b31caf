#pragma once

#include <algorithm>
#include <cstdint>

/// How many buffers a device's pool needs. Pure.
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

}  // namespace millrace::switch_agg
