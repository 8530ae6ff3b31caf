#include "worker/peer/transport/tcp_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/worker/peer/transport/communicator_cases.h"
#include "tests/worker/peer/transport/tcp_ranks.h"
#include "worker/peer/group/peer_group.h"

/// The communicator over TCP: messages among ranks, ends of connections, and bytes that no rank sends.
namespace millrace::peer::testing {
namespace {

using ::testing::HasSubstr;

constexpr TimeNs kLongest = 60 * kNsPerS;

void on_ranks_of(TcpNetwork& network, uint32_t size, const std::function<void(Communicator&)>& body) {
  std::vector<std::jthread> threads;
  for (uint32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&network, &body, rank] { body(network.communicator(rank)); });
  }
}

TEST(TcpCommunicators, MessagesOfAllLengthsArriveOnceAndWhole) {
  constexpr uint32_t kSize = 3, kRounds = 2;
  TcpNetwork network(kSize);
  on_ranks_of(network, kSize, [](Communicator& communicator) { exchange_all_lengths(communicator, kRounds); });
  for (uint32_t rank = 0; rank < kSize; ++rank) {
    const Traffic traffic = network.communicator(rank).traffic();
    EXPECT_EQ(traffic.messages_sent, messages_of_exchange(kRounds) * (kSize - 1));
    EXPECT_EQ(traffic.bytes_sent, traffic.bytes_received);
  }
}

TEST(TcpCommunicators, AreOverIPv6AndNamesAsWell) {
  if (TcpListener::open("[::1]:0")) {
    TcpNetwork network(2, "[::1]");
    on_ranks_of(network, 2, [](Communicator& communicator) { exchange_all_lengths(communicator, 1); });
  }
  TcpNetwork network(2, "tcp://localhost");
  on_ranks_of(network, 2, [](Communicator& communicator) { exchange_all_lengths(communicator, 1); });
}

TEST(TcpCommunicators, OneRankNeedsNoOther) {
  TcpNetwork network(1);
  EXPECT_EQ(network.communicator(0).size(), 1U);
  const auto received = network.communicator(0).receive();
  EXPECT_TRUE(received.has_value() && !received->has_value());
}

