#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/table/etcd_client.h"
#include "protocol/table/etcd_poller.h"
#include "protocol/table/etcd_transaction.h"
#include "tests/protocol/table/fake_etcd_gateway.h"
#include "tests/support/etcd_server.h"

namespace millrace::protocol {
namespace {

using testing::FakeEtcdGateway;
using testing::FakeEtcdReply;

/// No event takes this long, also under sanitizers on a busy machine.
constexpr TimeNs kWatchPatience = 60 * kNsPerS;
/// A time that no test reaches: what happens has another reason.
constexpr TimeNs kUnreached = 3'600 * kNsPerS;

template <typename Condition>
void await_event(const char* what, Condition condition) {
  const TimeNs until = monotonic_now_ns() + kWatchPatience;
  while (!condition() && monotonic_now_ns() < until) ::poll(nullptr, 0, 1);
  ASSERT_TRUE(condition()) << what;
}

/// The answer to a poller's read: the identity is "1".
std::string answer_to_read(uint64_t mod_revision) {
  const auto range = [](const std::string& entry) { return R"({"response_range":{"kvs":[{)" + entry + "}]}}"; };
  return R"({"header":{},"succeeded":true,"responses":[)" +
         range(R"("key":"Yw==","value":"Yw==","version":"1","mod_revision":")" + std::to_string(mod_revision) + "\"") +
         "," + range(R"("key":"aQ==","value":"MQ==","version":"1","mod_revision":"1")") + "]}";
}

/// Answers watches that etcd or a proxy refuses, and never opens.
const auto kWatchRefusals = std::to_array<FakeEtcdReply>(
    {{.body = R"({"result":{"watch_id":"-1","created":true,"canceled":true,"cancel_reason":"permission denied"}})"
              "\n",
      .stream = true},
     {.body = R"({"error":{"grpc_code":16,"message":"etcdserver: invalid auth token"}})"
              "\n",
      .stream = true},
     {.body = "<html>\n", .stream = true},
     {.status = "404 Not Found", .body = "Not Found\n"},
     {.status = "503 Service Unavailable", .body = R"({"code":14,"message":"etcdserver: no leader"})"},
     {}});

/// A poller at a member whose answers the test gives.
class EtcdWatching : public ::testing::Test {
 protected:
  EtcdWatching() { options_.endpoints = {gateway_.endpoint()}; }
  FakeEtcdReply reply(const std::string& request) {
    if (request.starts_with("POST /v3/watch ")) {
      const std::lock_guard lock(mutex_);
      ++watches_;
      return watch_reply_;
    }
    if (!request.starts_with("POST /v3/kv/txn ")) return {};
    if (away_) return {.status = "503 Service Unavailable", .body = R"({"code":14,"message":"no leader"})"};
    ++reads_;
    return {.body = answer_to_read(revision_)};
  }
  void answer_watches_by(const FakeEtcdReply& reply) {
    const std::lock_guard lock(mutex_);
    watch_reply_ = reply;
  }
  void start(EtcdPace pace) {
    poller_ = std::make_unique<EtcdPoller>(options_, health_, EtcdWatched{"changes", "identity", "1"}, pace);
  }
  /// Waits until a stream is open and the poller does not read any more: its pace is 5 ms without a stream.
  void wait_for_quiet() {
    await_event("the poller opens a stream", [&] { return gateway_.open_streams() == 1; });
    int seen = 0;
    do {
      seen = reads_;
      ::poll(nullptr, 0, 300);
    } while (reads_ != seen);
  }
  void wait_for_reads(int more) {
    const int begin = reads_;
    await_event("the poller reads", [&] { return reads_ >= begin + more; });
  }

