#include "kernels/stream/rows.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace {
namespace {

TEST(Rows, EachEntryOfARowHasTheIndexAfterTheOneBefore) {
  for (const uint32_t width : {1U, 2U, 3U, 15U, 16U, 17U, 100U}) {
    for (const std::vector<uint32_t>& rows : {std::vector<uint32_t>{}, {0}, {7}, {0, 1, 2}, {9, 3, 3, 0, 1'000}}) {
      std::vector<uint32_t> expected;
      for (const uint32_t row : rows) {
        for (uint32_t at = 0; at < width; ++at) expected.push_back(row * width + at);
      }
      std::vector<uint32_t> found(rows.size() * width);
      indices_of_rows(width, rows, found);
      EXPECT_EQ(found, expected) << width;
    }
  }
}

TEST(Rows, TheLastRowOfTheLargestTensorHasTheLastIndex) {
  std::vector<uint32_t> found(16);
  indices_of_rows(16, std::vector<uint32_t>{UINT32_MAX / 16}, found);
  EXPECT_EQ(found.front(), UINT32_MAX - 15);
  EXPECT_EQ(found.back(), UINT32_MAX);
}

TEST(Rows, OnlyThoseThatTheTensorHasAreAccepted) {
  const auto refusal = [](uint32_t width, const std::vector<uint32_t>& rows, uint64_t count, uint64_t dimension) {
    const Status valid = check_rows(width, rows, count, dimension);
    return valid ? std::string() : valid.error().message;
  };
  EXPECT_EQ(refusal(4, {}, 0, 40), "");
  EXPECT_EQ(refusal(4, {9, 0, 9}, 12, 40), "");
  EXPECT_EQ(refusal(4, {9}, 4, 43), "");
  EXPECT_EQ(refusal(16, {UINT32_MAX / 16}, 16, uint64_t{1} << 32), "");
  EXPECT_EQ(refusal(4, {10}, 4, 40), "row 10 of a tensor of dimension 40, in rows of 4");
  EXPECT_EQ(refusal(4, {10, 1}, 8, 43), "row 10 of a tensor of dimension 43, in rows of 4");
  EXPECT_EQ(refusal(4, {UINT32_MAX}, 4, uint64_t{1} << 32),
            "row 4294967295 of a tensor of dimension 4294967296, in rows of 4")
      << "its first index is beyond 32 bits";
  EXPECT_EQ(refusal(UINT32_MAX, {0}, UINT32_MAX, 40), "row 0 of a tensor of dimension 40, in rows of 4294967295");
  EXPECT_EQ(refusal(1, {40}, 1, 40), "index 40 of a tensor of dimension 40");
  EXPECT_EQ(refusal(1, {1, 2}, 1, 40), "2 indices and 1 places for them");
  EXPECT_EQ(refusal(4, {1, 2}, 7, 40), "2 rows of 4 and 7 places for them");
  EXPECT_EQ(refusal(4, {1, 2}, 12, 40), "2 rows of 4 and 12 places for them");
  EXPECT_EQ(refusal(0, {1}, 0, 40), "rows of 0 entries");
}

}  // namespace
}  // namespace millrace