TEST(TcpCommunicators, MessagesOfOneRankArriveInTheOrderOfSending) {
  TcpNetwork network(2);
  constexpr uint32_t kMessages = 300;
  std::jthread sender([&network] {
    for (uint32_t tag = 0; tag < kMessages; ++tag) {
      ASSERT_TRUE(network.communicator(0).send(1, case_message_of(0, tag, (tag * 977) % 100'000)).has_value());
    }
    // Its sends advance while it asks.
    next_message(network.communicator(0));
  });
  for (uint32_t tag = 0; tag < kMessages; ++tag) EXPECT_EQ(next_message(network.communicator(1)).message.tag, tag);
  ASSERT_TRUE(network.communicator(1).send(0, case_message_of(1, 0, 1)).has_value());
}

TEST(TcpCommunicators, ABodyOverTheLimitIsRefused) {
  TcpNetwork network(2);
  PeerMessage message;
  const uint8_t byte = 0;
  message.body.bytes = {&byte, size_t{1} << 31};  // refused before it is looked at
  const Status sent = network.communicator(0).send(1, std::move(message));
  ASSERT_FALSE(sent.has_value());
  EXPECT_EQ(sent.error().code, ErrorCode::kLimitExceeded);
}

TEST(TcpCommunicators, WakeEndsAWaitOfAnotherThreadOrTheNext) {
  TcpNetwork network(2);
  Communicator& communicator = network.communicator(0);
  communicator.wake();
  communicator.wait(kLongest, WaitAs::kIdle);
  std::jthread waiting([&] { communicator.wait(kLongest, WaitAs::kBackground); });
  communicator.wake();
}

/// Waits until the communicator reports a lost rank.
uint32_t lost_rank_of(Communicator& communicator) {
  for (;;) {
    const auto received = communicator.receive();
    EXPECT_TRUE(received.has_value() && !received->has_value());
    if (const auto lost = communicator.take_lost()) return *lost;
    communicator.wait(kLongest, WaitAs::kIdle);
  }
}

TEST(TcpCommunicators, ALostRankIsReportedOnceAfterItsMessages) {
  TcpNetwork network(3);
  ASSERT_TRUE(network.communicator(2).send(0, case_message_of(2, 7, 100'000)).has_value());
  EXPECT_EQ(next_message(network.communicator(0)).message.tag, 7U);
  network.lose(2);
  EXPECT_EQ(lost_rank_of(network.communicator(0)), 2U);
  EXPECT_EQ(lost_rank_of(network.communicator(1)), 2U);
  EXPECT_FALSE(network.communicator(0).take_lost().has_value());
  const Status sent = network.communicator(0).send(2, case_message_of(0, 1, 1));
  ASSERT_FALSE(sent.has_value());
  EXPECT_EQ(sent.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(sent.error().message, HasSubstr("rank 2"));
  // The others continue.
  ASSERT_TRUE(network.communicator(1).send(0, case_message_of(1, 9, 10)).has_value());
  EXPECT_EQ(next_message(network.communicator(0)).message.tag, 9U);
}

TEST(TcpCommunicators, ARankThatLeavesIsNotLostAndAllItsBytesArrive) {
  TcpNetwork network(2);
  constexpr size_t kBytes = size_t{8} << 20;  // more than sockets hold
  std::jthread leaving([&network] {
    ASSERT_TRUE(network.communicator(0).send(1, case_message_of(0, 3, kBytes)).has_value());
    network.leave(0);
  });
  // Bytes that the leaving rank does not read must not take back those that it sent.
  ASSERT_TRUE(network.communicator(1).send(0, case_message_of(1, 0, 1'000)).has_value());
  const ReceivedMessage received = next_message(network.communicator(1));
  EXPECT_TRUE(std::ranges::equal(received.message.body.bytes, case_body_of(0, 3, kBytes)));
  leaving.join();
  Status sent;
  while (sent) {
    const auto none = network.communicator(1).receive();
    ASSERT_TRUE(none.has_value() && !none->has_value());
    sent = network.communicator(1).send(0, case_message_of(1, 1, 1));
    network.communicator(1).wait(kNsPerMs, WaitAs::kIdle);
  }
  EXPECT_THAT(sent.error().message, HasSubstr("rank 0 has left"));
  EXPECT_FALSE(network.communicator(1).take_lost().has_value());
  EXPECT_EQ(network.communicator(1).take_left(), std::optional<uint32_t>(0));
  EXPECT_FALSE(network.communicator(1).take_left().has_value()) << "it is reported once";
  PeerMessage answer;
  answer.kind = MessageKind::kAnswer;
  EXPECT_TRUE(network.communicator(1).send(0, std::move(answer)).has_value());
}

TEST(TcpCommunicators, SendsThatTheOtherRankNeverReadsDoNotHoldUpTheEnd) {
  TcpNetwork network(2);
  ASSERT_TRUE(network.communicator(0).send(1, case_message_of(0, 1, size_t{16} << 20)).has_value());
  network.leave(0);
}

PeerMessage message_of_kind(MessageKind kind, uint32_t tag) {
  PeerMessage message;
  message.kind = kind;
  message.tag = tag;
  return message;
}

/// Sends three long messages of data, and others of tags 7, 8, ... Returns the tags of the messages that arrive.
std::vector<uint32_t> tags_that_arrive(const std::vector<MessageKind>& others, size_t count) {
  auto sockets = connected_sockets();
  const Descriptor end(::dup(sockets[0].number()));
  const auto ranks = ranks_over(std::move(sockets[0]), std::move(sockets[1]));
  for (uint32_t tag = 0; tag < 3; ++tag) {
    EXPECT_TRUE(ranks[0]->send(1, case_message_of(0, tag, 1 << 20)).has_value());
  }
  for (uint32_t i = 0; i < others.size(); ++i) {
    EXPECT_TRUE(ranks[0]->send(1, message_of_kind(others[i], 7 + i)).has_value());
  }
  std::vector<uint32_t> tags;
  while (tags.size() < count) {
    EXPECT_TRUE(ranks[0]->receive().has_value());  // sends go in its calls
    const auto received = ranks[1]->receive();
    if (received.has_value() && *received) tags.push_back((*received)->message.tag);
  }
  ::shutdown(end.number(), SHUT_RDWR);  // the communicators' ends do not wait for each other
  return tags;
}

TEST(TcpCommunicators, AQuestionGoesBeforeDataThatHasNotBegun) {
  EXPECT_EQ(tags_that_arrive({MessageKind::kAsk, MessageKind::kAnswer}, 5), (std::vector<uint32_t>{0, 7, 8, 1, 2}));
}

TEST(TcpCommunicators, AnAbortDropsDataThatHasNotBegun) {
  EXPECT_EQ(tags_that_arrive({MessageKind::kAnswer, MessageKind::kAbort}, 3), (std::vector<uint32_t>{0, 7, 8}));
}

enum class Keyed : uint8_t { kNo = 1, kYes = 2 };

/// A communicator of rank 0 of two, and the other end of its connection, which says anything.
struct FalsePeer {
  explicit FalsePeer(uint64_t body_bytes_max = kBodyMax, SocketsOver over = SocketsOver::kUnix,
                     Keyed keyed = Keyed::kNo) {
    auto ends = connected_sockets(over);
    std::vector<std::unique_ptr<TcpLink>> links(2);
    links[1] =
        keyed == Keyed::kYes ? sealed_link(std::move(ends[0]), ciphers_of_both()[0]) : plain_link(std::move(ends[0]));
    other = std::move(ends[1]);
    communicator = TcpCommunicator::over(0, std::move(links), body_bytes_max).value();
  }
  /// Reads up to `bytes_max`. Returns the number of bytes.
  size_t hear(size_t bytes_max) const {
    ByteBuffer bytes(bytes_max);
    return static_cast<size_t>(std::max<ssize_t>(0, ::recv(other.number(), bytes.data(), bytes.size(), 0)));
  }
  /// Returns whether the communicator has heard of the peer within a time.
  bool is_heard_within(TimeNs time) const {
    for (const TimeNs end = communicator->now() + time; communicator->now() < end;) {
      EXPECT_TRUE(communicator->receive().has_value());
      if (communicator->take_heard()) return true;
      communicator->wait(10 * kNsPerMs, WaitAs::kIdle);
    }
    return false;
  }
  /// Reads until nothing more comes.
  void hear_all() const {
    constexpr int kLooks = 30;
    for (int quiet = 0; quiet < kLooks; ++quiet) {
      EXPECT_TRUE(communicator->receive().has_value());
      if (hear(64 << 10) > 0) {
        quiet = 0;
      } else {
        ::poll(nullptr, 0, 10);
      }
    }
  }
  void say(ByteSpan bytes) const {
    ASSERT_EQ(::send(other.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  /// Returns the error of the bytes that it said, and expects the rank to be lost.
  Error error() {
    auto received = communicator->receive();
    EXPECT_FALSE(received.has_value());
    EXPECT_EQ(communicator->culprit(), std::optional<uint32_t>(1));
    EXPECT_EQ(communicator->take_lost(), std::optional<uint32_t>(1));
    const auto after = communicator->receive();
    EXPECT_TRUE(after.has_value() && !after->has_value()) << "the error is reported once";
    return received ? Error{} : received.error();
  }

  static constexpr uint64_t kBodyMax = 1'000;
  std::unique_ptr<TcpCommunicator> communicator;
  Descriptor other;  ///< closed first: the communicator's end does not wait for it
};

TEST(TcpCommunicators, BytesThatNoRankSendsEndTheConnectionWithASentence) {
  {
    FalsePeer peer;
    peer.say(ByteBuffer(64, 0x20));
    const Error error = peer.error();
    EXPECT_EQ(error.code, ErrorCode::kMalformed);
    EXPECT_THAT(error.message, HasSubstr("rank 1"));
  }
  {
    FalsePeer peer;
    peer.say(encode_tcp_frame({.kind = TcpFrameKind::kHello}));
    EXPECT_THAT(peer.error().message, HasSubstr("handshake"));
  }
  {
    FalsePeer peer;
    MessageHeader header = encode_header(case_message_of(1, 0, 0));
    ++header[2];
    peer.say(header);
    EXPECT_EQ(peer.error().code, ErrorCode::kVersionMismatch);
  }
  for (const uint64_t bytes : {uint64_t{1'001}, uint64_t{1} << 40, UINT64_MAX}) {
    FalsePeer peer;
    MessageHeader header = encode_header(case_message_of(1, 0, 0));
    std::memcpy(header.data() + 24, &bytes, sizeof bytes);
    peer.say(header);
    EXPECT_EQ(peer.error().code, ErrorCode::kLimitExceeded) << bytes;
  }
}

TEST(TcpCommunicators, TheRankThatSaidBadBytesIsTheGroupsCulprit) {
  FalsePeer peer;
  PeerGroup group(*peer.communicator, {}, Progress::kByCaller);
  peer.say(ByteBuffer(64, 0x20));
  group.make_progress();
  ASSERT_TRUE(group.failure().has_value());
  EXPECT_EQ(group.failure()->rank, std::optional<uint32_t>(1));
}

TEST(TcpCommunicators, MessagesBeforeBadBytesAreHandedOutAndAPartOfOneIsNot) {
  FalsePeer peer;
  ByteBuffer bytes;
  for (uint32_t tag = 0; tag < 3; ++tag) {
    const PeerMessage message = case_message_of(1, tag, 500);
    const MessageHeader header = encode_header(message);
    bytes.insert(bytes.end(), header.begin(), header.end());
    bytes.insert(bytes.end(), message.body.bytes.begin(), message.body.bytes.end());
  }
  bytes.resize(bytes.size() - 1);
  peer.say(bytes);
  for (uint32_t tag = 0; tag < 2; ++tag) EXPECT_EQ(next_message(*peer.communicator).message.tag, tag);
  EXPECT_FALSE(peer.communicator->receive()->has_value());
  EXPECT_FALSE(peer.communicator->take_lost().has_value());
  peer.other.close();
  EXPECT_EQ(lost_rank_of(*peer.communicator), 1U);
}

TEST(TcpCommunicators, AMessageMayArriveByteByByte) {
  FalsePeer peer;
  const PeerMessage message = case_message_of(1, 5, 40);
  const MessageHeader header = encode_header(message);
  const auto byte_by_byte = [&](ByteSpan bytes) {
    for (const uint8_t& byte : bytes) {
      const auto before = peer.communicator->receive();
      ASSERT_TRUE(before.has_value() && !before->has_value());
      peer.say({&byte, 1});
    }
  };
  EXPECT_FALSE(peer.communicator->take_heard().has_value());
  byte_by_byte(header);
  EXPECT_EQ(peer.communicator->take_heard(), std::optional<uint32_t>(1)) << "a part is a sign of life";
  EXPECT_FALSE(peer.communicator->take_heard().has_value());
  byte_by_byte(message.body.bytes);
  EXPECT_EQ(peer.communicator->take_heard(), std::optional<uint32_t>(1));
  const ReceivedMessage received = next_message(*peer.communicator);
  EXPECT_TRUE(std::ranges::equal(received.message.body.bytes, message.body.bytes));
}

/// A long message is before a question.
void expect_heard_while_it_takes(const FalsePeer& peer) {
  constexpr size_t kBytes = 2 << 20;
  constexpr TimeNs kLooks = 200 * kNsPerMs;
  ASSERT_TRUE(peer.communicator->send(1, case_message_of(0, 1, kBytes)).has_value());
  ASSERT_TRUE(peer.communicator->send(1, message_of_kind(MessageKind::kAsk, 2)).has_value());
  while (peer.is_heard_within(kLooks)) {
    // the sockets have room, and then it reads nothing
  }
  for (int i = 0; i < 3; ++i) {
    pollfd readable{peer.other.number(), POLLIN, 0};
    EXPECT_EQ(::poll(&readable, 1, 60'000), 1);
    EXPECT_GT(peer.hear(kBytes), 0U);
    EXPECT_TRUE(peer.is_heard_within(kLongest));
  }
  peer.hear_all();
  EXPECT_FALSE(peer.is_heard_within(kLooks)) << "it has the question";
  for (uint32_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(peer.communicator->send(1, case_message_of(0, 3 + i, 100)).has_value());
    if (i % 10 == 0) {
      ASSERT_TRUE(peer.communicator->send(1, message_of_kind(MessageKind::kAsk, 3 + i)).has_value());
    }
    EXPECT_FALSE(peer.is_heard_within(20 * kNsPerMs)) << "a stopped process has room for small messages";
  }
  EXPECT_GT(peer.hear(kBytes), 0U);
  EXPECT_FALSE(peer.is_heard_within(kLooks)) << "it has had the question for long";
}

TEST(TcpCommunicators, APeerThatTakesDataIsHeardAndOneThatStopsIsNot) {
  expect_heard_while_it_takes(FalsePeer(TcpCommunicator::kBodyBytesMax));
  expect_heard_while_it_takes(FalsePeer(TcpCommunicator::kBodyBytesMax, SocketsOver::kTcp));
  expect_heard_while_it_takes(FalsePeer(TcpCommunicator::kBodyBytesMax, SocketsOver::kTcp, Keyed::kYes));
}

TEST(TcpCommunicators, ARankThatLeavesTakesBytesSoThatTheOthersTakeIts) {
  FalsePeer peer(TcpCommunicator::kBodyBytesMax, SocketsOver::kTcp);
  constexpr size_t kBytes = size_t{2} << 20;  // more than sockets hold
  ASSERT_TRUE(peer.communicator->send(1, case_message_of(0, 1, kBytes)).has_value());
  std::jthread leaves([&peer] { peer.communicator.reset(); });
  const int socket = peer.other.number();
  const ByteBuffer bytes(64 << 10);
  for (size_t said = 0; said < kBytes;) {
    pollfd writable{socket, POLLOUT, 0};
    ASSERT_EQ(::poll(&writable, 1, 60'000), 1);
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ASSERT_GT(sent, 0) << "it has left, and not taken the bytes";
    said += static_cast<size_t>(sent);
  }
  size_t heard = 0;
  for (pollfd readable{socket, POLLIN, 0}; heard < kBytes + kMessageHeaderBytes + kTcpFrameBytes;) {
    ASSERT_EQ(::poll(&readable, 1, 60'000), 1);
    const size_t found = peer.hear(1 << 20);
    ASSERT_GT(found, 0U);
    heard += found;
  }
}

/// The peer takes more than two seconds for the long message.
TEST(TcpCommunicators, AnAbortBehindALongMessageThatMovesArrives) {
  FalsePeer peer(TcpCommunicator::kBodyBytesMax, SocketsOver::kTcp);
  ASSERT_TRUE(peer.communicator->send(1, case_message_of(0, 1, 4 << 20)).has_value());
  const PeerMessage abort = message_of_kind(MessageKind::kAbort, 2);
  ASSERT_TRUE(peer.communicator->send(1, message_of_kind(MessageKind::kAbort, 2)).has_value());
  std::jthread leaves([&peer] { peer.communicator.reset(); });
  constexpr int kSlowReads = 26;
  constexpr size_t kReadBytes = 16 << 10;
  ByteBuffer heard, bytes(kReadBytes);
  for (int reads = 0;; ++reads) {
    pollfd readable{peer.other.number(), POLLIN, 0};
    ASSERT_EQ(::poll(&readable, 1, 60'000), 1);
    const ssize_t found = ::recv(peer.other.number(), bytes.data(), bytes.size(), 0);
    if (found <= 0) break;
    heard.insert(heard.end(), bytes.begin(), bytes.begin() + found);
    if (reads < kSlowReads) ::poll(nullptr, 0, 100);
  }
  ASSERT_GT(heard.size(), kMessageHeaderBytes + kTcpFrameBytes);
  EXPECT_TRUE(std::ranges::equal(ByteSpan(heard).last(kMessageHeaderBytes + kTcpFrameBytes).first(kMessageHeaderBytes),
                                 encode_header(abort)));
}

TEST(TcpCommunicators, AnErrorIsReportedOnceAndWaitsSleepAfterIt) {
  TcpNetwork network(2);
  send_malformed_message(network.communicator(1), 0);
  expect_one_error(network.communicator(0));
}

TEST(TcpCommunicators, AForkedProcessKeepsNoConnectionAlive) {
  TcpNetwork network(2);
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  network.leave(0);
  Status sent;
  while (sent) {
    ASSERT_TRUE(network.communicator(1).receive().has_value());
    sent = network.communicator(1).send(0, case_message_of(1, 1, 1));
  }
  EXPECT_THAT(sent.error().message, HasSubstr("rank 0 has left"));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(TcpCommunicators, AForkedProcessThatDestroysACommunicatorEndsNoConnection) {
  TcpNetwork network(2, "127.0.0.1", protocol::draw_key_pair().secret);
  const pid_t child = ::fork();
  if (child == 0) {
    network.leave(0);
    ::_exit(0);
  }
  ASSERT_GT(child, 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(network.communicator(1).receive().has_value());
  const Status sent = network.communicator(1).send(0, case_message_of(1, 1, 1));
  ASSERT_TRUE(sent.has_value()) << sent.error().message;
  EXPECT_EQ(next_message(network.communicator(0)).message.tag, 1U);
}

}  // namespace
}  // namespace millrace::peer::testing
