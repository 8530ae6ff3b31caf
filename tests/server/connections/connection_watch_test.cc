#include "server/connections/connection_watch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/connections/connection_ledger.h"

/// The watch on real connections; this program has neither accept4.cc nor recv.cc, so that the tests count by hand.
namespace millrace::server {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kMessageMost = 1'000'000;
constexpr TimeNs kStart = 100 * kNsPerS;

class Watch : public ::testing::Test {
 protected:
  Watch() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(at);
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::bind(listener_, std::bit_cast<sockaddr*>(&at), length), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
    EXPECT_EQ(::getsockname(listener_, std::bit_cast<sockaddr*>(&at), &length), 0);
    at_ = at;
    watch_.emplace(ntohs(at.sin_port), kMessageMost, kMessageMost, 2 * kMessageMost);
  }
  ~Watch() override {
    limit_strangers({});
    take_cuts();
    for (const ConnectionSample& one : connection_samples()) forget_connection(one.descriptor, one.accepted_at);
    EXPECT_EQ(strangers_held(), 0U) << "each byte is returned once";
    for (const int fd : open_) ::close(fd);
    ::close(listener_);
  }
  /// Connects; returns the accepted end's descriptor.
  int accept(TimeNs now) {
    open_.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(open_.back(), std::bit_cast<sockaddr*>(&at_), sizeof(at_)), 0);
    const int accepted = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    open_.push_back(accepted);
    count_connection(accepted, now);
    return accepted;
  }
  /// Connects again; the new connection gets the number of one that it closes.
  int accept_instead_of(int closed, TimeNs now) {
    const int accepted = accept(now);
    forget_connection(accepted, now);
    EXPECT_EQ(::dup3(accepted, closed, O_CLOEXEC), closed);
    close_at(accepted);
    count_connection(closed, now);
    return closed;
  }
  void close_at(int descriptor) {
    std::erase(open_, descriptor);
    ::close(descriptor);
  }
  /// Counts bytes that never end a message, or are another connection's.
  static void count_received(int descriptor, size_t bytes) {
    const std::string sent(bytes, 'x');
    EXPECT_TRUE(server::count_received(descriptor, std::as_bytes(std::span(sent)), bytes));
  }
  /// Returns why connections were ended.
  std::vector<std::string_view> look(TimeNs now) {
    ended_ = watch_->look(
        ConnectionWatch::Inbox::kDrained, [this](const protocol::PeerId& peer) { return peer.bytes == member_; }, now);
    std::vector<std::string_view> reasons;
    for (const ConnectionWatch::Ended& one : ended_) reasons.push_back(one.why);
    return reasons;
  }
  int looks_until_closed();
  static bool was_ended(int descriptor) {
    char byte = 0;
    return ::recv(descriptor, &byte, 1, MSG_DONTWAIT) == 0;
  }

  int listener_ = -1;
  sockaddr_in at_{};
  std::vector<int> open_;
  std::string member_ = "member";
  std::vector<ConnectionWatch::Ended> ended_;  ///< by the last look
  std::optional<ConnectionWatch> watch_;
};

