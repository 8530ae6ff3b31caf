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

/// A UDP socket whose datagrams go in bursts. What is gathered for one destination goes to the kernel in one piece
/// where it can be (UDP_SEGMENT), and such a piece comes in as one (UDP_GRO): the way through the kernel costs a
/// datagram by itself several times what its bytes do. Segments of a piece are of one length, so shorter datagrams are
/// followed by zeros: a datagram says its own length, and receivers look no further (protocol/wire/datagrams.md,
/// "Reading"). A piece is of one job, since a receiver may have a socket for each (open_group()); those of one job to
/// one destination stay in order. All leave as ECT(0), IPv4 and IPv6, and what comes in has its mark.
///
/// Memory   all of it is taken when it is made: 0.5 MB and 128 datagrams.
/// Threads  one at a time.
class UdpBursts {
 public:
  /// Datagrams that are gathered at most, counted by destination.
  static constexpr size_t kGatheredMax = 512;

  struct Counters {
    uint64_t packets_in = 0;
    uint64_t bytes_in = 0;  ///< UDP payload, without what follows a datagram
    uint64_t packets_out = 0;
    uint64_t bytes_out = 0;
    uint64_t too_long = 0;      ///< came, longer than packet_bytes_max
    uint64_t send_full = 0;     ///< the system took no more: lost as on the wire
    uint64_t send_refused = 0;  ///< by the system: no route, not permitted; or of another family

    void add(const Counters& other);
  };

  /// Binds a socket. [::] takes both families.
  ///
  /// socket_buffer_bytes  what the socket is asked to hold each way; the system gives no more than net.core.rmem_max
  ///                      and wmem_max.
  /// Errors   io: with the system's words.
  static Result<std::unique_ptr<UdpBursts>> open(const Endpoint& listen, size_t packet_bytes_max,
                                                 int socket_buffer_bytes);
  /// The same, `count` sockets of one address: socket i gets the packets of the jobs whose number modulo `count` is i,
  /// and the first one what is too short to have one. (What a sender's kernel or a card puts together goes where its
  /// first packet goes.)
  static Result<std::vector<std::unique_ptr<UdpBursts>>> open_group(const Endpoint& listen, uint32_t count,
                                                                    size_t packet_bytes_max, int socket_buffer_bytes);
  ~UdpBursts();
  UdpBursts(const UdpBursts&) = delete;
  UdpBursts& operator=(const UdpBursts&) = delete;

  /// As bound.
  const Endpoint& address() const;
  int descriptor() const;
  const Counters& counters() const;

  /// As PacketSink.
  std::span<uint8_t> room();
  void send(size_t bytes, const Endpoint& to);
  size_t send_to_each(ByteSpan packet, std::span<const Endpoint> to);
  void set_ecn(Ecn ecn);
  /// What is gathered goes out; of what the system does not take nothing is kept.
  void flush();
  /// What is there, without waiting; good until the next call.
  std::span<const ReceivedPacket> receive();

 private:
  struct State;
  explicit UdpBursts(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace millrace::protocol
