#include "worker/peer/transport/tcp_frame.h"

#include <gtest/gtest.h>

#include "tests/support/format_versions.h"
#include "worker/peer/channel/message.h"

/// The bytes of a handshake over TCP, and its verdicts.
namespace millrace::peer::testing {
namespace {

constexpr TcpIdentity kRankOne{.rank = 1, .size = 4, .group = 0x0102030405060708};

TcpFrame hello_of_rank(uint32_t from) {
  return {.kind = TcpFrameKind::kHello, .size = 4, .group = kRankOne.group, .from = from, .to = 1};
}

TEST(TcpFrames, AreReadAsTheyWereWritten) {
  TcpFrame frame = hello_of_rank(3);
  frame.refusal = TcpRefusal::kTaken;
  const auto read = decode_tcp_frame(encode_tcp_frame(frame));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(*read, frame);
}

TEST(TcpFrames, TheirBytesAreThoseOfTheirVersion) {
  const TcpFrameBytes bytes = encode_tcp_frame(hello_of_rank(3));
  const TcpFrameBytes golden{'M', 'I', 'L', 'L', 'P', 'E', 'E', 'R', 3, 0, 1, 0, 4, 0, 0, 0,
                             8,   7,   6,   5,   4,   3,   2,   1,   3, 0, 0, 0, 1, 0, 0, 0};
  EXPECT_EQ(bytes, golden);
  millrace::testing::expect_format_version("peer_tcp_frame", bytes[8], millrace::testing::Fingerprint().add(bytes),
                                           "kTcpVersion in worker/peer/transport/tcp_frame.cc");
}

TEST(TcpFrames, EveryCorruptByteIsAFaultOrAnotherFrame) {
  const TcpFrame frame = hello_of_rank(3);
  for (size_t at = 0; at < kTcpFrameBytes; ++at) {
    for (const int flip : {1, 0x80, 0xFF}) {
      TcpFrameBytes bytes = encode_tcp_frame(frame);
      bytes[at] = static_cast<uint8_t>(bytes[at] ^ flip);
      const auto read = decode_tcp_frame(bytes);
      if (at < 8) {
        EXPECT_EQ(read.error(), TcpFrameFault::kMagic);
      } else if (at < 10) {
        EXPECT_EQ(read.error(), TcpFrameFault::kVersion);
      } else if (read) {
        EXPECT_NE(*read, frame) << "byte " << at;
      } else {
        EXPECT_EQ(read.error(), TcpFrameFault::kMalformed);
      }
    }
  }
}

TEST(TcpFrames, AMessageIsNoFrameAndAFrameIsNoMessage) {
  EXPECT_EQ(decode_tcp_frame(encode_header({})).error(), TcpFrameFault::kMagic);
  EXPECT_FALSE(decode_header(encode_tcp_frame(hello_of_rank(3))).has_value());
}

TEST(TcpFrames, AHelloIsForOneRankOfOneGroup) {
  EXPECT_EQ(judge_hello(hello_of_rank(2), kRankOne), TcpRefusal::kNone);
  EXPECT_EQ(judge_hello(hello_of_rank(3), kRankOne), TcpRefusal::kNone);
  for (const uint32_t from : {0U, 1U, 4U, UINT32_MAX}) {
    EXPECT_EQ(judge_hello(hello_of_rank(from), kRankOne), TcpRefusal::kRank) << from;
  }
  TcpFrame other = hello_of_rank(2);
  other.to = 0;
  EXPECT_EQ(judge_hello(other, kRankOne), TcpRefusal::kRank);
  other = hello_of_rank(2);
  ++other.group;
  EXPECT_EQ(judge_hello(other, kRankOne), TcpRefusal::kGroup);
  other = hello_of_rank(2);
  ++other.size;
  EXPECT_EQ(judge_hello(other, kRankOne), TcpRefusal::kGroup);
}

}  // namespace
}  // namespace millrace::peer::testing
