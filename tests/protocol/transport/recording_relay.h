#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

namespace millrace::testing {

/// A TCP socket of the loopback.
class LoopbackSocket {
 public:
  explicit LoopbackSocket(int number = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) : number_(number) {}
  ~LoopbackSocket() { ::close(number_); }
  LoopbackSocket(const LoopbackSocket&) = delete;
  LoopbackSocket& operator=(const LoopbackSocket&) = delete;

  int number() const { return number_; }
  void connect(uint16_t port) const {
    const sockaddr_in at = address(port);
    EXPECT_EQ(::connect(number_, reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  }
  /// Returns the port.
  uint16_t listen() const {
    sockaddr_in at = address(0);
    socklen_t size = sizeof(at);
    EXPECT_EQ(::bind(number_, reinterpret_cast<const sockaddr*>(&at), size), 0);
    EXPECT_EQ(::listen(number_, 1), 0);
    EXPECT_EQ(::getsockname(number_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    return ntohs(at.sin_port);
  }
  /// Returns whether there is something to read, or the end, within `milliseconds`.
  bool readable(int milliseconds) const {
    pollfd waiting{number_, POLLIN, 0};
    return ::poll(&waiting, 1, milliseconds) == 1;
  }
  /// Returns bytes that are there. Empty: the other end has closed.
  std::string read() const {
    std::array<char, 4096> bytes{};
    const ssize_t got = ::recv(number_, bytes.data(), bytes.size(), 0);
    return {bytes.data(), got > 0 ? static_cast<size_t>(got) : 0};
  }
  void write(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(number_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }

 private:
  static sockaddr_in address(uint16_t port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
  }

  int number_;
};

/// Forwards one connection to a port of the loopback, and records the bytes of the caller.
class RecordingRelay {
 public:
  /// read_max  bytes of the caller that it reads before release()
  explicit RecordingRelay(uint16_t to, size_t read_max = SIZE_MAX)
      : read_max_(read_max),
        port_(listener_.listen()),
        thread_([this, to](const std::stop_token& stop) { run(to, stop); }) {}

  uint16_t port() const { return port_; }
  void release() { read_max_ = SIZE_MAX; }
  /// Ends the connection and returns the bytes of the caller.
  std::string end() {
    thread_.request_stop();
    thread_.join();
    return recorded_;
  }

 private:
  static constexpr int kLookMs = 20;

  void run(uint16_t to, const std::stop_token& stop) {
    while (!stop.stop_requested() && !listener_.readable(kLookMs)) {
    }
    if (stop.stop_requested()) return;
    const LoopbackSocket caller(::accept(listener_.number(), nullptr, nullptr));
    const LoopbackSocket called;
    called.connect(to);
    while (!stop.stop_requested()) {
      const bool reads = recorded_.size() < read_max_;
      if (reads && caller.readable(kLookMs)) {
        const std::string said = caller.read();
        if (said.empty()) return;
        recorded_ += said;
        called.write(said);
      }
      if (!called.readable(reads ? 0 : kLookMs)) continue;
      const std::string answered = called.read();
      if (answered.empty()) return;
      caller.write(answered);
    }
  }

  std::atomic<size_t> read_max_;
  LoopbackSocket listener_;
  uint16_t port_;
  std::string recorded_;  ///< the thread's until it has ended
  std::jthread thread_;   ///< last: it uses the members above
};

}  // namespace millrace::testing
