#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::testing {

/// A client that speaks ZMTP 3.0 with mechanism NULL over a socket of the system's. It can send bytes that ZeroMQ's own
/// clients never send. For listeners at 127.0.0.1.
class BareZmtp {
 public:
  /// A property of its READY command, beside the type of its socket.
  struct Property {
    std::string name;
    std::string value;
  };
  enum class Frame : uint8_t {
    kLast = 2,
    kMore = 3,
    kCommandAndMore = 7
  };  ///< flags of frames with a length of 8 bytes

  explicit BareZmtp(uint16_t port, const std::vector<Property>& properties = {})
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
    std::string greeting(64, '\0');  // signature, version, mechanism
    greeting[0] = '\xff';
    greeting[9] = '\x7f';
    greeting[10] = 3;
    greeting.replace(12, 4, "NULL");
    EXPECT_TRUE(send(greeting));
    std::string ready = "\x05READY" + text_of({"Socket-Type", "DEALER"});
    for (const Property& one : properties) ready += text_of(one);
    EXPECT_TRUE(send("\x04" + std::string(1, static_cast<char>(ready.size())) + ready));
    // ZeroMQ takes frames only after its own READY.
    const std::string head = read(greeting.size() + 2);
    if (head.size() == greeting.size() + 2) read(static_cast<uint8_t>(head.back()));
  }
  ~BareZmtp() { ::close(socket_); }
  BareZmtp(const BareZmtp&) = delete;
  BareZmtp& operator=(const BareZmtp&) = delete;

  /// Sends a frame. False: the listener has ended the connection.
  bool send_frame(Frame frame, std::string_view body) {
    std::string bytes(1, static_cast<char>(frame));
    bytes += big_endian(body.size(), 8);
    return send(bytes.append(body));
  }
  /// Reads until the listener ends the connection. False: it does not.
  bool is_ended() const {
    pollfd readable{socket_, POLLIN, 0};
    while (::poll(&readable, 1, kGiveUpMs) == 1) {
      char byte = 0;
      if (::recv(socket_, &byte, 1, 0) <= 0) return true;
    }
    return false;
  }

 private:
  static constexpr int kGiveUpMs = 60'000;
  static std::string big_endian(uint64_t number, size_t bytes) {
    std::string text(bytes, '\0');
    for (size_t at = 0; at < bytes; ++at) text[bytes - 1 - at] = static_cast<char>(number >> (8 * at));
    return text;
  }
  static std::string text_of(const Property& one) {
    return std::string(1, static_cast<char>(one.name.size())) + one.name + big_endian(one.value.size(), 4) + one.value;
  }
  /// Reads this many bytes; fewer where the connection ends before.
  std::string read(size_t bytes) const {
    std::string text;
    pollfd readable{socket_, POLLIN, 0};
    char byte = 0;
    while (text.size() < bytes && ::poll(&readable, 1, kGiveUpMs) == 1 && ::recv(socket_, &byte, 1, 0) == 1)
      text += byte;
    return text;
  }
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  int socket_;
};

}  // namespace millrace::testing
