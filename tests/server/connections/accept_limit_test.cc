#include "server/connections/accept_limit.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

#include "kernels/base/clock.h"
#include "kernels/base/descriptor.h"
#include "monitoring/http/http_sockets.h"
#include "protocol/address/stream_sockets.h"
#include "protocol/transport/transport.h"

/// Connections that a process accepts only as long as it keeps descriptors for itself (server/connections/accept4.cc).
namespace millrace::server {
namespace {

constexpr int kWaitMs = 20'000;

struct AcceptLimit : ::testing::Test {
  ~AcceptLimit() override { set_accept_limit(std::numeric_limits<uint64_t>::max()); }

  /// No connection gets one of the numbers that are free now.
  static void accept_nothing() {
    const int lowest = ::dup(STDIN_FILENO);
    ::close(lowest);
    set_accept_limit(static_cast<uint64_t>(lowest));
  }
};

TEST_F(AcceptLimit, AConnectionOverItIsClosedAndCountsAsGone) {
  const auto listeners = protocol::listen_on_host({.host = "127.0.0.1", .port = 0});
  ASSERT_TRUE(listeners);
  const int listener = listeners->sockets.front().number();
  const auto connect = [&] {
    return std::move(*monitoring::connect_to_host({.host = "127.0.0.1", .port = listeners->port}, kWaitMs));
  };
  const auto wait = [&](int descriptor) {
    pollfd item{descriptor, POLLIN, 0};
    return ::poll(&item, 1, kWaitMs) == 1;
  };
  const Descriptor refused = connect();
  ASSERT_TRUE(wait(listener));
  accept_nothing();
  take_over_accept_limit();
  EXPECT_EQ(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC), -1);
  EXPECT_EQ(errno, ECONNABORTED);
  EXPECT_EQ(take_over_accept_limit(), 1u);
  EXPECT_EQ(take_over_accept_limit(), 0u);
  char byte = 0;
  ASSERT_TRUE(wait(refused.number()));
  EXPECT_EQ(::recv(refused.number(), &byte, 1, 0), 0);
  EXPECT_EQ(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC), -1);
  EXPECT_EQ(errno, EAGAIN) << "nothing is left to try again";

  set_accept_limit(std::numeric_limits<uint64_t>::max());
  const Descriptor taken = connect();
  ASSERT_TRUE(wait(listener));
  const uint64_t before = accepted_connections();
  const int accepted = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  EXPECT_GE(accepted, 0);
  EXPECT_EQ(accepted_connections(), before + 1) << "those that were closed at once are not among them";
  ::close(accepted);
}

TEST_F(AcceptLimit, ZeroMqAcceptsByIt) {
  protocol::TransportContext context;
  const auto listener = protocol::Listener::bind(context, "tcp://127.0.0.1:0").value();
  protocol::Poller poller;
  accept_nothing();
  const auto connection = protocol::Connection::connect(context, listener->address()).value();
  poller.add(*connection);
  const auto settled = [&] {
    const TimeNs deadline = monotonic_now_ns() + kWaitMs * kNsPerMs;
    while (connection->state() == protocol::ConnectionState::kConnecting && monotonic_now_ns() < deadline)
      poller.wait(100);
    return connection->state();
  };
  EXPECT_EQ(settled(), protocol::ConnectionState::kDisconnected);
  set_accept_limit(std::numeric_limits<uint64_t>::max());
  ASSERT_TRUE(connection->reconnect());
  EXPECT_EQ(settled(), protocol::ConnectionState::kConnected);
}

}  // namespace
}  // namespace millrace::server
