#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <link.h>
#include <zmq.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/transport/key_gate.h"
#include "protocol/transport/transport.h"
#include "tests/protocol/transport/bare_zmtp.h"
#include "tests/protocol/transport/recording_relay.h"

/// CURVE on the message plane: the keys that get in, the reports to both sides, and the sender of a message.
namespace millrace::protocol {
namespace {

using millrace::testing::BareZmtp;
using ::testing::HasSubstr;

constexpr TimeNs kKeysWait = 60 * kNsPerS;

TransportOptions options_with(const KeyPair& own, const PublicKey& server) {
  TransportOptions options;
  options.keys = TransportKeys{own, server};
  return options;
}

Message beat(uint64_t sequence) {
  Heartbeat heartbeat;
  heartbeat.sequence = sequence;
  return {{}, heartbeat, {}};
}

/// A listener with a key and a gate, served by hand.
class KeyedListener : public ::testing::Test {
 protected:
  KeyedListener() : context_(options_with(own_, own_.public_key)), gate_(KeyGate::open(context_).value()) {
    listener_ = Listener::bind(context_, "tcp://127.0.0.1:0").value();
    poller_.add(*listener_);
    poller_.add(*gate_);
  }

  /// Serves until a message is here, the connection is down, or time is over.
  std::optional<Received> serve(Connection& connection) {
    Poller theirs;
    theirs.add(connection);
    for (const TimeNs until = monotonic_now_ns() + kKeysWait; monotonic_now_ns() < until;) {
      poller_.wait(5);
      gate_->answer([this](const KeyGate::Caller& caller) {
        asked_.push_back(caller);
        return allowed_.is_none() || caller.key == allowed_;
      });
      if (auto received = listener_->receive()) return received;
      theirs.wait(5);
      if (connection.state() == ConnectionState::kDisconnected) return std::nullopt;
    }
    ADD_FAILURE() << "neither a message nor an end";
    return std::nullopt;
  }

