// Marks of the network [RFC3168] on kernel sockets: the marks that a port sets and reads, beside bare sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "protocol/address/endpoint_text.h"
#include "switch_agg/packet_io/udp_port.h"

namespace millrace::switch_agg {
namespace {

using protocol::Ecn;

constexpr int kUdpEcnPatienceMs = 60'000;

std::unique_ptr<UdpPort> open_udp_ecn(const char* address) {
  auto port = UdpPort::open({.listen = protocol::parse_endpoint(address).value()});
  return port ? std::move(*port) : nullptr;
}

/// A socket of the loopback address that is all the test's.
class BareSocket {
 public:
  explicit BareSocket(int family) : family_(family), socket_(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(socket_, IPPROTO_IP, IP_RECVTOS, &on, sizeof on);
    if (family_ == AF_INET6) ::setsockopt(socket_, IPPROTO_IPV6, IPV6_RECVTCLASS, &on, sizeof on);
    const protocol::Endpoint any = protocol::parse_endpoint(family_ == AF_INET ? "127.0.0.1:0" : "[::1]:0").value();
    EXPECT_EQ(::bind(socket_, reinterpret_cast<const sockaddr*>(&name_of(any)), bytes()), 0);
  }
  ~BareSocket() { ::close(socket_); }
  BareSocket(const BareSocket&) = delete;
  BareSocket& operator=(const BareSocket&) = delete;

  void set_traffic_class(int value) const {
    const bool four = family_ == AF_INET;
    const int level = four ? IPPROTO_IP : IPPROTO_IPV6;
    EXPECT_EQ(::setsockopt(socket_, level, four ? IP_TOS : IPV6_TCLASS, &value, sizeof value), 0);
  }
  /// Sends datagrams of `bytes` bytes from here on, as segments of one piece (UDP_SEGMENT).
  void set_segment(int bytes) const { EXPECT_EQ(::setsockopt(socket_, SOL_UDP, UDP_SEGMENT, &bytes, sizeof bytes), 0); }
  void send(const std::vector<uint8_t>& data, const protocol::Endpoint& to) {
    const auto* const name = reinterpret_cast<const sockaddr*>(&name_of(to));
    EXPECT_EQ(::sendto(socket_, data.data(), data.size(), 0, name, bytes()), std::ssize(data));
  }
  protocol::Endpoint address() const {
    sockaddr_storage name{};
    socklen_t name_bytes = sizeof name;
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&name), &name_bytes), 0);
    protocol::Endpoint out = protocol::parse_endpoint(family_ == AF_INET ? "127.0.0.1:0" : "[::1]:0").value();
    in_port_t port = 0;
    std::memcpy(&port, reinterpret_cast<const uint8_t*>(&name) + offsetof(sockaddr_in, sin_port), sizeof port);
    out.port = ntohs(port);
    return out;
  }
  /// TOS or traffic class of the next datagram; empty: none comes.
  std::optional<int> next_traffic_class() const {
    pollfd readable{socket_, POLLIN, 0};
    if (::poll(&readable, 1, kUdpEcnPatienceMs) != 1) return std::nullopt;
    std::array<uint8_t, 2048> data;
    alignas(cmsghdr) std::array<uint8_t, 256> control;
    iovec piece{data.data(), data.size()};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (::recvmsg(socket_, &message, 0) < 0) return std::nullopt;
    for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
      if (at->cmsg_level == IPPROTO_IP && at->cmsg_type == IP_TOS) return *CMSG_DATA(at);
      if (at->cmsg_level != IPPROTO_IPV6 || at->cmsg_type != IPV6_TCLASS) continue;
      int value = 0;
      std::memcpy(&value, CMSG_DATA(at), sizeof value);
      return value;
    }
    return std::nullopt;
  }

 private:
  socklen_t bytes() const { return family_ == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6); }
  const sockaddr_storage& name_of(const protocol::Endpoint& to) {
    name_ = {};
    if (family_ == AF_INET) {
      sockaddr_in four{};
      four.sin_family = AF_INET;
      four.sin_port = htons(to.port);
      std::memcpy(&four.sin_addr, to.address.data() + 12, sizeof four.sin_addr);
      std::memcpy(&name_, &four, sizeof four);
    } else {
      sockaddr_in6 six{};
      six.sin6_family = AF_INET6;
      six.sin6_port = htons(to.port);
      std::memcpy(&six.sin6_addr, to.address.data(), sizeof six.sin6_addr);
      std::memcpy(&name_, &six, sizeof six);
    }
    return name_;
  }

  int family_;
  int socket_;
  sockaddr_storage name_{};
};

