#include "worker/peer/collectives/reduce_scatter.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/oracles/stream_oracle.h"
#include "tests/worker/peer/cases.h"

/// Slices joined, whose entries have not been checked yet.
namespace millrace::peer::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint64_t kSlicesDimension = 50'000;

Stream slice(uint64_t count, uint64_t seed) {
  return contribution_of(Spread::kUniform, 0, 1, kSlicesDimension, count, seed).copy();
}

std::vector<Piece> pieces_of(const std::vector<Stream>& slices, Checked entries) {
  std::vector<Piece> pieces;
  for (const Stream& one : slices) pieces.push_back({{one.view(), nullptr, 0}, entries});
  return pieces;
}

Result<Stream> joined(const std::vector<Stream>& slices, JoinAs as, Checked entries = Checked::kNo,
                      const ReduceOp& op = {}) {
  const std::vector<Piece> pieces = pieces_of(slices, entries);
  return join(op, pieces, as, {});
}

TEST(Join, UncheckedEntriesGiveTheSameSumAsCheckedOnes) {
  const std::vector<Stream> sparse{slice(4'000, 1), slice(0, 2), slice(1, 3), slice(5'000, 4)};
  std::vector<Stream> mixed = sparse;
  mixed[2] = to_dense(mixed[2].view());
  for (const std::vector<Stream>& slices : {sparse, mixed}) {
    for (const JoinAs as : {JoinAs::kSmaller, JoinAs::kDense}) {
      const Result<Stream> looked = joined(slices, as), known = joined(slices, as, Checked::kYes);
      ASSERT_TRUE(looked.has_value() && known.has_value());
      EXPECT_EQ(looked->dense, as == JoinAs::kDense);
      EXPECT_TRUE(validate(looked->view()).has_value());
      EXPECT_TRUE(millrace::testing::same_bits(looked->view(), known->view()));
    }
  }
  EXPECT_EQ(joined(sparse, JoinAs::kSmaller)->count(), 9'001u);
}

TEST(Join, IndicesThatDoNotIncreaseOrAreOutOfRangeAreMalformed) {
  const std::vector<Stream> good{slice(4'000, 1), slice(4'001, 2)};
  for (const JoinAs as : {JoinAs::kSmaller, JoinAs::kDense}) {
    for (const size_t at : {size_t{1}, size_t{17}, size_t{2'048}, size_t{3'999}, size_t{4'000}}) {
      std::vector<Stream> wrong = good;
      wrong[1].indices[at] = wrong[1].indices[at - 1];
      const Result<Stream> twice = joined(wrong, as);
      ASSERT_FALSE(twice.has_value()) << at;
      EXPECT_EQ(twice.error().code, ErrorCode::kMalformed);
    }
    for (const uint32_t index : {static_cast<uint32_t>(kSlicesDimension), UINT32_MAX}) {
      std::vector<Stream> wrong = good;
      wrong[0].indices.back() = index;
      const Result<Stream> outside = joined(wrong, as);
      ASSERT_FALSE(outside.has_value()) << index;
      EXPECT_EQ(outside.error().code, ErrorCode::kMalformed);
    }
  }
}

TEST(Join, OnlyANeutralElementMayBeInfinite) {
  for (const JoinAs as : {JoinAs::kSmaller, JoinAs::kDense}) {
    for (const bool dense : {false, true}) {
      for (const float value : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<Stream> slices{slice(4'000, 1), slice(4'000, 2)};
        if (dense) slices[1] = to_dense(slices[1].view());
        slices[1].values[3'001] = value;
        const Result<Stream> sum = joined(slices, as);
        ASSERT_FALSE(sum.has_value()) << value;
        EXPECT_EQ(sum.error().code, ErrorCode::kNonFinite);
        EXPECT_EQ(joined(slices, as, Checked::kNo, max_op()).has_value(), value == -kInfinity) << value;
      }
    }
  }
}

TEST(UncheckedPieces, HaveTheSizesOfTheirSlice) {
  const auto code_of = [](BodyForm form, size_t bytes, uint64_t dimension) {
    const Packet packet{form, SharedBytes::from(ByteBuffer(bytes))};
    const Result<Piece> piece = unpack_unchecked(packet, dimension);
    return piece ? std::optional<ErrorCode>() : piece.error().code;
  };
  EXPECT_EQ(code_of(BodyForm::kPairs, 80, 10), std::nullopt);
  EXPECT_EQ(code_of(BodyForm::kPairs, 88, 10), ErrorCode::kMalformed);
  EXPECT_EQ(code_of(BodyForm::kPairs, 84, 20), ErrorCode::kMalformed);
  EXPECT_EQ(code_of(BodyForm::kDense, 40, 10), std::nullopt);
  EXPECT_EQ(code_of(BodyForm::kDense, 44, 10), ErrorCode::kMalformed);
  EXPECT_EQ(code_of(BodyForm::kNumbers, 40, 10), ErrorCode::kMalformed);
}

}  // namespace
}  // namespace millrace::peer::testing
