#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/transport/transport.h"
#include "tests/protocol/example_messages.h"
#include "tests/protocol/transport/bare_zmtp.h"

/// What strangers and bad luck do to a listener: one peer's bytes never disturb another's.
namespace millrace::protocol {
namespace {

constexpr int kTransportHostileWaitMs = 60'000;

template <typename Receiver>
std::optional<Received> wait_for_message(Poller& poller, Receiver& receiver) {
  const TimeNs deadline = monotonic_now_ns() + kTransportHostileWaitMs * kNsPerMs;
  while (monotonic_now_ns() < deadline) {
    if (std::optional<Received> received = receiver.receive()) return received;
    poller.wait(50);
  }
  return std::nullopt;
}

uint16_t port_of(const std::string& address) {
  return static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
}

/// A stranger's DEALER socket, which sends arbitrary frames.
class RawDealer {
 public:
  explicit RawDealer(const std::string& address) : context_(zmq_ctx_new()), socket_(zmq_socket(context_, ZMQ_DEALER)) {
    const int linger = kTransportHostileWaitMs;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof(linger));
    EXPECT_EQ(zmq_connect(socket_, address.c_str()), 0);
  }
  ~RawDealer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  RawDealer(const RawDealer&) = delete;
  RawDealer& operator=(const RawDealer&) = delete;

  void send(const std::vector<std::string>& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      const int flags = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
      EXPECT_EQ(zmq_send(socket_, frames[i].data(), frames[i].size(), flags), static_cast<int>(frames[i].size()));
    }
  }

 private:
  void* context_;
  void* socket_;
};

class HostileTransport : public ::testing::Test {
 protected:
  void SetUp() override {
    auto bound = Listener::bind(context_, "tcp://127.0.0.1:0");
    ASSERT_TRUE(bound) << bound.error().message;
    listener_ = std::move(*bound);
    poller_.add(*listener_);
  }

  /// An honest worker's message still arrives whole.
  void expect_undisturbed() {
    const auto honest = Connection::connect(context_, listener_->address()).value();
    const Message message = every_message()[4];
    ASSERT_EQ(honest->send(message), SendResult::kSent);
    for (;;) {
      const std::optional<Received> received = wait_for_message(poller_, *listener_);
      ASSERT_TRUE(received) << "the honest message did not arrive";
      if (!received->message) continue;  // a remainder of the stranger's
      EXPECT_EQ(received->message->body, message.body);
      EXPECT_EQ(listener_->send(received->peer, every_message()[5]), SendResult::kSent);
      break;
    }
    Poller poller;
    poller.add(*honest);
    const std::optional<Received> answer = wait_for_message(poller, *honest);
    ASSERT_TRUE(answer && answer->message);
    EXPECT_EQ(answer->message->body, every_message()[5].body);
  }

  TransportContext context_{{.limits = {.envelope_bytes_max = 1 << 16, .payload_bytes_max = 1 << 16}}};
  std::unique_ptr<Listener> listener_;
  Poller poller_;
};

TEST_F(HostileTransport, EveryKindOfMessageTravels) {
  const auto connection = Connection::connect(context_, listener_->address()).value();
  for (const Message& message : every_message()) {
    ASSERT_EQ(connection->send(message), SendResult::kSent);
    const std::optional<Received> received = wait_for_message(poller_, *listener_);
    ASSERT_TRUE(received && received->message) << body_name(message.body);
    EXPECT_EQ(received->message->header, message.header);
    EXPECT_EQ(received->message->body, message.body) << body_name(message.body);
    EXPECT_TRUE(std::ranges::equal(received->message->payload.bytes, message.payload.bytes));
  }
}