/// A port, and the family of its clients: IPv4 also to a port of both.
struct Way {
  const char* listen;
  const char* reached_at;
  int family;
};
class UdpEcn : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    port_ = open_udp_ecn(GetParam().listen);
    if (!port_) GTEST_SKIP() << "no IPv6 on this machine";
    at_ = protocol::parse_endpoint(GetParam().reached_at).value();
    at_.port = port_->address().port;
  }
  void gather(size_t bytes, const protocol::Endpoint& to) {
    const std::span<uint8_t> room = port_->room();
    ASSERT_GE(room.size(), bytes);
    std::ranges::fill(room.first(bytes), uint8_t{0});  // of one job: such packets keep their order
    port_->send(bytes, to);
  }
  /// Of the next `count` packets that come to the port.
  std::vector<Ecn> seen(size_t count) {
    std::vector<Ecn> out;
    while (out.size() < count) {
      port_->wait(kUdpEcnPatienceMs);
      const auto burst = port_->receive();
      if (burst.empty()) break;
      for (const protocol::ReceivedPacket& packet : burst) out.push_back(packet.ecn);
    }
    return out;
  }
  std::unique_ptr<UdpPort> port_;
  protocol::Endpoint at_;
};

TEST_P(UdpEcn, SentDatagramsCarryEct0) {
  const BareSocket worker(GetParam().family);
  gather(100, worker.address());
  port_->flush();
  EXPECT_EQ(worker.next_traffic_class(), 2) << "one datagram";
  for (int i = 0; i < 3; ++i) gather(100, worker.address());
  port_->flush();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(worker.next_traffic_class(), 2) << "of a piece, " << i;
}

TEST_P(UdpEcn, SetEcnMarksOnlyThePacketsAfterIt) {
  const BareSocket worker(GetParam().family);
  const BareSocket other(GetParam().family);
  const std::array<protocol::Endpoint, 2> both = {worker.address(), other.address()};
  gather(100, worker.address());
  port_->set_ecn(Ecn::kCe);
  gather(100, worker.address());
  port_->send_to_each(std::array<uint8_t, 100>{}, both);
  port_->set_ecn(Ecn::kEct0);
  for (int i = 0; i < 2; ++i) gather(100, worker.address());
  port_->flush();
  for (const int expected : {2, 3, 3, 2, 2}) EXPECT_EQ(worker.next_traffic_class(), expected);
  EXPECT_EQ(other.next_traffic_class(), 3);
  EXPECT_EQ(port_->counters().send_refused, 0u);
}

TEST_P(UdpEcn, OnlyTheEcnBitsOfTheTrafficClassAreRead) {
  BareSocket worker(GetParam().family);
  for (const int traffic_class : {0, 1, 2, 3, 0xB8 | 3, 0xB8}) {
    worker.set_traffic_class(traffic_class);
    worker.send({1, 2, 3}, at_);
    EXPECT_THAT(seen(1), ::testing::ElementsAre(static_cast<Ecn>(traffic_class & 3))) << traffic_class;
  }
}

TEST_P(UdpEcn, AllDatagramsOfAPieceHaveItsMark) {
  BareSocket worker(GetParam().family);
  worker.set_segment(100);
  for (const int traffic_class : {3, 2, 3}) {
    worker.set_traffic_class(traffic_class);
    worker.send(std::vector<uint8_t>(450, 7), at_);
  }
  std::vector<Ecn> expected(15, Ecn::kCe);
  std::fill_n(expected.begin() + 5, 5, Ecn::kEct0);
  EXPECT_EQ(seen(expected.size()), expected);
}

TEST_P(UdpEcn, AMarkIsOfItsOwnPacketAlone) {
  BareSocket marked(GetParam().family);
  marked.set_traffic_class(3);
  BareSocket plain(GetParam().family);
  marked.send({1}, at_);
  plain.send({2}, at_);
  EXPECT_THAT(seen(2), ::testing::ElementsAre(Ecn::kCe, Ecn::kNotEct));
}

INSTANTIATE_TEST_SUITE_P(Ways, UdpEcn,
                         ::testing::Values(Way{"127.0.0.1:0", "127.0.0.1:0", AF_INET},
                                           Way{"[::1]:0", "[::1]:0", AF_INET6}, Way{"[::]:0", "[::1]:0", AF_INET6},
                                           Way{"[::]:0", "127.0.0.1:0", AF_INET}));

}  // namespace
}  // namespace millrace::switch_agg
