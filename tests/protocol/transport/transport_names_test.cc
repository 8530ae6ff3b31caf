#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/transport/connection_pair.h"
#include "protocol/transport/transport.h"

/// Hosts by their names: every address has its turn, of both families, and names are looked up again.
namespace millrace::protocol {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kNameWaitMs = 20'000;
/// Nothing listens on it: the system gives the ports of these tests out from another range.
constexpr const char* kNobody = "127.0.0.66";

SharedBytes name_bytes_of(const std::string& text) { return SharedBytes::from(ByteBuffer(text.begin(), text.end())); }

/// A resolver whose names a test makes up, and which counts.
class Names {
 public:
  void set(const std::string& name, const std::vector<std::string>& numbers) {
    const std::lock_guard lock(mutex_);
    names_[name] = numbers;
  }
  int lookups() const {
    const std::lock_guard lock(mutex_);
    return lookups_;
  }
  TransportOptions options() {
    TransportOptions options;
    options.resolver = [this](const std::string& host) { return resolve(host); };
    return options;
  }

 private:
  Result<std::vector<HostAddress>> resolve(const std::string& host) {
    const std::lock_guard lock(mutex_);
    ++lookups_;
    const auto found = names_.find(host);
    if (found == names_.end()) return fail(ErrorCode::kUnavailable, "the host '" + host + "' cannot be found");
    std::vector<HostAddress> addresses;
    for (const std::string& number : found->second) addresses.push_back(look_up_host(number)->front());
    return addresses;
  }

  mutable std::mutex mutex_;
  std::map<std::string, std::vector<std::string>> names_;
  int lookups_ = 0;
};

struct NamedHosts : ::testing::Test {
  Names names;
  TransportContext context{names.options()};
  Poller poller;