TEST_F(Watch, UnreadBytesOfClosedConnectionsEndNoOther) {
  const int small = accept(kStart);
  count_received(small, 600'000);
  std::vector<int> closed;
  for (int at = 0; at < 4; ++at) closed.push_back(accept(kStart));
  for (const int one : closed) count_received(one, 900'000);
  for (const int one : closed) close_at(one);
  for (int at = 1; at <= 4; ++at) EXPECT_THAT(look(kStart + at * kNsPerS), IsEmpty());
  EXPECT_FALSE(was_ended(small));
}

TEST_F(Watch, BytesOfAnUnfinishedMessageAreReportedOnce) {
  const auto arriving = [this] {
    std::vector<std::pair<std::string, uint64_t>> found;
    watch_->report_arriving(
        [&](const protocol::PeerId& peer, uint64_t bytes) { found.emplace_back(peer.bytes, bytes); });
    return found;
  };
  const int one = accept(kStart);
  count_received(one, 100);
  EXPECT_THAT(arriving(), IsEmpty()) << "its peer is not known";
  watch_->on_message({"member"}, one, ConnectionWatch::Spoken::kHello, kStart);
  EXPECT_THAT(arriving(), IsEmpty()) << "a whole message";
  count_received(one, 5'000);
  EXPECT_THAT(arriving(), ElementsAre(std::pair("member", 5'000)));
  EXPECT_THAT(arriving(), IsEmpty());
  watch_->on_message({"member"}, one, ConnectionWatch::Spoken::kOther, kStart);
  count_received(one, 70);
  EXPECT_THAT(arriving(), ElementsAre(std::pair("member", 70)));
  accept_instead_of(one, kStart + 1);
  count_received(one, 9'000);
  EXPECT_THAT(arriving(), IsEmpty()) << "another connection's";
}

TEST_F(Watch, BytesThatAClosedConnectionLeavesAreItsPeersOnce) {
  const auto none = [](const protocol::PeerId&, uint64_t) {};
  const auto left = [this] {
    std::vector<std::pair<std::string, uint64_t>> found;
    for (const auto& one : watch_->take_unfinished()) found.emplace_back(one.by.bytes, one.bytes);
    return found;
  };
  const int first = accept(kStart);
  watch_->on_message({"member"}, first, ConnectionWatch::Spoken::kHello, kStart);
  count_received(first, 5'000);
  watch_->report_arriving(none);
  look(kStart + kNsPerS);
  EXPECT_THAT(left(), IsEmpty()) << "it may end its message";
  accept_instead_of(first, kStart + 2 * kNsPerS);
  watch_->look(ConnectionWatch::Inbox::kNotDrained, [](const auto&) { return false; }, kStart + 3 * kNsPerS);
  EXPECT_THAT(left(), IsEmpty()) << "whole messages may be among them";
  look(kStart + 4 * kNsPerS);
  EXPECT_THAT(left(), ElementsAre(std::pair("member", 5'000)));
  look(kStart + 5 * kNsPerS);
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Watch, MessagesOfAClosedConnectionAreNotItsSuccessors) {
  const int first = accept(kStart);
  watch_->on_message({"old"}, first, ConnectionWatch::Spoken::kOther, kStart);
  const int second = accept_instead_of(first, kStart + 1);
  count_received(second, 2 * kMessageMost);
  EXPECT_THAT(look(kStart + kNsPerS), IsEmpty());
  watch_->on_message({"old"}, second, ConnectionWatch::Spoken::kOther, kStart + kNsPerS);
  EXPECT_THAT(look(kStart + 2 * kNsPerS), ElementsAre("unfinished_message"));
  EXPECT_TRUE(was_ended(second));
}

/// The member's connection ends; looks follow. Returns how many until it is known to be closed.
int Watch::looks_until_closed() {
  for (int looks = 0; looks < 10; ++looks) {
    if (watch_->is_closed({member_})) return looks;
    EXPECT_THAT(look(kStart + (looks + 1) * kNsPerS), IsEmpty());
  }
  return -1;
}

TEST_F(Watch, AMembersConnectionIsClosedOnceThreeLooksFoundItSo) {
  const int closed = accept(kStart);
  const int client = open_[open_.size() - 2];
  watch_->on_message({member_}, closed, ConnectionWatch::Spoken::kHello, kStart);
  EXPECT_EQ(looks_until_closed(), -1);
  close_at(client);
  pollfd readable{.fd = closed, .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&readable, 1, 10'000), 1);
  for (int looks = 0; looks < 3; ++looks) {
    EXPECT_FALSE(watch_->is_closed({member_})) << looks;
    look(kStart + (20 + looks) * kNsPerS);
  }
  EXPECT_TRUE(watch_->is_closed({member_})) << "its end has not been read";
  EXPECT_FALSE(watch_->is_closed({"unknown"}));
}

TEST_F(Watch, AMemberStaysClosedAfterItsDescriptorIsReused) {
  const int replaced = accept(kStart);
  watch_->on_message({member_}, replaced, ConnectionWatch::Spoken::kHello, kStart);
  accept_instead_of(replaced, kStart + 1);
  EXPECT_EQ(looks_until_closed(), 4) << "by the first look it had spoken";
  look(kStart + 14 * kNsPerS);
  look(kStart + 15 * kNsPerS);
  EXPECT_TRUE(watch_->is_closed({member_})) << "it is not forgotten while it has a session";
}

TEST_F(Watch, AMemberThatComesAgainHasItsNewConnection) {
  const int first = accept(kStart);
  watch_->on_message({member_}, first, ConnectionWatch::Spoken::kHello, kStart);
  close_at(open_[open_.size() - 2]);
  watch_->on_message({member_}, accept(kStart), ConnectionWatch::Spoken::kHello, kStart);
  EXPECT_EQ(looks_until_closed(), -1);
}

TEST_F(Watch, AMemberMayBeSilentAndOneThatWasRemovedMayNot) {
  const int member = accept(kStart);
  watch_->on_message({"member"}, member, ConnectionWatch::Spoken::kHello, kStart);
  EXPECT_THAT(look(kStart + 100 * kNsPerS), IsEmpty());
  EXPECT_THAT(look(kStart + 101 * kNsPerS), IsEmpty());
  member_ = "another";
  EXPECT_THAT(look(kStart + 102 * kNsPerS), IsEmpty());
  EXPECT_THAT(look(kStart + 103 * kNsPerS), ElementsAre("no_session"));
  EXPECT_TRUE(was_ended(member));
}

TEST_F(Watch, EndsAConnectionWhenItIsAskedTo) {
  const int one = accept(kStart);
  const int other = accept(kStart);
  watch_->on_message({"one"}, one, ConnectionWatch::Spoken::kHello, kStart);
  watch_->on_message({"other"}, other, ConnectionWatch::Spoken::kHello, kStart);
  watch_->end_later([](const protocol::PeerId& peer) { return peer.bytes == "one"; }, "key_revoked", kStart + kNsPerS);
  watch_->end_later({"one"}, "over_rate", kStart);
  EXPECT_THAT(look(kStart + kNsPerS / 2), IsEmpty());
  EXPECT_THAT(look(kStart + kNsPerS), ElementsAre("key_revoked"));
  EXPECT_TRUE(was_ended(one));
  EXPECT_FALSE(was_ended(other));
}

class Strangers : public Watch {
 protected:
  static constexpr uint64_t kEachMax = 1'000'000;
  static constexpr uint64_t kTotalMax = 2'000'000;
  Strangers() { limit_strangers({.port = ntohs(at_.sin_port), .each_max = kEachMax, .total_max = kTotalMax}); }

  /// Receives bytes as ZeroMQ reads them. False: the connection ends with this read.
  static bool receive(int descriptor, const std::string& bytes, size_t room = kSharedReadBytes) {
    return server::count_received(descriptor, std::as_bytes(std::span(bytes)), room);
  }
  static std::string greeting() {
    std::string bytes(64, '\0');
    bytes[0] = '\xff';
    bytes[9] = '\x7f';
    bytes[10] = 3;
    return bytes;
  }
  /// Accepts a connection, and receives its greeting, READY and one message.
  int greeted() {
    const int accepted = accept(kStart + ++accepted_);
    EXPECT_TRUE(receive(accepted, greeting() + "\4\6\5READY" + frame(false, 0)));
    return accepted;
  }
  /// Accepts a connection, and receives its greeting and CURVE's handshake.
  int with_key() {
    const int accepted = accept(kStart + ++accepted_);
    EXPECT_TRUE(receive(accepted, greeting().replace(12, 5, "CURVE") + frame(false, 200) + frame(false, 250)));
    return accepted;
  }
  /// Returns a frame of 256 bytes to 65,535.
  static std::string long_frame(size_t bytes) {
    const std::string length = {static_cast<char>(bytes >> 8), static_cast<char>(bytes & 0xff)};
    return '\2' + std::string(6, '\0') + length + std::string(bytes, 'x');
  }
  /// Returns a frame of fewer than 256 bytes.
  static std::string frame(bool more, size_t bytes) {
    return std::string(1, more ? '\1' : '\0') + static_cast<char>(bytes) + std::string(bytes, 'x');
  }
  /// Receives reads of unfinished frames; returns how many the limits let pass, `reads` at most.
  static int receive_unfinished(int descriptor, int reads) {
    const std::string bytes = frame(true, 254);
    for (int at = 0; at < reads; ++at)
      if (!receive(descriptor, bytes)) return at;
    return reads;
  }
  /// A number is used again by another connection, which began later: than those of the tests above, too.
  static inline TimeNs accepted_ = kNsPerS / 2;
  static constexpr uint64_t kOneRead = kReadBytes + kFrameBytes + 256;
};

TEST_F(Strangers, TheReadThatPassesTheLimitOfOneEndsIt) {
  const int guilty = greeted();
  const int other = greeted();
  ASSERT_EQ(receive_unfinished(other, 3), 3);
  EXPECT_EQ(receive_unfinished(guilty, 1'000), static_cast<int>(kEachMax / kOneRead));
  EXPECT_EQ(strangers_held(), 3 * kOneRead) << "ZeroMQ frees the rest";
  EXPECT_EQ(accepted_at(guilty), 0);
  EXPECT_THAT(look(kStart + kNsPerS), ElementsAre("unfinished_message"));
  EXPECT_EQ(ended_[0].by.address, "127.0.0.1");
  EXPECT_THAT(look(kStart + 2 * kNsPerS), IsEmpty());
}

/// CURVE hides the ends of messages: the loop ends them.
TEST_F(Strangers, TheFramesOfAnAllowedKeyCountUntilTheLoopTakesAMessage) {
  const std::string bytes = frame(false, 254);
  const auto most = static_cast<int>(kEachMax / (kHiddenFrameBytes + bytes.size()));
  const auto sent = [&](int descriptor, int reads) {
    int passed = 0;
    while (passed < reads && receive(descriptor, bytes)) ++passed;
    return passed;
  };
  const int honest = with_key();
  for (int message = 0; message < 10; ++message) {
    EXPECT_EQ(sent(honest, most - 1), most - 1);
    count_message(honest, std::vector<uint64_t>(static_cast<size_t>(most) - 1, 254 - kHidingBytes));
    EXPECT_EQ(strangers_held(), 0U);
  }
  const int guilty = with_key();
  EXPECT_EQ(sent(guilty, 2 * most), most);
  EXPECT_THAT(look(kStart + kNsPerS), ElementsAre("unfinished_message"));
  for (int at = 0; at < 2; ++at) EXPECT_EQ(sent(with_key(), most - 1), most - 1);
  EXPECT_EQ(sent(with_key(), most - 1), static_cast<int>(kStrangerShare / (kHiddenFrameBytes + bytes.size())));
  EXPECT_LE(strangers_held(), kTotalMax);
  EXPECT_THAT(look(kStart + 2 * kNsPerS), ElementsAre("unfinished_messages"));
  const int small = with_key();
  EXPECT_EQ(sent(small, 300), 300) << "each has its share";
}

/// ZeroMQ holds a thousand whole messages before an endless one: each that is taken would free the endless one's bytes.
TEST_F(Strangers, ATakenMessageOfAnAllowedKeyReturnsItsOwnFramesAlone) {
  const int one = with_key();
  const std::string message = long_frame(300 + kHidingBytes) + frame(false, 20 + kHidingBytes);
  const auto taken = [this](const protocol::PeerId& peer, int descriptor, std::optional<uint64_t> payload) {
    watch_->on_message(peer, descriptor, ConnectionWatch::Spoken::kHello, kStart, {peer.bytes.size() + 320, payload});
  };
  constexpr int kWhole = 1'000;
  for (int at = 0; at < kWhole; ++at) ASSERT_TRUE(receive(one, message));
  const uint64_t held_whole = strangers_held();
  EXPECT_EQ(held_whole, kWhole * (message.size() + 2 * kHiddenFrameBytes));
  const std::string endless = frame(false, 254);
  uint64_t held_endless = 0;
  bool continues = true;
  for (int at = 0; continues; ++at) {
    if (at < kWhole) taken({"one"}, one, 20);
    continues = receive(one, endless);
    if (!continues) break;
    held_endless += endless.size() + kHiddenFrameBytes;
    ASSERT_EQ(strangers_held(),
              held_whole / kWhole * static_cast<uint64_t>(std::max(kWhole - at - 1, 0)) + held_endless);
  }
  EXPECT_LE(held_endless, kEachMax);
  const int honest = with_key();
  for (int at = 0; at < 10 * kWhole; ++at) {
    ASSERT_TRUE(receive(honest, message));
    taken({"honest"}, honest, 20);
  }
  EXPECT_EQ(strangers_held(), 0U);
  ASSERT_TRUE(receive(honest, message));
  taken({"honest"}, honest, std::nullopt);
  EXPECT_LE(strangers_held(), 200U) << "an unreadable message may have one frame alone";
}

TEST_F(Strangers, AChosenIdentityEndsItsConnection) {
  const int other = greeted();
  const int guilty = accept(kStart + ++accepted_);
  ASSERT_TRUE(receive(guilty, greeting() + "\4\x17\5READY\x08Ident"));
  EXPECT_FALSE(receive(guilty, std::string("ity\0\0\0\4abcd", 11)));
  EXPECT_EQ(strangers_held(), 0U);
  EXPECT_EQ(accepted_at(guilty), 0);
  EXPECT_NE(accepted_at(other), 0);
  EXPECT_THAT(look(kStart + kNsPerS), ElementsAre("bad_handshake"));
}

TEST_F(Strangers, BytesBeforeThePortIsKnownAreReadToo) {
  limit_strangers({});
  const int honest = accept(kStart + ++accepted_);
  const int guilty = accept(kStart + ++accepted_);
  ASSERT_TRUE(receive(honest, greeting().substr(0, 10)));
  ASSERT_TRUE(receive(guilty, greeting() + std::string("\4\x17\5READY\x08Identity\0\0\0\4abcd", 25)));
  EXPECT_EQ(strangers_held(), 0U);
  limit_strangers({.port = ntohs(at_.sin_port), .each_max = kEachMax, .total_max = kTotalMax});
  EXPECT_TRUE(receive(honest, greeting().substr(10) + "\4\6\5READY" + frame(false, 0)));
  EXPECT_FALSE(receive(guilty, frame(false, 0)));
  EXPECT_NE(accepted_at(honest), 0);
  EXPECT_THAT(look(kStart + kNsPerS), ElementsAre("bad_handshake"));
}

TEST_F(Strangers, EmptyFramesAndReadsOfFewBytesCountTheMemoryThatTheyTake) {
  const int empty = greeted();
  std::string frames;
  while (frames.size() < kSharedReadBytes) frames += frame(true, 0);
  int reads = 0;
  while (receive(empty, frames)) ++reads;
  EXPECT_EQ(reads, static_cast<int>(kEachMax / (kReadBytes + kSharedReadBytes + kSharedReadBytes / 2 * kFrameBytes)));
  const int slow = greeted();
  for (reads = 0; reads < 1'000 && receive(slow, frame(true, 34)); ++reads) {
  }
  EXPECT_EQ(reads, static_cast<int>(kEachMax / (kReadBytes + kFrameBytes + 36)));
}

TEST_F(Strangers, CommandsCountAsPartsOfAMessage) {
  const int one = greeted();
  int reads = 0;
  while (reads < 1'000 && receive(one, '\4' + frame(false, 200).substr(1))) ++reads;
  EXPECT_EQ(reads, static_cast<int>(kEachMax / (kReadBytes + kFrameBytes + 202)));
}

TEST_F(Strangers, AFloodOfWholeMessagesHoldsNothing) {
  const int one = greeted();
  for (int at = 0; at < 10'000; ++at) ASSERT_TRUE(receive(one, frame(true, 200) + frame(false, 0)));
  EXPECT_EQ(strangers_held(), 0U);
  // They are cut anywhere.
  const std::string message = frame(true, 200) + frame(false, 0);
  for (int at = 0; at < 10'000; ++at) {
    ASSERT_TRUE(receive(one, message.substr(0, 100)));
    ASSERT_TRUE(receive(one, message.substr(100) + message.substr(0, 1)));
    ASSERT_TRUE(receive(one, message.substr(1)));
  }
  EXPECT_EQ(strangers_held(), 0U);
}

TEST_F(Strangers, LargeFramesCountTheirBytes) {
  const int one = greeted();
  ASSERT_TRUE(receive(one, std::string("\2\0\0\0\0\0\x0f\0\0", 9)));
  const uint64_t held = strangers_held();
  ASSERT_TRUE(receive(one, std::string(100'000, 'x'), 900'000));
  EXPECT_EQ(strangers_held(), held + 100'000);
}

TEST_F(Strangers, AllTogetherHoldNoMoreThanTheTotalBesideTheShareOfEach) {
  std::vector<int> holders;
  for (int at = 0; at < 4; ++at) holders.push_back(greeted());
  for (const int one : holders) receive_unfinished(one, static_cast<int>(kEachMax / kOneRead));
  EXPECT_LE(strangers_held(), kTotalMax);
  EXPECT_NE(accepted_at(holders[1]), 0);
  EXPECT_EQ(accepted_at(holders[2]), 0) << "it passed the total";
  const uint64_t held = strangers_held();
  for (int at = 0; at < 4; ++at) {
    const int small = greeted();
    EXPECT_EQ(receive_unfinished(small, static_cast<int>(kStrangerShare / kOneRead)),
              static_cast<int>(kStrangerShare / kOneRead));
  }
  EXPECT_LE(strangers_held(), std::max(held, kTotalMax) + 4 * kStrangerShare);
  EXPECT_THAT(look(kStart + kNsPerS), AllOf(Not(IsEmpty()), Each("unfinished_messages")));
}

TEST_F(Strangers, WholeMessagesDoNotReduceTheCountOfAnUnfinishedOne) {
  const int one = greeted();
  constexpr int kWhole = 50;
  std::string messages;
  for (int at = 0; at < kWhole; ++at) messages += frame(true, 50) + frame(false, 0);
  ASSERT_TRUE(receive(one, messages));
  int reads = 0;
  bool continues = true;
  for (; continues && reads < 1'000; ++reads) {
    if (reads < kWhole) watch_->on_message({"one"}, one, ConnectionWatch::Spoken::kOther, kStart);
    continues = receive(one, frame(true, 254));
  }
  EXPECT_LE(reads, static_cast<int>(kEachMax / kOneRead) + 1);
}

TEST_F(Strangers, AConnectionWithASessionHasTheLimitsOfMembers) {
  const int one = greeted();
  ASSERT_EQ(receive_unfinished(one, 10), 10);
  watch_->on_message({"member"}, one, ConnectionWatch::Spoken::kHello, kStart);
  watch_->on_session({"member"});
  EXPECT_EQ(strangers_held(), 0U);
  EXPECT_EQ(receive_unfinished(one, 1'000), 1'000);
  EXPECT_THAT(look(kStart + kNsPerS), IsEmpty());
  EXPECT_EQ(strangers_held(), 0U);
}

TEST_F(Strangers, ConnectionsOfOtherPortsHaveNoLimit) {
  const int one = greeted();
  limit_strangers({.port = 1, .each_max = 1, .total_max = 1});
  EXPECT_EQ(receive_unfinished(one, 1'000), 1'000);
  // The number of a closed connection now is a file that this process opened.
  limit_strangers({.port = ntohs(at_.sin_port), .each_max = 1, .total_max = 1});
  const int reused = accept(kStart);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  ASSERT_EQ(::dup3(ends[0], reused, O_CLOEXEC), reused);
  EXPECT_TRUE(receive(reused, "x"));
  EXPECT_THAT(look(kStart + kNsPerS), IsEmpty());
  for (const int end : ends) ::close(end);
}

TEST_F(Watch, NamesThePeerOfAConnectionThatItEnds) {
  const protocol::PublicKey key = protocol::draw_key_pair().public_key;
  const int spoken = accept(kStart);
  watch_->on_message({"one", key, "192.0.2.7"}, spoken, ConnectionWatch::Spoken::kOther, kStart);
  const int reused = accept(kStart);
  watch_->on_message({"gone", {}, "192.0.2.8"}, reused, ConnectionWatch::Spoken::kOther, kStart);
  accept_instead_of(reused, kStart + kNsPerS);
  look(kStart + 20 * kNsPerS);
  EXPECT_THAT(look(kStart + 21 * kNsPerS), UnorderedElementsAre("no_session", "never_spoke"));
  ASSERT_EQ(ended_.size(), 2U);
  for (const ConnectionWatch::Ended& one : ended_) {
    EXPECT_EQ(one.by.key, one.why == "no_session" ? key : protocol::PublicKey());
    EXPECT_EQ(one.by.address, one.why == "no_session" ? "192.0.2.7" : "127.0.0.1");
  }
}

}  // namespace
}  // namespace millrace::server
