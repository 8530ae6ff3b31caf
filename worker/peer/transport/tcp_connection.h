#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/result.h"
#include "worker/peer/channel/message.h"
#include "worker/peer/transport/communicator.h"
#include "worker/peer/transport/tcp_frame.h"
#include "worker/peer/transport/tcp_link.h"

namespace millrace::peer {

/// Says whether a connection still carries messages.
enum class TcpState : uint8_t {
  kOpen = 1,
  kLeft = 2,  ///< the peer has said goodbye
  kLost = 3,  ///< it ended without a goodbye, or carried bytes that no peer sends
};

/// Carries messages between two ranks over one TCP connection whose handshake is done.
///
/// Bytes    in each direction headers (message.h), each followed by its body; at the end a goodbye (tcp_frame.h).
/// Order    data in the order of sending. Other messages go before data that has not begun, so that a question does not
///          wait behind it. An abort drops that data: a group that has ended does not await it.
/// Copies   over a plain link a body is sent from where it lies. It is received into its own memory. Only its first
///          bytes, which arrive with its header, are copied: kScratchBytes at most. A sealed link copies all.
/// Threads  one at a time.
class TcpConnection {
 public:
  /// Of the caller's memory for read(): small messages arrive many at a time.
  static constexpr size_t kScratchBytes = 64 << 10;

  /// link     null: there is no connection.
  TcpConnection(uint32_t peer, std::unique_ptr<TcpLink> link, uint64_t body_bytes_max)
      : peer_(peer), link_(std::move(link)), body_bytes_max_(body_bytes_max) {}

  uint32_t peer() const { return peer_; }
  int descriptor() const { return link_ ? link_->socket().number() : -1; }
  TcpState state() const { return state_; }
  bool has_output() const { return !output_.empty() || (link_ && link_->output_bytes() > 0); }

  /// Queues the message, and sends as much as the socket takes now. Where the connection has broken, the bytes are
  /// dropped: read() finds its end.
  void send(PeerMessage&& message);
  /// Queues a goodbye: the last bytes of this side.
  void say_goodbye(const TcpFrame& goodbye);
  /// Sends as much as the socket takes now.
  void flush();
  /// Returns whether the peer's machine has all bytes that were sent, or will never have them.
  bool is_drained() const;

  /// Returns how many of the sent bytes the peer's machine has acknowledged. Over a sealed link they are some fewer:
  /// records are longer than their text.
  uint64_t acknowledged_bytes() const;

  /// Reads up to `bytes_max`, and appends the messages that are whole. At the end of the connection state() changes,
  /// and the caller closes it.
  ///
  /// scratch  [kScratchBytes], not used between calls.
  /// Errors   malformed, version_mismatch, limit_exceeded: bytes that no peer sends, or no memory for a body.
  ///          unauthenticated: bytes that the peer did not seal. Then state() is kLost.
  Status read(std::span<uint8_t> scratch, size_t bytes_max, std::deque<ReceivedMessage>& arrived);
  /// Returns whether read() has had bytes since the last call.
  bool take_has_read() { return std::exchange(has_read_, false); }
  /// Returns whether the peer's machine has acknowledged bytes since the last call, and still lacks others before the
  /// oldest question. A read() of bytes ends all earlier questions. Later bytes do not count: the machine of a stopped
  /// process takes thousands of small messages.
  bool take_has_moved_question();
  /// Drops up to `bytes_max` that have arrived. No read() follows.
  void drop_input(std::span<uint8_t> scratch, size_t bytes_max);

  void close();

 private:
  struct Output {
    MessageHeader header;
    SharedBytes body;
    MessageKind kind = MessageKind::kData;
    size_t sent = 0;  ///< of header and body together
  };

  Status parse(ByteSpan bytes, std::deque<ReceivedMessage>& arrived);
  Status take_header(std::deque<ReceivedMessage>& arrived);
  void deliver(std::deque<ReceivedMessage>& arrived);
  void drop_sent(size_t bytes);
  void shut_down();
  bool is_connected() const { return descriptor() >= 0; }

  uint32_t peer_;
  std::unique_ptr<TcpLink> link_;
  uint64_t body_bytes_max_;
  TcpState state_ = TcpState::kOpen;
  bool has_read_ = false;
  std::deque<Output> output_;
  uint64_t taken_bytes_ = 0;             ///< by the link
  std::optional<uint64_t> question_at_;  ///< of taken_bytes_: where the oldest question begins; none: not taken yet
  uint64_t last_acknowledged_bytes_ = 0;
  // The message that is arriving.
  MessageHeader header_ = {};
  size_t header_bytes_ = 0;
  std::optional<PeerMessage> message_;  ///< its header is whole
  ByteBuffer body_;
  size_t body_bytes_ = 0;  ///< of body_, that are there
};

}  // namespace millrace::peer
