#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/worker/peer/transport/communicator_cases.h"
#include "tests/worker/peer/transport/tcp_ranks.h"
#include "tests/worker/peer/transport/tcp_stranger.h"
#include "worker/peer/transport/tcp_opening.h"

/// Ranks with a key: healthy ones, and strangers that lack the key, the number, or the words.
namespace millrace::peer::testing {
namespace {

using protocol::SecretKey;
using ::testing::HasSubstr;

SecretKey new_secret() { return protocol::draw_key_pair().secret; }

void await(const Descriptor& socket) {
  pollfd polled{socket.number(), POLLIN, 0};
  EXPECT_GE(::poll(&polled, 1, -1), 1);
}

/// Returns the first bytes of the other side; empty: it closed the connection.
std::optional<TcpOpening> opening_of(const Descriptor& socket) {
  TcpOpening opening;
  for (;;) {
    const bool open = opening.read(socket);
    if (opening.is_whole()) return opening;
    if (!open) return std::nullopt;
    await(socket);
  }
}

/// Returns the next frame over a link; empty: it has ended.
std::optional<TcpFrame> frame_of(TcpLink& link) {
  TcpFrameBytes bytes{};
  const LinkResult found = [&] {
    for (;;) {
      const std::array part{iovec{.iov_base = bytes.data(), .iov_len = bytes.size()}};
      const LinkResult result = link.read(part);
      if (result.bytes > 0 || result.state == LinkState::kEnded || result.state == LinkState::kForged) return result;
      await(link.socket());
    }
  }();
  if (found.bytes != bytes.size()) return std::nullopt;
  const auto frame = decode_tcp_frame(bytes);
  return frame ? std::optional(*frame) : std::nullopt;
}

void say(TcpLink& link, const TcpFrame& frame) {
  TcpFrameBytes bytes = encode_tcp_frame(frame);
  EXPECT_EQ(link.write(std::array{iovec{.iov_base = bytes.data(), .iov_len = bytes.size()}}).bytes, bytes.size());
}

/// A process that has the key, and sends any frame.
class Insider {
 public:
  Insider(const std::string& address, const SecretKey& key) {
    Descriptor socket = Stranger(address).take_socket();
    TcpCaller caller(key);
    EXPECT_TRUE(caller.send(socket));
    const auto answer = opening_of(socket);
    const auto ciphers = answer ? caller.take(*answer) : std::nullopt;
    EXPECT_TRUE(ciphers.has_value());
    if (ciphers) link_ = sealed_link(std::move(socket), *ciphers);
  }
  /// Returns the answer to a hello.
  std::optional<TcpFrame> answer_to(const TcpFrame& hello) {
    if (!link_) return std::nullopt;
    say(*link_, hello);
    return frame_of(*link_);
  }
  /// Reports to rank 0 that it is connected to all. frame: with its group and rank.
  void report_ready(TcpFrame frame) {
    frame.kind = TcpFrameKind::kReady;
    frame.to = 0;
    say(*link_, frame);
  }
  TcpLink& link() { return *link_; }

