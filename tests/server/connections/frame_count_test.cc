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

FrameCount::Counts count(FrameCount& counter, const std::string& bytes) {
  return counter.count(std::as_bytes(std::span(bytes)));
}

TEST(FrameCount, CountsFramesAndTheWeightOfMessages) {
  FrameCount counter;
  const std::string bytes =
      greeting() + frame(4, 30) + frame(1, 0) + frame(1, 255) + frame(3, 1'000) + frame(2, 3) + frame(6, 70'000);
  const FrameCount::Counts counts = count(counter, bytes);
  EXPECT_EQ(counts.frames, 6U);
  EXPECT_EQ(counts.weight, FrameCount::weight_of(0 + 255 + 1'000 + 3, 4, FrameCount::Keys::kNone));
}

TEST(FrameCount, CountsTheSameHoweverTheBytesArrive) {
  const std::string bytes = greeting() + frame(4, 9) + frame(1, 7) + frame(3, 300) + frame(0, 0) + frame(2, 1);
  FrameCount all;
  const FrameCount::Counts expected = count(all, bytes);
  for (size_t piece = 1; piece < bytes.size(); ++piece) {
    FrameCount counter;
    FrameCount::Counts sum;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      const FrameCount::Counts one = count(counter, bytes.substr(at, piece));
      sum.frames += one.frames;
      sum.weight += one.weight;
    }
    EXPECT_EQ(sum.frames, expected.frames) << piece;
    EXPECT_EQ(sum.weight, expected.weight) << piece;
  }
}

TEST(FrameCount, AnUnfinishedBodyWeighsWhatArrived) {
  FrameCount counter;
  const std::string bytes = greeting() + frame(3, 1'000);
  EXPECT_EQ(count(counter, bytes.substr(0, 64 + 9 + 400)).weight, 401U);
  EXPECT_EQ(count(counter, bytes.substr(64 + 9 + 400)).weight, 600U);
}

TEST(FrameCount, OtherProtocolsCountAsTheMostFrames) {
  std::string no_signature = greeting();
  no_signature[9] = '\0';
  for (const std::string& begin : {greeting(1), greeting(2), no_signature, std::string("GET / HTTP/1.1\r\n")}) {
    FrameCount counter;
    count(counter, begin);
    const FrameCount::Counts counts = count(counter, frame(1, 100));
    EXPECT_EQ(counts.frames, 51U);
    EXPECT_EQ(counts.weight, 102U);
  }
}

TEST(FrameCount, CommandsThatZeroMqPassesOnWeighAsMessages) {
  for (const std::string& name : {std::string("\x09SUBSCRIBE"), std::string("\x06"
                                                                            "CANCEL")}) {
    FrameCount counter;
    const std::string body = name + std::string(90, 'x');
    count(counter, greeting() + frame(4, 30));
    EXPECT_EQ(count(counter, std::string("\x04") + static_cast<char>(body.size()) + body).weight, 1 + body.size());
    // Cut before the name.
    EXPECT_EQ(count(counter, std::string("\x04") + static_cast<char>(body.size())).weight, 0U);
    EXPECT_EQ(count(counter, body).weight, 1 + body.size());
    EXPECT_FALSE(counter.is_within_command());
  }
}

TEST(FrameCount, ACommandThatIsPartOfAMessageWeighs) {
  FrameCount counter;
  count(counter, greeting());
  EXPECT_EQ(count(counter, frame(5, 100)).weight, 101U);
  EXPECT_EQ(count(counter, frame(7, 1'000)).weight, 1'001U);
}

TEST(FrameCount, CurveAddsItsPartToEachFrame) {
  EXPECT_EQ(FrameCount::weight_of(100, 2, FrameCount::Keys::kCurve), 100U + 2 * 34);
}

}  // namespace
}  // namespace millrace::server
