#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "kernels/base/descriptor.h"
#include "protocol/address/stream_sockets.h"
#include "protocol/table/etcd_client.h"
#include "protocol/table/etcd_poller.h"

namespace millrace::protocol {
namespace {

constexpr const char* kHangingName = "hangs.test";
/// Time that the system's lookup of kHangingName takes, unless the test ends it.
constexpr TimeNs kLookup = 10 * kNsPerS;
std::atomic<bool> lookups_hang = false;
std::atomic<int> lookups_under_way = 0;

}  // namespace
}  // namespace millrace::protocol

/// Stands for the system's: its name server does not answer about kHangingName.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** found) {
  namespace protocol = millrace::protocol;
  if (node == nullptr || std::string_view(node) != protocol::kHangingName) {
    static const auto system = reinterpret_cast<decltype(&::getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
    return system(node, service, hints, found);
  }
  ++protocol::lookups_under_way;
  const millrace::TimeNs until = millrace::monotonic_now_ns() + protocol::kLookup;
  while (protocol::lookups_hang && millrace::monotonic_now_ns() < until) ::poll(nullptr, 0, 5);
  --protocol::lookups_under_way;
  return EAI_AGAIN;
}

namespace millrace::protocol {
namespace {

using ::testing::HasSubstr;

/// No answer takes this long, also under sanitizers on a busy machine.
constexpr TimeNs kPatience = 30 * kNsPerS;

constexpr const char* kAnswer = R"({"header":{},"succeeded":true})";

struct Reply {
  std::string status = "200 OK";
  std::string body = kAnswer;
};

/// Answers requests as the test says.
class FakeGateway {
 public:
  explicit FakeGateway(std::function<Reply(const std::string&)> reply)
      : reply_(std::move(reply)), listeners_(listen_on_host({.host = "127.0.0.1", .port = 0}).value()) {
    thread_ = std::thread([this] { run(); });
  }
  ~FakeGateway() {
    stopped_ = true;
    ::shutdown(listener(), SHUT_RDWR);
    thread_.join();
  }
  FakeGateway(const FakeGateway&) = delete;
  FakeGateway& operator=(const FakeGateway&) = delete;

  std::string endpoint() const { return "127.0.0.1:" + std::to_string(listeners_.port); }

 private:
  int listener() const { return listeners_.sockets.front().number(); }

  void run() {
    pollfd ready{listener(), POLLIN, 0};
    while (!stopped_) {
      ::poll(&ready, 1, -1);
      const Descriptor client(::accept4(listener(), nullptr, nullptr, SOCK_CLOEXEC));
      if (client) answer(client.number());
    }
  }

