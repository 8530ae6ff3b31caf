#include "server/process/shard_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <string>

#include "protocol/job/layout.h"
#include "tests/support/replaced_new.h"

/// Connections to other shards over real sockets: they are made again after every kind of obstacle.
namespace millrace::server {
namespace {

using millrace::testing::FailingAllocation;

constexpr uint64_t kShardLinksAllocationsMax = 1'000;
constexpr TimeNs kShardLinksPatience = 20 * kNsPerS;

class ShardLinksTest : public ::testing::Test {
 protected:
  void listen(const std::string& address = "tcp://127.0.0.1:0") {
    auto bound = protocol::Listener::bind(context_, address);
    ASSERT_TRUE(bound) << bound.error().message;
    listener_ = std::move(*bound);
    poller_.add(*listener_);
  }

  static SendToShard hello() { return {1, {{}, protocol::ShardHello{}, {}}}; }
  static SendToShard histogram() { return {1, {{}, protocol::ThresholdHistogram{}, {}}}; }

  /// As the loop does it: links are made again when they are due, and a new connection takes a ShardHello first. True:
  /// the listener has got one.
  bool hello_arrives() {
    const TimeNs until = monotonic_now_ns() + kShardLinksPatience;
    while (monotonic_now_ns() < until) {
      const TimeNs now = monotonic_now_ns();
      while (links_.watch(now)) links_.send(hello());
      while (std::optional<protocol::Received> received = listener_->receive()) {
        if (received->message && std::holds_alternative<protocol::ShardHello>(received->message->body)) return true;
      }
      poller_.wait(5);
    }
    return false;
  }

  protocol::TransportContext context_;
  protocol::Poller poller_;
  ProcessLog log_{0, Severity::kError};
  std::unique_ptr<protocol::Listener> listener_;
  ShardLinks links_{2, context_, poller_, log_};
};

TEST_F(ShardLinksTest, WithoutAConnectionNothingIsSentOrReceived) {
  EXPECT_FALSE(links_.send(histogram()));
  EXPECT_FALSE(links_.receive(1).has_value());
  EXPECT_FALSE(links_.watch(kNsPerS).has_value());
  EXPECT_FALSE(links_.deadline().has_value());
}

TEST_F(ShardLinksTest, AConnectionTakesMessagesAtOnceAndMovesToAnotherAddress) {
  listen();
  links_.connect({1, listener_->address()}, monotonic_now_ns());
  EXPECT_FALSE(links_.deadline().has_value());
  EXPECT_TRUE(links_.send(hello()));
  EXPECT_TRUE(hello_arrives());
  const auto first = std::move(listener_);
  listen();
  links_.connect({1, listener_->address()}, monotonic_now_ns());
  EXPECT_TRUE(links_.send(hello()));
  EXPECT_TRUE(hello_arrives());
}

TEST_F(ShardLinksTest, AnAddressThatCannotBeUsedIsTriedAgain) {
  TimeNs now = kNsPerS;
  links_.connect({1, "no address"}, now);
  for (int again = 0; again < 3; ++again) {
    EXPECT_FALSE(links_.send(hello()));
    EXPECT_EQ(links_.deadline(), now + ShardLinks::kAgainAfter);
    EXPECT_FALSE(links_.watch(now).has_value());
    now += ShardLinks::kAgainAfter;
    EXPECT_FALSE(links_.watch(now).has_value()) << "as wrong as before";
  }
  listen();
  links_.connect({1, listener_->address()}, now);
  EXPECT_TRUE(links_.send(hello()));
  EXPECT_TRUE(hello_arrives());
}

TEST_F(ShardLinksTest, AConnectionThatWasRefusedIsMadeAgain) {
  links_.connect({1, "tcp://127.0.0.1:1"}, monotonic_now_ns());
  EXPECT_TRUE(links_.send(hello())) << "queued for a connection that is never made";
  const TimeNs until = monotonic_now_ns() + kShardLinksPatience;
  TimeNs now = 0;
  while (!links_.deadline() && now < until) {
    poller_.wait(5);
    now = monotonic_now_ns();
    EXPECT_FALSE(links_.watch(now).has_value());
  }
  ASSERT_TRUE(links_.deadline().has_value()) << "no process listens there";
  EXPECT_EQ(links_.watch(*links_.deadline()), 1u);
  EXPECT_FALSE(links_.deadline().has_value());
}

TEST_F(ShardLinksTest, AFailedShardHelloIsSentOnAnotherConnection) {
  listen();
  links_.connect({1, listener_->address()}, monotonic_now_ns());
  {
    const FailingAllocation failing(0, FailingAllocation::Then::kGoesOn);
    EXPECT_THROW(links_.send(hello()), std::bad_alloc);
  }
  EXPECT_TRUE(hello_arrives());
}

TEST_F(ShardLinksTest, AConnectionThatMemoryDidNotSufficeToOpenIsOpenedLater) {
  listen();
  bool failed = true;
  uint64_t at = 0;
  for (; failed && at < kShardLinksAllocationsMax; ++at) {
    ConnectShard to{1, listener_->address()};
    try {
      const FailingAllocation failing(at, FailingAllocation::Then::kGoesOn);
      links_.connect(std::move(to), monotonic_now_ns());
      failed = failing.failed();
    } catch (const std::bad_alloc&) {
      EXPECT_TRUE(links_.deadline().has_value()) << at;
    }
    if (!links_.deadline()) links_.send(hello());  // it was made at once
    ASSERT_TRUE(hello_arrives()) << at;
  }
  EXPECT_FALSE(failed);
  EXPECT_GT(at, 1u);
}

}  // namespace
}  // namespace millrace::server
