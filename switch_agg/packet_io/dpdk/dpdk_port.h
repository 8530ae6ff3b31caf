#pragma once

#include <rte_mbuf.h>

#include <array>
#include <optional>

#include "switch_agg/packet_io/dpdk/dpdk_setup.h"
#include "switch_agg/packet_io/dpdk/neighbours.h"

namespace millrace::switch_agg {

/// Exchanges one lane's packets with a DPDK device: frames in bursts, packets read in their mbufs, answers written in
/// place. It answers ARP and ICMP echo, learns neighbours from what arrives, and asks for those that it does not know.
class DpdkPort final : public PacketPort {
 public:
  explicit DpdkPort(DpdkLane lane);
  ~DpdkPort() override;
  DpdkPort(const DpdkPort&) = delete;
  DpdkPort& operator=(const DpdkPort&) = delete;

  void enter_thread() override;
  std::span<const protocol::ReceivedPacket> receive() override;
  std::span<uint8_t> room() override;
  void send(size_t bytes, const protocol::Endpoint& to) override;
  /// Sends one buffer to all, behind headers for each, where the device sends frames in pieces.
  size_t send_to_each(ByteSpan packet, std::span<const protocol::Endpoint> to) override;
  void set_ecn(protocol::Ecn ecn) override { ecn_ = ecn; }
  void flush() override;
  void wait(int) override {}

 private:
  enum class Origin : uint8_t { kDevice, kInbox };

  void take(rte_mbuf* frame, Origin origin);
  void take_udp(rte_mbuf* frame, const UdpFrame& udp, Origin origin);
  void take_other(rte_mbuf* frame, Origin origin, FrameFault fault);
  void pass_on(rte_mbuf* frame, uint32_t lane);
  void ask_for(const Ipv4Address& ip);
  /// Sends what `write` writes into a fresh frame; it returns how long that is.
  template <typename Write>
  void send_frame(const Write& write);
  void push(rte_mbuf* frame);
  /// Returns the route to an address. Empty: it is unreachable at present, which is counted.
  std::optional<UdpRoute> route_to(const protocol::Endpoint& to);
  void learn_sender(const WireAddress& sender);
  bool is_on_network(const Ipv4Address& ip) const;
  Ipv4Address next_hop(const Ipv4Address& ip) const;

  DpdkLane lane_;
  Neighbours neighbours_;
  std::array<rte_mbuf*, kBurst> held_{};  ///< of the packets that receive() handed out
  std::array<protocol::ReceivedPacket, kBurst> received_;
  size_t taken_ = 0;
  rte_mbuf* room_ = nullptr;
  protocol::Ecn ecn_ = protocol::Ecn::kEct0;  ///< of the packets sent next
  std::array<rte_mbuf*, kBurst> out_{};
  uint16_t gathered_ = 0;
  uint64_t ask_again_cycles_ = 0;
};

}  // namespace millrace::switch_agg
