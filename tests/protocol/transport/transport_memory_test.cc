#include <gtest/gtest.h>
#include <zmq.h>

#include <new>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/transport/transport.h"
#include "tests/protocol/example_messages.h"
#include "tests/support/replaced_new.h"

/// Memory that ends while a message is received or sent: that message is lost, the next one is whole.
namespace millrace::protocol {
namespace {

using millrace::testing::FailingAllocation;

constexpr int kTransportMemoryWaitMs = 60'000;
constexpr uint64_t kAllocationsMax = 200;

class StarvedTransport : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_ = Listener::bind(context_, "tcp://127.0.0.1:0").value();
    connection_ = Connection::connect(context_, listener_->address()).value();
    poller_.add(*listener_);
  }

  std::optional<Received> wait_for_message() {
    const TimeNs deadline = monotonic_now_ns() + kTransportMemoryWaitMs * kNsPerMs;
    while (monotonic_now_ns() < deadline) {
      if (std::optional<Received> received = listener_->receive()) return received;
      poller_.wait(50);
    }
    return std::nullopt;
  }

  /// Nothing where there is no message, or one that is not whole.
  static std::optional<uint64_t> step_of(const std::optional<Received>& received) {
    if (!received || !received->message) return std::nullopt;
    const auto* body = std::get_if<Contribution>(&received->message->body);
    return body == nullptr ? std::nullopt : std::optional(body->step);
  }

  static Message numbered(uint64_t step) {
    Contribution body;
    body.step = step;
    return {{}, body, SharedBytes::from(ByteBuffer(2'000, static_cast<uint8_t>(step)))};
  }

  TransportContext context_;
  Poller poller_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Connection> connection_;
};

TEST_F(StarvedTransport, NoMemoryToReceive_MessageLostAndTheNextOneWhole) {
  bool came_to_an_end = false;
  for (uint64_t at = 0; at < kAllocationsMax && !came_to_an_end; ++at) {
    ASSERT_EQ(connection_->send(numbered(2 * at)), SendResult::kSent);
    ASSERT_EQ(connection_->send(numbered(2 * at + 1)), SendResult::kSent);
    ASSERT_TRUE(poller_.wait(kTransportMemoryWaitMs));
    std::optional<Received> first;
    try {
      const FailingAllocation failing(at, FailingAllocation::Then::kGoesOn);
      first = listener_->receive();
      came_to_an_end = !failing.failed();
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the test checks the state after it
    }
    // A failure before anything was read leaves the message where it is.
    if (!first) first = wait_for_message();
    std::optional<uint64_t> seen = step_of(first);
    if (seen == 2 * at) seen = step_of(wait_for_message());
    ASSERT_EQ(seen, 2 * at + 1) << at;
  }
  EXPECT_TRUE(came_to_an_end);
}

TEST_F(StarvedTransport, AMessageThatMemoryDoesNotSufficeToSendLeavesNoHalfOfItself) {
  bool came_to_an_end = false;
  for (uint64_t at = 0; at < kAllocationsMax && !came_to_an_end; ++at) {
    const Message message = numbered(at);
    bool sent = false;
    try {
      const FailingAllocation failing(at, FailingAllocation::Then::kGoesOn);
      sent = connection_->send(message) == SendResult::kSent;
      came_to_an_end = !failing.failed();
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the test checks the state after it
    }
    if (!sent) {
      ASSERT_EQ(connection_->send(message), SendResult::kSent);
    }
    ASSERT_EQ(step_of(wait_for_message()), at);
  }
  EXPECT_TRUE(came_to_an_end);
}

TEST_F(StarvedTransport, NoMemoryToConnect_ConnectionOpensAfterwards) {
  bool came_to_an_end = false;
  for (uint64_t at = 0; at < kAllocationsMax && !came_to_an_end; ++at) {
    connection_.reset();
    try {
      const FailingAllocation failing(at, FailingAllocation::Then::kGoesOn);
      auto opened = Connection::connect(context_, listener_->address());
      if (opened) connection_ = std::move(*opened);
      came_to_an_end = !failing.failed();
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the test checks the state after it
    }
    if (!connection_) connection_ = Connection::connect(context_, listener_->address()).value();
    ASSERT_EQ(connection_->send(numbered(at)), SendResult::kSent) << at;
    ASSERT_EQ(step_of(wait_for_message()), at);
  }
  EXPECT_TRUE(came_to_an_end);
}

TEST_F(StarvedTransport, AConnectionThatMemoryDoesNotSufficeToMakeAgainIsAsItWas) {
  bool came_to_an_end = false;
  uint64_t kept = 0;
  for (uint64_t at = 0; at < kAllocationsMax && !came_to_an_end; ++at) {
    ASSERT_EQ(connection_->send(numbered(2 * at)), SendResult::kSent);
    ASSERT_EQ(step_of(wait_for_message()), 2 * at);
    bool made = false;
    try {
      const FailingAllocation failing(at, FailingAllocation::Then::kGoesOn);
      made = connection_->reconnect().has_value();
      came_to_an_end = !failing.failed();
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the test checks the state after it
    }
    if (!made) {
      EXPECT_EQ(connection_->state(), ConnectionState::kConnected) << at << ": the old one continues";
      ++kept;
    }
    ASSERT_EQ(connection_->send(numbered(2 * at + 1)), SendResult::kSent) << at;
    ASSERT_EQ(step_of(wait_for_message()), 2 * at + 1) << at;
  }
  EXPECT_TRUE(came_to_an_end);
  EXPECT_GT(kept, 0u);
}

TEST_F(StarvedTransport, TheEndOfAConnectionIsSeenWithoutMemory) {
  ASSERT_EQ(connection_->send(numbered(1)), SendResult::kSent);
  ASSERT_EQ(step_of(wait_for_message()), 1u);
  ASSERT_EQ(connection_->state(), ConnectionState::kConnected);
  listener_.reset();
  const TimeNs deadline = monotonic_now_ns() + kTransportMemoryWaitMs * kNsPerMs;
  ConnectionState state = ConnectionState::kConnected;
  while (state == ConnectionState::kConnected && monotonic_now_ns() < deadline) {
    const FailingAllocation failing(0, FailingAllocation::Then::kStaysOut);
    ASSERT_NO_THROW(state = connection_->state());
    ASSERT_FALSE(failing.failed());
  }
  EXPECT_EQ(state, ConnectionState::kDisconnected);
}

}  // namespace
}  // namespace millrace::protocol
