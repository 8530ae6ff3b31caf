#include "protocol/messages/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "protocol/base/limits.h"
#include "tests/protocol/example_messages.h"

namespace millrace::protocol {
namespace {

Result<Message> decode(const ByteBuffer& envelope, const SharedBytes& payload) {
  return decode_message(envelope, payload, {});
}

TEST(Frame, EveryKindOfMessageGoesRoundTrip) {
  std::set<std::string_view> names;
  for (const Message& message : every_message()) {
    names.insert(body_name(message.body));
    const auto decoded = decode(encode_envelope(message), message.payload);
    ASSERT_TRUE(decoded) << body_name(message.body) << ": " << decoded.error().message;
    EXPECT_EQ(decoded->header, message.header) << body_name(message.body);
    EXPECT_EQ(decoded->body, message.body) << body_name(message.body);
    EXPECT_EQ(decoded->payload.bytes.data(), message.payload.bytes.data()) << "handed on, not copied";
  }
  EXPECT_EQ(names.size(), std::variant_size_v<AnyBody>);
}

TEST(Frame, EqualMessagesGiveEqualBytes) {
  const auto first = every_message();
  const auto second = every_message();
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(encode_envelope(first[i]), encode_envelope(second[i]));
}

TEST(Frame, EmptyMessagesGoRoundTrip) {
  Message message{{}, Update{}, example_payload()};
  EXPECT_EQ(decode(encode_envelope(message), message.payload)->body, Body(Update{}));
  message = {{}, Ack{}, {}};
  EXPECT_EQ(decode(encode_envelope(message), {})->body, Body(Ack{}));
  message = {{}, MembershipChange{}, {}};
  EXPECT_EQ(decode(encode_envelope(message), {})->body, Body(MembershipChange{}));
}

TEST(Frame, TheLargestMessagesGoRoundTrip) {
  Update update;
  Ack ack;
  for (uint32_t w = 0; w < kWorkersMax; ++w) {
    update.contributors.push_back({w, w + 1});
    update.summary.workers.push_back({.worker = w, .incarnation = w + 1});
  }
  Update merged;
  merged.step = kMergedStepsMax + 7;
  for (uint32_t i = 0; i < kMergedStepsMax; ++i) merged.merged.push_back({{i, i + 1, i + 2}, 0.5 * i, ~uint64_t{i}});
  EXPECT_EQ(merged.first_step(), 8u);
  for (uint32_t i = 0; i < kAckEntriesMax; ++i) ack.entries.push_back({i, i});
  for (uint64_t i = 0; i < kSummaryEpochsMax; ++i) update.summary.epochs.push_back({i + 1, i});
  for (const Message& message :
       {Message{{}, update, example_payload()}, Message{{}, merged, example_payload()}, Message{{}, ack, {}}}) {
    const ByteBuffer envelope = encode_envelope(message);
    EXPECT_LE(envelope.size(), FrameLimits{}.envelope_bytes_max);
    const auto decoded = decode(envelope, message.payload);
    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_EQ(decoded->body, message.body);
  }
}

TEST(Frame, TheEnvelopeMayLieAtAnyAlignment) {
  for (const Message& message : every_message()) {
    const ByteBuffer envelope = encode_envelope(message);
    for (size_t shift = 0; shift < 8; ++shift) {
      ByteBuffer shifted(envelope.size() + shift);
      std::copy(envelope.begin(), envelope.end(), shifted.begin() + static_cast<ptrdiff_t>(shift));
      EXPECT_TRUE(decode_message(ByteSpan(shifted).subspan(shift), message.payload, {})) << body_name(message.body);
    }
  }
}

TEST(Frame, EveryTruncationOfEveryKindIsMalformed) {
  for (const Message& message : every_message()) {
    const ByteBuffer envelope = encode_envelope(message);
    for (size_t size = 0; size < envelope.size(); ++size) {
      const auto decoded = decode_message(ByteSpan(envelope).first(size), message.payload, {});
      ASSERT_FALSE(decoded) << body_name(message.body) << " cut to " << size;
      EXPECT_EQ(decoded.error().code, ErrorCode::kMalformed);
    }
  }
}

TEST(Frame, BytesAfterTheEndAreMalformed) {
  for (const Message& message : every_message()) {
    ByteBuffer envelope = encode_envelope(message);
    for (size_t more = 1; more <= 16; ++more) {
      envelope.push_back(0);
      EXPECT_EQ(decode(envelope, message.payload).error().code, ErrorCode::kMalformed) << body_name(message.body);
    }
  }
}

TEST(Frame, ASingleByteCorruptionIsRefusedOrAnotherMessageThatHolds) {
  uint64_t refused = 0;
  for (const Message& message : every_message()) {
    const ByteBuffer envelope = encode_envelope(message);
    for (size_t at = 0; at < envelope.size(); ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        ByteBuffer damaged = envelope;
        damaged[at] = static_cast<uint8_t>(damaged[at] ^ (1 << bit));
        const auto decoded = decode(damaged, message.payload);
        if (!decoded) {
          ++refused;
          continue;
        }
        // An accepted message must survive its own round trip: no value out of range got in.
        const auto again = decode(encode_envelope(*decoded), decoded->payload);
        ASSERT_TRUE(again) << body_name(message.body) << " byte " << at << ": " << again.error().message;
        EXPECT_EQ(again->body, decoded->body);
      }
    }
  }
  EXPECT_GT(refused, 0u);
}

TEST(Frame, SizesOverTheLimitsAreRefusedUnread) {
  const Message message = every_message()[4];
  const ByteBuffer envelope = encode_envelope(message);
  FrameLimits limits;
  limits.envelope_bytes_max = envelope.size() - 1;
  EXPECT_EQ(decode_message(envelope, message.payload, limits).error().code, ErrorCode::kLimitExceeded);
  limits = {};
  limits.payload_bytes_max = message.payload.bytes.size() - 1;
  EXPECT_EQ(decode_message(envelope, message.payload, limits).error().code, ErrorCode::kLimitExceeded);
}

TEST(Frame, PayloadMissingOrUnexpectedOrOfAnotherSize_Refused) {
  for (Message message : every_message()) {
    const ByteBuffer envelope = encode_envelope(message);
    message.payload = message.payload.bytes.empty() ? example_payload() : SharedBytes{};
    EXPECT_EQ(decode(envelope, message.payload).error().code, ErrorCode::kMalformed) << body_name(message.body);
    EXPECT_EQ(decode(encode_envelope(message), message.payload).error().code, ErrorCode::kMalformed)
        << body_name(message.body);
  }
}

TEST(Frame, SentencesAreCutAndMadePrintableBySenders) {
  const Message message{{}, Abort{ErrorCode::kInternal, "a\nb" + std::string(2 * kSentenceBytesMax, 'x')}, {}};
  const auto decoded = decode(encode_envelope(message), {});
  ASSERT_TRUE(decoded);
  const std::string& sentence = std::get<Abort>(decoded->body).sentence;
  EXPECT_EQ(sentence.size(), kSentenceBytesMax);
  EXPECT_THAT(sentence, ::testing::StartsWith("a?b"));
}

TEST(Frame, HelloOfAnotherVersion_HandedOnWithItsVersions) {
  Message message = every_message()[0];
  auto& hello = std::get<Hello>(message.body);
  hello.version_min = 7;
  hello.version_max = 9;
  hello.spec.mode = static_cast<Mode>(77);  // a later version's specification is not looked at
  const auto decoded = decode(encode_envelope(message), {});
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(std::get<Hello>(decoded->body),
            (Hello{.version_min = 7, .version_max = 9, .software = hello.software, .spec = {}, .auth = {}}));
  Message shard{{}, ShardHello{.version_min = 7, .version_max = 9, .shard_map_hash = 1, .software = "m"}, {}};
  const auto decoded_shard = decode(encode_envelope(shard), {});
  ASSERT_TRUE(decoded_shard);
  EXPECT_EQ(std::get<ShardHello>(decoded_shard->body),
            (ShardHello{.version_min = 7, .version_max = 9, .software = "m"}));
}

TEST(Frame, AHelloWithAnOverlapOfVersionsIsRead) {
  Message message = every_message()[0];
  std::get<Hello>(message.body).version_max = 9;
  EXPECT_TRUE(decode(encode_envelope(message), {}));
}

}  // namespace
}  // namespace millrace::protocol
