#pragma once

#include <vector>

#include "switch_agg/packet_io/packet_port.h"

namespace millrace::switch_agg {

/// Exchanges packets with its caller in place of a network: for tests, for the simulator, and for benchmarks of
/// everything but the device. Arriving packets are not copied. Sent packets stay in the port until the caller takes
/// them; a packet to several receivers is one.
///
/// Threads  one at a time.
class MemoryPort final : public PacketPort {
 public:
  struct Options {
    size_t packet_bytes_max = 1472;
    size_t arriving_max = 4096;
    size_t sent_max = 4096;
  };
  struct Sent {
    ByteSpan bytes;
    protocol::Endpoint to;
  };

  explicit MemoryPort(const Options& options);

  /// Lets a packet arrive. `bytes` must stay until the receive() after the one that hands it on. False: arriving_max
  /// are on their way already, or it is longer than packet_bytes_max; it is dropped and counted.
  bool inject(ByteSpan bytes, const protocol::Endpoint& from);
  /// Returns the packets that were sent and flushed since the last call of clear_sent().
  std::span<const Sent> sent() const { return std::span(sent_).first(flushed_); }
  void clear_sent();

  std::span<const protocol::ReceivedPacket> receive() override;
  std::span<uint8_t> room() override;
  void send(size_t bytes, const protocol::Endpoint& to) override;
  size_t send_to_each(ByteSpan packet, std::span<const protocol::Endpoint> to) override;
  void flush() override;
  void wait(int) override {}

 private:
  Options options_;
  std::vector<protocol::ReceivedPacket> arriving_;  ///< a ring
  size_t next_in_ = 0;
  size_t waiting_ = 0;
  std::vector<protocol::ReceivedPacket> burst_;
  std::vector<uint8_t> room_;  ///< sent_max packets
  size_t rooms_used_ = 0;      ///< <= gathered_
  std::vector<Sent> sent_;
  size_t gathered_ = 0;
  size_t flushed_ = 0;
};

}  // namespace millrace::switch_agg
