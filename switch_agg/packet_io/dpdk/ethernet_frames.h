#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>

#include "kernels/base/buffer.h"
#include "protocol/address/endpoint_text.h"
#include "protocol/datagram/packet_sink.h"

/// Ethernet, ARP, IPv4, ICMP echo and UDP as bytes, for ports that own their device (DPDK). Pure functions over spans;
/// every frame is hostile. VLAN tags, IPv6 and fragments are not supported: such frames are dropped, and counted apart
/// from malformed ones.
namespace millrace::switch_agg {

using MacAddress = std::array<uint8_t, 6>;
using protocol::Ipv4Address;

inline constexpr MacAddress kBroadcast = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
inline constexpr size_t kEthernetBytes = 14;
inline constexpr size_t kIpv4Bytes = 20;
inline constexpr size_t kUdpBytes = 8;
/// What build_udp_headers() puts before a payload.
inline constexpr size_t kUdpHeadersBytes = kEthernetBytes + kIpv4Bytes + kUdpBytes;
inline constexpr size_t kArpFrameBytes = kEthernetBytes + 28;

/// Holds a port's addresses on its wire.
struct WireAddress {
  MacAddress mac{};
  Ipv4Address ip{};
  bool operator==(const WireAddress&) const = default;
};

/// Returns whether one host can have the address, so that a packet may be sent to it: it is neither multicast nor 0.
bool is_one_host(const WireAddress& address);

enum class FrameFault : uint8_t {
  kMalformed,      ///< lengths, versions or the IPv4 checksum do not add up
  kOtherProtocol,  ///< well formed as far as it was read, and nothing that is handled here
};

/// Holds a UDP packet, as a view of its frame.
struct UdpFrame {
  WireAddress from;
  WireAddress to;
  uint16_t from_port = 0;
  uint16_t to_port = 0;
  ByteSpan payload;
  protocol::Ecn ecn = protocol::Ecn::kNotEct;
};

/// Finds the UDP payload of an Ethernet frame, without the padding after it. Does not check the UDP checksum. The
/// payload has a MAC, and frames between network namespaces have the sum that hardware would fill in later.
/// Threads  reentrant.
std::expected<UdpFrame, FrameFault> parse_udp_frame(ByteSpan frame);

/// Writes Ethernet, IPv4 and UDP headers with both checksums, for a payload that lies right behind them.
/// frame     [kUdpHeadersBytes + payload]; its first kUdpHeadersBytes are written.
/// REQUIRES: kUdpHeadersBytes <= frame.size() <= kEthernetBytes + 65535.
struct UdpRoute {
  WireAddress from;
  WireAddress to;
  uint16_t from_port = 0;
  uint16_t to_port = 0;
  protocol::Ecn ecn = protocol::Ecn::kEct0;
};
void build_udp_headers(const UdpRoute& route, std::span<uint8_t> frame);
/// Writes the same headers for a payload in other memory: `payload_sum` is its internet_sum(), the same for all
/// receivers.
/// headers   [kUdpHeadersBytes]
void build_udp_headers_apart(const UdpRoute& route, size_t payload_bytes, uint64_t payload_sum,
                             std::span<uint8_t> headers);

/// Holds an ARP packet's sender, as a neighbour to remember, and the answer if it asks for `self`.
struct ArpSeen {
  WireAddress sender;
  bool asks_for_self = false;
};
/// Returns an ARP packet's sender. Empty: not an ARP packet for Ethernet and IPv4, or an impossible sender (0.0.0.0, a
/// multicast address).
std::optional<ArpSeen> read_arp(ByteSpan frame, const WireAddress& self);
/// Both write kArpFrameBytes.
/// REQUIRES: out.size() >= kArpFrameBytes.
void build_arp_answer(const WireAddress& self, const WireAddress& asker, std::span<uint8_t> out);
void build_arp_question(const WireAddress& self, const Ipv4Address& wanted, std::span<uint8_t> out);

/// Writes the answer to an ICMP echo request to `self`, and returns the frame's bytes. Empty: it is no such request, or
/// `out` is too small.
std::optional<size_t> answer_echo(ByteSpan frame, const WireAddress& self, std::span<uint8_t> out);

/// Returns the one's complement sum [RFC1071] of big-endian 16-bit words, an odd last byte padded with zero, not yet
/// inverted. Sums of several pieces add up where every piece but the last has an even length.
uint64_t internet_sum(ByteSpan bytes);
/// Returns the checksum: the sum folded and inverted.
uint16_t internet_checksum(uint64_t sum);

}  // namespace millrace::switch_agg
