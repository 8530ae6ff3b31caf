#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/result.h"
#include "protocol/datagram/io/udp_bursts.h"
#include "protocol/datagram/job_numbers.h"
#include "protocol/datagram/packet_sink.h"

namespace millrace::worker {

/// Owns a worker's UDP sockets, one for each lane of its job: bursts (UdpBursts), no thread of its own.
///
/// Why one a lane   a device and the kernel handle bursts by addresses and ports. They send several datagrams as one
/// piece, and join received ones. The RSS of a network card chooses a queue by them. Lanes of one socket would all
/// arrive at one core of their aggregator.
/// Threads  one at a time.
class SwitchUdpPort final : public protocol::PacketSink {
 public:
  /// Opens a free port each of any local address: IPv4 where `peer` is, else of both families.
  /// Errors   io.
  static Result<std::unique_ptr<SwitchUdpPort>> open(const protocol::Endpoint& peer, size_t packet_bytes_max,
                                                     const protocol::JobNumbers& of = {});
  ~SwitchUdpPort() override;
  SwitchUdpPort(const SwitchUdpPort&) = delete;
  SwitchUdpPort& operator=(const SwitchUdpPort&) = delete;

  std::span<uint8_t> room() override;
  void send(size_t bytes, const protocol::Endpoint& to) override;
  /// Sends the gathered packets. Packets that the system refuses are lost, as on the wire, and counted.
  void flush();
  /// Returns the received packets without waiting; valid until the next call.
  std::span<const protocol::ReceivedPacket> receive();
  /// Returns the counters of all sockets together.
  protocol::UdpBursts::Counters counters() const;
  int descriptor() const;  ///< for a poll: readable where receive() has something

 private:
  SwitchUdpPort(const protocol::JobNumbers& of, size_t packet_bytes_max);
  Status poll_all();

  protocol::JobNumbers of_;
  std::vector<std::unique_ptr<protocol::UdpBursts>> sockets_;  ///< by lane
  // Of several: a packet is written here, since only then its lane is known; what all of them have received.
  std::vector<uint8_t> room_;
  std::vector<protocol::ReceivedPacket> received_;
  int poll_ = -1;  ///< an epoll of all of them
};

}  // namespace millrace::worker
