#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "kernels/base/clock.h"
#include "protocol/table/etcd_client.h"
#include "protocol/table/etcd_poller.h"
#include "tests/protocol/table/fake_etcd_gateway.h"

namespace millrace::protocol {
namespace {

constexpr const char* kHangingName = "hangs.test";
constexpr const char* kLoopbackName = "loopback.test";
/// Time that the system's lookup of kHangingName takes, unless the test ends it.
constexpr TimeNs kLookup = 10 * kNsPerS;
std::atomic<bool> lookups_hang = false;
std::atomic<int> lookups_under_way = 0;
std::atomic<int> lookups_of_loopback = 0;

}  // namespace
}  // namespace millrace::protocol

/// Stands for the system's: its name server does not answer about kHangingName, and knows kLoopbackName.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** found) {
  namespace protocol = millrace::protocol;
  if (node != nullptr && std::string_view(node) == protocol::kLoopbackName) {
    ++protocol::lookups_of_loopback;
    node = "127.0.0.1";
  }
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

using testing::FakeEtcdGateway;
using testing::FakeEtcdReply;
using ::testing::HasSubstr;

/// No answer takes this long, also under sanitizers on a busy machine.
constexpr TimeNs kPatience = 30 * kNsPerS;

/// Returns the outcome of a transaction at a member that gives that reply, and at a healthy one where `others`.
Result<EtcdClient::Answer> transact_at(const FakeEtcdReply& reply, std::vector<std::string> others, TimeNs limit) {
  const FakeEtcdGateway first([&](const std::string&) { return reply; });
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
    const FakeEtcdGateway gateway([&](const std::string& request) -> FakeEtcdReply {
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
const auto kNoLeader = std::to_array<FakeEtcdReply>(
    {{"503 Service Unavailable", R"({"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14})"},
     {"503 Service Unavailable", R"({"code":14,"message":"etcdserver: no leader","details":[]})"},
     {"503 Service Unavailable", R"({"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}})"},
     {"200 OK", R"({"error":{"code":14,"message":"etcdserver: no leader","details":[]}})"},
     {"502 Bad Gateway", "<html>Bad Gateway</html>"},
     {"504 Gateway Timeout", ""}});

TEST(EtcdGateway, AMemberWithoutALeaderIsLeftForTheNext) {
  const FakeEtcdGateway healthy([](const std::string&) { return FakeEtcdReply{}; });
  for (const FakeEtcdReply& reply : kNoLeader) {
    const auto answer = transact_at(reply, {healthy.endpoint()}, kPatience);
    ASSERT_TRUE(answer) << reply.body << ": " << answer.error().message;
    EXPECT_TRUE(answer->repeated) << "the first member may have passed it on";
  }
}

TEST(EtcdGateway, NoMemberHasALeader_TheWriteMayHaveTakenEffect) {
  for (const FakeEtcdReply& reply : kNoLeader) {
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

TEST(EtcdStreams, AWatchStreamNeedsNoLookupOfItsOwn) {
  std::atomic<int> reads = 0;
  FakeEtcdGateway gateway([&](const std::string& request) -> FakeEtcdReply {
    if (request.starts_with("POST /v3/watch ")) return {.body = testing::kFakeWatchCreated, .stream = true};
    ++reads;
    return {};
  });
  EtcdOptions options;
  options.endpoints = {std::string(kLoopbackName) + ":" + std::to_string(gateway.port())};
  lookups_of_loopback = 0;
  const EtcdPoller poller(options, std::make_shared<EtcdHealth>(), {"changes", "identity", "1"});
  while (gateway.open_streams() == 0 || reads < 3) ::poll(nullptr, 0, 1);
  EXPECT_EQ(lookups_of_loopback, 1) << "a lookup would block the poll, or leave a thread behind";
}

}  // namespace
}  // namespace millrace::protocol
