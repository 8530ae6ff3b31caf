#include "switch_agg/packet_io/dpdk/dpdk_port.h"

#include <rte_cycles.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_prefetch.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/base/check.h"
#include "protocol/address/endpoint_text.h"
#include "switch_agg/packet_io/lane_of_datagram.h"

namespace millrace::switch_agg {
namespace {

/// Attempts at a device that takes nothing, before the remaining packets are dropped.
constexpr int kSendTries = 3;
/// The shortest frame of Ethernet, without its check sequence.
constexpr size_t kFrameBytesMin = 60;
/// Rate of ARP requests for unknown neighbours, all together.
constexpr uint64_t kAsksPerSecond = 1000;

std::span<uint8_t> data_of(rte_mbuf* frame) { return {rte_pktmbuf_mtod(frame, uint8_t*), rte_pktmbuf_data_len(frame)}; }

}  // namespace

DpdkPort::DpdkPort(DpdkLane lane) : lane_(std::move(lane)) {}

DpdkPort::~DpdkPort() {
  for (size_t i = 0; i < taken_; ++i) rte_pktmbuf_free(held_[i]);
  for (uint16_t i = 0; i < gathered_; ++i) rte_pktmbuf_free(out_[i]);
  rte_pktmbuf_free(room_);
}

void DpdkPort::enter_thread() {
  // For the memory pool's cache of this thread; without it every packet takes the way that all share, and still works.
  if (rte_lcore_id() == LCORE_ID_ANY) rte_thread_register();
}

std::span<const protocol::ReceivedPacket> DpdkPort::receive() {
  for (size_t i = 0; i < taken_; ++i) rte_pktmbuf_free(held_[i]);
  taken_ = 0;
  std::array<rte_mbuf*, kBurst> frames;
  std::array<void*, kBurst> objects;
  if (!lane_.inboxes.empty()) {
    // Half of the burst: neither the ring nor the device can starve the other.
    const unsigned count = rte_ring_sc_dequeue_burst(lane_.inboxes[lane_.lane], objects.data(), kBurst / 2, nullptr);
    for (unsigned i = 0; i < count; ++i) take(static_cast<rte_mbuf*>(objects[i]), Origin::kInbox);
  }
  if (lane_.queue) {
    const uint16_t count =
        rte_eth_rx_burst(lane_.device, *lane_.queue, frames.data(), static_cast<uint16_t>(kBurst - taken_));
    for (uint16_t i = 0; i < count; ++i) rte_prefetch0(rte_pktmbuf_mtod(frames[i], const void*));
    for (uint16_t i = 0; i < count; ++i) take(frames[i], Origin::kDevice);
  }
  if (lane_.outbox != nullptr && lane_.lane == 0) {
    const unsigned count = rte_ring_sc_dequeue_burst(lane_.outbox, objects.data(), kBurst, nullptr);
    for (unsigned i = 0; i < count; ++i) push(static_cast<rte_mbuf*>(objects[i]));
  }
  counters_.packets_in += taken_;
  return std::span(received_).first(taken_);
}

void DpdkPort::take(rte_mbuf* frame, Origin origin) {
  if (frame->nb_segs != 1) {
    ++counters_.too_long;
    rte_pktmbuf_free(frame);
    return;
  }
  const auto udp = parse_udp_frame(data_of(frame));
  if (udp) return take_udp(frame, *udp, origin);
  take_other(frame, origin, udp.error());
  rte_pktmbuf_free(frame);
}

void DpdkPort::take_udp(rte_mbuf* frame, const UdpFrame& udp, Origin origin) {
  if (udp.to != lane_.self || udp.to_port != lane_.options.port) {
    ++counters_.other_destination;
    rte_pktmbuf_free(frame);
    return;
  }
  const uint32_t lane = lane_.options.lanes == 1 ? 0 : lane_of_datagram(udp.payload, lane_.options.lanes);
  if (lane != lane_.lane) {
    MILLRACE_CHECK(origin == Origin::kDevice, lane, lane_.lane);
    return pass_on(frame, lane);
  }
  if (udp.payload.size() > lane_.options.packet_bytes_max) {
    ++counters_.too_long;
    rte_pktmbuf_free(frame);
    return;
  }
  learn_sender(udp.from);
  held_[taken_] = frame;
  received_[taken_] = {udp.payload, {protocol::mapped_address(udp.from.ip), udp.from_port}, udp.ecn};
  counters_.bytes_in += udp.payload.size();
  ++taken_;
}

void DpdkPort::pass_on(rte_mbuf* frame, uint32_t lane) {
  if (rte_ring_mp_enqueue(lane_.inboxes[lane], frame) == 0) return;
  ++counters_.lane_full;
  rte_pktmbuf_free(frame);
}

void DpdkPort::take_other(rte_mbuf* frame, Origin origin, FrameFault fault) {
  const std::span<const uint8_t> bytes = data_of(frame);
  if (const std::optional<ArpSeen> arp = read_arp(bytes, lane_.self)) {
    neighbours_.learn(arp->sender);
    if (origin == Origin::kInbox) return;
    if (arp->asks_for_self) {
      send_frame([&](std::span<uint8_t> out) {
        build_arp_answer(lane_.self, arp->sender, out);
        return kArpFrameBytes;
      });
      ++counters_.arp_answered;
    }
    // Each lane has neighbours of its own: ARP may move one of them, or answer another lane's question.
    for (uint32_t lane = 0; lane < lane_.inboxes.size(); ++lane) {
      if (lane == lane_.lane) continue;
      rte_mbuf* const copy = rte_pktmbuf_copy(frame, lane_.pool, 0, UINT32_MAX);
      if (copy != nullptr) pass_on(copy, lane);
    }
    return;
  }
  bool answered = false;
  if (fault == FrameFault::kOtherProtocol && origin == Origin::kDevice) {
    send_frame([&](std::span<uint8_t> out) {
      const std::optional<size_t> echo = answer_echo(bytes, lane_.self, out);
      answered = echo.has_value();
      return echo.value_or(0);
    });
  }
  if (answered) {
    ++counters_.echo_answered;
  } else {
    ++(fault == FrameFault::kMalformed ? counters_.malformed_frame : counters_.other_protocol);
  }
}

template <typename Write>
void DpdkPort::send_frame(const Write& write) {
  rte_mbuf* const frame = rte_pktmbuf_alloc(lane_.pool);
  if (frame == nullptr) {
    ++counters_.no_buffer;
    return;
  }
  const std::span<uint8_t> out(rte_pktmbuf_mtod(frame, uint8_t*), rte_pktmbuf_tailroom(frame));
  const size_t bytes = write(out);
  if (bytes == 0) return rte_pktmbuf_free(frame);
  if (bytes < kFrameBytesMin) std::ranges::fill(out.subspan(bytes, kFrameBytesMin - bytes), uint8_t{0});
  frame->data_len = static_cast<uint16_t>(std::max(bytes, kFrameBytesMin));
  frame->pkt_len = frame->data_len;
  push(frame);
}

std::span<uint8_t> DpdkPort::room() {
  if (room_ == nullptr) room_ = rte_pktmbuf_alloc(lane_.pool);
  if (room_ == nullptr) {
    ++counters_.no_buffer;
    return {};
  }
  return {rte_pktmbuf_mtod_offset(room_, uint8_t*, kUdpHeadersBytes), lane_.options.packet_bytes_max};
}

Ipv4Address DpdkPort::next_hop(const Ipv4Address& ip) const {
  return !lane_.options.gateway || is_on_network(ip) ? ip : *lane_.options.gateway;
}

bool DpdkPort::is_on_network(const Ipv4Address& ip) const {
  const uint32_t mask =
      lane_.options.prefix_bits == 0 ? 0 : static_cast<uint32_t>(~uint64_t{0} << (32 - lane_.options.prefix_bits));
  const uint32_t differs =
      std::byteswap(std::bit_cast<uint32_t>(ip)) ^ std::byteswap(std::bit_cast<uint32_t>(lane_.self.ip));
  return (differs & mask) == 0;
}

/// Any host can send UDP under any IP address. So a known address of this network stays until ARP replaces it, and a
/// host of another network is reached by the gateway. Without a gateway its frames alone tell its router.
void DpdkPort::learn_sender(const WireAddress& sender) {
  if (!is_one_host(sender)) return;
  if (is_on_network(sender.ip)) return neighbours_.learn_if_new(sender);
  if (!lane_.options.gateway) neighbours_.learn(sender);
}

std::optional<UdpRoute> DpdkPort::route_to(const protocol::Endpoint& to) {
  const std::optional<Ipv4Address> ip = ipv4_of(to);
  if (!ip) {
    ++counters_.send_refused;
    return std::nullopt;
  }
  const std::optional<MacAddress> mac = neighbours_.find(next_hop(*ip));
  if (!mac) {
    ++counters_.no_neighbour;
    ask_for(next_hop(*ip));
    return std::nullopt;
  }
  return UdpRoute{lane_.self, {*mac, *ip}, lane_.options.port, to.port, ecn_};
}

void DpdkPort::send(size_t bytes, const protocol::Endpoint& to) {
  MILLRACE_CHECK(room_ != nullptr && bytes <= lane_.options.packet_bytes_max, bytes);
  const std::optional<UdpRoute> route = route_to(to);
  if (!route) return;
  rte_mbuf* const frame = std::exchange(room_, nullptr);
  frame->data_len = static_cast<uint16_t>(kUdpHeadersBytes + bytes);
  frame->pkt_len = frame->data_len;
  build_udp_headers(*route, data_of(frame));
  ++counters_.packets_out;
  counters_.bytes_out += bytes;
  push(frame);
}

size_t DpdkPort::send_to_each(ByteSpan packet, std::span<const protocol::Endpoint> to) {
  if (lane_.headers == nullptr || to.size() < 2) return PacketPort::send_to_each(packet, to);
  rte_mbuf* const body = rte_pktmbuf_alloc(lane_.pool);
  if (body == nullptr) {
    ++counters_.no_buffer;
    return 0;
  }
  MILLRACE_CHECK(packet.size() <= rte_pktmbuf_tailroom(body), packet.size());
  std::ranges::copy(packet, rte_pktmbuf_mtod(body, uint8_t*));
  body->data_len = static_cast<uint16_t>(packet.size());
  body->pkt_len = body->data_len;
  const uint64_t body_sum = internet_sum(packet);
  // A share for each frame, taken before the first may be sent and freed, and one for this function.
  rte_mbuf_refcnt_set(body, static_cast<uint16_t>(to.size() + 1));
  size_t handled = 0;
  size_t pushed = 0;
  for (; handled < to.size(); ++handled) {
    const std::optional<UdpRoute> route = route_to(to[handled]);
    if (!route) continue;
    rte_mbuf* const frame = rte_pktmbuf_alloc(lane_.headers);
    if (frame == nullptr) {
      ++counters_.no_buffer;
      break;
    }
    build_udp_headers_apart(*route, packet.size(), body_sum, {rte_pktmbuf_mtod(frame, uint8_t*), kUdpHeadersBytes});
    frame->data_len = kUdpHeadersBytes;
    frame->pkt_len = static_cast<uint32_t>(kUdpHeadersBytes + packet.size());
    frame->nb_segs = 2;
    frame->next = body;
    push(frame);
    ++pushed;
  }
  counters_.packets_out += pushed;
  counters_.bytes_out += pushed * packet.size();
  rte_mbuf_refcnt_update(body, static_cast<int16_t>(static_cast<int>(pushed) - static_cast<int>(to.size())));
  rte_pktmbuf_free(body);
  return handled;
}

void DpdkPort::ask_for(const Ipv4Address& ip) {
  const uint64_t now = rte_get_timer_cycles();
  if (now < ask_again_cycles_) return;
  ask_again_cycles_ = now + rte_get_timer_hz() / kAsksPerSecond;
  send_frame([&](std::span<uint8_t> out) {
    build_arp_question(lane_.self, ip, out);
    return kArpFrameBytes;
  });
}

void DpdkPort::push(rte_mbuf* frame) {
  if (gathered_ == kBurst) flush();
  out_[gathered_++] = frame;
}

void DpdkPort::flush() {
  uint16_t sent = 0;
  for (int tries = 0; sent < gathered_ && tries < kSendTries; ++tries) {
    const auto left = static_cast<uint16_t>(gathered_ - sent);
    if (lane_.queue) {
      sent = static_cast<uint16_t>(sent + rte_eth_tx_burst(lane_.device, *lane_.queue, out_.data() + sent, left));
    } else {
      std::array<void*, kBurst> objects;
      std::copy_n(out_.begin() + sent, left, objects.begin());
      sent = static_cast<uint16_t>(sent + rte_ring_mp_enqueue_burst(lane_.outbox, objects.data(), left, nullptr));
    }
  }
  counters_.send_full += gathered_ - sent;
  for (uint16_t i = sent; i < gathered_; ++i) rte_pktmbuf_free(out_[i]);
  gathered_ = 0;
}

}  // namespace millrace::switch_agg
