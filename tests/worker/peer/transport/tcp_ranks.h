#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/descriptor.h"
#include "worker/peer/transport/tcp_communicator.h"
#include "worker/peer/transport/tcp_opening.h"

namespace millrace::peer::testing {

/// Says what acknowledges bytes: over kUnix the process that reads them, over kTcp the machine, for a stopped process
/// too.
enum class SocketsOver : uint8_t { kUnix = 1, kTcp = 2 };

/// Both ends of a connection that do not block, with 64 KiB to send, and over TCP to receive, on every machine.
inline std::array<Descriptor, 2> connected_sockets(SocketsOver over = SocketsOver::kUnix) {
  constexpr int kKind = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
  const int room = 64 << 10;
  std::array<Descriptor, 2> ends;
  if (over == SocketsOver::kUnix) {
    std::array<int, 2> pair{};
    EXPECT_EQ(::socketpair(AF_UNIX, kKind, 0, pair.data()), 0);
    ends = {Descriptor(pair[0]), Descriptor(pair[1])};
  } else {
    const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ends[0] = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    // The ends of the listener's connections have its room.
    for (const int one : {listener.number(), ends[0].number()}) {
      EXPECT_EQ(::setsockopt(one, SOL_SOCKET, SO_RCVBUF, &room, sizeof room), 0);
    }
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof at;
    auto* const any = reinterpret_cast<sockaddr*>(&at);
    EXPECT_EQ(::bind(listener.number(), any, bytes), 0);
    EXPECT_EQ(::listen(listener.number(), 1), 0);
    EXPECT_EQ(::getsockname(listener.number(), any, &bytes), 0);
    EXPECT_EQ(::connect(ends[0].number(), any, bytes), 0);
    ends[1] = Descriptor(::accept4(listener.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    EXPECT_EQ(::fcntl(ends[0].number(), F_SETFL, O_NONBLOCK), 0);
    for (const Descriptor& end : ends) send_at_once(end);
  }
  for (const Descriptor& end : ends)
    EXPECT_EQ(::setsockopt(end.number(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room), 0);
  return ends;
}

/// Returns the ciphers of both sides of a handshake, of the one that connects first.
inline std::array<protocol::NoiseHandshake::Ciphers, 2> ciphers_of_both() {
  using protocol::NoiseHandshake;
  const protocol::SecretKey secret = protocol::draw_key_pair().secret;
  NoiseHandshake connects(NoiseHandshake::Side::kConnects, secret, {});
  NoiseHandshake accepts(NoiseHandshake::Side::kAccepts, secret, {});
  EXPECT_TRUE(accepts.read(connects.write()));
  EXPECT_TRUE(connects.read(accepts.write()));
  return {connects.ciphers(), accepts.ciphers()};
}

/// Two ranks over sockets that are connected, directly or through a thread of a test.
inline std::array<std::unique_ptr<TcpCommunicator>, 2> ranks_over(Descriptor socket_of_zero, Descriptor socket_of_one) {
  std::vector<std::unique_ptr<TcpLink>> zero(2), one(2);
  zero[1] = plain_link(std::move(socket_of_zero));
  one[0] = plain_link(std::move(socket_of_one));
  return {TcpCommunicator::over(0, std::move(zero)).value(), TcpCommunicator::over(1, std::move(one)).value()};
}

/// Listeners on free ports of one address of this machine, and their addresses.
struct TcpAddresses {
  explicit TcpAddresses(uint32_t size, const std::string& host = "127.0.0.1") {
    for (uint32_t rank = 0; rank < size; ++rank) {
      listeners.push_back(TcpListener::open(host + ":0").value());
      meeting.addresses.push_back(listeners.back().address());
    }
  }
  TcpMeeting of(uint32_t rank) const {
    TcpMeeting own = meeting;
    own.rank = rank;
    return own;
  }

  std::vector<TcpListener> listeners;
  TcpMeeting meeting;
};

/// The ranks of one process over TCP on loopback.
class TcpNetwork {
 public:
  explicit TcpNetwork(uint32_t size, const std::string& host = "127.0.0.1",
                      const std::optional<protocol::SecretKey>& key = {})
      : sockets_(size), ranks_(size) {
    TcpAddresses all(size, host);
    all.meeting.key = key;
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < size; ++rank) {
      threads.emplace_back([this, &all, rank] {
        auto links = meet_ranks(std::move(all.listeners[rank]), all.of(rank));
        ASSERT_TRUE(links.has_value()) << links.error().message;
        for (const auto& one : *links) sockets_[rank].emplace_back(one ? ::dup(one->socket().number()) : -1);
        ranks_[rank] = TcpCommunicator::over(rank, std::move(*links)).value();
      });
    }
  }

  Communicator& communicator(uint32_t rank) { return *ranks_[rank]; }
  /// Ends the rank's connections as the end of its process does.
  void lose(uint32_t rank) {
    for (const Descriptor& one : sockets_[rank]) {
      if (one) ::shutdown(one.number(), SHUT_RDWR);
    }
  }
  /// Destroys the rank's communicator.
  void leave(uint32_t rank) { ranks_[rank].reset(); }

 private:
  std::vector<std::vector<Descriptor>> sockets_;  ///< as the communicators have
  std::vector<std::unique_ptr<TcpCommunicator>> ranks_;
};

}  // namespace millrace::peer::testing