 private:
  std::unique_ptr<TcpLink> link_;
};

/// Sends a message to every other rank, and receives theirs.
void exchange_a_message(Communicator& communicator) {
  for (uint32_t to = 0; to < communicator.size(); ++to) {
    if (to == communicator.rank()) continue;
    ASSERT_TRUE(communicator.send(to, case_message_of(communicator.rank(), 1, 1'000)).has_value());
  }
  for (uint32_t left = communicator.size() - 1; left > 0; --left) {
    const ReceivedMessage received = next_message(communicator);
    EXPECT_TRUE(std::ranges::equal(received.message.body.bytes, case_body_of(received.from, 1, 1'000)));
  }
}

/// Ranks with a key that meet on threads of their own.
class KeyedRanks {
 public:
  explicit KeyedRanks(uint32_t size) : all_(size), ranks_(size), threads_(size) { all_.meeting.key = new_secret(); }

  const std::string& address(uint32_t rank) const { return all_.meeting.addresses[rank]; }
  const SecretKey& key() const { return *all_.meeting.key; }
  uint64_t group() const { return tcp_group_of(all_.meeting).value(); }
  TcpMeeting meeting_of(uint32_t rank) const { return all_.of(rank); }

  void join(uint32_t rank) {
    threads_[rank] = std::jthread([this, rank] {
      auto made = TcpCommunicator::connect(std::move(all_.listeners[rank]), all_.of(rank));
      ASSERT_TRUE(made.has_value()) << made.error().message;
      ranks_[rank] = std::move(*made);
    });
  }
  /// Waits until the rank has met the others, and returns its communicator.
  std::unique_ptr<TcpCommunicator> met(uint32_t rank) {
    threads_[rank].join();
    return std::move(ranks_[rank]);
  }
  /// Expects that all ranks meet, and that the function, which exchanges messages, ends on all of them.
  void expect_healthy(void (*exchange)(Communicator&) = exchange_a_message) {
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!threads_[rank].joinable()) join(rank);
    }
    for (std::jthread& one : threads_) one.join();
    std::vector<std::jthread> threads;
    for (auto& rank : ranks_) {
      ASSERT_NE(rank, nullptr);
      threads.emplace_back([&rank, exchange] { exchange(*rank); });
    }
  }

 private:
  TcpAddresses all_;
  std::vector<std::unique_ptr<TcpCommunicator>> ranks_;
  std::vector<std::jthread> threads_;
};

/// Returns the sentence with which a process that listens elsewhere is refused in the place of a rank.
std::string refusal_of(TcpMeeting meeting, ErrorCode code) {
  return refusal_sentence_of(meet_ranks(TcpListener::open("127.0.0.1:0").value(), meeting), code);
}

TEST(TcpKeys, RanksWithOneKeyMeetAndExchange) {
  for (uint32_t size = 1; size <= 9; ++size) KeyedRanks(size).expect_healthy();
  KeyedRanks(3).expect_healthy([](Communicator& communicator) { exchange_all_lengths(communicator, 1); });
}

TEST(TcpKeys, ALostRankIsReportedAndALeavingOneIsNot) {
  TcpNetwork network(3, "127.0.0.1", new_secret());
  ASSERT_TRUE(network.communicator(2).send(0, case_message_of(2, 7, 100'000)).has_value());
  EXPECT_EQ(next_message(network.communicator(0)).message.tag, 7U);
  network.lose(2);
  Communicator& zero = network.communicator(0);
  std::optional<uint32_t> lost;
  while (!lost) {
    ASSERT_TRUE(zero.receive().has_value());
    lost = zero.take_lost();
    if (!lost) zero.wait(kNsPerS, WaitAs::kIdle);
  }
  EXPECT_EQ(*lost, 2U);
  // More than the sockets hold: all of it arrives before the goodbye.
  constexpr size_t kBytes = size_t{8} << 20;
  std::jthread leaving([&network] {
    ASSERT_TRUE(network.communicator(1).send(0, case_message_of(1, 3, kBytes)).has_value());
    network.leave(1);
  });
  EXPECT_TRUE(std::ranges::equal(next_message(zero).message.body.bytes, case_body_of(1, 3, kBytes)));
  leaving.join();
  while (zero.send(1, case_message_of(0, 1, 1))) ASSERT_TRUE(zero.receive().has_value());
  EXPECT_FALSE(zero.take_lost().has_value());
}

TEST(TcpKeys, AProcessWithoutTheRightKeyIsRefusedAndTheJobContinues) {
  KeyedRanks ranks(3);
  ranks.join(0);
  TcpMeeting stranger = ranks.meeting_of(2);
  stranger.key = std::nullopt;
  EXPECT_THAT(refusal_of(stranger, ErrorCode::kUnauthenticated), HasSubstr("rank 2 has none: give it key_file"));
  stranger.key = new_secret();
  EXPECT_THAT(refusal_of(stranger, ErrorCode::kUnauthenticated), HasSubstr("give all ranks of the group the same key"));
  ranks.expect_healthy();
}

TEST(TcpKeys, AProcessWithTheKeyAndAnotherNumberOrGroupIsRefused) {
  KeyedRanks ranks(3);
  ranks.join(0);
  const TcpFrame good{.kind = TcpFrameKind::kHello, .size = 3, .group = ranks.group(), .from = 2, .to = 0};
  const auto refused = [&](const TcpFrame& hello) {
    const auto answer = Insider(ranks.address(0), ranks.key()).answer_to(hello);
    EXPECT_TRUE(answer && answer->kind == TcpFrameKind::kRefusal && answer->group == 0);
    return answer ? answer->refusal : TcpRefusal::kNone;
  };
  for (const uint32_t from : {0U, 3U, UINT32_MAX}) {
    TcpFrame hello = good;
    hello.from = from;
    EXPECT_EQ(refused(hello), TcpRefusal::kRank) << from;
  }
  TcpFrame hello = good;
  hello.to = 1;
  EXPECT_EQ(refused(hello), TcpRefusal::kRank) << "for another rank, and passed on to this one";
  hello = good;
  ++hello.group;
  EXPECT_EQ(refused(hello), TcpRefusal::kGroup);
  TcpMeeting other = ranks.meeting_of(2);
  other.group = "another";
  EXPECT_THAT(refusal_of(other, ErrorCode::kJobMismatch), HasSubstr("belongs to another group"));
  ranks.expect_healthy();
}

TEST(TcpKeys, ANumberThatIsTakenIsRefusedAndTheFirstStays) {
  KeyedRanks ranks(3);
  ranks.join(0);
  TcpFrame hello{.kind = TcpFrameKind::kHello, .size = 3, .group = ranks.group(), .from = 2, .to = 0};
  Insider first(ranks.address(0), ranks.key());
  const auto welcome = first.answer_to(hello);
  ASSERT_TRUE(welcome && welcome->kind == TcpFrameKind::kWelcome);
  EXPECT_THAT(refusal_of(ranks.meeting_of(2), ErrorCode::kJobMismatch), HasSubstr("two processes have this number"));
  ranks.join(1);  // rank 0 listens until it has met it
  hello.to = 1;
  Insider to_rank_one(ranks.address(1), ranks.key());
  const auto welcome_of_one = to_rank_one.answer_to(hello);
  EXPECT_TRUE(welcome_of_one && welcome_of_one->kind == TcpFrameKind::kWelcome);
  first.report_ready(hello);
  auto [zero, one] = std::pair(ranks.met(0), ranks.met(1));
  ASSERT_TRUE(zero && one);
  ASSERT_TRUE(zero->send(1, case_message_of(0, 5, 1'000)).has_value());
  EXPECT_EQ(next_message(*one).message.tag, 5U);
}

TEST(TcpKeys, StrangersAtASecuredPortLearnAndDisturbNothing) {
  KeyedRanks ranks(2);
  ranks.join(0);
  const std::string& address = ranks.address(0);
  const Stranger silent(address), slow(address), half(address);
  const TcpFrameBytes opening = encode_tcp_frame({.kind = TcpFrameKind::kOpening});
  slow.say(ByteSpan(opening).first(31));
  half.say(opening);
  EXPECT_TRUE(Stranger(address).say("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").hear().empty());
  EXPECT_TRUE(Stranger(address).say(std::string(100'000, '\xff')).hear().empty());
  const TcpFrame hello{.kind = TcpFrameKind::kHello, .size = 2, .group = ranks.group(), .from = 1, .to = 0};
  EXPECT_EQ(Stranger(address).say(encode_tcp_frame(hello)).refusal(), TcpRefusal::kNeedsKey);
  TcpFrameBytes other_version = encode_tcp_frame(hello);
  ++other_version[8];
  EXPECT_EQ(Stranger(address).say(other_version).refusal(), TcpRefusal::kVersion);
  const ByteBuffer zeros(protocol::kNoiseMessageBytes, 0);
  EXPECT_EQ(Stranger(address).say(opening).say(zeros).refusal(), TcpRefusal::kOtherKey);
  for (const TcpFrameKind kind : {TcpFrameKind::kWelcome, TcpFrameKind::kGoodbye, TcpFrameKind::kRefusal,
                                  TcpFrameKind::kReady, TcpFrameKind::kMet}) {
    EXPECT_TRUE(Stranger(address).say(encode_tcp_frame({.kind = kind})).hear().empty());
  }
  ranks.expect_healthy();
}

TEST(TcpKeys, StrangersPushOutNoProcessThatHasProvedTheKey) {
  KeyedRanks ranks(2);
  ranks.join(0);
  Insider one(ranks.address(0), ranks.key());
  std::vector<std::unique_ptr<Stranger>> silent;
  for (int i = 0; i < 80; ++i) silent.push_back(std::make_unique<Stranger>(ranks.address(0)));
  EXPECT_TRUE(silent.front()->hear().empty()) << "the oldest that has not proved the key is closed";
  const auto welcome =
      one.answer_to({.kind = TcpFrameKind::kHello, .size = 2, .group = ranks.group(), .from = 1, .to = 0});
  ASSERT_TRUE(welcome && welcome->kind == TcpFrameKind::kWelcome);
  one.report_ready({.size = 2, .group = ranks.group(), .from = 1});
  EXPECT_NE(ranks.met(0), nullptr);
}

TEST(TcpKeys, AnAnswerThatCannotBeSentIsNotTakenForAnotherKey) {
  auto [one, other] = connected_sockets();
  const SecretKey key = new_secret();
  TcpCaller caller(key);
  ASSERT_TRUE(caller.send(one));
  const auto opening = opening_of(other);
  ASSERT_TRUE(opening.has_value());
  one.close();
  const auto unsent = answer_opening(key, *opening, other);
  ASSERT_FALSE(unsent.has_value());
  EXPECT_EQ(unsent.error(), OpeningFault::kNotSent);
  const auto refused = answer_opening(new_secret(), *opening, other);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error(), OpeningFault::kOtherKey);
}

/// Passes bytes of one side of an opening on, and keeps them.
ByteBuffer recorded(const Descriptor& from) {
  ByteBuffer bytes(4'096);
  await(from);
  const ssize_t found = ::recv(from.number(), bytes.data(), bytes.size(), 0);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(found, 0)));
  return bytes;
}

TEST(TcpKeys, ARecordedConnectionOfARankGivesAStrangerNothing) {
  KeyedRanks ranks(2);
  // Rank 1 once said these bytes to rank 0: its opening, and its hello.
  auto [one, other] = connected_sockets();
  TcpCaller caller(ranks.key());
  ASSERT_TRUE(caller.send(one));
  const ByteBuffer opening = recorded(other);
  ASSERT_TRUE(::send(other.number(), opening.data(), opening.size(), 0) > 0);
  // The socket's other end has the opening again, as rank 0 would.
  ASSERT_TRUE(answer_opening(ranks.key(), *opening_of(one), other).has_value());
  const auto answer = opening_of(one);
  ASSERT_TRUE(answer.has_value());
  const auto ciphers = caller.take(*answer);
  ASSERT_TRUE(ciphers.has_value());
  const auto link = sealed_link(std::move(one), *ciphers);
  say(*link, {.kind = TcpFrameKind::kHello, .size = 2, .group = ranks.group(), .from = 1, .to = 0});
  const ByteBuffer hello = recorded(other);
  ranks.join(0);
  const Stranger repeats(ranks.address(0)), waits(ranks.address(0));
  const ByteBuffer heard = repeats.say(opening).say(hello).hear();
  EXPECT_EQ(heard.size(), kTcpFrameBytes + protocol::kNoiseMessageBytes) << "the answer, and no welcome";
  waits.say(opening);
  ranks.expect_healthy();
}

TEST(TcpKeys, ARankWithAKeyAndAPlainGroupDoNotMeet) {
  TcpAddresses all(2);
  std::jthread zero([&all] { EXPECT_TRUE(meet_in(all, 0).has_value()); });
  TcpMeeting own = all.of(1);
  own.key = new_secret();
  EXPECT_THAT(refusal_of(own, ErrorCode::kUnauthenticated), HasSubstr("has no key, and rank 1 has one"));
  EXPECT_TRUE(meet_in(all, 1).has_value());
}

/// Returns the error of a rank with a key whose connection to rank 0 a function answers.
template <typename Answer>
std::string sentence_of_rank_answered_by(ErrorCode code, const Answer& answers) {
  TcpAddresses all(2);
  all.meeting.key = new_secret();
  const Descriptor& listener = all.listeners[0].sockets()[0];
  std::jthread impostor([&] {
    await(listener);
    const Descriptor socket(::accept(listener.number(), nullptr, nullptr));
    if (const auto opening = opening_of(socket)) answers(socket, *opening);
  });
  return refusal_sentence_of(meet_in(all, 1), code);
}

TEST(TcpKeys, AnImpostorInThePlaceOfARankIsNamed) {
  const auto say_all = [](const Descriptor& socket, ByteSpan bytes) {
    EXPECT_EQ(::send(socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  };
  EXPECT_THAT(sentence_of_rank_answered_by(ErrorCode::kUnauthenticated,
                                           [&](const Descriptor& socket, const TcpOpening& opening) {
                                             say_all(socket, encode_tcp_frame({.kind = TcpFrameKind::kOpened}));
                                             say_all(socket, opening.message());
                                           }),
              HasSubstr("has another key"))
      << "reflects the message";
  EXPECT_THAT(sentence_of_rank_answered_by(ErrorCode::kJobMismatch,
                                           [&](const Descriptor& socket, const TcpOpening& opening) {
                                             say_all(socket, opening.frame_span());
                                             say_all(socket, opening.message());
                                           }),
              HasSubstr("no rank of a group"))
      << "reflects all bytes";
  EXPECT_THAT(sentence_of_rank_answered_by(ErrorCode::kJobMismatch,
                                           [&](const Descriptor& socket, const TcpOpening&) {
                                             say_all(socket, encode_tcp_frame({.kind = TcpFrameKind::kWelcome}));
                                           }),
              HasSubstr("no rank of a group"))
      << "a welcome in the clear";
}

TEST(TcpKeys, ARankWithAKeyReportsRefusedProcessesWhenItGivesUp) {
  TcpAddresses all(2);
  all.meeting.key = new_secret();
  TcpMeeting zero = all.of(0), one = all.of(1);
  std::atomic<bool> ends = false;
  zero.give_up = [&ends] { return ends.load(); };
  one.key = new_secret();
  std::string sentence;
  std::jthread waiting(
      [&] { sentence = refusal_sentence_of(meet_ranks(std::move(all.listeners[0]), zero), ErrorCode::kUnavailable); });
  EXPECT_THAT(refusal_of(one, ErrorCode::kUnauthenticated), HasSubstr("another key"));
  ends = true;
  waiting.join();
  EXPECT_THAT(sentence, HasSubstr("refused processes without its key"));
}

TEST(TcpKeys, ARankWithoutAKeyReportsRefusedKeysWhenItGivesUp) {
  TcpAddresses all(2);
  TcpMeeting zero = all.of(0), one = all.of(1);
  std::atomic<bool> ends = false;
  zero.give_up = [&ends] { return ends.load(); };
  one.key = new_secret();
  std::string sentence;
  std::jthread waiting(
      [&] { sentence = refusal_sentence_of(meet_ranks(std::move(all.listeners[0]), zero), ErrorCode::kUnavailable); });
  EXPECT_THAT(refusal_of(one, ErrorCode::kUnauthenticated), HasSubstr("has no key, and rank 1 has one"));
  ends = true;
  waiting.join();
  EXPECT_THAT(sentence, HasSubstr("This rank has no key, and refused processes with one"));
}

TEST(TcpKeys, BytesThatARankDidNotSealEndItsConnection) {
  TcpAddresses all(2);
  all.meeting.key = new_secret();
  std::unique_ptr<TcpCommunicator> zero;
  std::jthread meets([&] { zero = TcpCommunicator::connect(std::move(all.listeners[0]), all.of(0)).value(); });
  Insider one(all.meeting.addresses[0], *all.meeting.key);
  const auto welcome = one.answer_to(
      {.kind = TcpFrameKind::kHello, .size = 2, .group = tcp_group_of(all.meeting).value(), .from = 1, .to = 0});
  ASSERT_TRUE(welcome && welcome->kind == TcpFrameKind::kWelcome);
  one.report_ready({.size = 2, .group = tcp_group_of(all.meeting).value(), .from = 1});
  meets.join();
  ByteBuffer forged(2 + kMessageHeaderBytes + protocol::kNoiseTagBytes, 0);
  forged[0] = static_cast<uint8_t>(forged.size() - 2);
  ASSERT_EQ(::send(one.link().socket().number(), forged.data(), forged.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(forged.size()));
  auto received = zero->receive();
  while (received) {
    EXPECT_FALSE(received->has_value());
    zero->wait(kNsPerS, WaitAs::kIdle);
    received = zero->receive();
  }
  EXPECT_EQ(received.error().code, ErrorCode::kUnauthenticated);
  EXPECT_THAT(received.error().message, HasSubstr("rank 1"));
  EXPECT_EQ(zero->take_lost(), std::optional<uint32_t>(1));
}

}  // namespace
}  // namespace millrace::peer::testing
