#include "kernels/codec/entropy_bound.h"

#include <gtest/gtest.h>

#include <cmath>

namespace millrace {
namespace {

TEST(CodeBounds, EntropyIsTheLogarithmOfTheNumberOfSets) {
  EXPECT_NEAR(entropy_bits_per_index(4, 2), std::log2(6.0) / 2, 1e-12);
  EXPECT_NEAR(entropy_bits_per_index(1000, 1), std::log2(1000.0), 1e-9);
  EXPECT_NEAR(entropy_bits_per_index(77, 77), 0, 1e-12);
}

TEST(CodeBounds, RiceBlocksTakeTheBestParameterForEachAndFiveBits) {
  // A block of 128 gaps of 0 (parameter 0, a bit each), and one gap of 100. The latter takes 6 bits below a quotient of
  // 1, or 7 bits.
  IndexBuffer indices;
  for (uint32_t i = 0; i < 128; ++i) indices.push_back(i);
  EXPECT_EQ(rice_blocks_bits_per_index(indices), (128.0 + 5) / 128);
  indices.push_back(228);
  EXPECT_EQ(rice_blocks_bits_per_index(indices), (128.0 + 5 + (6 + 1 + 1) + 5) / 129);
  EXPECT_EQ(rice_blocks_bits_per_index(IndexBuffer{100}), 6 + 1 + 1 + 5);
}

}  // namespace
}  // namespace millrace
