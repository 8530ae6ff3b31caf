#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "protocol/datagram/packet_sink.h"

namespace millrace::protocol {

/// A UDP socket that sends and receives datagrams in bursts.
///
/// The datagrams gathered for one destination go to the kernel in one piece where possible (UDP_SEGMENT). Such a piece
/// arrives as one (UDP_GRO). The way through the kernel costs a datagram by itself several times as much as its bytes.
/// Segments of a piece have one length, so zeros follow a shorter datagram. A datagram carries its own length, and
/// receivers ignore the bytes after it (protocol/wire/datagrams.md, "Reading").
///
/// A piece is of one job, since a receiver may have a socket for each (open_group()). Datagrams of one job to one
/// destination stay in order. All leave as ECT(0), IPv4 and IPv6, and received ones have their mark.
///
/// Memory   all of it is taken when it is made: 0.5 MB and 128 datagrams.
/// Threads  one at a time.
class UdpBursts {
 public:
  /// The most datagrams that are gathered, counted by destination.
  static constexpr size_t kGatheredMax = 512;

  struct Counters {
    uint64_t packets_in = 0;
    uint64_t bytes_in = 0;  ///< UDP payload, without the bytes after a datagram
    uint64_t packets_out = 0;
    uint64_t bytes_out = 0;
    uint64_t too_long = 0;      ///< came, longer than packet_bytes_max
    uint64_t send_full = 0;     ///< the system took no more: lost as on the wire
    uint64_t send_refused = 0;  ///< by the system: no route, not permitted; or of another family

    void add(const Counters& other);
  };

  /// Binds a socket. [::] takes both families.
  ///
  /// socket_buffer_bytes  the requested size of the socket's buffers, each way; the system gives no more than
  ///                      net.core.rmem_max and wmem_max.
  /// Errors   io: with the system's words.
  static Result<std::unique_ptr<UdpBursts>> open(const Endpoint& listen, size_t packet_bytes_max,
                                                 int socket_buffer_bytes);
  /// Binds `count` sockets of one address. Socket i gets the packets of the jobs whose number modulo `count` is i. The
  /// first one also gets packets that are too short to have a job number. A piece that a sender's kernel or a card
  /// joined goes where its first packet goes.
  static Result<std::vector<std::unique_ptr<UdpBursts>>> open_group(const Endpoint& listen, uint32_t count,
                                                                    size_t packet_bytes_max, int socket_buffer_bytes);
  ~UdpBursts();
  UdpBursts(const UdpBursts&) = delete;
  UdpBursts& operator=(const UdpBursts&) = delete;

  /// Returns the bound address.
  const Endpoint& address() const;
  int descriptor() const;
  const Counters& counters() const;

  /// Works as PacketSink::room().
  std::span<uint8_t> room();
  void send(size_t bytes, const Endpoint& to);
  size_t send_to_each(ByteSpan packet, std::span<const Endpoint> to);
  void set_ecn(Ecn ecn);
  /// Sends the gathered datagrams; those that the system does not take are dropped.
  void flush();
  /// Returns the packets that have arrived, without waiting; valid until the next call.
  std::span<const ReceivedPacket> receive();

 private:
  struct State;
  explicit UdpBursts(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace millrace::protocol
