#include "switch_agg/packet_io/dpdk/ethernet_frames.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/base/check.h"

namespace millrace::switch_agg {
namespace {

constexpr uint16_t kEtherIpv4 = 0x0800;
constexpr uint16_t kEtherArp = 0x0806;
constexpr uint8_t kProtocolIcmp = 1;
constexpr uint8_t kProtocolUdp = 17;
constexpr uint8_t kTimeToLive = 64;
constexpr uint16_t kDontFragment = 0x4000;
constexpr uint16_t kMoreFragmentsOrOffset = 0x3FFF;
constexpr uint8_t kEcnBits = 3;  ///< of TOS
constexpr size_t kIcmpEchoBytes = 8;
constexpr uint8_t kEchoRequest = 8;

constexpr uint16_t kArpRequest = 1;
constexpr uint16_t kArpReply = 2;
/// Hardware type Ethernet, protocol IPv4, address lengths 6 and 4.
constexpr std::array<uint8_t, 6> kArpForIpv4 = {0, 1, 8, 0, 6, 4};

uint16_t word_at(ByteSpan bytes, size_t at) { return static_cast<uint16_t>(bytes[at] << 8 | bytes[at + 1]); }

void put_word(std::span<uint8_t> bytes, size_t at, uint16_t value) {
  bytes[at] = static_cast<uint8_t>(value >> 8);
  bytes[at + 1] = static_cast<uint8_t>(value);
}

template <size_t kSize>
std::array<uint8_t, kSize> array_at(ByteSpan bytes, size_t at) {
  std::array<uint8_t, kSize> value;
  std::memcpy(value.data(), bytes.data() + at, kSize);
  return value;
}

template <size_t kSize>
void put_array(std::span<uint8_t> bytes, size_t at, const std::array<uint8_t, kSize>& value) {
  std::memcpy(bytes.data() + at, value.data(), kSize);
}

void put_ethernet(const MacAddress& to, const MacAddress& from, uint16_t type, std::span<uint8_t> out) {
  put_array(out, 0, to);
  put_array(out, 6, from);
  put_word(out, 12, type);
}

/// An IPv4 packet in its frame, its header checked.
struct Ipv4Frame {
  WireAddress from;
  WireAddress to;
  uint8_t protocol = 0;
  protocol::Ecn ecn = protocol::Ecn::kNotEct;
  ByteSpan header;
  ByteSpan payload;
};

std::expected<Ipv4Frame, FrameFault> parse_ipv4_frame(ByteSpan frame) {
  if (frame.size() < kEthernetBytes) return std::unexpected(FrameFault::kMalformed);
  if (word_at(frame, 12) != kEtherIpv4) return std::unexpected(FrameFault::kOtherProtocol);
  const ByteSpan packet = frame.subspan(kEthernetBytes);
  if (packet.size() < kIpv4Bytes || packet[0] >> 4 != 4) return std::unexpected(FrameFault::kMalformed);
  const size_t header_bytes = size_t{4} * (packet[0] & 15);
  const size_t total_bytes = word_at(packet, 2);
  if (header_bytes < kIpv4Bytes || total_bytes < header_bytes || total_bytes > packet.size())
    return std::unexpected(FrameFault::kMalformed);
  const ByteSpan header = packet.first(header_bytes);
  if (internet_checksum(internet_sum(header)) != 0) return std::unexpected(FrameFault::kMalformed);
  if ((word_at(packet, 6) & kMoreFragmentsOrOffset) != 0) return std::unexpected(FrameFault::kOtherProtocol);
  return Ipv4Frame{{array_at<6>(frame, 6), array_at<4>(packet, 12)},
                   {array_at<6>(frame, 0), array_at<4>(packet, 16)},
                   packet[9],
                   static_cast<protocol::Ecn>(packet[1] & kEcnBits),
                   header,
                   packet.subspan(header_bytes, total_bytes - header_bytes)};
}

struct Ipv4Route {
  Ipv4Address from;
  Ipv4Address to;
  uint8_t protocol = 0;
  protocol::Ecn ecn = protocol::Ecn::kNotEct;
};

void put_ipv4_header(const Ipv4Route& route, size_t total_bytes, std::span<uint8_t> out) {
  out[0] = 0x45;
  out[1] = static_cast<uint8_t>(route.ecn);
  put_word(out, 2, static_cast<uint16_t>(total_bytes));
  put_word(out, 4, 0);  // no identification: it is never fragmented [RFC6864]
  put_word(out, 6, kDontFragment);
  out[8] = kTimeToLive;
  out[9] = route.protocol;
  put_word(out, 10, 0);
  put_array(out, 12, route.from);
  put_array(out, 16, route.to);
  put_word(out, 10, internet_checksum(internet_sum(out.first(kIpv4Bytes))));
}

}  // namespace

bool is_one_host(const WireAddress& address) {
  const bool multicast_mac = (address.mac[0] & 1) != 0;
  const bool multicast_ip = address.ip[0] >= 224;
  return !multicast_mac && !multicast_ip && address.mac != MacAddress{} && address.ip != Ipv4Address{};
}

uint64_t internet_sum(ByteSpan bytes) {
  // Sums of byte-swapped words are the byte-swapped sum [RFC1071, 2]: words are added as they lie in memory, and the
  // result is swapped once. 2^64 is 1 modulo 2^16 - 1: a carry out of a sum of u64 counts as 1.
  uint64_t even = 0;
  uint64_t odd = 0;
  uint64_t carries = 0;
  size_t at = 0;
  for (; at + 16 <= bytes.size(); at += 16) {
    std::array<uint64_t, 2> words;
    std::memcpy(words.data(), bytes.data() + at, sizeof words);
    even += words[0];
    carries += even < words[0];
    odd += words[1];
    carries += odd < words[1];
  }
  uint64_t sum = (even & 0xFFFFFFFF) + (even >> 32) + (odd & 0xFFFFFFFF) + (odd >> 32) + carries;
  if (at + 8 <= bytes.size()) {
    uint64_t words = 0;
    std::memcpy(&words, bytes.data() + at, sizeof words);
    sum += (words & 0xFFFFFFFF) + (words >> 32);
    at += 8;
  }
  if (at < bytes.size()) {
    uint64_t words = 0;
    std::memcpy(&words, bytes.data() + at, bytes.size() - at);
    sum += (words & 0xFFFFFFFF) + (words >> 32);
  }
  while (sum >> 16 != 0) sum = (sum & 0xFFFF) + (sum >> 16);
  return std::byteswap(static_cast<uint16_t>(sum));
}

uint16_t internet_checksum(uint64_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

std::expected<UdpFrame, FrameFault> parse_udp_frame(ByteSpan frame) {
  const auto packet = parse_ipv4_frame(frame);
  if (!packet) return std::unexpected(packet.error());
  if (packet->protocol != kProtocolUdp) return std::unexpected(FrameFault::kOtherProtocol);
  const ByteSpan udp = packet->payload;
  if (udp.size() < kUdpBytes) return std::unexpected(FrameFault::kMalformed);
  const size_t udp_bytes = word_at(udp, 4);
  if (udp_bytes < kUdpBytes || udp_bytes > udp.size()) return std::unexpected(FrameFault::kMalformed);
  return UdpFrame{
      packet->from, packet->to, word_at(udp, 0), word_at(udp, 2), udp.subspan(kUdpBytes, udp_bytes - kUdpBytes),
      packet->ecn};
}

void build_udp_headers(const UdpRoute& route, std::span<uint8_t> frame) {
  MILLRACE_CHECK(frame.size() >= kUdpHeadersBytes, frame.size());
  const ByteSpan payload = frame.subspan(kUdpHeadersBytes);
  build_udp_headers_apart(route, payload.size(), internet_sum(payload), frame.first(kUdpHeadersBytes));
}

void build_udp_headers_apart(const UdpRoute& route, size_t payload_bytes, uint64_t payload_sum,
                             std::span<uint8_t> headers) {
  const size_t udp_bytes = kUdpBytes + payload_bytes;
  MILLRACE_CHECK(headers.size() == kUdpHeadersBytes && kIpv4Bytes + udp_bytes <= 65'535, headers.size(), payload_bytes);
  put_ethernet(route.to.mac, route.from.mac, kEtherIpv4, headers);
  const std::span<uint8_t> packet = headers.subspan(kEthernetBytes);
  put_ipv4_header({route.from.ip, route.to.ip, kProtocolUdp, route.ecn}, kIpv4Bytes + udp_bytes, packet);
  const std::span<uint8_t> udp = packet.subspan(kIpv4Bytes);
  put_word(udp, 0, route.from_port);
  put_word(udp, 2, route.to_port);
  put_word(udp, 4, static_cast<uint16_t>(udp_bytes));
  put_word(udp, 6, 0);
  // Addresses, protocol and length again are the pseudo header.
  const uint64_t sum = internet_sum(packet.subspan(12)) + kProtocolUdp + udp_bytes + payload_sum;
  const uint16_t checksum = internet_checksum(sum);
  put_word(udp, 6, checksum == 0 ? 0xFFFF : checksum);  // 0 says that there is none
}

std::optional<ArpSeen> read_arp(ByteSpan frame, const WireAddress& self) {
  if (frame.size() < kArpFrameBytes || word_at(frame, 12) != kEtherArp) return std::nullopt;
  const ByteSpan arp = frame.subspan(kEthernetBytes);
  if (array_at<6>(arp, 0) != kArpForIpv4) return std::nullopt;
  const uint16_t operation = word_at(arp, 6);
  if (operation != kArpRequest && operation != kArpReply) return std::nullopt;
  const WireAddress sender = {array_at<6>(arp, 8), array_at<4>(arp, 14)};
  if (!is_one_host(sender) || sender.ip == self.ip) return std::nullopt;
  return ArpSeen{sender, operation == kArpRequest && array_at<4>(arp, 24) == self.ip};
}

namespace {

void build_arp(uint16_t operation, const WireAddress& from, const WireAddress& to, std::span<uint8_t> out) {
  MILLRACE_CHECK(out.size() >= kArpFrameBytes, out.size());
  const std::span<uint8_t> arp = out.subspan(kEthernetBytes);
  put_array(arp, 0, kArpForIpv4);
  put_word(arp, 6, operation);
  put_array(arp, 8, from.mac);
  put_array(arp, 14, from.ip);
  put_array(arp, 18, to.mac);
  put_array(arp, 24, to.ip);
}

}  // namespace

void build_arp_answer(const WireAddress& self, const WireAddress& asker, std::span<uint8_t> out) {
  build_arp(kArpReply, self, asker, out);
  put_ethernet(asker.mac, self.mac, kEtherArp, out);
}

void build_arp_question(const WireAddress& self, const Ipv4Address& wanted, std::span<uint8_t> out) {
  build_arp(kArpRequest, self, {MacAddress{}, wanted}, out);
  put_ethernet(kBroadcast, self.mac, kEtherArp, out);
}

std::optional<size_t> answer_echo(ByteSpan frame, const WireAddress& self, std::span<uint8_t> out) {
  const auto packet = parse_ipv4_frame(frame);
  if (!packet || packet->protocol != kProtocolIcmp || packet->to != self || !is_one_host(packet->from))
    return std::nullopt;
  const ByteSpan echo = packet->payload;
  if (echo.size() < kIcmpEchoBytes || echo[0] != kEchoRequest || echo[1] != 0) return std::nullopt;
  if (internet_checksum(internet_sum(echo)) != 0) return std::nullopt;
  const size_t bytes = kEthernetBytes + kIpv4Bytes + echo.size();  // options of the question are not sent back
  if (bytes > out.size()) return std::nullopt;
  put_ethernet(packet->from.mac, self.mac, kEtherIpv4, out);
  put_ipv4_header({self.ip, packet->from.ip, kProtocolIcmp, protocol::Ecn::kNotEct}, bytes - kEthernetBytes,
                  out.subspan(kEthernetBytes));
  const std::span<uint8_t> answer = out.subspan(kEthernetBytes + kIpv4Bytes, echo.size());
  std::ranges::copy(echo, answer.begin());
  answer[0] = 0;  // echo reply
  put_word(answer, 2, 0);
  put_word(answer, 2, internet_checksum(internet_sum(answer)));
  return bytes;
}

}  // namespace millrace::switch_agg
