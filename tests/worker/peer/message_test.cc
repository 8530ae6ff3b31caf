#include "worker/peer/channel/message.h"

#include <gtest/gtest.h>

#include "tests/support/format_versions.h"

/// The header of a message between ranks, as communicators carry it.
namespace millrace::peer {
namespace {

PeerMessage message_example() {
  PeerMessage message;
  message.kind = MessageKind::kData;
  message.form = BodyForm::kContainer;
  message.collective = 0x01020304;
  message.tag = 0x05060708;
  message.signature = 0x1112131415161718;
  message.body = SharedBytes::from(ByteBuffer{1, 2, 3});
  return message;
}

TEST(PeerMessageHeader, IsReadAsItWasWritten) {
  const auto read = decode_header(encode_header(message_example()));
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->message.kind, MessageKind::kData);
  EXPECT_EQ(read->message.form, BodyForm::kContainer);
  EXPECT_EQ(read->message.collective, 0x01020304u);
  EXPECT_EQ(read->message.tag, 0x05060708u);
  EXPECT_EQ(read->message.signature, 0x1112131415161718u);
  EXPECT_EQ(read->body_bytes, 3u);
}

TEST(PeerMessageHeader, ItsBytesAreThoseOfItsVersion) {
  const MessageHeader bytes = encode_header(message_example());
  millrace::testing::expect_format_version("peer_message", bytes[2], millrace::testing::Fingerprint().add(bytes),
                                           "kVersion in worker/peer/channel/message.cc");
}

TEST(PeerMessageHeader, AnotherVersionIsRefusedByName) {
  MessageHeader bytes = encode_header(message_example());
  ++bytes[2];
  const auto read = decode_header(bytes);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, ErrorCode::kVersionMismatch);
  EXPECT_NE(read.error().message.find("run the same build on all ranks"), std::string::npos) << read.error().message;
}

}  // namespace
}  // namespace millrace::peer
