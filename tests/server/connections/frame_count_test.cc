#include "server/connections/frame_count.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>

namespace millrace::server {
namespace {

std::string greeting(char version = 3) {
  std::string bytes(64, '\0');
  bytes[0] = '\xff';
  bytes[9] = '\x7f';
  bytes[10] = version;
  return bytes;
}

/// flags  1: more follow; 2: a length of 8 bytes; 4: a command
std::string frame(char flags, size_t bytes) {
  std::string text(1, flags);
  const int length_bytes = (flags & 2) != 0 ? 8 : 1;
  for (int at = length_bytes - 1; at >= 0; --at) text += static_cast<char>(bytes >> (8 * at));
  return text + std::string(bytes, '\x02');
}

/// Returns a property of READY.
std::string property(const std::string& name, const std::string& value) {
  return static_cast<char>(name.size()) + name + std::string(3, '\0') + static_cast<char>(value.size()) + value;
}

/// Returns a frame of at most 255 bytes with this body.
std::string frame_of(char flags, const std::string& body) {
  return std::string(1, flags) + static_cast<char>(body.size()) + body;
}

/// Returns READY as ZeroMQ's own clients send it, with further properties.
std::string ready(const std::string& more = "") {
  return frame_of(4, "\x05READY" + property("Socket-Type", "DEALER") + property("Identity", "") + more);
}

FrameCount::Unfinished count(FrameCount& counter, const std::string& bytes) {
  return counter.count(std::as_bytes(std::span(bytes)));
}

TEST(FrameCount, CountsTheUnfinishedMessageAlone) {
  FrameCount counter;
  const std::string begin = frame(1, 5) + frame(3, 1'000);
  const auto unfinished = count(counter, greeting() + ready() + frame(1, 0) + frame(2, 300) + begin);
  EXPECT_FALSE(unfinished.continues);
  EXPECT_EQ(unfinished.frames, 2U);
  EXPECT_EQ(unfinished.bytes, begin.size());
  const auto more = count(counter, frame(1, 7));
  EXPECT_TRUE(more.continues);
  EXPECT_EQ(more.frames, 1U);
  EXPECT_EQ(more.bytes, 9U);
  const auto end = count(counter, frame(0, 0));
  EXPECT_FALSE(end.continues);
  EXPECT_EQ(end.bytes, 0U);
}

TEST(FrameCount, CountsTheSameHoweverTheBytesArrive) {
  const std::string bytes =
      greeting() + ready() + frame(1, 7) + frame(2, 300) + frame(3, 400) + frame(0, 0) + frame(5, 6) + frame(3, 800);
  FrameCount all;
  const auto expected = count(all, bytes);
  EXPECT_EQ(expected.frames, 2U);
  for (size_t piece = 1; piece < bytes.size(); ++piece) {
    FrameCount counter;
    uint64_t frames = 0;
    uint64_t held = 0;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      const auto one = count(counter, bytes.substr(at, piece));
      if (!one.continues) frames = held = 0;
      frames += one.frames;
      held += one.bytes;
    }
    EXPECT_EQ(frames, expected.frames) << piece;
    EXPECT_EQ(held, expected.bytes) << piece;
  }
}

TEST(FrameCount, CommandsEndNoMessage) {
  FrameCount counter;
  count(counter, greeting() + ready());
  for (const char flags : {'\4', '\5', '\6', '\7'}) {
    const auto command = count(counter, frame(flags, 100));
    EXPECT_TRUE(command.continues) << static_cast<int>(flags);
    EXPECT_EQ(command.frames, 1U);
  }
}

/// Returns how many bytes pass, given one by one, before the counter refuses one.
size_t bytes_before_refusal(const std::string& bytes) {
  FrameCount counter;
  for (size_t at = 0; at < bytes.size(); ++at)
    if (count(counter, bytes.substr(at, 1)).is_refused) return at;
  return bytes.size();
}

/// In ZMTP 1 and 2 the first frame is the routing identity.
TEST(FrameCount, OtherProtocolsAreRefused) {
  std::string no_signature = greeting();
  no_signature[9] = '\0';
  EXPECT_EQ(bytes_before_refusal(greeting(1)), 10U);
  EXPECT_EQ(bytes_before_refusal(greeting(2)), 10U);
  EXPECT_EQ(bytes_before_refusal(no_signature), 9U);
  EXPECT_EQ(bytes_before_refusal("GET / HTTP/1.1\r\n"), 0U);
  FrameCount counter;
  EXPECT_TRUE(count(counter, greeting(1)).is_refused);
  EXPECT_TRUE(count(counter, ready()).is_refused) << "once is for ever";
}

TEST(FrameCount, AChosenRoutingIdentityIsRefused) {
  const std::string honest = greeting() + ready() + frame(1, 7) + frame(0, 0);
  EXPECT_EQ(bytes_before_refusal(honest), honest.size());
  const std::string automatic("\0\0\1\2\3", 5);  // the form of those that ZeroMQ draws
  const std::string type = property("Socket-Type", "DEALER");
  for (const std::string& identity : {automatic, std::string("chosen"), std::string(1, 'x')}) {
    for (const char flags : {'\0', '\1', '\4', '\5'}) {
      const std::string body = "\x05READY" + type + property("Identity", identity);
      const std::string begin = greeting() + frame_of(flags, body);
      EXPECT_EQ(bytes_before_refusal(begin + frame(0, 0)), begin.size() - 1);
      FrameCount counter;
      EXPECT_TRUE(count(counter, begin + frame(0, 0)).is_refused);
    }
  }
  const std::string second = greeting() + ready(property("Identity", automatic));
  EXPECT_EQ(bytes_before_refusal(second), second.size() - 1) << "behind an empty one";
  const std::string other = greeting() + ready(property("X-Identity", automatic) + property("Identity2", "x"));
  EXPECT_EQ(bytes_before_refusal(other), other.size());
}

TEST(FrameCount, AFirstFrameThatIsNoWholeReadyIsRefused) {
  const std::string body = "\x05READY" + property("Socket-Type", "DEALER");
  for (size_t bytes = 1; bytes < body.size(); ++bytes) {
    if (bytes == 6) continue;  // without properties
    const std::string begin = greeting() + frame_of(4, body.substr(0, bytes));
    EXPECT_EQ(bytes_before_refusal(begin + frame(0, 0)), begin.size() - 1) << bytes;
  }
  EXPECT_EQ(bytes_before_refusal(greeting() + frame(0, 0)), 65U) << "an empty frame";
  EXPECT_EQ(bytes_before_refusal(greeting() + frame(4, 30)), 64U + 31U);
  EXPECT_EQ(bytes_before_refusal(greeting() + frame(4, 200)), 65U) << "a long one, at its length";
  EXPECT_EQ(bytes_before_refusal(greeting() + frame(6, 1 << 20)), 64U + 8U);
}

TEST(FrameCount, CurveHidesTheEndsBehindItsHandshake) {
  FrameCount counter;
  const auto hello = count(counter, greeting().replace(12, 5, "CURVE") + frame(4, 200));
  EXPECT_TRUE(hello.continues);
  EXPECT_EQ(hello.bytes, 64U + 202U);
  const auto unfinished = count(counter, frame(6, 300).substr(0, 100));
  EXPECT_TRUE(unfinished.continues);
  EXPECT_EQ(unfinished.bytes, 100U);
  EXPECT_FALSE(unfinished.hides_ends);
  const auto initiate = count(counter, frame(6, 300).substr(100) + frame(0, 100) + frame(2, 300));
  EXPECT_FALSE(initiate.continues) << "the handshake is over";
  EXPECT_TRUE(initiate.hides_ends);
  EXPECT_EQ(initiate.bytes, 102U + 309U);
  EXPECT_EQ(initiate.frames, 2U);
  const auto last = count(counter, frame(0, 100));
  EXPECT_TRUE(last.continues) << "its flags say nothing";
  EXPECT_TRUE(last.hides_ends);
  EXPECT_EQ(last.bytes, 102U);
}

/// A frame of the handshake ends no message, with any flags.
TEST(FrameCount, AnEndlessHandshakeOfCurveCounts) {
  for (const char flags : {'\0', '\2', '\6'}) {
    FrameCount counter;
    count(counter, greeting().replace(12, 5, "CURVE"));
    uint64_t bytes = 0;
    const std::string endless = std::string(1, static_cast<char>(flags | 2)) + std::string("\0\0\0\0\x10\0\0\0", 8);
    for (const std::string& piece : {endless, std::string(1'000'000, 'x'), std::string(1'000'000, 'x')}) {
      const auto unfinished = count(counter, piece);
      EXPECT_TRUE(unfinished.continues);
      bytes += unfinished.bytes;
    }
    EXPECT_EQ(bytes, 2'000'009U) << static_cast<int>(flags);
  }
}

}  // namespace
}  // namespace millrace::server