TEST_F(HostileTransport, AnyOtherNumberOfFramesThanTwoIsMalformed) {
  RawDealer stranger(listener_->address());
  for (const std::vector<std::string>& frames :
       {std::vector<std::string>{"one"}, {""}, {"one", "two", "three"}, std::vector<std::string>(1'000, "x")}) {
    stranger.send(frames);
    const std::optional<Received> received = wait_for_message(poller_, *listener_);
    ASSERT_TRUE(received);
    ASSERT_FALSE(received->message);
    EXPECT_EQ(received->message.error().code, ErrorCode::kMalformed);
    EXPECT_FALSE(received->peer.bytes.empty());
  }
  expect_undisturbed();
}

TEST_F(HostileTransport, AFrameOverTheLimitClosesOnlyItsOwnConnection) {
  RawDealer stranger(listener_->address());
  stranger.send({std::string((1 << 16) + 1, 'x'), ""});
  expect_undisturbed();
  EXPECT_FALSE(listener_->receive()) << "it must not have come through";
}

/// Sends a message of the peer, which then reads nothing. Returns its identity at the listener.
std::optional<PeerId> hear_once(millrace::testing::BareZmtp& peer, Poller& poller, Listener& listener) {
  EXPECT_TRUE(peer.send_frame(millrace::testing::BareZmtp::Frame::kMore, "x"));
  EXPECT_TRUE(peer.send_frame(millrace::testing::BareZmtp::Frame::kLast, "y"));
  const std::optional<Received> received = wait_for_message(poller, listener);
  return received ? std::optional(received->peer) : std::nullopt;
}

TEST_F(HostileTransport, APeerThatReadsNothingKeepsABoundedNumberOfBytes) {
  constexpr uint64_t kQueueMost = 1 << 20;
  constexpr size_t kPayload = 256 << 10;
  constexpr size_t kSentMost = 256 << 20;  // beside the bound: buffers of the system
  TransportOptions options;
  options.queue_bytes_max = kQueueMost;
  TransportContext context(options);
  const auto listener = Listener::bind(context, "tcp://127.0.0.1:0").value();
  millrace::testing::BareZmtp peer(port_of(listener->address()));
  Poller poller;
  poller.add(*listener);
  const std::optional<PeerId> silent = hear_once(peer, poller, *listener);
  ASSERT_TRUE(silent);
  const SharedBytes envelope = SharedBytes::from(encode_envelope(every_message()[5]));
  const SharedBytes payload = SharedBytes::from(ByteBuffer(kPayload));
  size_t sent = 0;
  while (sent < kSentMost && listener->send_frames(*silent, envelope, payload) == SendResult::kSent) sent += kPayload;
  EXPECT_LT(sent, kSentMost);
  EXPECT_LE(payload.owner.use_count(), static_cast<long>(2 + kQueueMost / kPayload)) << "what ZeroMQ keeps";
  const auto honest = Connection::connect(context, listener->address()).value();
  ASSERT_EQ(honest->send(every_message()[4]), SendResult::kSent);
  const std::optional<Received> other = wait_for_message(poller, *listener);
  ASSERT_TRUE(other);
  EXPECT_EQ(listener->send_frames(other->peer, envelope, payload), SendResult::kSent) << "each peer has its own bound";
}

TEST_F(HostileTransport, SmallAnswersToAPeerThatReadsNothingAreBounded) {
  constexpr size_t kAnswerBytes = 1'000;
  constexpr size_t kSentMost = 64 << 20;  // beside the bound: buffers of the system
  TransportOptions options;
  options.queue_messages_max = 1'000'000;
  options.queue_bytes_max = kSentMost;
  options.queue_total_bytes_max = 2 << 20;
  TransportContext context(options);
  const auto listener = Listener::bind(context, "tcp://127.0.0.1:0").value();
  millrace::testing::BareZmtp peer(port_of(listener->address()));
  Poller poller;
  poller.add(*listener);
  const std::optional<PeerId> silent = hear_once(peer, poller, *listener);
  ASSERT_TRUE(silent);
  const SharedBytes envelope = SharedBytes::from(ByteBuffer(kAnswerBytes));
  size_t sent = 0;
  while (sent < kSentMost && listener->send_frames(*silent, envelope, {}) == SendResult::kSent) sent += kAnswerBytes;
  EXPECT_LT(sent, kSentMost);
  EXPECT_LE(envelope.owner.use_count(), static_cast<long>(2 + options.queue_total_bytes_max / 8 / kAnswerBytes));
  // Small messages for other peers pass, and so do large ones.
  const auto honest = Connection::connect(context, listener->address()).value();
  ASSERT_EQ(honest->send(every_message()[4]), SendResult::kSent);
  const std::optional<Received> other = wait_for_message(poller, *listener);
  ASSERT_TRUE(other);
  const SharedBytes payload = SharedBytes::from(ByteBuffer(1 << 20));
  for (int at = 0; at < 8; ++at) EXPECT_EQ(listener->send_frames(other->peer, envelope, {}), SendResult::kSent) << at;
  EXPECT_EQ(listener->send_frames(other->peer, envelope, payload), SendResult::kSent);
}

TEST_F(HostileTransport, BytesThatAreNotZeroMqDisturbNoOtherPeer) {
  const int stranger = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port_of(listener_->address()));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr generic{};
  std::memcpy(&generic, &to, sizeof(to));
  ASSERT_EQ(connect(stranger, &generic, sizeof(to)), 0);
  const std::string request = "GET / HTTP/1.1\r\nHost: here\r\n\r\n" + std::string(500, '\xFF');
  ASSERT_GT(send(stranger, request.data(), request.size(), MSG_NOSIGNAL), 0);
  expect_undisturbed();
  close(stranger);
}

TEST_F(HostileTransport, AConnectionReconnectsToAListenerRestartedOnItsPort) {
  auto listening = std::make_unique<TransportContext>();
  auto first = Listener::bind(*listening, "tcp://127.0.0.1:0").value();
  const std::string address = first->address();
  const auto connection = Connection::connect(context_, address).value();
  Poller poller;
  poller.add(*connection);
  const TimeNs deadline = monotonic_now_ns() + kTransportHostileWaitMs * kNsPerMs;
  const auto wait_for = [&](ConnectionState wanted) {
    while (connection->state() != wanted && monotonic_now_ns() < deadline) poller.wait(50);
    return connection->state() == wanted;
  };
  ASSERT_TRUE(wait_for(ConnectionState::kConnected));
  first.reset();
  listening.reset();  // waits until the port is free
  ASSERT_TRUE(wait_for(ConnectionState::kDisconnected));

  TransportContext again;
  auto second = Listener::bind(again, address);
  ASSERT_TRUE(second) << second.error().message;
  ASSERT_TRUE(connection->reconnect());
  ASSERT_TRUE(wait_for(ConnectionState::kConnected));
  ASSERT_EQ(connection->send(every_message()[0]), SendResult::kSent);
  Poller listening_again;
  listening_again.add(**second);
  const std::optional<Received> received = wait_for_message(listening_again, **second);
  ASSERT_TRUE(received && received->message);
  EXPECT_EQ(received->message->body, every_message()[0].body);
}

TEST(TransportQueue, AFullQueueRefusesASend) {
  TransportOptions options;
  options.queue_messages_max = 3;
  options.linger_ms = 0;
  TransportContext context(options);
  // No process listens there: everything stays queued.
  const auto connection = Connection::connect(context, "tcp://127.0.0.1:1").value();
  int sent = 0;
  SendResult result = SendResult::kSent;
  while (result == SendResult::kSent && sent < 100) {
    result = connection->send(every_message()[5]);
    sent += result == SendResult::kSent ? 1 : 0;
  }
  EXPECT_NE(result, SendResult::kSent);
  EXPECT_LE(sent, 3);
}

TEST(TransportWithoutDescriptors, AConnectionIsAnErrorAndCanBeMadeLater) {
  TransportContext context;
  auto listener = Listener::bind(context, "tcp://127.0.0.1:0").value();
  const auto connection = Connection::connect(context, listener->address()).value();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> taken;
  for (int descriptor = ::dup(STDERR_FILENO); descriptor >= 0; descriptor = ::dup(STDERR_FILENO))
    taken.push_back(descriptor);
  const Status again = connection->reconnect();
  const auto another = Connection::connect(context, listener->address());
  const auto second = Listener::bind(context, "tcp://127.0.0.1:0");
  for (const int descriptor : taken) ::close(descriptor);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kIo);
  EXPECT_NE(again.error().message.find("open files"), std::string::npos) << again.error().message;
  EXPECT_FALSE(another);
  EXPECT_FALSE(second);
  ASSERT_TRUE(connection->reconnect());
  Heartbeat heartbeat;
  heartbeat.sequence = 7;
  ASSERT_EQ(connection->send({{}, heartbeat, {}}), SendResult::kSent);
  Poller poller;
  poller.add(*listener);
  const std::optional<Received> received = wait_for_message(poller, *listener);
  ASSERT_TRUE(received && received->message);
  EXPECT_EQ(std::get<Heartbeat>(received->message->body).sequence, 7u);
}

}  // namespace
}  // namespace millrace::protocol
