#include "kernels/stream/drop_zeros.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace millrace {
namespace {

Stream sparse(const std::vector<uint32_t>& indices, const std::vector<float>& values) {
  Stream stream = Stream::empty(100);
  stream.indices.assign(indices.begin(), indices.end());
  stream.values.assign(values.begin(), values.end());
  return stream;
}

TEST(DropZeros, LeavesEveryOtherEntryAsItWasInItsPlace) {
  // Every pattern of zeros in eight entries; the zeros of both signs.
  for (uint32_t zeros = 0; zeros < 256; ++zeros) {
    std::vector<uint32_t> indices;
    std::vector<float> values;
    std::vector<uint32_t> expected_indices;
    std::vector<float> expected_values;
    for (uint32_t i = 0; i < 8; ++i) {
      const bool zero = (zeros >> i & 1) != 0;
      indices.push_back(3 * i);
      values.push_back(zero ? (i % 2 == 0 ? 0.0f : -0.0f) : static_cast<float>(i) - 3.5f);
      if (zero) continue;
      expected_indices.push_back(indices.back());
      expected_values.push_back(values.back());
    }
    Stream stream = sparse(indices, values);
    drop_zeros(stream);
    EXPECT_THAT(stream.indices, ::testing::ElementsAreArray(expected_indices)) << zeros;
    EXPECT_THAT(stream.values, ::testing::ElementsAreArray(expected_values)) << zeros;
    EXPECT_EQ(stream.dimension, 100u);
    EXPECT_TRUE(validate(std::as_const(stream).view()));
  }
}

TEST(DropZeros, KeepsNonZeroEntries) {
  const float least = std::numeric_limits<float>::denorm_min();
  Stream stream = sparse({1, 2, 3, 4}, {least, -least, std::numeric_limits<float>::infinity(), NAN});
  drop_zeros(stream);
  EXPECT_THAT(stream.indices, ::testing::ElementsAre(1, 2, 3, 4));
}

TEST(DropZeros, LeavesADenseStreamAlone) {
  Stream stream = Stream::empty(3);
  stream.dense = true;
  stream.values.assign(3, 0.0f);
  drop_zeros(stream);
  EXPECT_EQ(stream.values.size(), 3u);
}

TEST(DropZeros, TakesNothingAtAll) {
  Stream stream = Stream::empty(3);
  drop_zeros(stream);
  EXPECT_EQ(stream.count(), 0u);
}

}  // namespace
}  // namespace millrace
