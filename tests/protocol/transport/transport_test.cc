#include "protocol/transport/transport.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "kernels/base/clock.h"
#include "protocol/address/host_port.h"
#include "tests/protocol/transport/recording_relay.h"

namespace millrace::protocol {
namespace {

constexpr int kTransportWaitMs = 120'000;  ///< no event takes this long
constexpr int kEventsMax = 16;             ///< of a connection that is made again: 4 or 5

SharedBytes transport_bytes_of(const std::string& text) {
  return SharedBytes::from(ByteBuffer(text.begin(), text.end()));
}
std::string text_of(const SharedBytes& bytes) { return {bytes.bytes.begin(), bytes.bytes.end()}; }

template <typename Receiver>
ReceivedFrames wait_for_frames(Poller& poller, Receiver& receiver) {
  const TimeNs deadline = monotonic_now_ns() + kTransportWaitMs * kNsPerMs;
  while (monotonic_now_ns() < deadline) {
    if (auto frames = receiver.receive_frames()) return std::move(*frames);
    poller.wait(100);
  }
  ADD_FAILURE() << "nothing arrived";
  return {};
}

ConnectionState wait_for_state(Poller& poller, Connection& connection, ConnectionState wanted) {
  const TimeNs deadline = monotonic_now_ns() + kTransportWaitMs * kNsPerMs;
  while (connection.state() != wanted && monotonic_now_ns() < deadline) poller.wait(100);
  return connection.state();
}

struct Pair {
  TransportContext context;
  std::unique_ptr<Listener> listener = Listener::bind(context, "tcp://127.0.0.1:0").value();
  std::unique_ptr<Connection> connection = Connection::connect(context, listener->address()).value();
  Poller poller;
  Pair() {
    poller.add(*listener);
    poller.add(*connection);
  }
};

TEST(Transport, FramesTravelBothWays) {
  Pair pair;
  ASSERT_EQ(pair.connection->send_frames(transport_bytes_of("envelope"), transport_bytes_of("payload")),
            SendResult::kSent);
  const auto up = wait_for_frames(pair.poller, *pair.listener);
  ASSERT_EQ(up.frames.size(), 2u);
  EXPECT_EQ(text_of(up.frames[0]), "envelope");
  EXPECT_EQ(text_of(up.frames[1]), "payload");
  ASSERT_EQ(pair.listener->send_frames(up.peer, transport_bytes_of("answer"), {}), SendResult::kSent);
  const auto down = wait_for_frames(pair.poller, *pair.connection);
  ASSERT_EQ(down.frames.size(), 2u);
  EXPECT_EQ(text_of(down.frames[0]), "answer");
  EXPECT_TRUE(down.frames[1].bytes.empty());
}

TEST(Transport, ALargePayloadIsNotCopiedAndItsOwnerIsReleased) {
  auto kept = std::make_shared<const ByteBuffer>(ByteBuffer(16u << 20, 0x5a));
  std::weak_ptr<const ByteBuffer> watched = kept;
  {
    Pair pair;
    ASSERT_EQ(pair.connection->send_frames(transport_bytes_of("e"), SharedBytes{kept, ByteSpan(*kept)}),
              SendResult::kSent);
    const auto up = wait_for_frames(pair.poller, *pair.listener);
    ASSERT_EQ(up.frames.size(), 2u);
    EXPECT_EQ(up.frames[1].bytes.size(), 16u << 20);
    EXPECT_EQ(up.frames[1].bytes.back(), 0x5a);
    kept.reset();
  }
  EXPECT_TRUE(watched.expired());
}

TEST(Transport, ASendToAnUnknownPeerIsReported) {
  Pair pair;
  EXPECT_EQ(pair.listener->send_frames(PeerId{"nobody"}, transport_bytes_of("e"), {}), SendResult::kUnknownPeer);
}

TEST(Transport, APortInUseIsOneClearSentence) {
  TransportContext context;
  const auto first = Listener::bind(context, "tcp://127.0.0.1:0").value();
  const auto second = Listener::bind(context, first->address());
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kIo);
  EXPECT_NE(second.error().message.find("is in use"), std::string::npos) << second.error().message;
}

TEST(Transport, AConnectionWithoutListenerDisconnectsAndCanReconnect) {
  TransportContext context;
  std::string address;
  {
    address = Listener::bind(context, "tcp://127.0.0.1:0").value()->address();
  }
  auto connection = Connection::connect(context, address).value();
  Poller poller;
  poller.add(*connection);
  EXPECT_EQ(wait_for_state(poller, *connection, ConnectionState::kDisconnected), ConnectionState::kDisconnected);

  Result<std::unique_ptr<Listener>> listener = fail(ErrorCode::kIo, "not bound yet");
  const TimeNs deadline = monotonic_now_ns() + kTransportWaitMs * kNsPerMs;
  while (!listener && monotonic_now_ns() < deadline)
    listener = Listener::bind(context, address);  // the old socket closes in the background
  ASSERT_TRUE(listener.has_value()) << listener.error().message;
  ASSERT_TRUE(connection->reconnect().has_value());
  EXPECT_EQ(wait_for_state(poller, *connection, ConnectionState::kConnected), ConnectionState::kConnected);
}

TEST(Transport, ListenerSpeaksAnotherProtocol_AcceptedButNotConnected) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  TransportContext context;
  auto connection = Connection::connect(context, "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port))).value();
  Poller poller;
  poller.add(*connection);
  EXPECT_FALSE(connection->accepted());
  const TimeNs deadline = monotonic_now_ns() + kTransportWaitMs * kNsPerMs;
  for (; !connection->accepted() && monotonic_now_ns() < deadline; connection->state()) poller.wait(100);
  EXPECT_TRUE(connection->accepted());
  EXPECT_EQ(connection->state(), ConnectionState::kConnecting);
  ::close(listener);
  ASSERT_TRUE(connection->reconnect().has_value());
  EXPECT_EQ(wait_for_state(poller, *connection, ConnectionState::kDisconnected), ConnectionState::kDisconnected);
  EXPECT_FALSE(connection->accepted());
}

TEST(Transport, AListenerThatGoesIsNoticed) {
  Pair pair;
  ASSERT_EQ(wait_for_state(pair.poller, *pair.connection, ConnectionState::kConnected), ConnectionState::kConnected);
  Poller rest;
  rest.add(*pair.connection);
  pair.listener.reset();
  EXPECT_EQ(wait_for_state(rest, *pair.connection, ConnectionState::kDisconnected), ConnectionState::kDisconnected);
}

TEST(Transport, QueuedMessagesDoNotSurviveAReconnect) {
  Pair pair;
  ASSERT_EQ(wait_for_state(pair.poller, *pair.connection, ConnectionState::kConnected), ConnectionState::kConnected);
  const std::string address = pair.listener->address();
  Poller rest;
  rest.add(*pair.connection);
  pair.listener.reset();
  ASSERT_EQ(wait_for_state(rest, *pair.connection, ConnectionState::kDisconnected), ConnectionState::kDisconnected);
  pair.connection->send_frames(transport_bytes_of("old"), {});
  Result<std::unique_ptr<Listener>> again = fail(ErrorCode::kIo, "not bound yet");
  const TimeNs deadline = monotonic_now_ns() + kTransportWaitMs * kNsPerMs;
  while (!again && monotonic_now_ns() < deadline) again = Listener::bind(pair.context, address);
  ASSERT_TRUE(again.has_value());
  ASSERT_TRUE(pair.connection->reconnect().has_value());
  ASSERT_EQ(pair.connection->send_frames(transport_bytes_of("new"), {}), SendResult::kSent);
  Poller both;
  both.add(**again);
  both.add(*pair.connection);
  EXPECT_EQ(text_of(wait_for_frames(both, **again).frames.at(0)), "new");
}

TEST(Transport, ProgressShowsBytesOfAMessageThatHasNotEnded) {
  constexpr size_t kLarge = size_t{64} << 20;  // more than the system's buffers take
  TransportContext context;
  const auto listener = Listener::bind(context, "tcp://127.0.0.1:0").value();
  const uint16_t port = parse_tcp_address(listener->address()).value().port;
  testing::RecordingRelay relay(port, size_t{1} << 20);
  const auto connection = Connection::connect(context, "tcp://127.0.0.1:" + std::to_string(relay.port())).value();
  Poller poller;
  poller.add(*listener);
  poller.add(*connection);
  ASSERT_EQ(wait_for_state(poller, *connection, ConnectionState::kConnected), ConnectionState::kConnected);
  EXPECT_GT(connection->progress().received, 0u) << "the handshake";
  EXPECT_FALSE(connection->progress().sent) << "nothing is queued";

  ASSERT_EQ(connection->send_frames(transport_bytes_of("up"), SharedBytes::from(ByteBuffer(kLarge))),
            SendResult::kSent);
  const auto sees = [&](auto Connection::Progress::* what) {
    const TimeNs deadline = monotonic_now_ns() + kTransportWaitMs * kNsPerMs;
    while (monotonic_now_ns() < deadline) {
      if (connection->progress().*what != 0) return true;
      poller.wait(5);
    }
    return false;
  };
  EXPECT_TRUE(sees(&Connection::Progress::sent));
  // The other end reads no more: its buffers fill, and then nothing moves.
  TimeNs still_since = monotonic_now_ns();
  for (const TimeNs deadline = still_since + kTransportWaitMs * kNsPerMs;
       monotonic_now_ns() - still_since < kNsPerS && monotonic_now_ns() < deadline;) {
    if (connection->progress().sent) still_since = monotonic_now_ns();
    poller.wait(20);
  }
  EXPECT_GE(monotonic_now_ns() - still_since, kNsPerS);
  EXPECT_GT(connection->unsent_bytes(), kLarge / 2);

  relay.release();
  const auto up = wait_for_frames(poller, *listener);
  ASSERT_EQ(up.frames.size(), 2u);
  ASSERT_EQ(listener->send_frames(up.peer, transport_bytes_of("down"), {}), SendResult::kSent);
  EXPECT_TRUE(sees(&Connection::Progress::received));
  const auto down = wait_for_frames(poller, *connection);
  EXPECT_EQ(down.frames.size(), 2u);
  (void)connection->progress();
  EXPECT_EQ(connection->progress().received, 0u);
  EXPECT_EQ(connection->unsent_bytes(), 0u);
  (void)relay.end();
  EXPECT_EQ(wait_for_state(poller, *connection, ConnectionState::kDisconnected), ConnectionState::kDisconnected);
  EXPECT_EQ(connection->progress().received, 0u) << "of a closed socket";
}

TEST(Transport, MalformedFramesAreErrorsOfTheirPeerOnly) {
  Pair pair;
  auto other = Connection::connect(pair.context, pair.listener->address()).value();
  ASSERT_EQ(pair.connection->send_frames(transport_bytes_of("garbage"), transport_bytes_of("more garbage")),
            SendResult::kSent);
  const TimeNs deadline = monotonic_now_ns() + kTransportWaitMs * kNsPerMs;
  std::optional<Received> received;
  while (!received && monotonic_now_ns() < deadline) {
    pair.poller.wait(100);
    received = pair.listener->receive();
  }
  ASSERT_TRUE(received.has_value());
  EXPECT_FALSE(received->message.has_value());
  ASSERT_EQ(other->send_frames(transport_bytes_of("fine"), transport_bytes_of("fine")), SendResult::kSent);
  EXPECT_EQ(text_of(wait_for_frames(pair.poller, *pair.listener).frames.at(0)), "fine");
}

TEST(Transport, AMessageArrivesWithItsPayload) {
  Pair pair;
  Message message;
  message.header = {.job = 7, .epoch = 3, .worker = 2, .incarnation = 5, .shard = 1, .shard_incarnation = 9};
  message.body = Contribution{.part = 4, .step = 11, .payload_hash = 42};
  message.payload = transport_bytes_of("the payload");
  ASSERT_EQ(pair.connection->send(message), SendResult::kSent);
  std::optional<Received> received;
  const TimeNs deadline = monotonic_now_ns() + kTransportWaitMs * kNsPerMs;
  while (!received && monotonic_now_ns() < deadline) {
    pair.poller.wait(100);
    received = pair.listener->receive();
  }
  ASSERT_TRUE(received.has_value());
  ASSERT_TRUE(received->message.has_value()) << received->message.error().message;
  EXPECT_EQ(received->message->header.job, 7u);
  EXPECT_EQ(std::get<Contribution>(received->message->body).step, 11u);
  EXPECT_EQ(text_of(received->message->payload), "the payload");
}

TEST(Transport, AConnectionEventEndsOneWaitOnly) {
  Pair pair;
  ASSERT_EQ(wait_for_state(pair.poller, *pair.connection, ConnectionState::kConnected), ConnectionState::kConnected);
  ASSERT_TRUE(pair.connection->reconnect().has_value());
  // The events of the new connection come before its first message does.
  ASSERT_EQ(pair.connection->send_frames(transport_bytes_of("new"), {}), SendResult::kSent);
  EXPECT_EQ(text_of(wait_for_frames(pair.poller, *pair.listener).frames.at(0)), "new");
  int waits = 0;
  while (waits < kEventsMax && pair.poller.wait(0)) ++waits;
  EXPECT_LT(waits, kEventsMax) << "an event that was left unread ends every wait";
  EXPECT_EQ(pair.connection->state(), ConnectionState::kConnected);
}

TEST(Transport, AWakerEndsAWaitFromAnotherThread) {
  Waker waker;
  Poller poller;
  poller.add(waker);
  std::thread other([&waker] { waker.wake(); });
  EXPECT_TRUE(poller.wait(kTransportWaitMs));
  other.join();
  EXPECT_FALSE(poller.wait(0));
}

}  // namespace
}  // namespace millrace::protocol
