#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/base/buffer.h"

namespace millrace::protocol {

/// The source or destination of a packet: an IPv6 address (IPv4 mapped) and a UDP port. A machine compares and copies
/// these plain bytes; only packet I/O interprets them.
struct Endpoint {
  std::array<uint8_t, 16> address{};
  uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;
  /// ::ffff:0:0/96
  static constexpr std::array<uint8_t, 12> kIpv4Prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  bool is_ipv4() const { return std::equal(kIpv4Prefix.begin(), kIpv4Prefix.end(), address.begin()); }
};

/// The congestion mark of an IP header: the low two bits of TOS or traffic class [RFC3168, 5]. Routers that would drop
/// a packet of kEct0 may mark it kCe instead.
enum class Ecn : uint8_t { kNotEct = 0, kEct1 = 1, kEct0 = 2, kCe = 3 };

/// Takes the packets that a state machine sends: it writes them in place (an mbuf, a slice of a sendmmsg batch).
class PacketSink {
 public:
  virtual ~PacketSink() = default;
  /// Returns room for one packet of the path's MTU. Empty: there is none now; the packet counts as lost, and the
  /// sender's timer resends it. If the packet of an earlier call was not sent, its room is returned again.
  virtual std::span<uint8_t> room() = 0;
  /// Sends the first `bytes` of the last room.
  virtual void send(size_t bytes, const Endpoint& to) = 0;
  /// Sends the same bytes as one datagram to each of these; here by a copy for each, a port may share one. Returns the
  /// number of destinations served, in their order: there was no room for the later ones.
  virtual size_t send_to_each(ByteSpan packet, std::span<const Endpoint> to) {
    for (size_t sent = 0; sent < to.size(); ++sent) {
      const std::span<uint8_t> copy = room();
      if (copy.size() < packet.size()) return sent;
      std::memcpy(copy.data(), packet.data(), packet.size());
      send(packet.size(), to[sent]);
    }
    return to.size();
  }
  /// Sets the mark of the next sent packets; initially kEct0. kCe: a sender of results of marked packets hands the mark
  /// on. Does nothing where there are no IP headers (memory, simulations).
  virtual void set_ecn(Ecn) {}
};

/// One received packet.
struct ReceivedPacket {
  ByteSpan bytes;
  Endpoint from;
  Ecn ecn = Ecn::kNotEct;  ///< no MAC covers it: any forwarder of a packet may set it
};

}  // namespace millrace::protocol
