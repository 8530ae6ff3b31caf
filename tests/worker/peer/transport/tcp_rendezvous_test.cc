#include "worker/peer/transport/tcp_rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/address/host_port.h"
#include "tests/worker/peer/transport/communicator_cases.h"
#include "tests/worker/peer/transport/tcp_ranks.h"
#include "tests/worker/peer/transport/tcp_stranger.h"
#include "worker/peer/transport/tcp_frame.h"

/// How ranks meet over TCP, beside strangers, and the sentences where they do not.
namespace millrace::peer::testing {
namespace {

using ::testing::HasSubstr;

TEST(TcpMeetings, StrangersAreRefusedAndDisturbNothing) {
  TcpAddresses all(3);
  const std::string address = all.meeting.addresses[0];
  const uint64_t group = tcp_group_of(all.meeting).value();
  const TcpFrame good{.kind = TcpFrameKind::kHello, .size = 3, .group = group, .from = 2, .to = 0};
  std::vector<std::unique_ptr<TcpCommunicator>> ranks(3);
  const auto joins = [&all, &ranks](uint32_t rank) {
    return std::jthread([&all, &ranks, rank] {
      auto made = TcpCommunicator::connect(std::move(all.listeners[rank]), all.of(rank));
      ASSERT_TRUE(made.has_value()) << made.error().message;
      ranks[rank] = std::move(*made);
    });
  };
  std::jthread first = joins(0);
  const Stranger silent(address), slow(address);
  slow.say(ByteSpan(encode_tcp_frame(good)).first(31));
  EXPECT_TRUE(Stranger(address).say("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").hear().empty());
  EXPECT_TRUE(Stranger(address).say(std::string(100'000, '\xff')).hear().empty());
  EXPECT_TRUE(Stranger(address).say(encode_header(case_message_of(2, 1, 0))).hear().empty());
  const auto refused = [&](TcpFrame hello) { return Stranger(address).say(encode_tcp_frame(hello)).refusal(); };
  TcpFrame hello = good;
  hello.group ^= 1;
  EXPECT_EQ(refused(hello), TcpRefusal::kGroup);
  hello = good;
  hello.size = 4;
  EXPECT_EQ(refused(hello), TcpRefusal::kGroup);
  for (const uint32_t from : {0U, 3U, UINT32_MAX}) {
    hello = good;
    hello.from = from;
    EXPECT_EQ(refused(hello), TcpRefusal::kRank);
  }
  hello = good;
  hello.to = 1;
  EXPECT_EQ(refused(hello), TcpRefusal::kRank);
  TcpFrameBytes other_version = encode_tcp_frame(good);
  ++other_version[8];
  EXPECT_EQ(Stranger(address).say(other_version).refusal(), TcpRefusal::kVersion);
  hello = good;
  hello.kind = TcpFrameKind::kWelcome;
  EXPECT_TRUE(Stranger(address).say(encode_tcp_frame(hello)).hear().empty());
  std::jthread second = joins(1), third = joins(2);
  for (std::jthread* one : {&first, &second, &third}) one->join();
  EXPECT_FALSE(Stranger(address).is_connected()) << "the ranks have met: none is awaited any more";
  std::vector<std::jthread> threads;
  for (auto& rank : ranks) threads.emplace_back([&rank] { exchange_all_lengths(*rank, 1); });
}

TEST(TcpMeetings, ManySilentConnectionsKeepNoRankOut) {
  TcpAddresses all(2);
  std::jthread first([&all] {
    const auto met = meet_in(all, 0);
    EXPECT_TRUE(met.has_value()) << met.error().message;
  });
  std::vector<std::unique_ptr<Stranger>> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(std::make_unique<Stranger>(all.meeting.addresses[0]));
  EXPECT_TRUE(silent.front()->hear().empty()) << "the oldest is closed";
  EXPECT_TRUE(meet_in(all, 1).has_value());
}

/// Returns a frame of the meeting of three ranks.
TcpFrameBytes frame_of_three(const TcpAddresses& all, TcpFrameKind kind, uint32_t from, uint32_t to) {
  return encode_tcp_frame(
      {.kind = kind, .size = 3, .group = tcp_group_of(all.meeting).value(), .from = from, .to = to});
}

TEST(TcpMeetings, ASecondProcessOfOneRankIsRefusedAndTheFirstStays) {
  TcpAddresses all(3);
  std::jthread zero([&] { EXPECT_TRUE(meet_in(all, 0).has_value()); });
  const Stranger taken(all.meeting.addresses[0]);
  EXPECT_TRUE(taken.say(frame_of_three(all, TcpFrameKind::kHello, 2, 0)).is_welcome());
  std::string sentence;
  std::jthread two([&all, &sentence] { sentence = refusal_sentence_of(meet_in(all, 2), ErrorCode::kJobMismatch); });
  two.join();
  EXPECT_THAT(sentence, HasSubstr("two processes have this number"));
  std::jthread one([&all] { EXPECT_TRUE(meet_in(all, 1).has_value()); });
  const Stranger at_one(all.meeting.addresses[1]);
  EXPECT_TRUE(at_one.say(frame_of_three(all, TcpFrameKind::kHello, 2, 1)).is_welcome());
  EXPECT_TRUE(taken.say(frame_of_three(all, TcpFrameKind::kReady, 2, 0)).has_met());
}

TEST(TcpMeetings, NoRankHasMetBeforeAllAreConnectedToEachOther) {
  TcpAddresses all(3);
  std::atomic<bool> has_met = false;
  std::jthread zero([&] {
    EXPECT_TRUE(meet_in(all, 0).has_value());
    has_met = true;
  });
  const Stranger one(all.meeting.addresses[0]), two(all.meeting.addresses[0]);
  EXPECT_TRUE(one.say(frame_of_three(all, TcpFrameKind::kHello, 1, 0)).is_welcome());
  EXPECT_TRUE(two.say(frame_of_three(all, TcpFrameKind::kHello, 2, 0)).is_welcome());
  one.say(frame_of_three(all, TcpFrameKind::kReady, 1, 0));
  ::poll(nullptr, 0, 50);
  EXPECT_TRUE(!has_met && one.hears_nothing()) << "rank 2 may still miss rank 1";
  two.say(frame_of_three(all, TcpFrameKind::kReady, 2, 0));
  EXPECT_TRUE(one.has_met());
  EXPECT_TRUE(two.has_met());
}

TEST(TcpMeetings, ARankThatIsNotReadyInTimeIsNamed) {
  TcpAddresses all(3);
  all.meeting.time_max = 2 * kNsPerS;  // the strangers are welcome in less
  std::string sentence;
  std::jthread zero([&] { sentence = refusal_sentence_of(meet_in(all, 0), ErrorCode::kTimeout); });
  const Stranger one(all.meeting.addresses[0]), two(all.meeting.addresses[0]);
  EXPECT_TRUE(one.say(frame_of_three(all, TcpFrameKind::kHello, 1, 0)).is_welcome());
  EXPECT_TRUE(two.say(frame_of_three(all, TcpFrameKind::kHello, 2, 0)).is_welcome());
  one.say(frame_of_three(all, TcpFrameKind::kReady, 1, 0));
  zero.join();
  EXPECT_THAT(sentence, HasSubstr("rank 2 has not met all other ranks within 2000 ms"));
}

/// Accepts the next connection of rank 1, and welcomes it as rank 0.
Descriptor welcomed_rank_one(const TcpAddresses& all) {
  pollfd listening{all.listeners[0].sockets().front().number(), POLLIN, 0};
  EXPECT_EQ(::poll(&listening, 1, 60'000), 1);
  Descriptor socket(::accept4(listening.fd, nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(hears(socket, TcpFrameKind::kHello));
  const TcpFrameBytes welcome = frame_of_three(all, TcpFrameKind::kWelcome, 0, 1);
  EXPECT_EQ(::send(socket.number(), welcome.data(), welcome.size(), MSG_NOSIGNAL), ssize_t{kTcpFrameBytes});
  return socket;
}

/// Rank 2 dies while rank 1 waits for rank 0 alone.
TEST(TcpMeetings, ARankThatDiesBeforeTheLastOneIsThereIsMetAgain) {
  TcpAddresses all(3);
  std::jthread one([&all] { EXPECT_TRUE(meet_in(all, 1).has_value()); });
  const TcpFrameBytes hello = frame_of_three(all, TcpFrameKind::kHello, 2, 1);
  EXPECT_TRUE(Stranger(all.meeting.addresses[1]).say(hello).is_welcome());
  const Descriptor zero = welcomed_rank_one(all);
  const Stranger two(all.meeting.addresses[1]);
  EXPECT_TRUE(two.say(hello).is_welcome());
  EXPECT_TRUE(hears(zero, TcpFrameKind::kReady));
  const Stranger meets_again(all.meeting.addresses[1]);
  meets_again.say(hello);
  const TcpFrameBytes met = frame_of_three(all, TcpFrameKind::kMet, 0, 1);
  ASSERT_EQ(::send(zero.number(), met.data(), met.size(), MSG_NOSIGNAL), ssize_t{kTcpFrameBytes});
  EXPECT_TRUE(meets_again.hear().empty()) << "it is not refused, and tries again";
}

/// Rank 0 ends the meeting for rank 2, and dies before it ends it for rank 1. Rank 2 sums, notices, and leaves.
TEST(TcpMeetings, ARankThatIsReadyEndsSoonAfterRankZeroDies) {
  TcpAddresses all(3);
  std::string sentence;
  std::jthread one([&] { sentence = refusal_sentence_of(meet_in(all, 1), ErrorCode::kUnavailable); });
  const Stranger two(all.meeting.addresses[1]);
  EXPECT_TRUE(two.say(frame_of_three(all, TcpFrameKind::kHello, 2, 1)).is_welcome());
  Descriptor zero = welcomed_rank_one(all);
  EXPECT_TRUE(hears(zero, TcpFrameKind::kReady));
  two.say(encode_header(case_message_of(2, 0, 0)));
  zero.close();
  one.join();
  EXPECT_THAT(sentence, HasSubstr("rank 0 is gone"));
}

TEST(TcpMeetings, ARankMakesGroupsWithOneListOneAfterTheOther) {
  constexpr uint32_t kSize = 4;
  TcpAddresses all(kSize);
  std::vector<std::jthread> threads;
  for (uint32_t rank = 0; rank < kSize; ++rank) {
    threads.emplace_back([&all, rank] {
      std::vector<std::unique_ptr<TcpCommunicator>> groups;
      for (int group = 0; group < 8; ++group) {
        auto listener = group == 0 ? Result<TcpListener>(std::move(all.listeners[rank]))
                                   : TcpListener::open(all.meeting.addresses[rank]);
        ASSERT_TRUE(listener.has_value()) << listener.error().message;
        auto made = TcpCommunicator::connect(std::move(*listener), all.of(rank));
        ASSERT_TRUE(made.has_value()) << made.error().message;
        groups.push_back(std::move(*made));
      }
      for (const auto& group : groups) {
        for (uint32_t to = 0; to < kSize; ++to) {
          if (to == rank) continue;
          ASSERT_TRUE(group->send(to, case_message_of(rank, 0, 10)).has_value());
        }
        for (uint32_t left = kSize - 1; left > 0; --left)
          EXPECT_EQ(next_message(*group).message.body.bytes.size(), 10U);
      }
    });
  }
}

TEST(TcpMeetings, ARankWhoseFirstConnectionHasEndedMayConnectAgain) {
  for (const uint32_t last : {1U, 2U}) {
    SCOPED_TRACE(last);
    TcpAddresses all(3);
    std::jthread zero([&all] { EXPECT_TRUE(meet_in(all, 0).has_value()); });
    const auto hello = [&all](uint32_t from) { return frame_of_three(all, TcpFrameKind::kHello, from, 0); };
    EXPECT_TRUE(Stranger(all.meeting.addresses[0]).say(hello(2)).is_welcome());
    const Stranger earlier(all.meeting.addresses[0]), later(all.meeting.addresses[0]);
    EXPECT_TRUE(earlier.say(hello(3 - last)).is_welcome());
    EXPECT_TRUE(later.say(hello(last)).is_welcome());
    earlier.say(frame_of_three(all, TcpFrameKind::kReady, 3 - last, 0));
    later.say(frame_of_three(all, TcpFrameKind::kReady, last, 0));
    EXPECT_TRUE(earlier.has_met());
  }
}

/// Rank 0 welcomes rank 1, ends, and is started again.
TEST(TcpMeetings, ALowerRankThatIsStartedAgainIsMetAgain) {
  TcpAddresses all(3);
  std::latch met(3);  // a rank that closes its links before looks like one that restarts
  const auto meet = [&](uint32_t rank) {
    const auto links = meet_in(all, rank);
    EXPECT_TRUE(links.has_value());
    met.arrive_and_wait();
  };
  std::jthread one(meet, 1);
  welcomed_rank_one(all).close();
  pollfd listening{all.listeners[0].sockets().front().number(), POLLIN, 0};
  ASSERT_EQ(::poll(&listening, 1, 60'000), 1) << "rank 1 tries again";
  std::jthread zero(meet, 0);
  std::jthread two(meet, 2);
}

TEST(TcpMeetings, AResolverThatDoesNotAnswerDoesNotHoldUpTheTimeLimit) {
  TcpAddresses all(3);
  const auto answers = std::make_shared<std::latch>(1);
  TcpMeeting two = all.of(2);
  two.addresses[0] = "slow.invalid:7600";
  two.time_max = 300 * kNsPerMs;
  two.resolver = [answers](const std::string& host) -> Result<std::vector<protocol::HostAddress>> {
    if (protocol::is_numeric_host(host)) return protocol::look_up_host(host);
    answers->wait();
    return fail(ErrorCode::kUnavailable, "it is slow");
  };
  const std::string sentence = refusal_sentence_of(meet_ranks(std::move(all.listeners[2]), two), ErrorCode::kTimeout);
  EXPECT_THAT(sentence, HasSubstr("no connection to rank 0 within 300 ms"));
  answers->count_down();
}

TEST(TcpMeetings, AMissingRankIsNamed) {
  TcpAddresses all(3);
  all.meeting.time_max = 2 * kNsPerS;  // ranks 0 and 1 meet in less
  std::array<std::string, 2> sentences;
  std::jthread zero([&] { sentences[0] = refusal_sentence_of(meet_in(all, 0), ErrorCode::kTimeout); });
  std::jthread one([&] { sentences[1] = refusal_sentence_of(meet_in(all, 1), ErrorCode::kTimeout); });
  zero.join();
  one.join();
  for (const std::string& sentence : sentences) EXPECT_THAT(sentence, HasSubstr("rank 2 has not connected"));
  all.meeting.addresses[0] = "127.0.0.1:1";  // where no rank listens
  all.meeting.time_max = 100 * kNsPerMs;
  const std::string last = refusal_sentence_of(meet_in(all, 2), ErrorCode::kTimeout);
  EXPECT_THAT(last, HasSubstr("no connection to rank 0"));
  EXPECT_THAT(last, HasSubstr("cannot be reached"));
}

/// Answers each connection with a text; "" closes it at once, "silence" says nothing and keeps it.
std::string meet_what_answers(const std::string& text, ErrorCode code) {
  TcpAddresses all(2);
  if (code == ErrorCode::kTimeout) all.meeting.time_max = kNsPerS;  // the connection is made in less
  std::atomic<bool> done = false;
  std::jthread server([&] {
    std::vector<Descriptor> kept;
    while (!done) {
      pollfd polled{all.listeners[0].sockets()[0].number(), POLLIN, 0};
      if (::poll(&polled, 1, 10) <= 0) continue;
      Descriptor socket(::accept(polled.fd, nullptr, nullptr));
      if (text == "silence")
        kept.push_back(std::move(socket));
      else if (socket)
        ::send(socket.number(), text.data(), text.size(), MSG_NOSIGNAL);
    }
  });
  const std::string sentence = refusal_sentence_of(meet_in(all, 1), code);
  done = true;
  return sentence;
}

TEST(TcpMeetings, WhatAnswersInTheNameOfARankIsNamed) {
  EXPECT_THAT(meet_what_answers(std::string(40, 'x'), ErrorCode::kJobMismatch), HasSubstr("no rank of a group"));
  EXPECT_THAT(meet_what_answers("silence", ErrorCode::kTimeout), HasSubstr("does not answer"));
  EXPECT_THAT(meet_what_answers("", ErrorCode::kTimeout), HasSubstr("rank 0"));
}

TEST(TcpMeetings, AnotherGroupOrListIsRefusedWithASentence) {
  TcpAddresses all(2);
  std::atomic<bool> refused = false;
  std::jthread zero([&all, &refused] {
    TcpMeeting own = all.of(0);
    own.give_up = [&refused] { return refused.load(); };
    EXPECT_FALSE(meet_ranks(std::move(all.listeners[0]), own).has_value());
  });
  TcpMeeting own = all.of(1);
  own.group = "another";
  EXPECT_THAT(refusal_sentence_of(meet_ranks(std::move(all.listeners[1]), own), ErrorCode::kJobMismatch),
              HasSubstr("belongs to another group"));
  refused = true;
}

TEST(TcpMeetings, TheCallerCanGiveUp) {
  TcpAddresses all(2);
  all.meeting.give_up = [] { return true; };
  EXPECT_THAT(refusal_sentence_of(meet_in(all, 0), ErrorCode::kUnavailable), HasSubstr("gave up"));
}

TEST(TcpMeetings, ImpossibleListsAreRefused) {
  const auto sentence = [](uint32_t rank, std::vector<std::string> addresses) {
    TcpMeeting meeting;
    meeting.rank = rank;
    meeting.addresses = std::move(addresses);
    return refusal_sentence_of(meet_ranks(TcpListener::open("127.0.0.1:0").value(), meeting),
                               ErrorCode::kInvalidArgument);
  };
  EXPECT_THAT(sentence(0, {}), HasSubstr("rank 0 of 0"));
  EXPECT_THAT(sentence(2, {"a:1", "b:1"}), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(sentence(0, {"a:1", "tcp://a:1"}), HasSubstr("two ranks have the address a:1"));
  EXPECT_THAT(sentence(0, {"a:1", "b"}), HasSubstr("'b' is not an address"));
  EXPECT_THAT(sentence(0, {"a:1", "b:0"}), HasSubstr("port 0 cannot be reached"));
  for (const char* every : {"0.0.0.0:1", "0:1", "[::]:1", "[::0]:1", "*:1"}) {
    EXPECT_THAT(sentence(0, {"a:1", every}), HasSubstr("every address of its machine"));
  }
}

TEST(TcpListeners, ListenAtTheGivenAddressAlone) {
  const TcpListener listener = TcpListener::open("127.0.0.2:0").value();
  const std::string port = listener.address().substr(listener.address().find(':'));
  EXPECT_TRUE(Stranger("127.0.0.2" + port).is_connected());
  EXPECT_FALSE(Stranger("127.0.0.1" + port).is_connected());
  EXPECT_EQ(TcpListener::open(listener.address()).error().code, ErrorCode::kConflict);
  EXPECT_EQ(TcpListener::open("203.0.113.7:0").error().code, ErrorCode::kIo);
  EXPECT_EQ(TcpListener::open("here").error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::peer::testing
