#include "worker/peer/transport/tcp_connection.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace millrace::peer {
namespace {

/// Messages that one system call sends.
constexpr size_t kMessagesACall = 32;

iovec bytes_to_send(ByteSpan bytes) {
  return {.iov_base = const_cast<uint8_t*>(bytes.data()), .iov_len = bytes.size()};
}

}  // namespace

void TcpConnection::send(PeerMessage&& message) {
  if (!is_connected() || state_ != TcpState::kOpen) return;
  const MessageHeader header = encode_header(message);
  const auto is_data = [](const Output& one) { return one.kind == MessageKind::kData; };
  const ptrdiff_t begun = !output_.empty() && output_.front().sent > 0 ? 1 : 0;
  if (message.kind == MessageKind::kAbort) {
    output_.erase(std::remove_if(output_.begin() + begun, output_.end(), is_data), output_.end());
  }
  const auto at = message.kind == MessageKind::kData ? output_.end()
                                                     : std::find_if(output_.begin() + begun, output_.end(), is_data);
  output_.insert(at, {.header = header, .body = std::move(message.body), .kind = message.kind});
  // Where others wait before it, the socket is full.
  if (output_.size() == 1) flush();
}

void TcpConnection::say_goodbye(const TcpFrame& goodbye) {
  static_assert(kTcpFrameBytes == kMessageHeaderBytes);
  if (!is_connected() || state_ != TcpState::kOpen) return;
  output_.push_back({.header = encode_tcp_frame(goodbye), .body = {}, .kind = MessageKind::kAbort});
  flush();
}

void TcpConnection::shut_down() { ::shutdown(descriptor(), SHUT_RDWR); }

void TcpConnection::close() {
  output_.clear();
  if (!is_connected()) return;
  // A forked process may have the socket too: closing alone would not end the connection.
  shut_down();
  link_.reset();
}

void TcpConnection::flush() {
  std::array<iovec, 2 * kMessagesACall> parts;
  while (has_output()) {
    size_t count = 0;
    for (size_t i = 0; i < std::min(output_.size(), kMessagesACall); ++i) {
      const Output& one = output_[i];
      if (one.sent < one.header.size()) parts[count++] = bytes_to_send(ByteSpan(one.header).subspan(one.sent));
      const size_t of_body = one.sent - std::min(one.sent, one.header.size());
      if (of_body < one.body.bytes.size()) parts[count++] = bytes_to_send(one.body.bytes.subspan(of_body));
    }
    const LinkResult sent = link_->write(std::span(parts).first(count));
    drop_sent(sent.bytes);
    if (sent.state == LinkState::kOpen) continue;
    if (sent.state == LinkState::kBlocked) return;
    // The peer's last messages are still to be read, its reason for leaving perhaps.
    output_.clear();
    shut_down();
    return;
  }
}

void TcpConnection::drop_sent(size_t bytes) {
  while (bytes > 0) {
    Output& first = output_.front();
    const size_t left = first.header.size() + first.body.bytes.size() - first.sent;
    const size_t count = std::min(bytes, left);
    if (first.kind == MessageKind::kAsk && first.sent == 0 && !question_at_) question_at_ = taken_bytes_;
    taken_bytes_ += count;
    first.sent += count;
    bytes -= count;
    if (count == left) output_.pop_front();
  }
}

uint64_t TcpConnection::acknowledged_bytes() const {
  int waiting_bytes = 0;
  if (!is_connected() || ::ioctl(descriptor(), SIOCOUTQ, &waiting_bytes) != 0) return 0;
  const uint64_t missing_bytes = static_cast<uint64_t>(waiting_bytes) + link_->output_bytes();
  return taken_bytes_ - std::min(taken_bytes_, missing_bytes);
}

bool TcpConnection::take_has_moved_question() {
  if (state_ != TcpState::kOpen || last_acknowledged_bytes_ == taken_bytes_) return false;
  const uint64_t acknowledged = acknowledged_bytes();
  if (acknowledged <= last_acknowledged_bytes_) return false;
  last_acknowledged_bytes_ = acknowledged;
  if (question_at_) return acknowledged < *question_at_;
  return std::ranges::any_of(output_, [](const Output& one) { return one.kind == MessageKind::kAsk; });
}