  std::unique_ptr<Listener> listen(const std::string& address) {
    auto bound = Listener::bind(context, address);
    EXPECT_TRUE(bound) << bound.error().message;
    return bound ? std::move(*bound) : nullptr;
  }
  static std::string port_of(const Listener& listener) {
    return listener.address().substr(listener.address().rfind(':') + 1);
  }
  std::unique_ptr<Connection> connect(const std::string& address) {
    auto connection = Connection::connect(context, address).value();
    poller.add(*connection);
    return connection;
  }
  ConnectionState settled(Connection& connection) {
    const TimeNs deadline = monotonic_now_ns() + kNameWaitMs * kNsPerMs;
    while (connection.state() == ConnectionState::kConnecting && monotonic_now_ns() < deadline) poller.wait(100);
    return connection.state();
  }
  /// As an owner does: whenever an attempt comes to nothing, another one. Returns how many it took.
  int attempts_until_connected(Connection& connection) {
    for (int attempts = 1; attempts < 10; ++attempts) {
      if (settled(connection) == ConnectionState::kConnected) return attempts;
      EXPECT_TRUE(connection.reconnect());
    }
    return -1;
  }
};

TEST_F(NamedHosts, AddressesOfBothFamiliesAreTriedInOrder) {
  const auto listener = listen("tcp://127.0.0.1:0");
  const std::vector<std::vector<std::string>> orders = {
      {"127.0.0.1"},          {"::1", "127.0.0.1"},          {"127.0.0.1", "::1"},
      {kNobody, "127.0.0.1"}, {kNobody, "::1", "127.0.0.1"}, {"::1", kNobody, "127.0.0.1"}};
  for (const auto& order : orders) {
    names.set("shard", order);
    const auto connection = connect("tcp://shard:" + port_of(*listener));
    const auto place = std::ranges::find(order, "127.0.0.1") - order.begin();
    EXPECT_EQ(attempts_until_connected(*connection), place + 1) << ::testing::PrintToString(order);
    poller.remove(*connection);
  }
}

TEST_F(NamedHosts, TwoNamesInTurn_EachTriesAllOfItsAddresses) {
  const auto listener = listen("tcp://127.0.0.1:0");
  names.set("old", {kNobody});
  names.set("new", {kNobody, "127.0.0.1"});
  std::unique_ptr<Connection> present;
  std::unique_ptr<Connection> other;
  for (const char* host : {"old", "new", "old", "new"}) {
    ASSERT_TRUE(
        connect_one_of_two(context, poller, "tcp://" + std::string(host) + ":" + port_of(*listener), present, other));
    settled(*present);
  }
  EXPECT_EQ(present->state(), ConnectionState::kConnected) << "the second address of the new name";
  ASSERT_TRUE(connect_one_of_two(context, poller, listener->address(), present, other));
  EXPECT_EQ(present->address(), listener->address());
  EXPECT_EQ(settled(*present), ConnectionState::kConnected);
}

TEST_F(NamedHosts, TwoAddressesInTurn_TheOtherOneHasNoSocketOpen) {
  // A listener that never accepts: the system takes the connection, and the handshake does not end.
  const int silent = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(at);
  ASSERT_EQ(::bind(silent, reinterpret_cast<const sockaddr*>(&at), bytes), 0);
  ASSERT_EQ(::listen(silent, 8), 0);
  ASSERT_EQ(::getsockname(silent, reinterpret_cast<sockaddr*>(&at), &bytes), 0);
  const std::string first = "tcp://127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  const auto listener = listen("tcp://127.0.0.1:0");
  std::unique_ptr<Connection> present;
  std::unique_ptr<Connection> other;
  ASSERT_TRUE(connect_one_of_two(context, poller, first, present, other));
  const int accepted = ::accept4(silent, nullptr, nullptr, SOCK_CLOEXEC);
  ASSERT_GE(accepted, 0);
  ASSERT_TRUE(connect_one_of_two(context, poller, listener->address(), present, other));
  ASSERT_EQ(settled(*present), ConnectionState::kConnected);
  pollfd ends{accepted, POLLRDHUP, 0};
  EXPECT_EQ(::poll(&ends, 1, kNameWaitMs), 1) << "the first process sees the end";
  ASSERT_TRUE(connect_one_of_two(context, poller, first, present, other)) << "its sockets open again";
  const int again = ::accept4(silent, nullptr, nullptr, SOCK_CLOEXEC);
  EXPECT_GE(again, 0);
  for (const int descriptor : {accepted, again, silent}) ::close(descriptor);
}

TEST(SlowResolver, ContinuesWhileTheOtherAddressIsTried) {
  std::promise<void> may_answer;
  std::atomic<int> lookups = 0;
  TransportOptions options;
  options.resolver = [&lookups, held = may_answer.get_future().share()](const std::string&) {
    ++lookups;
    held.wait();
    return look_up_host("127.0.0.1");
  };
  TransportContext context(std::move(options));
  const auto listener = Listener::bind(context, "tcp://127.0.0.1:0").value();
  const std::string port = listener->address().substr(listener->address().rfind(':') + 1);
  Poller poller;
  std::unique_ptr<Connection> present;
  std::unique_ptr<Connection> other;
  for (const char* host : {"slow", kNobody, "slow"})
    ASSERT_TRUE(connect_one_of_two(context, poller, "tcp://" + std::string(host) + ":" + port, present, other));
  may_answer.set_value();
  const TimeNs deadline = monotonic_now_ns() + kNameWaitMs * kNsPerMs;
  while (present->state() == ConnectionState::kConnecting && monotonic_now_ns() < deadline) poller.wait(100);
  EXPECT_EQ(present->state(), ConnectionState::kConnected);
  EXPECT_EQ(lookups, 1);
}

TEST_F(NamedHosts, AServerThatListensOnIPv6AloneIsReachedByItsName) {
  auto bound = Listener::bind(context, "tcp://[::1]:0");
  if (!bound) GTEST_SKIP() << "no IPv6 here: " << bound.error().message;
  names.set("shard", {"127.0.0.1", "::1"});
  const auto connection = connect("tcp://shard:" + port_of(**bound));
  EXPECT_EQ(attempts_until_connected(*connection), 2);
}

TEST_F(NamedHosts, TheAddressThatWorkedIsTriedFirstAfterItBroke) {
  auto listener = listen("tcp://127.0.0.1:0");
  const std::string address = listener->address();
  names.set("shard", {kNobody, "127.0.0.1"});
  const auto connection = connect("tcp://shard:" + port_of(*listener));
  ASSERT_EQ(attempts_until_connected(*connection), 2);
  listener.reset();
  const TimeNs deadline = monotonic_now_ns() + kNameWaitMs * kNsPerMs;
  while (connection->state() == ConnectionState::kConnected && monotonic_now_ns() < deadline) poller.wait(100);
  Result<std::unique_ptr<Listener>> again = fail(ErrorCode::kIo, "not bound yet");
  while (!again && monotonic_now_ns() < deadline) again = Listener::bind(context, address);
  ASSERT_TRUE(again);
  ASSERT_TRUE(connection->reconnect());
  EXPECT_EQ(attempts_until_connected(*connection), 1);
}

TEST_F(NamedHosts, ANameThatMovedIsLookedUpAgain) {
  const auto listener = listen("tcp://127.0.0.1:0");
  names.set("shard", {kNobody});
  const auto connection = connect("tcp://shard:" + port_of(*listener));
  ASSERT_EQ(settled(*connection), ConnectionState::kDisconnected);
  EXPECT_EQ(names.lookups(), 1);
  names.set("shard", {"127.0.0.1"});
  ASSERT_TRUE(connection->reconnect());
  EXPECT_EQ(settled(*connection), ConnectionState::kConnected);
  EXPECT_EQ(names.lookups(), 2);
}

TEST_F(NamedHosts, AnUnknownNameIsAnAttemptThatFailedAndSaysWhy) {
  const auto connection = connect("tcp://nowhere:7600");
  EXPECT_EQ(settled(*connection), ConnectionState::kDisconnected);
  EXPECT_THAT(connection->trouble(), HasSubstr("the host 'nowhere' cannot be found"));
  const auto listener = listen("tcp://127.0.0.1:0");
  names.set("nowhere", {"127.0.0.1"});
  ASSERT_TRUE(connection->reconnect());
  EXPECT_EQ(connection->trouble(), "");
  EXPECT_EQ(settled(*connection), ConnectionState::kDisconnected) << "port 7600 is not the listener's";
}

TEST_F(NamedHosts, ANumberIsNeverLookedUp) {
  const auto listener = listen("tcp://127.0.0.1:0");
  const auto connection = connect(listener->address());
  EXPECT_EQ(settled(*connection), ConnectionState::kConnected);
  EXPECT_EQ(names.lookups(), 0);
}

TEST(SlowResolver, NeitherBlocksItsThreadNorLosesNewMessages) {
  std::promise<void> may_answer;
  TransportOptions options;
  options.resolver = [held = may_answer.get_future().share()](const std::string&) {
    held.wait();
    return look_up_host("127.0.0.1");
  };
  TransportContext context(std::move(options));
  const auto listener = Listener::bind(context, "tcp://127.0.0.1:0").value();
  const std::string port = listener->address().substr(listener->address().rfind(':') + 1);
  const auto connection = Connection::connect(context, "tcp://slow:" + port).value();
  Poller poller;
  poller.add(*listener);
  poller.add(*connection);
  EXPECT_FALSE(poller.wait(0));
  EXPECT_EQ(connection->state(), ConnectionState::kConnecting);
  EXPECT_EQ(connection->send_frames(name_bytes_of("old"), {}), SendResult::kSent);
  ASSERT_TRUE(connection->reconnect()) << "the lookup continues";
  EXPECT_EQ(connection->send_frames(name_bytes_of("new"), name_bytes_of("1")), SendResult::kSent);
  const std::string unowned = "unowned";
  const ByteSpan span(ByteSpan(reinterpret_cast<const uint8_t*>(unowned.data()), unowned.size()));
  EXPECT_EQ(connection->send_frames({nullptr, span}, {}), SendResult::kSent);
  may_answer.set_value();
  std::vector<std::string> came;
  const TimeNs deadline = monotonic_now_ns() + kNameWaitMs * kNsPerMs;
  while (came.size() < 2 && monotonic_now_ns() < deadline) {
    poller.wait(100);
    while (const auto frames = listener->receive_frames())
      came.emplace_back(frames->frames.at(0).bytes.begin(), frames->frames.at(0).bytes.end());
  }
  EXPECT_THAT(came, ::testing::ElementsAre("new", "unowned"));
  EXPECT_EQ(connection->state(), ConnectionState::kConnected);
}

TEST_F(NamedHosts, AListenerTakesEveryAddressOfItsNameByOnePort) {
  names.set("both", {"127.0.0.1", "::1"});
  const bool has_ipv6 = Listener::bind(context, "tcp://[::1]:0").has_value();
  const auto listener = listen("tcp://both:0");
  EXPECT_THAT(listener->address(), StartsWith(has_ipv6 ? "tcp://both:" : "tcp://127.0.0.1:"));
  const auto by_ipv4 = connect("tcp://127.0.0.1:" + port_of(*listener));
  EXPECT_EQ(settled(*by_ipv4), ConnectionState::kConnected);
  if (!has_ipv6) GTEST_SKIP() << "no IPv6 here";
  const auto by_ipv6 = connect("tcp://[::1]:" + port_of(*listener));
  EXPECT_EQ(settled(*by_ipv6), ConnectionState::kConnected);
}

TEST_F(NamedHosts, AddressesOfOtherMachines_OmittedUnlessThereIsNoOther) {
  names.set("partly", {"203.0.113.7", "127.0.0.1"});
  EXPECT_THAT(listen("tcp://partly:0")->address(), StartsWith("tcp://127.0.0.1:"));
  names.set("elsewhere", {"203.0.113.7", "203.0.113.8"});
  const auto elsewhere = Listener::bind(context, "tcp://elsewhere:0");
  ASSERT_FALSE(elsewhere);
  EXPECT_EQ(elsewhere.error().code, ErrorCode::kIo);
  EXPECT_THAT(elsewhere.error().message, HasSubstr("cannot listen on tcp://203.0.113.8:"));
  const auto unknown = Listener::bind(context, "tcp://nowhere:0");
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("'nowhere' cannot be found"));
}

TEST_F(NamedHosts, APortThatIsInUseOnOneOfTheAddressesIsRefused) {
  const auto taken = listen("tcp://127.0.0.2:0");
  names.set("two", {"127.0.0.1", "127.0.0.2"});
  const auto listener = Listener::bind(context, "tcp://two:" + port_of(*taken));
  ASSERT_FALSE(listener);
  EXPECT_EQ(listener.error().code, ErrorCode::kIo);
  EXPECT_THAT(listener.error().message, HasSubstr("is in use"));
}

}  // namespace
}  // namespace millrace::protocol
