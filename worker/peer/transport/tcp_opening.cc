#include "worker/peer/transport/tcp_opening.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace millrace::peer {
namespace {

using protocol::NoiseHandshake;

bool send_opening(const Descriptor& socket, const TcpFrameBytes& frame, ByteSpan message) {
  std::array<uint8_t, kTcpFrameBytes + protocol::kNoiseMessageBytes> bytes;
  std::ranges::copy(frame, bytes.begin());
  std::ranges::copy(message, bytes.begin() + kTcpFrameBytes);
  return ::send(socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

}  // namespace

void send_at_once(const Descriptor& socket) {
  const int on = 1;
  ::setsockopt(socket.number(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool is_its_own_peer(const Descriptor& socket) {
  sockaddr_storage here{}, there{};
  socklen_t here_length = sizeof here, there_length = sizeof there;
  return ::getsockname(socket.number(), std::bit_cast<sockaddr*>(&here), &here_length) == 0 &&
         ::getpeername(socket.number(), std::bit_cast<sockaddr*>(&there), &there_length) == 0 &&
         here_length == there_length && std::memcmp(&here, &there, here_length) == 0;
}

size_t TcpOpening::wanted() const {
  if (count_ < kTcpFrameBytes) return kTcpFrameBytes;
  const auto first = frame();
  const bool has_message = first && (first->kind == TcpFrameKind::kOpening || first->kind == TcpFrameKind::kOpened);
  return has_message ? bytes_.size() : kTcpFrameBytes;
}

bool TcpOpening::read(const Descriptor& socket) {
  while (!is_whole()) {
    const ssize_t found = ::recv(socket.number(), bytes_.data() + count_, wanted() - count_, MSG_DONTWAIT);
    if (found > 0) {
      count_ += static_cast<size_t>(found);
    } else if (found == 0) {
      return false;
    } else if (errno != EINTR) {
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
  }
  return true;
}

bool ArrivingFrame::read(TcpLink& link) {
  while (!is_whole()) {
    const std::array part{iovec{.iov_base = bytes.data() + count, .iov_len = bytes.size() - count}};
    const LinkResult found = link.read(part);
    count += found.bytes;
    if (found.state == LinkState::kBlocked) return true;
    if (found.state != LinkState::kOpen) return false;
  }
  return true;
}

bool send_frame(TcpLink& link, const TcpFrame& frame) {
  TcpFrameBytes bytes = encode_tcp_frame(frame);
  const std::array part{iovec{.iov_base = bytes.data(), .iov_len = bytes.size()}};
  return link.write(part).bytes == bytes.size() && link.output_bytes() == 0;
}

TcpCaller::TcpCaller(const protocol::SecretKey& key)
    : frame_(encode_tcp_frame({.kind = TcpFrameKind::kOpening})),
      noise_(NoiseHandshake::Side::kConnects, key, frame_) {}

bool TcpCaller::send(const Descriptor& socket) { return send_opening(socket, frame_, noise_.write()); }

std::optional<NoiseHandshake::Ciphers> TcpCaller::take(const TcpOpening& answer) {
  if (!noise_.read(answer.message())) return std::nullopt;
  return noise_.ciphers();
}

std::expected<NoiseHandshake::Ciphers, OpeningFault> answer_opening(const protocol::SecretKey& key,
                                                                    const TcpOpening& opening,
                                                                    const Descriptor& socket) {
  NoiseHandshake noise(NoiseHandshake::Side::kAccepts, key, opening.frame_span());
  if (!noise.read(opening.message())) return std::unexpected(OpeningFault::kOtherKey);
  if (!send_opening(socket, encode_tcp_frame({.kind = TcpFrameKind::kOpened}), noise.write())) {
    return std::unexpected(OpeningFault::kNotSent);
  }
  return noise.ciphers();
}

}  // namespace millrace::peer