bool TcpConnection::is_drained() const {
  if (!is_connected() || state_ != TcpState::kOpen) return true;
  pollfd ended{descriptor(), 0, 0};
  if (::poll(&ended, 1, 0) > 0) return true;  // reset, or shut down in both directions
  if (has_output()) return false;
  int unacknowledged = 0;
  return ::ioctl(descriptor(), SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0;
}

Status TcpConnection::read(std::span<uint8_t> scratch, size_t bytes_max, std::deque<ReceivedMessage>& arrived) {
  size_t taken = 0;
  while (taken < bytes_max && state_ == TcpState::kOpen) {
    const size_t missing = body_.size() - body_bytes_;
    const std::array<iovec, 2> parts{iovec{.iov_base = body_.data() + body_bytes_, .iov_len = missing},
                                     iovec{.iov_base = scratch.data(), .iov_len = scratch.size()}};
    const LinkResult found = link_->read(parts);
    const size_t count = found.bytes;
    taken += count;
    if (count > 0) {
      has_read_ = true;
      question_at_.reset();
    }
    const size_t of_body = std::min(count, missing);
    body_bytes_ += of_body;
    if (missing > 0 && of_body == missing) deliver(arrived);
    if (Status parsed = parse(ByteSpan(scratch).first(count - of_body), arrived); !parsed) {
      state_ = TcpState::kLost;
      return parsed;
    }
    if (found.state == LinkState::kBlocked) return {};
    if (found.state == LinkState::kOpen) continue;
    state_ = TcpState::kLost;
    if (found.state == LinkState::kEnded) return {};
    return fail(ErrorCode::kUnauthenticated,
                "the bytes that came from rank " + std::to_string(peer_) +
                    " are not those that it sealed: its connection was tampered with, or its memory is faulty");
  }
  return {};
}

Status TcpConnection::parse(ByteSpan bytes, std::deque<ReceivedMessage>& arrived) {
  while (!bytes.empty() && state_ == TcpState::kOpen) {
    if (message_) {
      const size_t count = std::min(bytes.size(), body_.size() - body_bytes_);
      std::memcpy(body_.data() + body_bytes_, bytes.data(), count);
      body_bytes_ += count;
      bytes = bytes.subspan(count);
      if (body_bytes_ == body_.size()) deliver(arrived);
      continue;
    }
    const size_t count = std::min(bytes.size(), header_.size() - header_bytes_);
    std::ranges::copy(bytes.first(count), header_.begin() + static_cast<ptrdiff_t>(header_bytes_));
    header_bytes_ += count;
    bytes = bytes.subspan(count);
    if (header_bytes_ < header_.size()) return {};
    header_bytes_ = 0;
    if (Status taken = take_header(arrived); !taken) return taken;
  }
  return {};
}

Status TcpConnection::take_header(std::deque<ReceivedMessage>& arrived) {
  const std::string of_peer = "a message of rank " + std::to_string(peer_) + ": ";
  if (const auto frame = decode_tcp_frame(header_); frame || frame.error() != TcpFrameFault::kMagic) {
    if (!frame || frame->kind != TcpFrameKind::kGoodbye) {
      return fail(ErrorCode::kMalformed, of_peer + "a handshake in the middle of the messages");
    }
    state_ = TcpState::kLeft;
    return {};
  }
  Result<DecodedHeader> header = decode_header(header_);
  if (!header) return fail(header.error().code, of_peer + header.error().message);
  if (header->body_bytes > body_bytes_max_) {
    return fail(ErrorCode::kLimitExceeded, of_peer + "its body has " + std::to_string(header->body_bytes) +
                                               " bytes, and this rank takes " + std::to_string(body_bytes_max_));
  }
  try {
    body_.resize(header->body_bytes);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kLimitExceeded,
                of_peer + "no memory for its body of " + std::to_string(header->body_bytes) + " bytes");
  }
  body_bytes_ = 0;
  message_ = std::move(header->message);
  if (body_.empty()) deliver(arrived);
  return {};
}

void TcpConnection::drop_input(std::span<uint8_t> scratch, size_t bytes_max) {
  for (size_t dropped = 0; is_connected() && dropped < bytes_max;) {
    const ssize_t found = ::recv(descriptor(), scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (found <= 0) return;
    dropped += static_cast<size_t>(found);
  }
}

void TcpConnection::deliver(std::deque<ReceivedMessage>& arrived) {
  if (!body_.empty()) message_->body = SharedBytes::from(std::exchange(body_, {}));
  body_bytes_ = 0;
  arrived.push_back({peer_, std::move(*message_)});
  message_.reset();
}

}  // namespace millrace::peer
