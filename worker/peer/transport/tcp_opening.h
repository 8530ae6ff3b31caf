#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>

#include "kernels/base/buffer.h"
#include "kernels/base/descriptor.h"
#include "protocol/keys/noise.h"
#include "worker/peer/transport/tcp_frame.h"
#include "worker/peer/transport/tcp_link.h"

/// How a connection between two ranks begins. With a key: an opening and its answer, a frame and a message of Noise.
/// The other frames of the meeting follow, encrypted. Without a key a connection begins with the hello.
namespace millrace::peer {

/// Has a socket send each message without waiting for more.
void send_at_once(const Descriptor& socket);

/// Returns whether a connection to a free port of this machine has met itself, as TCP allows.
bool is_its_own_peer(const Descriptor& socket);

/// Receives the first bytes of one direction.
class TcpOpening {
 public:
  /// Reads up to a whole opening, answer, or other frame, and nothing behind it. It reads the opening of a caller that
  /// is refused, too: unread bytes at the end of a connection take the refusal back. False: the connection has ended.
  bool read(const Descriptor& socket);
  bool is_whole() const { return count_ == wanted(); }

  /// REQUIRES  is_whole().
  std::expected<TcpFrame, TcpFrameFault> frame() const { return decode_tcp_frame(frame_bytes()); }
  ByteSpan frame_span() const { return frame_bytes(); }
  /// Returns the message of Noise; empty: the frame has none.
  ByteSpan message() const { return ByteSpan(bytes_).subspan(kTcpFrameBytes, count_ - kTcpFrameBytes); }

 private:
  std::span<const uint8_t, kTcpFrameBytes> frame_bytes() const { return std::span(bytes_).first<kTcpFrameBytes>(); }
  size_t wanted() const;

  std::array<uint8_t, kTcpFrameBytes + protocol::kNoiseMessageBytes> bytes_ = {};
  size_t count_ = 0;
};

/// Holds a frame that arrives over a link.
struct ArrivingFrame {
  TcpFrameBytes bytes = {};
  size_t count = 0;

  bool is_whole() const { return count == bytes.size(); }
  /// Reads up to a whole frame. False: the connection has ended.
  bool read(TcpLink& link);
};

/// Sends a frame over a link that has sent at most two before: its socket has room. False: it has ended.
bool send_frame(TcpLink& link, const TcpFrame& frame);

/// Opens a connection at the side that has connected.
class TcpCaller {
 public:
  explicit TcpCaller(const protocol::SecretKey& key);

  /// Sends the opening to a socket that has sent nothing before. False: errno.
  bool send(const Descriptor& socket);
  /// Returns the keys of the connection. Empty: the other side lacks the key.
  std::optional<protocol::NoiseHandshake::Ciphers> take(const TcpOpening& answer);

 private:
  TcpFrameBytes frame_;
  protocol::NoiseHandshake noise_;
};

/// Says why an opening was not answered.
enum class OpeningFault : uint8_t {
  kOtherKey = 1,  ///< the caller lacks the key; nothing was sent
  kNotSent = 2,   ///< the socket did not take the whole answer
};
/// Answers a caller's opening, and returns the keys of the connection.
std::expected<protocol::NoiseHandshake::Ciphers, OpeningFault> answer_opening(const protocol::SecretKey& key,
                                                                              const TcpOpening& opening,
                                                                              const Descriptor& socket);

}  // namespace millrace::peer