  void answer(int client) {
    std::string request;
    std::array<char, 4'096> bytes{};
    while (!is_whole(request)) {
      const ssize_t got = ::recv(client, bytes.data(), bytes.size(), 0);
      if (got <= 0) return;
      request.append(bytes.data(), static_cast<size_t>(got));
    }
    const Reply reply = reply_(request);
    const std::string text = "HTTP/1.1 " + reply.status + "\r\nContent-Length: " + std::to_string(reply.body.size()) +
                             "\r\nConnection: close\r\n\r\n" + reply.body;
    EXPECT_EQ(::send(client, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }

  static bool is_whole(const std::string& request) {
    static const std::string kLength = "Content-Length: ";
    const size_t head = request.find("\r\n\r\n");
    const size_t length = request.find(kLength);
    return head != std::string::npos && length < head &&
           request.size() >= head + 4 + std::stoul(request.substr(length + kLength.size()));
  }

  std::function<Reply(const std::string&)> reply_;
  StreamListeners listeners_;
  std::atomic<bool> stopped_ = false;
  std::thread thread_;
};

/// Returns the outcome of a transaction at a member that gives that reply, and at a healthy one where `others`.
Result<EtcdClient::Answer> transact_at(const Reply& reply, std::vector<std::string> others, TimeNs limit) {
  const FakeGateway first([&](const std::string&) { return reply; });
  EtcdOptions options;
  options.endpoints = std::move(others);
  options.endpoints.insert(options.endpoints.begin(), first.endpoint());
  EtcdClient client(options, std::make_shared<EtcdHealth>());
  return client.transact({}, monotonic_now_ns() + limit);
}

TEST(EtcdUsers, AnOldTokenCostsALoginAndNoCall) {
  for (const char* refusal : {R"({"error":"auth: revision in header is old","code":2})",
                              R"({"error":"etcdserver: revision of auth store is old","code":3})",
                              R"({"code":16,"message":"etcdserver: invalid auth token"})",
                              R"({"code":3,"message":"etcdserver: revision of auth store is old","details":[]})"}) {
    std::atomic<int> logins = 0;
    const FakeGateway gateway([&](const std::string& request) -> Reply {
      if (request.starts_with("POST /v3/auth/authenticate "))
        return {.body = R"({"token":"login-)" + std::to_string(++logins) + R"("})"};
      if (request.contains("login-1")) return {"400 Bad Request", refusal};
      return {};
    });
    EtcdOptions options;
    options.endpoints = {gateway.endpoint()};
    options.user = "millrace";
    options.password = "secret";
    EtcdClient client(options, std::make_shared<EtcdHealth>());
    const auto answer = client.transact({}, monotonic_now_ns() + kPatience);
    ASSERT_TRUE(answer) << refusal << ": " << answer.error().message;
    EXPECT_EQ(logins, 2);
  }
}

/// Replies of a member without a leader: of etcd 3.4, 3.6, a stream of each, and of a proxy before a member.
const auto kNoLeader = std::to_array<Reply>(
    {{"503 Service Unavailable", R"({"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14})"},
     {"503 Service Unavailable", R"({"code":14,"message":"etcdserver: no leader","details":[]})"},
     {"503 Service Unavailable", R"({"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}})"},
     {"200 OK", R"({"error":{"code":14,"message":"etcdserver: no leader","details":[]}})"},
     {"502 Bad Gateway", "<html>Bad Gateway</html>"},
     {"504 Gateway Timeout", ""}});

TEST(EtcdGateway, AMemberWithoutALeaderIsLeftForTheNext) {
  const FakeGateway healthy([](const std::string&) { return Reply{}; });
  for (const Reply& reply : kNoLeader) {
    const auto answer = transact_at(reply, {healthy.endpoint()}, kPatience);
    ASSERT_TRUE(answer) << reply.body << ": " << answer.error().message;
    EXPECT_TRUE(answer->repeated) << "the first member may have passed it on";
  }
}

TEST(EtcdGateway, NoMemberHasALeader_TheWriteMayHaveTakenEffect) {
  for (const Reply& reply : kNoLeader) {
    const auto refused = transact_at(reply, {}, kNsPerS / 10);
    ASSERT_FALSE(refused) << reply.body;
    EXPECT_EQ(refused.error().code, ErrorCode::kTimeout) << reply.body;
  }
}

TEST(EtcdGateway, RefusalOfEitherForm_TheErrorNamesTheRemedy) {
  for (const char* body : {R"({"error":"etcdserver: permission denied","code":7})",
                           R"({"code":7,"message":"etcdserver: permission denied"})"}) {
    const auto refused = transact_at({"403 Forbidden", body}, {}, kPatience);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kIo);
    EXPECT_THAT(refused.error().message, HasSubstr("check --table-user"));
  }
  const auto large =
      transact_at({"400 Bad Request", R"({"code":3,"message":"etcdserver: request is too large"})"}, {}, kPatience);
  EXPECT_EQ(large.error().code, ErrorCode::kLimitExceeded);
}

TEST(EtcdGateway, AnotherProgramIsNoEtcd) {
  for (const char* body : {"<html>not found</html>", R"({"message":"not found"})", R"({"error":{}})", R"({"error":1})",
                           R"({"code":"14","message":"not found"})", "[]"}) {
    const auto refused = transact_at({"404 Not Found", body}, {}, kPatience);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kMalformed) << body;
    EXPECT_THAT(refused.error().message, HasSubstr("give client ports of etcd"));
  }
}

/// etcd has a name, and the name server is silent.
class EtcdByName : public ::testing::Test {
 protected:
  EtcdByName() {
    options_.endpoints = {std::string(kHangingName) + ":1", std::string(kHangingName) + ":2"};
    lookups_hang = true;
  }
  ~EtcdByName() override {
    lookups_hang = false;
    while (lookups_under_way > 0) ::poll(nullptr, 0, 1);
  }

  EtcdOptions options_;
};

TEST_F(EtcdByName, ALookupThatHangsDoesNotHoldTheCall) {
  EtcdClient client(options_, std::make_shared<EtcdHealth>());
  const TimeNs began = monotonic_now_ns();
  const auto refused = client.transact({}, began + kNsPerS / 4);
  EXPECT_LT(monotonic_now_ns() - began, kLookup / 2);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kTimeout);
  EXPECT_GT(lookups_under_way, 0) << "the call has left a lookup behind";
}

TEST_F(EtcdByName, APollThatHangsMeansThatEtcdDoesNotAnswer) {
  const auto health = std::make_shared<EtcdHealth>();
  health->asked_at = monotonic_now_ns();
  ASSERT_TRUE(health->answers());
  EtcdPoller poller(options_, health, {"changes", "identity", "1"});
  const TimeNs until = monotonic_now_ns() + kLookup / 2;
  while (health->answers() && monotonic_now_ns() < until) ::poll(nullptr, 0, 5);
  EXPECT_FALSE(health->answers()) << "the loop's calls would wait for nothing";
  EXPECT_EQ(lookups_under_way, 1) << "a thread and a socket each";
  lookups_hang = false;
}

}  // namespace
}  // namespace millrace::protocol
