#include "worker/python/src/fill_update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace millrace::python {
namespace {

/// Holds the arrays of a piece, and the piece.
struct OwnedPiece {
  std::vector<uint32_t> indices;
  std::vector<float> values;
  UpdatePiece piece;

  /// at  empty where the piece is dense.
  OwnedPiece(uint64_t begin, uint64_t dimension, std::vector<uint32_t> at, std::vector<float> sums, double denominator,
             uint32_t contributors)
      : indices(std::move(at)), values(std::move(sums)) {
    piece = {.begin = begin,
             .dimension = dimension,
             .dense = values.size() == dimension,
             .indices = indices,
             .values = values,
             .denominator = denominator,
             .contributors = contributors};
  }
};

std::vector<float> filled(std::initializer_list<const OwnedPiece*> pieces, size_t dimension, double scale,
                          FilledUpdate* told = nullptr) {
  std::vector<UpdatePiece> list;
  for (const OwnedPiece* owned : pieces) list.push_back(owned->piece);
  std::vector<float> out(dimension, NAN);
  const FilledUpdate counts = fill_update(list, scale, out);
  if (told != nullptr) *told = counts;
  return out;
}

TEST(FillUpdate, DenseAndSparsePiecesAreScaledAndGapsAreZero) {
  const OwnedPiece dense(1, 3, {}, {2, 4, 6}, 2, 2);
  const OwnedPiece sparse(5, 4, {0, 3}, {8, -8}, 4, 3);
  FilledUpdate counts;
  EXPECT_EQ(filled({&dense, &sparse}, 10, 0.5, &counts), (std::vector<float>{0, 0.5F, 1, 1.5F, 0, 1, 0, 0, -1, 0}));
  EXPECT_EQ(counts.entries, 5u);
  EXPECT_EQ(counts.contributors, 2u);
}

TEST(FillUpdate, PiecesOfOneRangeAreAdded) {
  const OwnedPiece first(0, 3, {1}, {10}, 1, 1);
  const OwnedPiece second(0, 3, {}, {1, 2, 3}, 2, 2);
  const OwnedPiece third(0, 3, {2}, {5}, 1, 1);
  const OwnedPiece next(3, 2, {0}, {7}, 1, 1);
  EXPECT_EQ(filled({&first, &second, &third, &next}, 5, 2, nullptr), (std::vector<float>{1, 22, 13, 14, 0}));
}

TEST(FillUpdate, PieceThatOverlapsInPartZeroesTheRestFirst) {
  const OwnedPiece first(0, 2, {0}, {1}, 1, 1);
  const OwnedPiece second(1, 3, {0, 2}, {2, 3}, 1, 1);
  EXPECT_EQ(filled({&first, &second}, 4, 1), (std::vector<float>{1, 2, 0, 3}));
}

TEST(FillUpdate, LargeSparsePieceHasItsEntriesAtEveryPlace) {
  constexpr uint32_t kDimension = 100'003;
  for (const uint32_t stride : {1U, 7U, 8191U, 8192U, 8193U, 50'000U}) {
    std::vector<uint32_t> at;
    std::vector<float> sums;
    std::vector<float> wanted(kDimension + 2, 0.0F);
    for (uint32_t index = stride - 1; index < kDimension; index += stride) {
      if (index % 5 == 3) continue;  // so that the piece is sparse
      at.push_back(index);
      sums.push_back(static_cast<float>(index + 1));
      wanted[index + 1] = sums.back() / 2;
    }
    const OwnedPiece piece(1, kDimension, at, sums, 2, 1);
    EXPECT_EQ(filled({&piece}, kDimension + 2, 1), wanted) << stride;
  }
}

TEST(FillUpdate, NoPiecesWriteZeros) {
  FilledUpdate counts;
  EXPECT_EQ(filled({}, 2, 1, &counts), (std::vector<float>{0, 0}));
  EXPECT_EQ(counts.entries, 0u);
  EXPECT_EQ(counts.contributors, 0u);
}

}  // namespace
}  // namespace millrace::python