  const KeyPair own_ = draw_key_pair();
  const KeyPair worker_ = draw_key_pair();
  PublicKey allowed_;  ///< none: every key
  TransportContext context_;
  std::unique_ptr<KeyGate> gate_;
  std::unique_ptr<Listener> listener_;
  std::vector<KeyGate::Caller> asked_;
  Poller poller_;
};

TEST_F(KeyedListener, AMessageSaysWhoseKeyAndAddressItIsFrom) {
  TransportContext theirs(options_with(worker_, own_.public_key));
  const auto connection = Connection::connect(theirs, listener_->address()).value();
  ASSERT_EQ(connection->send(beat(7)), SendResult::kSent);
  const auto received = serve(*connection);
  ASSERT_TRUE(received && received->message);
  EXPECT_EQ(std::get<Heartbeat>(received->message->body).sequence, 7U);
  EXPECT_EQ(received->peer.key, worker_.public_key);
  EXPECT_EQ(received->peer.address, "127.0.0.1");
  ASSERT_EQ(asked_.size(), 1U);
  EXPECT_EQ(asked_[0].key, worker_.public_key);
  EXPECT_EQ(asked_[0].address, "127.0.0.1");
  EXPECT_EQ(connection->key_trouble(), "");

  ASSERT_EQ(listener_->send(received->peer, beat(8)), SendResult::kSent);
  Poller poller;
  poller.add(*connection);
  std::optional<Received> answer;
  for (const TimeNs until = monotonic_now_ns() + kKeysWait; !answer && monotonic_now_ns() < until; poller.wait(10))
    answer = connection->receive();
  ASSERT_TRUE(answer && answer->message);
}

TEST_F(KeyedListener, AProcessLearnsThatItsKeyIsNotAllowed) {
  allowed_ = draw_key_pair().public_key;
  TransportContext theirs(options_with(worker_, own_.public_key));
  const auto connection = Connection::connect(theirs, listener_->address()).value();
  connection->send(beat(1));
  EXPECT_FALSE(serve(*connection));
  EXPECT_THAT(connection->key_trouble(), HasSubstr("does not accept this process's key"));
  EXPECT_THAT(connection->key_trouble(), HasSubstr(key_digits(worker_.public_key)));
}

TEST_F(KeyedListener, AProcessWithoutAKeyIsRefusedBeforeItsFirstMessage) {
  TransportContext theirs;
  const auto connection = Connection::connect(theirs, listener_->address()).value();
  connection->send(beat(1));
  EXPECT_FALSE(serve(*connection));
  EXPECT_TRUE(asked_.empty());
  EXPECT_FALSE(listener_->receive());
}

TEST_F(KeyedListener, AServerThatHasAnotherKeyLearnsNothing) {
  TransportContext theirs(options_with(worker_, draw_key_pair().public_key));
  const auto connection = Connection::connect(theirs, listener_->address()).value();
  connection->send(beat(1));
  EXPECT_FALSE(serve(*connection));
  EXPECT_TRUE(asked_.empty());
  EXPECT_THAT(connection->key_trouble(), HasSubstr("another server's"));
}

/// A stranger that has recorded an allowed worker's bytes gets no session by them: the listener's part of a handshake
/// is new each time.
TEST_F(KeyedListener, ARecordedConnectionThatIsSentAgainGetsNothing) {
  const uint16_t port = parse_tcp_address(listener_->address()).value().port;
  testing::RecordingRelay relay(port);
  TransportContext theirs(options_with(worker_, own_.public_key));
  std::string recorded;
  {
    const auto connection = Connection::connect(theirs, "tcp://127.0.0.1:" + std::to_string(relay.port())).value();
    ASSERT_EQ(connection->send(beat(7)), SendResult::kSent);
    const auto received = serve(*connection);
    ASSERT_TRUE(received && received->message);
    recorded = relay.end();
  }
  ASSERT_EQ(asked_.size(), 1U);
  const testing::LoopbackSocket again;
  again.connect(port);
  constexpr size_t kGreeting = 64;
  ASSERT_GT(recorded.size(), 2 * kGreeting);
  again.write(recorded.substr(0, kGreeting));
  bool answered = false;
  bool ended = false;
  for (const TimeNs until = monotonic_now_ns() + kKeysWait; !ended && monotonic_now_ns() < until;) {
    poller_.wait(5);
    gate_->answer([this](const KeyGate::Caller& caller) {
      asked_.push_back(caller);
      return true;
    });
    EXPECT_FALSE(listener_->receive());
    if (!again.readable(0)) continue;
    ended = again.read().empty();
    if (!ended && !std::exchange(answered, true)) again.write(recorded.substr(kGreeting));
  }
  EXPECT_TRUE(answered) << "the listener has not greeted the stranger";
  EXPECT_TRUE(ended);
  EXPECT_EQ(asked_.size(), 1U) << "the key of a replayed handshake was judged";
}

TEST_F(KeyedListener, WithoutItsGateNoKeyGetsIn) {
  TransportContext lone(options_with(own_, own_.public_key));
  const auto listener = Listener::bind(lone, "tcp://127.0.0.1:0").value();
  TransportContext theirs(options_with(worker_, own_.public_key));
  const auto connection = Connection::connect(theirs, listener->address()).value();
  connection->send(beat(1));
  EXPECT_FALSE(serve(*connection));
  EXPECT_FALSE(listener->receive());
}

TEST_F(KeyedListener, AWorkerWithAKeyDoesNotSpeakToAServerWithoutOne) {
  TransportContext open;
  const auto listener = Listener::bind(open, "tcp://127.0.0.1:0").value();
  TransportContext theirs(options_with(worker_, own_.public_key));
  const auto connection = Connection::connect(theirs, listener->address()).value();
  connection->send(beat(1));
  EXPECT_FALSE(serve(*connection));
  EXPECT_FALSE(listener->receive());
  EXPECT_THAT(connection->key_trouble(), HasSubstr("it takes no keys"));
}

/// A peer chooses its routing identity: once a connection is gone it may take the one of that connection.
TEST_F(KeyedListener, ARoutingIdentityTakenOverByAnotherKeyIsAnotherPeer) {
  const auto send_as = [&](const KeyPair& key) -> std::optional<PeerId> {
    void* context = zmq_ctx_new();
    void* socket = zmq_socket(context, ZMQ_DEALER);
    const int linger = 0;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger));
    zmq_setsockopt(socket, ZMQ_ROUTING_ID, "chosen", 6);
    zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, own_.public_key.bytes.data(), kKeyBytes);
    zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, key.public_key.bytes.data(), kKeyBytes);
    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, key.secret.bytes().data(), kKeyBytes);
    EXPECT_EQ(zmq_connect(socket, listener_->address().c_str()), 0);
    zmq_send(socket, "x", 1, 0);
    std::optional<PeerId> peer;
    for (const TimeNs until = monotonic_now_ns() + kNsPerS; !peer && monotonic_now_ns() < until;) {
      poller_.wait(5);
      gate_->answer([](const KeyGate::Caller&) { return true; });
      if (const auto received = listener_->receive()) peer = received->peer;
    }
    zmq_close(socket);
    zmq_ctx_term(context);
    return peer;
  };
  std::optional<PeerId> first;
  for (const TimeNs until = monotonic_now_ns() + kKeysWait; !first && monotonic_now_ns() < until;)
    first = send_as(worker_);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->bytes, "chosen");
  // The listener notices the end of the first connection at some time; until then it ignores the second one's.
  std::optional<PeerId> second;
  for (const TimeNs until = monotonic_now_ns() + kKeysWait; !second && monotonic_now_ns() < until;)
    second = send_as(own_);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->bytes, first->bytes);
  EXPECT_NE(*second, *first);
}

