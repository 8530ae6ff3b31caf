#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/descriptor.h"
#include "protocol/address/stream_sockets.h"

namespace millrace::testing {

constexpr const char* kFakeEtcdAnswer = R"({"header":{},"succeeded":true})";
/// The first message of a watch stream, as etcd 3.4 to 3.6 send it.
constexpr const char* kFakeWatchCreated = R"({"result":{"header":{"revision":"1"},"created":true}})"
                                          "\n";
/// A message about a change.
constexpr const char* kFakeWatchEvent = R"({"result":{"header":{"revision":"2"},"events":[{"kv":{"version":"1"}}]}})"
                                        "\n";

struct FakeEtcdReply {
  std::string status = "200 OK";
  std::string body = kFakeEtcdAnswer;
  bool stream = false;  ///< the body is its beginning
};

/// Answers requests to etcd's JSON gateway as the test says, each on a connection of its own.
///
/// Threads  its own thread calls `reply`; the methods may be called from any other.
class FakeEtcdGateway {
 public:
  explicit FakeEtcdGateway(std::function<FakeEtcdReply(const std::string&)> reply)
      : reply_(std::move(reply)),
        listeners_(protocol::listen_on_host({.host = "127.0.0.1", .port = 0}).value()),
        thread_([this] { run(); }) {}
  ~FakeEtcdGateway() {
    stopped_ = true;
    ::shutdown(listener(), SHUT_RDWR);
    thread_.join();
  }
  FakeEtcdGateway(const FakeEtcdGateway&) = delete;
  FakeEtcdGateway& operator=(const FakeEtcdGateway&) = delete;

  uint16_t port() const { return listeners_.port; }
  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port()); }

  /// Returns the number of streams that no side has closed.
  size_t open_streams() {
    const std::lock_guard lock(mutex_);
    std::erase_if(streams_, [](const Descriptor& stream) {
      char byte = 0;
      return ::recv(stream.number(), &byte, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN;
    });
    return streams_.size();
  }
  /// Sends to every stream, and waits until the system has taken the bytes.
  void send_to_streams(std::string_view text) {
    const std::lock_guard lock(mutex_);
    std::erase_if(streams_, [&](const Descriptor& stream) { return !send_all(stream.number(), chunk_of(text)); });
  }
  void end_streams() {
    const std::lock_guard lock(mutex_);
    streams_.clear();
  }

 private:
  int listener() const { return listeners_.sockets.front().number(); }

  void run() {
    pollfd ready{listener(), POLLIN, 0};
    while (!stopped_) {
      ::poll(&ready, 1, -1);
      Descriptor client(::accept4(listener(), nullptr, nullptr, SOCK_CLOEXEC));
      if (client) answer(std::move(client));
    }
  }

  void answer(Descriptor client) {
    std::string request;
    std::array<char, 4'096> bytes{};
    while (!is_whole(request)) {
      const ssize_t got = ::recv(client.number(), bytes.data(), bytes.size(), 0);
      if (got <= 0) return;
      request.append(bytes.data(), static_cast<size_t>(got));
    }
    const FakeEtcdReply reply = reply_(request);
    if (!reply.stream) {
      EXPECT_TRUE(send_all(client.number(), "HTTP/1.1 " + reply.status +
                                                "\r\nContent-Length: " + std::to_string(reply.body.size()) +
                                                "\r\nConnection: close\r\n\r\n" + reply.body));
      return;
    }
    const std::string head = "HTTP/1.1 " + reply.status + "\r\nTransfer-Encoding: chunked\r\n\r\n";
    EXPECT_TRUE(send_all(client.number(), head + chunk_of(reply.body)));
    const std::lock_guard lock(mutex_);
    streams_.push_back(std::move(client));
  }

  static std::string chunk_of(std::string_view text) {
    if (text.empty()) return {};  // an empty chunk would be the last one
    std::array<char, 20> length{};
    std::snprintf(length.data(), length.size(), "%zx\r\n", text.size());
    return std::string(length.data()) + std::string(text) + "\r\n";
  }

  static bool send_all(int client, const std::string& text) {
    return ::send(client, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }

  static bool is_whole(const std::string& request) {
    static const std::string kLength = "Content-Length: ";
    const size_t head = request.find("\r\n\r\n");
    const size_t length = request.find(kLength);
    return head != std::string::npos && length < head &&
           request.size() >= head + 4 + std::stoul(request.substr(length + kLength.size()));
  }

  std::function<FakeEtcdReply(const std::string&)> reply_;
  protocol::StreamListeners listeners_;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::vector<Descriptor> streams_;  ///< under mutex_
  std::thread thread_;
};

}  // namespace millrace::testing
