#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "tests/worker/peer/transport/tcp_ranks.h"
#include "worker/peer/transport/tcp_frame.h"

/// Strangers that connect to ranks which meet, and the sentences of ranks that do not.
namespace millrace::peer::testing {

/// Waits for a frame, and returns whether it is of a kind.
inline bool hears(const Descriptor& socket, TcpFrameKind kind) {
  TcpFrameBytes bytes = {};
  if (::recv(socket.number(), bytes.data(), bytes.size(), MSG_WAITALL) != static_cast<ssize_t>(bytes.size())) {
    return false;
  }
  const auto frame = decode_tcp_frame(bytes);
  return frame && frame->kind == kind;
}

/// A connection of a stranger.
class Stranger {
 public:
  explicit Stranger(const std::string& address) {
    const auto host_port = protocol::parse_host_port(address).value();
    const auto at = protocol::socket_address(protocol::look_up_host(host_port.host)->front(), host_port.port);
    socket_ = Descriptor(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    connected_ = ::connect(socket_.number(), at.any(), at.length) == 0;
  }
  bool is_connected() const { return connected_; }
  const Stranger& say(ByteSpan bytes) const {
    EXPECT_EQ(::send(socket_.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    return *this;
  }
  const Stranger& say(std::string_view text) const {
    return say(ByteSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
  }
  /// Returns all that the other side says until it closes.
  ByteBuffer hear() const {
    ByteBuffer heard;
    std::array<uint8_t, 256> bytes;
    for (;;) {
      const ssize_t found = ::recv(socket_.number(), bytes.data(), bytes.size(), 0);
      if (found <= 0) return heard;
      heard.insert(heard.end(), bytes.begin(), bytes.begin() + found);
    }
  }
  /// Returns whether the next frame that it hears is a welcome. The connection stays open.
  bool is_welcome() const { return hears(socket_, TcpFrameKind::kWelcome); }
  /// Returns whether the meeting ends for it.
  bool has_met() const { return hears(socket_, TcpFrameKind::kMet); }
  /// Returns whether there is nothing to hear yet.
  bool hears_nothing() const {
    uint8_t byte = 0;
    return ::recv(socket_.number(), &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) < 0;
  }
  /// Takes its socket out.
  Descriptor take_socket() { return std::move(socket_); }
  /// Returns the reason of the refusal that it hears, and expects that it learns no group.
  TcpRefusal refusal() const {
    const ByteBuffer heard = hear();
    if (heard.size() != kTcpFrameBytes) return TcpRefusal::kNone;
    const auto frame = decode_tcp_frame(ByteSpan(heard).first<kTcpFrameBytes>());
    if (!frame || frame->kind != TcpFrameKind::kRefusal) return TcpRefusal::kNone;
    EXPECT_EQ(frame->group, 0U);
    return frame->refusal;
  }

 private:
  Descriptor socket_;
  bool connected_ = false;
};

inline Result<std::vector<std::unique_ptr<TcpLink>>> meet_in(TcpAddresses& all, uint32_t rank) {
  return meet_ranks(std::move(all.listeners[rank]), all.of(rank));
}

inline std::string refusal_sentence_of(const Result<std::vector<std::unique_ptr<TcpLink>>>& met, ErrorCode code) {
  if (met) return "they met";
  EXPECT_EQ(met.error().code, code) << met.error().message;
  return met.error().message;
}

}  // namespace millrace::peer::testing
