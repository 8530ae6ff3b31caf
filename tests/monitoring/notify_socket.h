#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string>

#include "kernels/base/descriptor.h"

namespace millrace {

/// A service manager's socket: what NOTIFY_SOCKET names.
class NotifySocket {
 public:
  /// name   a path, or '@' and an abstract name.
  explicit NotifySocket(const std::string& name) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name.front() == '@') address.sun_path[0] = '\0';
    const size_t bytes = offsetof(sockaddr_un, sun_path) + name.size() + (name.front() == '@' ? 0 : 1);
    socket_ = Descriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(socket_.number(), std::bit_cast<const sockaddr*>(&address), static_cast<socklen_t>(bytes)), 0);
  }

  /// Returns the next datagram; "nothing" if none comes for 20 s.
  std::string next() { return take(20'000); }
  /// Returns a datagram that has come; "nothing" without one.
  std::string now() { return take(0); }
  /// Returns the next datagram that is no sign of life.
  std::string next_state() {
    std::string datagram = next();
    while (datagram == "WATCHDOG=1") datagram = next();
    return datagram;
  }

 private:
  std::string take(int wait_ms) {
    pollfd readable{socket_.number(), POLLIN, 0};
    if (::poll(&readable, 1, wait_ms) <= 0) return "nothing";
    std::array<char, 4096> bytes;
    const ssize_t got = ::recv(socket_.number(), bytes.data(), bytes.size(), 0);
    return got < 0 ? "nothing" : std::string(bytes.data(), static_cast<size_t>(got));
  }

  Descriptor socket_;
};

}  // namespace millrace
