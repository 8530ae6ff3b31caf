#include <gtest/gtest.h>
#include <zmq.h>

#include <new>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/transport.h"
#include "tests/protocol/example_messages.h"
#include "tests/support/replaced_new.h"

/// Memory that ends while a message is received or sent: that message is lost, the next one is whole.
namespace millrace::protocol {
namespace {

using millrace::testing::FailingAllocation;

constexpr int kWaitMs = 5'000;
constexpr uint64_t kAllocationsMax = 200;

class StarvedTransport : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_ = Listener::bind(context_, "tcp://127.0.0.1:0").value();
    connection_ = Connection::connect(context_, listener_->address()).value();
    poller_.add(*listener_);
  }

  std::optional<Received> wait_for_message() {
    const TimeNs deadline = monotonic_now_ns() + kWaitMs * kNsPerMs;
    while (monotonic_now_ns() < deadline) {
      if (std::optional<Received> received = listener_->receive()) return received;
      poller_.wait(50);
    }
    return std::nullopt;
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

TEST_F(StarvedTransport, AMessageThatMemoryDoesNotSufficeToReceiveIsLostAndTheNextOneIsWhole) {
  bool came_to_an_end = false;
  for (uint64_t at = 0; at < kAllocationsMax && !came_to_an_end; ++at) {
    ASSERT_EQ(connection_->send(numbered(2 * at)), SendResult::kSent);
    ASSERT_EQ(connection_->send(numbered(2 * at + 1)), SendResult::kSent);
    ASSERT_TRUE(poller_.wait(kWaitMs));
    std::optional<Received> first;
    try {
      const FailingAllocation failing(at, FailingAllocation::Then::kGoesOn);
      first = listener_->receive();
      came_to_an_end = !failing.failed();
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): what is left then is what this is about
    }
    // A failure before anything was read leaves the message where it is.
    if (!first) first = wait_for_message();
    ASSERT_TRUE(first.has_value());
    uint64_t seen = std::get<Contribution>(first->message.value().body).step;
    if (seen == 2 * at) seen = std::get<Contribution>(wait_for_message()->message.value().body).step;
    EXPECT_EQ(seen, 2 * at + 1);
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
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): what is left then is what this is about
    }
    if (!sent) {
      ASSERT_EQ(connection_->send(message), SendResult::kSent);
    }
    const std::optional<Received> received = wait_for_message();
    ASSERT_TRUE(received.has_value());
    ASSERT_TRUE(received->message.has_value()) << at << ": " << received->message.error().message;
    EXPECT_EQ(std::get<Contribution>(received->message->body).step, at);
  }
  EXPECT_TRUE(came_to_an_end);
}

}  // namespace
}  // namespace millrace::protocol
