#pragma once

#include <gtest/gtest.h>
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

namespace millrace::peer::testing {

/// Both ends of a connection that do not block, with 64 KiB to send on every machine.
inline std::array<Descriptor, 2> connected_sockets() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
  const int room = 64 << 10;
  for (const int end : ends) EXPECT_EQ(::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &room, sizeof room), 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
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