  std::mutex mutex_;
  FakeEtcdReply watch_reply_ = {.body = testing::kFakeWatchCreated, .stream = true};  ///< under mutex_
  std::atomic<int> watches_ = 0;
  std::atomic<int> reads_ = 0;
  std::atomic<bool> away_ = false;
  std::atomic<uint64_t> revision_ = 1;
  FakeEtcdGateway gateway_{[this](const std::string& request) { return reply(request); }};
  EtcdOptions options_;
  std::shared_ptr<EtcdHealth> health_ = std::make_shared<EtcdHealth>();
  std::unique_ptr<EtcdPoller> poller_;  ///< ends before its members
};

constexpr EtcdPace kOnlyNews = {
    .read_every = 5 * kNsPerMs, .watched_read_every = kUnreached, .watch_every = kUnreached};
constexpr EtcdPace kOpensAgain = {
    .read_every = 5 * kNsPerMs, .watched_read_every = kUnreached, .watch_every = kNsPerMs};

TEST_F(EtcdWatching, AMessageOfTheStreamLeadsToARead) {
  start(kOnlyNews);
  wait_for_quiet();
  for (const uint64_t revision : {7, 8}) {
    revision_ = revision;
    gateway_.send_to_streams(testing::kFakeWatchEvent);
    await_event("the change is seen", [&] { return poller_->mod_revision() == revision; });
  }
  EXPECT_EQ(watches_, 1);
}

TEST_F(EtcdWatching, ReadsContinueAndAreRarerBesideAnOpenStream) {
  start({});
  await_event("the poller opens a stream", [&] { return gateway_.open_streams() == 1; });
  wait_for_reads(3);
  const TimeNs begin = monotonic_now_ns();
  const int before = reads_;
  wait_for_reads(6);
  EXPECT_LE(reads_ - before, (monotonic_now_ns() - begin) / EtcdPace{}.watched_read_every + 3);
}

TEST_F(EtcdWatching, AChangeWithoutAMessageIsSeenByTheReads) {
  start({});
  await_event("the poller opens a stream", [&] { return gateway_.open_streams() == 1; });
  wait_for_reads(3);
  revision_ = 7;
  await_event("the change is seen", [&] { return poller_->mod_revision() == 7; });
}

TEST_F(EtcdWatching, AStreamThatEndsLeadsToAReadAndToAnotherStream) {
  start(kOpensAgain);
  wait_for_quiet();
  for (const uint64_t revision : {7, 8}) {
    revision_ = revision;
    gateway_.end_streams();
    await_event("the change is seen", [&] { return poller_->mod_revision() == revision; });
    wait_for_quiet();
  }
  EXPECT_EQ(watches_, 3);
}

TEST_F(EtcdWatching, ACanceledWatchLeadsToAnotherStream) {
  start(kOpensAgain);
  wait_for_quiet();
  gateway_.send_to_streams(R"({"result":{"canceled":true,"compact_revision":"9"}})"
                           "\n");
  await_event("the poller opens another stream", [&] { return watches_ == 2; });
  wait_for_quiet();
}

TEST_F(EtcdWatching, RefusedWatchesLeaveTheReadsAsTheyAre) {
  start(kOpensAgain);
  for (const FakeEtcdReply& refusal : kWatchRefusals) {
    answer_watches_by(refusal);
    gateway_.end_streams();
    const int before = watches_;
    await_event("the poller tries again", [&] { return watches_ >= before + 3; });
    wait_for_reads(10);
    await_event("the poller closes its connection", [&] { return gateway_.open_streams() <= 1; });
  }
}

TEST_F(EtcdWatching, WatchesAreNotTriedMoreOftenThanTheirPace) {
  answer_watches_by(kWatchRefusals.front());
  start(kOnlyNews);
  wait_for_reads(30);
  EXPECT_EQ(watches_, 1);
}

TEST_F(EtcdWatching, AStreamWithoutAnyMessageLeavesTheReadsAsTheyAre) {
  answer_watches_by({.body = "", .stream = true});
  start(kOnlyNews);
  await_event("the poller begins a stream", [&] { return gateway_.open_streams() == 1; });
  wait_for_reads(30);
}

TEST_F(EtcdWatching, EndlessBytesNeitherGrowNorStopTheReads) {
  const std::string one_line(4'096, 'x');
  std::string messages;
  for (int count = 0; count < 50; ++count) messages += testing::kFakeWatchEvent;
  for (const std::string& bytes : {one_line, messages}) {
    start(kOnlyNews);
    wait_for_quiet();
    await_event("the poller ends the stream", [&] {
      gateway_.send_to_streams(bytes);
      return gateway_.open_streams() == 0;
    });
    wait_for_reads(10);
    poller_.reset();
  }
}

TEST_F(EtcdWatching, ManyMessagesCauseNoMoreReadsThanPolls) {
  start({.read_every = kNsPerS / 2, .watched_read_every = kUnreached, .watch_every = kUnreached});
  await_event("the poller opens a stream", [&] { return gateway_.open_streams() == 1; });
  const TimeNs begin = monotonic_now_ns();
  const int before = reads_;
  while (reads_ < before + 3) {
    gateway_.send_to_streams(testing::kFakeWatchEvent);
    ::poll(nullptr, 0, 5);
  }
  EXPECT_GE(monotonic_now_ns() - begin, kNsPerS) << "two pauses";
}

TEST_F(EtcdWatching, AFailedCallOfTheLoopLeadsToARead) {
  start(kOnlyNews);
  wait_for_quiet();
  health_->failed_at = monotonic_now_ns();
  await_event("the poller asks whether etcd answers", [&] { return health_->answers(); });
}

TEST_F(EtcdWatching, AReadWithoutAnAnswerIsRepeated) {
  start(kOnlyNews);
  wait_for_quiet();
  away_ = true;
  revision_ = 7;
  gateway_.send_to_streams(testing::kFakeWatchEvent);
  await_event("the poller notices", [&] { return !health_->answers(); });
  health_->asked_at = monotonic_now_ns() + kNsPerMs;  // the loop's call has got an answer
  away_ = false;
  await_event("the change is seen", [&] { return poller_->mod_revision() == 7; });
}

TEST_F(EtcdWatching, TheStreamMovesToTheMemberThatAnswers) {
  std::atomic<int> watches = 0;
  FakeEtcdGateway other([&](const std::string& request) -> FakeEtcdReply {
    if (!request.starts_with("POST /v3/watch ")) return {.body = answer_to_read(revision_)};
    ++watches;
    return {.body = testing::kFakeWatchCreated, .stream = true};
  });
  options_.endpoints.push_back(other.endpoint());
  start({.read_every = 5 * kNsPerMs, .watched_read_every = 20 * kNsPerMs, .watch_every = kNsPerMs});
  await_event("the poller opens a stream", [&] { return gateway_.open_streams() == 1; });
  away_ = true;  // as a member without a leader: its stream stays open, and is silent
  await_event("the stream moves", [&] { return other.open_streams() == 1 && gateway_.open_streams() == 0; });
  poller_.reset();
}

size_t open_descriptors() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TEST_F(EtcdWatching, ThePollerEndsWithAStreamAndLeavesNoDescriptor) {
  for (const char* first : {testing::kFakeWatchCreated, ""}) {
    answer_watches_by({.body = first, .stream = true});
    std::optional<size_t> before;
    for (int times = 0; times < 3; ++times) {
      start({.read_every = kUnreached, .watched_read_every = kUnreached, .watch_every = kUnreached});
      await_event("the poller begins a stream", [&] { return gateway_.open_streams() == 1; });
      poller_.reset();
      await_event("it has closed the stream", [&] { return gateway_.open_streams() == 0; });
      if (!before) before = open_descriptors();  // libcurl's own, from the first use on
      EXPECT_EQ(open_descriptors(), *before);
    }
  }
}

TEST_F(EtcdWatching, AStreamHasTheTokenOfTheUser) {
  std::atomic<bool> known = false;
  FakeEtcdGateway gateway([&](const std::string& request) -> FakeEtcdReply {
    if (request.starts_with("POST /v3/auth/authenticate ")) return {.body = R"({"token":"secret-1"})"};
    if (!request.starts_with("POST /v3/watch ")) return {.body = answer_to_read(1)};
    known = request.contains("Authorization: secret-1\r\n") &&
            request.ends_with(R"({"create_request":{"key":"Y2hhbmdlcw=="}})");
    return {.body = testing::kFakeWatchCreated, .stream = true};
  });
  options_.endpoints = {gateway.endpoint()};
  options_.user = "millrace";
  options_.password = "secret";
  start({});
  await_event("the poller opens a stream", [&] { return gateway.open_streams() == 1; });
  EXPECT_TRUE(known);
  poller_.reset();
}

TEST(EtcdWatchOfEtcd, TellsOfAChangeOfItsKeyAndOfTheEnd) {
  const auto server = testing::EtcdServer::start();
  if (!server) GTEST_SKIP() << testing::kNoEtcd;
  EtcdOptions options;
  options.endpoints = {server->endpoint()};
  EtcdClient client(options, std::make_shared<EtcdHealth>());
  EtcdTransaction put;
  put.then().put("/a/changes", "changed");
  ASSERT_TRUE(client.transact(put, monotonic_now_ns() + kWatchPatience));
  EtcdWatch watch(options, "/a/changes");
  ASSERT_TRUE(client.peer());
  watch.begin(*client.peer());
  EXPECT_EQ(watch.state(), EtcdWatch::State::kBegun);
  watch.wait(kUnreached + monotonic_now_ns());
  ASSERT_EQ(watch.state(), EtcdWatch::State::kOpen);
  watch.take_news();
  ASSERT_TRUE(client.transact(put, monotonic_now_ns() + kWatchPatience));
  watch.wait(kUnreached + monotonic_now_ns());
  EXPECT_TRUE(watch.has_news());
  EXPECT_EQ(watch.state(), EtcdWatch::State::kOpen);
  watch.take_news();
  server->kill();
  watch.wait(kUnreached + monotonic_now_ns());
  EXPECT_TRUE(watch.has_news());
  EXPECT_EQ(watch.state(), EtcdWatch::State::kNone);
}

TEST(EtcdLease, AMoveThatGotNoAnswerIsRepeated) {
  std::atomic<bool> away = false;
  std::atomic<int> refused = 0;
  std::mutex mutex;
  std::vector<std::string> writes;  // under mutex
  FakeEtcdGateway gateway([&](const std::string& request) -> FakeEtcdReply {
    if (request.starts_with("POST /v3/watch ")) return kWatchRefusals.front();
    if (request.starts_with("POST /v3/lease/grant ")) return {.body = R"({"ID":"77","TTL":"2"})"};
    if (request.starts_with("POST /v3/lease/keepalive ")) return {.body = R"({"result":{"ID":"77","TTL":"2"}})"};
    const bool revokes = request.starts_with("POST /v3/lease/revoke ");
    if (!revokes && !request.contains("request_put")) return {.body = answer_to_read(1)};
    if (!revokes && away) {
      ++refused;
      return {.status = "503 Service Unavailable", .body = R"({"code":14,"message":"etcdserver: no leader"})"};
    }
    const std::lock_guard lock(mutex);
    writes.push_back(revokes ? "revoke" : request.substr(request.find("\r\n\r\n") + 4));
    return {};
  });
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return writes.size();
  };
  EtcdOptions options;
  options.endpoints = {gateway.endpoint()};
  const auto health = std::make_shared<EtcdHealth>();
  EtcdPoller poller(options, health, {"changes", "identity", "1"});
  const EtcdLeaseKey first = {"first", "1", "guard", 3};
  const EtcdLeaseKey next = {"next", "2", "guard", 3};
  await_event("the lease is taken", [&] {
    poller.hold(first);
    return count() == 1;
  });
  away = true;
  await_event("the first move ends without an answer", [&] {
    poller.hold(next);
    return refused > 0 && health->failed_at > 0;
  });
  away = false;
  await_event("the move is repeated", [&] {
    poller.hold(next);
    return count() == 2;
  });
  const std::lock_guard lock(mutex);
  EtcdTransaction move;
  move.if_version("guard", 3).then().remove("first").put_leased("next", "2", 77);
  EXPECT_EQ(writes[1], move.json()) << "the same lease: no moment without a key";
}

}  // namespace
}  // namespace millrace::protocol
