#include "monitoring/http/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "monitoring/http/http_port.h"
#include "protocol/address/stream_sockets.h"

namespace millrace::monitoring {
namespace {

constexpr int kTimeoutMs = 20'000;

std::unique_ptr<HttpPort> port_with_status(const std::string& status) {
  auto port = HttpPort::start("127.0.0.1:0", "--http",
                              {.metrics_text = [] { return std::string(); },
                               .unhealthy = []() -> std::optional<std::string> { return "not yet"; },
                               .status_json = [status] { return status; }});
  EXPECT_TRUE(port);
  return std::move(*port);
}

std::string address_of(const HttpPort& port) { return "127.0.0.1:" + std::to_string(port.port()); }

TEST(HttpGet, ReadsTheStatusCodeAndTheBodyOfAReply) {
  const auto port = port_with_status(R"({"shard": 1})");
  const auto status = http_get(address_of(*port), "/status", kTimeoutMs);
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(status->status, 200);
  EXPECT_EQ(status->body, R"({"shard": 1})");
  EXPECT_EQ(http_get(address_of(*port), "/healthz", kTimeoutMs)->status, 503);
  EXPECT_EQ(http_get(address_of(*port), "/absent", kTimeoutMs)->status, 404);
}

TEST(HttpGet, ABodyOverTheLimitIsRefused) {
  const auto port = port_with_status(std::string(kHttpReplyBytesMax + 1, 'x'));
  EXPECT_EQ(http_get(address_of(*port), "/status", kTimeoutMs).error().code, ErrorCode::kLimitExceeded);
}

TEST(HttpGet, TheErrorNamesAnAddressThatDoesNotAnswer) {
  std::string address;
  {
    const auto port = port_with_status("{}");
    address = address_of(*port);
  }
  const auto reply = http_get(address, "/status", kTimeoutMs);
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(reply.error().message, ::testing::StartsWith(address + " does not answer"));
}

/// A server of one connection that sends `pieces`, and then the last one again and again until the client goes.
class Dripping {
 public:
  explicit Dripping(std::vector<std::string> pieces) {
    auto listeners = protocol::listen_on_host({.host = "127.0.0.1", .port = 0});
    EXPECT_TRUE(listeners);
    listeners_ = std::move(*listeners);
    thread_ = std::thread([this, pieces = std::move(pieces)] { serve(pieces); });
  }
  ~Dripping() { thread_.join(); }
  Dripping(const Dripping&) = delete;
  Dripping& operator=(const Dripping&) = delete;
  std::string address() const { return "127.0.0.1:" + std::to_string(listeners_.port); }

 private:
  void serve(const std::vector<std::string>& pieces) {
    constexpr int kEveryMs = 20;
    pollfd listening{listeners_.sockets.front().number(), POLLIN, 0};
    ::poll(&listening, 1, kTimeoutMs);
    const Descriptor peer(::accept(listening.fd, nullptr, nullptr));
    for (size_t at = 0;; at = std::min(at + 1, pieces.size() - 1)) {
      pollfd gone{peer.number(), POLLRDHUP, 0};
      if (::poll(&gone, 1, kEveryMs) != 0) return;
      if (::send(peer.number(), pieces[at].data(), pieces[at].size(), MSG_NOSIGNAL) < 0) return;
    }
  }

  protocol::StreamListeners listeners_;
  std::thread thread_;
};

TEST(HttpGet, AGetFromADrippingServerTimesOut) {
  constexpr int kShortMs = 300;
  const std::vector<std::vector<std::string>> drips = {
      {"H"},                                                       // never a head
      {"HTTP/1.1 200 OK\r\n", "X: y\r\n"},                         // headers without an end
      {"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", "x"},  // a body that does not get whole
      {"HTTP/1.1 200 OK\r\n\r\n", "x"},                            // one without a length
  };
  for (const auto& pieces : drips) {
    const Dripping server(pieces);
    const auto reply = http_get(server.address(), "/status", kShortMs);
    ASSERT_FALSE(reply) << pieces.front();
    EXPECT_EQ(reply.error().code, ErrorCode::kUnavailable) << pieces.front();
  }
}

TEST(HttpGet, AReplyEndsWithItsLengthOrWithItsConnection) {
  const std::vector<std::string> replies = {"HTTP/1.1 200 OK\r\nCONTENT-LENGTH:  2\r\n\r\n{}",
                                            "HTTP/1.0 200\r\n\r\n{}"};
  for (size_t i = 0; i < replies.size(); ++i) {
    auto listeners = protocol::listen_on_host({.host = "127.0.0.1", .port = 0});
    ASSERT_TRUE(listeners);
    std::thread server([&] {
      pollfd listening{listeners->sockets.front().number(), POLLIN, 0};
      ::poll(&listening, 1, kTimeoutMs);
      const Descriptor peer(::accept(listening.fd, nullptr, nullptr));
      ::send(peer.number(), replies[i].data(), replies[i].size(), MSG_NOSIGNAL);
      ::shutdown(peer.number(), SHUT_WR);
      char byte = 0;
      while (::recv(peer.number(), &byte, 1, 0) > 0) {
      }
    });
    const auto reply = http_get("127.0.0.1:" + std::to_string(listeners->port), "/status", kTimeoutMs);
    server.join();
    ASSERT_TRUE(reply) << reply.error().message;
    EXPECT_EQ(reply->status, 200);
    EXPECT_EQ(reply->body, "{}");
  }
}

// A server may answer HTTP/1.1 in chunks, whose sizes would be taken for the body's bytes.
TEST(HttpGet, AsksInAVersionWithoutChunks) {
  auto listeners = protocol::listen_on_host({.host = "127.0.0.1", .port = 0});
  ASSERT_TRUE(listeners);
  std::string request;
  std::thread server([&] {
    pollfd listening{listeners->sockets.front().number(), POLLIN, 0};
    ::poll(&listening, 1, kTimeoutMs);
    const Descriptor peer(::accept(listening.fd, nullptr, nullptr));
    char bytes[256];
    for (ssize_t got; !request.ends_with("\r\n\r\n") && (got = ::recv(peer.number(), bytes, sizeof bytes, 0)) > 0;)
      request.append(bytes, static_cast<size_t>(got));
  });
  EXPECT_FALSE(http_get("127.0.0.1:" + std::to_string(listeners->port), "/status?x=1", kTimeoutMs));
  server.join();
  EXPECT_THAT(request, ::testing::StartsWith("GET /status?x=1 HTTP/1.0\r\nHost: 127.0.0.1:"));
}

TEST(HttpGet, AnInvalidAddressIsRefused) {
  for (const char* address : {"", "localhost", "localhost:http", "::1:9000"}) {
    EXPECT_EQ(http_get(address, "/status", kTimeoutMs).error().code, ErrorCode::kInvalidArgument) << address;
  }
}

}  // namespace
}  // namespace millrace::monitoring
