#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "kernels/base/descriptor.h"
#include "protocol/keys/noise.h"

namespace millrace::peer {

/// Says whether a link moves more bytes.
enum class LinkState : uint8_t {
  kOpen = 1,     ///< perhaps: ask again
  kBlocked = 2,  ///< not before the socket is ready
  kEnded = 3,    ///< the other side has ended the connection, or it is broken
  kForged = 4,   ///< the bytes that arrived are not those that the holder of the key sent next
};

struct LinkResult {
  size_t bytes = 0;  ///< moved by this call
  LinkState state = LinkState::kOpen;
};

/// Moves bytes over a connection between two ranks, in order. No call blocks. While a read() would find bytes, the
/// socket is readable: a link keeps nothing of the peer's but a part of a record.
///
/// Threads  one at a time.
class TcpLink {
 public:
  /// socket  connected, does not block.
  explicit TcpLink(Descriptor socket) : socket_(std::move(socket)) {}
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;
  virtual ~TcpLink() = default;

  Descriptor& socket() { return socket_; }
  const Descriptor& socket() const { return socket_; }
  /// Returns whether the other side has ended the connection, or broken it, and all its bytes were read.
  bool has_ended() const;
  /// Returns whether the other side will send nothing after the bytes that are there.
  bool has_closed() const;

  /// Takes bytes from the begin of the parts, and sends the taken bytes. Those that the socket does not take wait for
  /// the next call, which may have no parts. kEnded: the taken bytes are dropped.
  virtual LinkResult write(std::span<const iovec> parts) = 0;
  /// Returns how many taken bytes wait for the socket, in the form in which they leave.
  virtual size_t output_bytes() const = 0;

  /// Reads into the parts, in order.
  ///
  /// REQUIRES  room for kRecordTextMax bytes, or for all that the other side sends until it hears from this one.
  virtual LinkResult read(std::span<const iovec> parts) = 0;

  /// Of a record of a sealed link.
  static constexpr size_t kRecordTextMax = 16 << 10;

 private:
  Descriptor socket_;
};

/// Makes a link whose bytes are those of the connection.
std::unique_ptr<TcpLink> plain_link(Descriptor socket);

/// Makes a link whose bytes travel as records:
///
///     record = length (2 bytes, little-endian) encrypted text (length - 16 bytes) tag (16 bytes)
///
/// A record has 1 to kRecordTextMax bytes of text. Another length, and a record that does not open, are kForged. The
/// end of a connection is not authenticated: the bytes inside tell a goodbye from a cut.
///
/// Memory  32 KiB.
std::unique_ptr<TcpLink> sealed_link(Descriptor socket, const protocol::NoiseHandshake::Ciphers& ciphers);

}  // namespace millrace::peer
