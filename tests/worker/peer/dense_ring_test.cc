#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/oracles/stream_oracle.h"
#include "tests/worker/peer/cases.h"
#include "tests/worker/peer/pump.h"

/// The dense ring where slices go in pieces.
namespace millrace::peer::testing {
namespace {

constexpr uint64_t kDenseRingPiece = uint64_t{1} << 16;

std::vector<SharedStream> dense_ring_contributions(uint32_t size, uint64_t dimension) {
  std::vector<SharedStream> own;
  for (uint32_t rank = 0; rank < size; ++rank) {
    own.push_back(contribution_of(Spread::kUniform, rank, size, dimension, 3'000, 7));
    // Dense and sparse ones take part in one ring.
    if (rank % 2 == 1) own.back() = SharedStream::from(to_dense(own.back().view));
  }
  return own;
}

AllreduceSettings dense_ring_settings_of(uint64_t dimension) {
  AllreduceSettings settings;
  settings.dimension = dimension;
  return settings;
}

class DenseRingPieces : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, DenseRingPieces, ::testing::Values(2, 3, 4, 7));

TEST_P(DenseRingPieces, GiveTheSumInAnyOrderOfArrival) {
  const uint32_t size = GetParam();
  // Slices of a piece, of a piece and some values, and of one value more on some ranks than on others.
  for (const uint64_t dimension :
       {size * kDenseRingPiece, size * (2 * kDenseRingPiece + 5), size * (kDenseRingPiece + 1) - 1}) {
    SCOPED_TRACE("dimension " + std::to_string(dimension));
    PumpedAllreduce all(size, AlgorithmId::kDenseRing, dense_ring_settings_of(dimension), dimension);
    const std::vector<SharedStream> own = dense_ring_contributions(size, dimension);
    std::vector<float> expected(dimension);
    for (const SharedStream& one : own) {
      const Stream dense = to_dense(one.view);
      for (uint64_t i = 0; i < dimension; ++i) expected[i] += dense.values[i];
    }
    // The second step writes where the first one's result was.
    for (int step = 0; step < 2; ++step) {
      for (const auto& result : all.step(own)) {
        ASSERT_TRUE(result.has_value()) << result.error().message;
        ASSERT_TRUE(result->sum.view.dense);
        ASSERT_TRUE(std::ranges::equal(result->sum.view.values, expected));
        EXPECT_EQ(result->returned.count(), 0u);
      }
    }
  }
}

TEST(DenseRing, PiecesAreTheSlicesBytes) {
  constexpr uint32_t kSize = 3;
  constexpr uint64_t kDimension = kSize * 2 * kDenseRingPiece;
  PumpedAllreduce all(kSize, AlgorithmId::kDenseRing, dense_ring_settings_of(kDimension), 1);
  for (const auto& result : all.step(dense_ring_contributions(kSize, kDimension))) ASSERT_TRUE(result.has_value());
  EXPECT_EQ(all.pump.messages, kSize * 2 * (kSize - 1) * 2u);
  for (const uint64_t sent : all.pump.body_bytes)
    EXPECT_EQ(sent, 2 * (kSize - 1) * 2 * kDenseRingPiece * sizeof(float));
}

TEST(DenseRing, MaximaAreTheNeutralElementWhereNoRankHasAnEntry) {
  constexpr uint32_t kSize = 3;
  constexpr uint64_t kDimension = kSize * kDenseRingPiece + 10;
  AllreduceSettings settings = dense_ring_settings_of(kDimension);
  settings.op = max_op();
  PumpedAllreduce all(kSize, AlgorithmId::kDenseRing, settings, 5);
  std::vector<SharedStream> own;
  for (uint32_t rank = 0; rank < kSize; ++rank) {
    Stream stream = Stream::empty(kDimension);
    stream.indices = {rank, kDenseRingPiece + 3};
    stream.values = {-1, static_cast<float>(rank) - 10};
    own.push_back(SharedStream::from(std::move(stream)));
  }
  for (const auto& result : all.step(own)) {
    ASSERT_TRUE(result.has_value()) << result.error().message;
    const std::span<const float> values = result->sum.view.values;
    EXPECT_EQ(values[0], -1);
    EXPECT_EQ(values[kDenseRingPiece + 3], -8);
    EXPECT_EQ(values[kDenseRingPiece + 4], -std::numeric_limits<float>::infinity());
  }
}

TEST(DenseRing, APieceThatIsNoneIsAnError) {
  constexpr uint32_t kSize = 3;
  constexpr uint64_t kDimension = kSize * kDenseRingPiece;
  const std::vector<SharedStream> own = dense_ring_contributions(kSize, kDimension);
  const auto error_of = [&own](int message, const std::function<void(PeerMessage&)>& damage) {
    PumpedAllreduce all(kSize, AlgorithmId::kDenseRing, dense_ring_settings_of(kDimension), 1);
    all.pump.tamper = [&, at = 0](Outgoing& out) mutable {
      if (at++ == message) damage(out.message);
    };
    std::optional<ErrorCode> code;
    for (const auto& result : all.step(own)) {
      if (!result && (!code || result.error().code != ErrorCode::kInternal)) code = result.error().code;
    }
    return code;
  };
  const auto shorter = [](PeerMessage& message) {
    message.body.bytes = message.body.bytes.first(message.body.bytes.size() - 4);
  };
  const auto not_finite = [](PeerMessage& message) {
    ByteBuffer bytes(message.body.bytes.begin(), message.body.bytes.end());
    std::fill_n(bytes.begin() + 400, 4, uint8_t{0xff});
    message.body = SharedBytes::from(std::move(bytes));
  };
  const auto sparse = [](PeerMessage& message) {
    message = {.form = BodyForm::kPairs,
               .collective = message.collective,
               .tag = message.tag,
               .signature = message.signature,
               .body = {}};
  };
  // Of the reduce-scatter, and the last message of all, which is the allgather's: other ranks may have ended by then.
  for (const int message : {1, static_cast<int>(kSize) * 4 - 1}) {
    EXPECT_EQ(error_of(message, shorter), ErrorCode::kMalformed) << message;
    EXPECT_EQ(error_of(message, not_finite), ErrorCode::kNonFinite) << message;
  }
  EXPECT_EQ(error_of(static_cast<int>(kSize) * 4 - 1, sparse), ErrorCode::kMalformed);
}

}  // namespace
}  // namespace millrace::peer::testing
