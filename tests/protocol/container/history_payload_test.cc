// Containers whose indices are coded against a history: decoding gives the plain container bit for bit, or an error.
#include "protocol/container/history_payload.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/codec/history/history_code.h"
#include "tests/protocol/document.h"
#include "tests/support/index_sets.h"
#include "tests/support/update_log.h"

namespace millrace {
namespace {

constexpr uint64_t kDimension = 5'000;

Stream stream_of(IndexSpan indices, uint64_t dimension) {
  Stream stream = Stream::empty(dimension);
  for (const uint32_t index : indices) {
    stream.indices.push_back(index);
    stream.values.push_back(0.5f + static_cast<float>(index));
  }
  return stream;
}

ByteBuffer plain_of(IndexSpan indices, uint64_t dimension, const std::string& codec = "adaptive+raw") {
  const auto spec = codec_from_text(codec);
  EXPECT_TRUE(spec) << codec;
  const Stream stream = stream_of(indices, dimension);
  auto container = encode_container(stream.view(), {}, {*spec, RandomKey::from(7), 0});
  EXPECT_TRUE(container) << codec;
  return std::move(container->bytes);
}

struct Example {
  std::vector<IndexBuffer> log = testing::update_log(kDimension, 60, 1);
  IndexHistory history = testing::history_after(log, 45, kDimension);
  IndexSpan indices = log[45];
  ByteBuffer plain = plain_of(indices, kDimension);
  ByteBuffer shortened = *shorten_by_history(plain, indices, history);
};

ErrorCode code_of(const Result<ByteBuffer>& result) { return result ? ErrorCode{} : result.error().code; }

TEST(HistoryPayload, RestoresThePlainContainerOfEveryLosslessIndexCodec) {
  const Example example;
  for (const IndexCodec* codec : index_codecs()) {
    const std::string text = std::string(codec->name()) + "+raw";
    const ByteBuffer plain = plain_of(example.indices, kDimension, text);
    const auto shortened = shorten_by_history(plain, example.indices, example.history);
    if (!codec->lossless()) {
      EXPECT_EQ(code_of(shortened), ErrorCode::kUnsupported) << text;
      continue;
    }
    ASSERT_TRUE(shortened) << text;
    EXPECT_TRUE(is_shortened(*shortened));
    EXPECT_FALSE(is_shortened(plain));
    EXPECT_EQ(restored_bytes_estimate(plain), 0u);
    EXPECT_GE(restored_bytes_estimate(*shortened), plain.size() * 3 / 4) << text;
    EXPECT_LE(restored_bytes_estimate(*shortened), plain.size() * 4 / 3) << text;
    const auto restored = restore_by_history(*shortened, example.history, {.dimension = kDimension});
    ASSERT_TRUE(restored) << text << ": " << restored.error().message;
    EXPECT_EQ(*restored, plain) << text;
  }
}

TEST(HistoryPayload, AnEmptyContributionIsRestored) {
  const Example example;
  const ByteBuffer plain = plain_of({}, kDimension);
  const auto shortened = shorten_by_history(plain, {}, example.history);
  ASSERT_TRUE(shortened);
  EXPECT_EQ(restore_by_history(*shortened, example.history, {}), plain);
}

TEST(HistoryPayload, BytesAreAsDocumented) {
  IndexHistory history(16);
  history.advance(IndexBuffer{2, 9});
  history.advance(IndexBuffer{5, 9});
  const IndexBuffer indices{1, 4, 5};
  Stream stream = Stream::empty(16);
  stream.indices = indices;
  stream.values = {1.0f, -2.0f, 0.5f};
  const auto container = encode_container(stream.view(), {}, {});
  ASSERT_TRUE(container);
  EXPECT_EQ(container->bytes, protocol::documented_bytes("container-example"));
  const auto shortened = shorten_by_history(container->bytes, indices, history);
  ASSERT_TRUE(shortened);
  EXPECT_EQ(*shortened, protocol::documented_bytes("history-container-example"));
  EXPECT_EQ(restore_by_history(protocol::documented_bytes("history-container-example"), history, {}), container->bytes);
}

TEST(HistoryPayload, AReaderWithoutHistoriesRefusesIt) {
  const Example example;
  const auto read = read_container(example.shortened, {.dimension = kDimension});
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kUnsupported);
}

TEST(HistoryPayload, AnotherHistoryIsStaleAndNothingIsRestored) {
  const Example example;
  for (const uint64_t position : {0, 44, 46, 60}) {
    const IndexHistory other = testing::history_after(example.log, position, kDimension);
    EXPECT_EQ(code_of(restore_by_history(example.shortened, other, {})), ErrorCode::kStale) << position;
  }
  EXPECT_EQ(code_of(restore_by_history(example.shortened, IndexHistory(kDimension, 45), {})), ErrorCode::kStale);
  EXPECT_EQ(code_of(restore_by_history(example.shortened, IndexHistory(kDimension + 1), {})), ErrorCode::kMalformed);
}

TEST(HistoryPayload, EveryTruncationAndEveryCorruptByteIsAnError) {
  const Example example;
  const IndexBuffer few(example.indices.begin(), example.indices.begin() + 40);
  const ByteBuffer plain = plain_of(few, kDimension);
  const ByteBuffer whole = *shorten_by_history(plain, few, example.history);
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(restore_by_history(ByteSpan(whole).first(length), example.history, {})) << length;
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const uint32_t flip : {0x01, 0x80, 0xff}) {
      ByteBuffer broken = whole;
      broken[at] = static_cast<uint8_t>(broken[at] ^ flip);
      EXPECT_FALSE(restore_by_history(broken, example.history, {})) << at;
    }
  }
}

