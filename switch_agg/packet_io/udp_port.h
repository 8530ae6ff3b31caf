#pragma once

#include <memory>
#include <vector>

#include "kernels/base/result.h"
#include "protocol/datagram/io/udp_bursts.h"
#include "switch_agg/packet_io/packet_port.h"

namespace millrace::switch_agg {

struct UdpPortOptions {
  protocol::Endpoint listen;       ///< port 0: a free one
  size_t packet_bytes_max = 1472;  ///< UDP payload of the path's MTU.
  /// Requested size of the socket's buffers each way; the system gives no more than net.core.rmem_max and wmem_max.
  int socket_buffer_bytes = 4 << 20;
};

/// Uses a kernel socket: no privileges, no set-up, in bursts (UdpBursts) that may be longer than kBurst. IPv4 or IPv6,
/// as its address is; [::] takes both.
class UdpPort final : public PacketPort {
 public:
  /// Errors   io: the port is in use, or the address is not of this machine; says which.
  static Result<std::unique_ptr<UdpPort>> open(const UdpPortOptions& options);
  /// Opens one port for each of `lanes`, all of one address: port i gets the packets of lane i's jobs (lane_of_job).
  static Result<std::vector<std::unique_ptr<UdpPort>>> open_lanes(const UdpPortOptions& options, uint32_t lanes);
  ~UdpPort() override;
  UdpPort(const UdpPort&) = delete;
  UdpPort& operator=(const UdpPort&) = delete;

  /// As bound.
  const protocol::Endpoint& address() const;

  std::span<const protocol::ReceivedPacket> receive() override;
  std::span<uint8_t> room() override;
  void send(size_t bytes, const protocol::Endpoint& to) override;
  size_t send_to_each(ByteSpan packet, std::span<const protocol::Endpoint> to) override;
  void set_ecn(protocol::Ecn ecn) override;
  void flush() override;
  void wait(int timeout_ms) override;

 private:
  explicit UdpPort(std::unique_ptr<protocol::UdpBursts> bursts);
  void take_counts();
  std::unique_ptr<protocol::UdpBursts> bursts_;
};

}  // namespace millrace::switch_agg
