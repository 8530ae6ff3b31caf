#include "server/connections/connection_watch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bit>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/connections/connection_ledger.h"

/// The watch on real connections; this program has neither accept4.cc nor recv.cc, so that the tests count by hand.
namespace millrace::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
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
    watch_.emplace(ntohs(at.sin_port), kMessageMost, 2 * kMessageMost);
  }
  ~Watch() override {
    for (const ConnectionSample& one : connection_samples()) forget_connection(one.descriptor, one.accepted_at);
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
  /// Returns why connections were ended.
  std::vector<std::string_view> look(TimeNs now) {
    ended_ = watch_->look(
        ConnectionWatch::Inbox::kDrained, [this](const protocol::PeerId& peer) { return peer.bytes == member_; }, now);
    std::vector<std::string_view> reasons;
    for (const ConnectionWatch::Ended& one : ended_) reasons.push_back(one.why);
    return reasons;
  }
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

TEST_F(Watch, WhatAClosedConnectionLeftUnreadEndsNoOther) {
  const int small = accept(kStart);
  count_received(small, 600'000);
  std::vector<int> closed;
  for (int at = 0; at < 4; ++at) closed.push_back(accept(kStart));
  for (const int one : closed) count_received(one, 900'000);
  for (const int one : closed) close_at(one);
  for (int at = 1; at <= 4; ++at) EXPECT_THAT(look(kStart + at * kNsPerS), IsEmpty());
  EXPECT_FALSE(was_ended(small));
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
