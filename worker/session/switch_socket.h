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

/// A worker's UDP sockets, one for each lane of its job: bursts (UdpBursts), no thread of its own.
///
/// Why one a lane   what a device or the kernel makes of a burst (a piece of several datagrams on the way out, or put
///                  together on the way in; the queue that a card's RSS chooses) goes by addresses and ports. Lanes of
///                  one socket would come to one core of their aggregator, whichever it is.
/// Threads  one at a time.
class SwitchUdpPort final : public protocol::PacketSink {
 public:
  /// A free port each of any local address: IPv4 where `peer` is, else of both families.
  /// Errors   io.
  static Result<std::unique_ptr<SwitchUdpPort>> open(const protocol::Endpoint& peer, size_t packet_bytes_max,
                                                     const protocol::JobNumbers& of = {});
  ~SwitchUdpPort() override;
  SwitchUdpPort(const SwitchUdpPort&) = delete;
  SwitchUdpPort& operator=(const SwitchUdpPort&) = delete;

  std::span<uint8_t> room() override;
  void send(size_t bytes, const protocol::Endpoint& to) override;
  /// What send() has gathered goes out; what the system does not take is lost, as on the wire, and counted.
  void flush();
  /// What is there, without waiting; good until the next call.
  std::span<const protocol::ReceivedPacket> receive();
  /// Of all sockets together.
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
