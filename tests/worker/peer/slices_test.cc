#include "worker/peer/slices.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/stream_oracle.h"
#include "tests/worker/peer/cases.h"

/// Slices joined, whose entries nobody has looked at yet.
namespace millrace::peer::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint64_t kSlicesDimension = 50'000;

Stream<float> slice(uint64_t count, uint64_t seed) {
  return contribution_of<float>(Spread::kUniform, 0, 1, kSlicesDimension, count, seed).copy();
}

std::vector<Piece<float>> pieces_of(const std::vector<Stream<float>>& slices, Checked entries) {
  std::vector<Piece<float>> pieces;
  for (const Stream<float>& one : slices) pieces.push_back({{one.view(), nullptr, 0}, entries});
  return pieces;
}

Result<Stream<float>> joined(const std::vector<Stream<float>>& slices, JoinAs as, Checked entries = Checked::kNo,
                             const ReduceOp<float>& op = {}) {
  const std::vector<Piece<float>> pieces = pieces_of(slices, entries);
  return join<float>(op, pieces, as, {});
}

TEST(Join, WhatIsLookedAtOnTheWayIsTheSameAsWhatWasBefore) {
  const std::vector<Stream<float>> sparse{slice(4'000, 1), slice(0, 2), slice(1, 3), slice(5'000, 4)};
  std::vector<Stream<float>> mixed = sparse;
  mixed[2] = to_dense(mixed[2].view());
  for (const std::vector<Stream<float>>& slices : {sparse, mixed}) {
    for (const JoinAs as : {JoinAs::kSmaller, JoinAs::kDense}) {
      const Result<Stream<float>> looked = joined(slices, as), known = joined(slices, as, Checked::kYes);
      ASSERT_TRUE(looked.has_value() && known.has_value());
      EXPECT_EQ(looked->dense, as == JoinAs::kDense);
      EXPECT_TRUE(validate(looked->view()).has_value());
      EXPECT_TRUE(millrace::testing::same_bits(looked->view(), known->view()));
    }
  }
  EXPECT_EQ(joined(sparse, JoinAs::kSmaller)->count(), 9'001u);
}

TEST(Join, IndicesThatDoNotIncreaseOrAreOutOfRangeAreMalformed) {
  const std::vector<Stream<float>> good{slice(4'000, 1), slice(4'001, 2)};
  for (const JoinAs as : {JoinAs::kSmaller, JoinAs::kDense}) {
    for (const size_t at : {size_t{1}, size_t{17}, size_t{2'048}, size_t{3'999}, size_t{4'000}}) {
      std::vector<Stream<float>> wrong = good;
      wrong[1].indices[at] = wrong[1].indices[at - 1];
      const Result<Stream<float>> twice = joined(wrong, as);
      ASSERT_FALSE(twice.has_value()) << at;
      EXPECT_EQ(twice.error().code, ErrorCode::kMalformed);
    }
    for (const uint32_t index : {static_cast<uint32_t>(kSlicesDimension), UINT32_MAX}) {
      std::vector<Stream<float>> wrong = good;
      wrong[0].indices.back() = index;
      const Result<Stream<float>> outside = joined(wrong, as);
      ASSERT_FALSE(outside.has_value()) << index;
      EXPECT_EQ(outside.error().code, ErrorCode::kMalformed);
    }
  }
}

TEST(Join, OnlyANeutralElementMayBeInfinite) {
  for (const JoinAs as : {JoinAs::kSmaller, JoinAs::kDense}) {
    for (const bool dense : {false, true}) {
      for (const float value : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<Stream<float>> slices{slice(4'000, 1), slice(4'000, 2)};
        if (dense) slices[1] = to_dense(slices[1].view());
        slices[1].values[3'001] = value;
        const Result<Stream<float>> sum = joined(slices, as);
        ASSERT_FALSE(sum.has_value()) << value;
        EXPECT_EQ(sum.error().code, ErrorCode::kNonFinite);
        EXPECT_EQ(joined(slices, as, Checked::kNo, max_op<float>()).has_value(), value == -kInfinity) << value;
      }
    }
  }
}

TEST(UncheckedPieces, HaveTheSizesOfTheirSlice) {
  const auto code_of = [](BodyForm form, size_t bytes, uint64_t dimension) {
    const Packet packet{form, SharedBytes::from(ByteBuffer(bytes))};
    const Result<Piece<float>> piece = unpack_unchecked<float>(packet, dimension);
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