TEST(OpenListener, APeerCannotGiveItselfAKey) {
  TransportContext open;
  const auto listener = Listener::bind(open, "tcp://127.0.0.1:0").value();
  const PublicKey key = draw_key_pair().public_key;
  BareZmtp peer(parse_tcp_address(listener->address()).value().port, {{"User-Id", key_digits(key)}});
  const ByteBuffer envelope = encode_envelope(beat(7));
  ASSERT_TRUE(peer.send_frame(BareZmtp::Frame::kMore, std::string(envelope.begin(), envelope.end())));
  ASSERT_TRUE(peer.send_frame(BareZmtp::Frame::kLast, ""));
  Poller poller;
  poller.add(*listener);
  std::optional<Received> received;
  for (const TimeNs until = monotonic_now_ns() + kKeysWait; !received && monotonic_now_ns() < until; poller.wait(10))
    received = listener->receive();
  ASSERT_TRUE(received && received->message);
  EXPECT_TRUE(received->peer.key.is_none());
  EXPECT_EQ(received->peer.address, "127.0.0.1");
}

TEST_F(KeyedListener, MalformedQuestionsAreAnsweredWithNo) {
  for (const std::vector<std::string>& frames :
       {std::vector<std::string>{""},
        {"1.0", "id"},
        {"2.0", "id", "d", "a", "i", "CURVE", std::string(32, 'k')},
        {"1.0", "id", "d", "a", "i", "CURVE", "short"},
        {"1.0", "id", "d", "a", "i", "NULL"},
        {"1.0", "id", "d", "a", "i", "PLAIN", "user", "password"},
        std::vector<std::string>(500, "1.0"),
        {"1.0", "id", "d", std::string(10'000, 'a'), "i", "CURVE", std::string(32, 'k')}}) {
    void* socket = zmq_socket(context_.handle(), ZMQ_REQ);
    ASSERT_EQ(zmq_connect(socket, "inproc://zeromq.zap.01"), 0);
    for (size_t at = 0; at < frames.size(); ++at)
      zmq_send(socket, frames[at].data(), frames[at].size(), at + 1 < frames.size() ? ZMQ_SNDMORE : 0);
    std::string status;
    zmq_pollitem_t item{socket, 0, ZMQ_POLLIN, 0};
    for (const TimeNs until = monotonic_now_ns() + kKeysWait; monotonic_now_ns() < until && zmq_poll(&item, 1, 5) == 0;)
      gate_->answer([](const KeyGate::Caller&) { return true; });
    for (int frame = 0, more = 1; more != 0; ++frame) {
      char bytes[64] = {};
      const int got = zmq_recv(socket, bytes, sizeof(bytes), ZMQ_DONTWAIT);
      ASSERT_GE(got, 0);
      if (frame == 2) status.assign(bytes, static_cast<size_t>(got));
      size_t size = sizeof(more);
      ASSERT_EQ(zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size), 0);
    }
    EXPECT_EQ(status, "400") << frames.size();
    zmq_close(socket);
  }
}

/// ZeroMQ's own tweetnacl is neither constant-time everywhere nor fast.
TEST(LinkedLibrary, ZeroMqUsesLibsodium) {
  ASSERT_EQ(zmq_has("curve"), 1);
  bool found = false;
  bool needs_sodium = false;
  for (const auto* object = _r_debug.r_map; object != nullptr; object = object->l_next) {
    if (std::string_view(object->l_name).find("libzmq.so") == std::string_view::npos) continue;
    found = true;
    const char* strings = nullptr;
    for (const ElfW(Dyn)* entry = object->l_ld; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
    }
    ASSERT_NE(strings, nullptr);
    for (const ElfW(Dyn)* entry = object->l_ld; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag != DT_NEEDED) continue;
      needs_sodium |= std::string_view(strings + entry->d_un.d_val).starts_with("libsodium.so");
    }
  }
  EXPECT_TRUE(found) << "libzmq is no shared library here";
  EXPECT_TRUE(needs_sodium);
}

}  // namespace
}  // namespace millrace::protocol
