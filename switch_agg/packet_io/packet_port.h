#pragma once

#include <cstdint>
#include <span>

#include "protocol/datagram/packet_sink.h"

namespace millrace::switch_agg {

/// Counts the packets that a port moved, and those that it dropped itself, by reason. Plain numbers: the port's thread
/// reads them.
struct PortCounters {
  uint64_t packets_in = 0;  ///< handed on by receive()
  uint64_t bytes_in = 0;    ///< UDP payload.
  /// Sent packets; send_full and send_refused count those that were not.
  uint64_t packets_out = 0;
  uint64_t bytes_out = 0;

  uint64_t too_long = 0;           ///< arrived longer than packet_bytes_max
  uint64_t malformed_frame = 0;    ///< no Ethernet, IPv4 and UDP that add up (DPDK only)
  uint64_t other_protocol = 0;     ///< well formed and not for this program: IPv6, TCP, VLAN, a fragment (DPDK only)
  uint64_t other_destination = 0;  ///< another address or UDP port (DPDK only)
  uint64_t lane_full = 0;          ///< the lane of the packet's port had no room (several lanes, DPDK only)
  uint64_t no_buffer = 0;          ///< room() had none to give
  uint64_t send_full = 0;          ///< the system or the device took no more
  uint64_t send_refused = 0;       ///< by the system: no route, not permitted
  uint64_t no_neighbour = 0;       ///< the destination's hardware address is not known yet (DPDK only)

  uint64_t arp_answered = 0;   ///< (DPDK only: else the kernel answers)
  uint64_t echo_answered = 0;  ///< (DPDK only)

  bool operator==(const PortCounters&) const = default;
};

/// Receives and sends the packets of one UDP port, in bursts: one interface for kernel sockets, DPDK and memory.
/// Packets that arrive are hostile; the port checks only that a packet is a UDP payload of at most the largest size.
///
/// Memory   all of it is taken when the port is made.
/// Threads  one: that of the lane whose port it is.
class PacketPort : public protocol::PacketSink {
 public:
  /// Packets of a burst at most.
  static constexpr size_t kBurst = 64;

  /// Prepares the port for the calling thread. The lane's thread calls it before any other function.
  virtual void enter_thread() {}
  /// Returns the received packets without waiting; the spans are valid until the next call.
  virtual std::span<const protocol::ReceivedPacket> receive() = 0;
  /// Hands over the packets that send() has gathered. Packets that the device cannot take now are dropped and counted.
  virtual void flush() = 0;
  /// Waits until a packet may have arrived, at most for the time-out. A polled port returns at once.
  virtual void wait(int timeout_ms) = 0;

  const PortCounters& counters() const { return counters_; }

 protected:
  PortCounters counters_;
};

}  // namespace millrace::switch_agg