/// Makes the checksum right again: deliberately malformed input, not an accident.
ByteBuffer signed_again(ByteBuffer bytes) {
  const uint64_t checksum = container_checksum(bytes);
  std::memcpy(bytes.data() + 56, &checksum, sizeof(checksum));
  return bytes;
}

TEST(HistoryPayload, AnAlteredPayloadIsRefusedDespiteAValidChecksum) {
  const Example example;
  for (size_t at = kContainerHeaderBytes + kHistoryNameBytes; at < example.shortened.size(); at += 7) {
    ByteBuffer lie = example.shortened;
    lie[at] = static_cast<uint8_t>(lie[at] ^ 0x40);
    const auto restored = restore_by_history(signed_again(std::move(lie)), example.history, {});
    ASSERT_FALSE(restored) << at;
    EXPECT_TRUE(restored.error().code == ErrorCode::kMalformed || restored.error().code == ErrorCode::kUnsupported)
        << at;
  }
  const size_t codec_at = example.shortened.size() - 16;
  for (const uint32_t codec : {0u, 4u, 23u, 200u}) {  // none, one that is not lossless, itself, unknown
    ByteBuffer lie = example.shortened;
    lie[codec_at] = static_cast<uint8_t>(codec);
    EXPECT_EQ(code_of(restore_by_history(signed_again(std::move(lie)), example.history, {})), ErrorCode::kUnsupported);
  }
}

TEST(HistoryPayload, LimitsHold) {
  const Example example;
  const auto restored = [&](const ContainerLimits& limits) {
    return code_of(restore_by_history(example.shortened, example.history, limits));
  };
  EXPECT_EQ(restored({.count_max = example.indices.size()}), ErrorCode{});
  EXPECT_EQ(restored({.count_max = example.indices.size() - 1}), ErrorCode::kLimitExceeded);
  EXPECT_EQ(restored({.bytes_max = example.shortened.size() - 1}), ErrorCode::kLimitExceeded);
  EXPECT_EQ(restored({.dimension = kDimension + 1}), ErrorCode::kMalformed);
}

TEST(HistoryPayload, DenseContainersAndOtherIndicesAreNotShortened) {
  const Example example;
  const Stream sparse = stream_of(example.indices, kDimension);
  Stream dense;
  dense.dimension = 3;
  dense.dense = true;
  dense.values = {1.0f, 2.0f, 3.0f};
  const auto container = encode_container(dense.view(), {}, {});
  ASSERT_TRUE(container);
  EXPECT_EQ(code_of(shorten_by_history(container->bytes, {}, IndexHistory(3))), ErrorCode::kUnsupported);
  EXPECT_EQ(code_of(shorten_by_history(example.plain, example.indices.first(3), example.history)),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(shorten_by_history(example.plain, example.indices, IndexHistory(kDimension + 1))),
            ErrorCode::kInvalidArgument);
}

/// Sends `plain` shortened where the sender can; what does not arrive, or is refused, is repeated plain. Returns what
/// arrived.
struct Sending {
  ByteBuffer arrived;
  bool shortened = false;
};

Sending send(const IndexHistory& from, const IndexHistory& to, IndexSpan indices, const ByteBuffer& plain, bool lost) {
  if (!from.complete()) return {plain};
  const auto travels = shorten_by_history(plain, indices, from);
  EXPECT_TRUE(travels);
  if (lost) return {plain};
  auto restored = restore_by_history(*travels, to, {.dimension = kDimension});
  if (restored) return {std::move(*restored), true};
  EXPECT_EQ(restored.error().code, ErrorCode::kStale);  // no other error: the bytes were right
  return {plain};
}

TEST(HistoryPayload, LossRestartsAndLateComersFallBackToThePlainBytes) {
  constexpr uint64_t kSeed = 2026;
  SCOPED_TRACE(kSeed);
  RandomSequence random(RandomKey::from(kSeed));
  const std::vector<IndexBuffer> log = testing::update_log(kDimension, 1500, kSeed);
  IndexHistory shard(kDimension);
  std::vector<IndexHistory> workers(3, IndexHistory(kDimension));
  uint64_t shortened = 0;
  uint64_t stale = 0;
  for (uint64_t step = 0; step < log.size(); ++step) {
    if (random.next_below(400) == 0) shard.restart(step);  // a successor
    for (IndexHistory& worker : workers) {
      if (random.next_below(400) == 0) worker.restart(step);  // a new incarnation, or a snapshot in place of updates
      const IndexBuffer indices = testing::clustered_indices(kDimension, 50, random.next_u64());
      const ByteBuffer plain = plain_of(indices, kDimension);
      const bool lost = random.next_below(20) == 0;
      const Sending sent = send(worker, shard, indices, plain, lost);
      ASSERT_EQ(sent.arrived, plain) << step;
      // Two that have seen enough agree: they are never refused.
      ASSERT_EQ(sent.shortened, !lost && worker.complete() && shard.complete()) << step;
      shortened += sent.shortened ? 1 : 0;
      stale += !sent.shortened && !lost && worker.complete() ? 1 : 0;
      worker.advance(log[step]);
    }
    shard.advance(log[step]);
  }
  EXPECT_GT(shortened, 300u);
  EXPECT_GT(stale, 50u);
}

}  // namespace
}  // namespace millrace
