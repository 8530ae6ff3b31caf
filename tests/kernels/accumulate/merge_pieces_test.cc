#include "kernels/accumulate/merge_pieces.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "kernels/base/random.h"

namespace millrace {
namespace {

Stream random_stream(uint64_t dimension, double density, RandomSequence& random) {
  Stream stream = Stream::empty(dimension);
  for (uint64_t i = 0; i < dimension; ++i) {
    if (random.next_unit() >= density) continue;
    stream.indices.push_back(static_cast<uint32_t>(i));
    stream.values.push_back(static_cast<float>(random.next_normal()));
  }
  return stream;
}

TEST(MergePieces, IsTheSumIndexByIndexAtAnyDensityAndCut) {
  RandomSequence random(random_key(5));
  Stream out;  // kept from case to case: its earlier contents must not show
  for (int round = 0; round < 300; ++round) {
    const uint64_t dimension = 1 + random.next_below(400);
    const double densities[] = {0.0, 0.1, 0.5, 1.0};
    const Stream base = random_stream(dimension, densities[random.next_below(4)], random);
    std::vector<Stream> streams;
    std::vector<PlacedStream> pieces;
    std::map<uint32_t, float> expected;
    for (size_t i = 0; i < base.indices.size(); ++i) expected[base.indices[i]] = base.values[i];
    streams.reserve(dimension + 1);
    for (uint64_t begin = random.next_below(3); begin < dimension;) {
      const uint64_t length = 1 + random.next_below(dimension - begin);
      streams.push_back(random_stream(length, densities[random.next_below(4)], random));
      pieces.push_back({begin, std::as_const(streams.back()).view()});
      for (size_t i = 0; i < streams.back().indices.size(); ++i) {
        expected[static_cast<uint32_t>(begin) + streams.back().indices[i]] += streams.back().values[i];
      }
      begin += length + random.next_below(5);
    }
    merge_pieces(base.view(), pieces, out);
    ASSERT_TRUE(validate(std::as_const(out).view()).has_value());
    ASSERT_EQ(out.dimension, dimension);
    std::map<uint32_t, float> got;
    for (size_t i = 0; i < out.indices.size(); ++i) got[out.indices[i]] = out.values[i];
    ASSERT_EQ(got, expected) << "round " << round;
  }
}

TEST(MergePieces, TheLastIndexOfTheLargestDimensionIsKept) {
  Stream base = Stream::empty(kDimensionMax);
  base.indices = {0xffff'fffeu, 0xffff'ffffu};
  base.values = {1, 2};
  Stream piece = Stream::empty(16);
  piece.indices = {0, 15};
  piece.values = {4, 8};
  Stream out;
  merge_pieces(std::as_const(base).view(), {{kDimensionMax - 16, std::as_const(piece).view()}}, out);
  EXPECT_EQ(out.indices, (IndexBuffer{0xffff'fff0u, 0xffff'fffeu, 0xffff'ffffu}));
  EXPECT_EQ(out.values, (Buffer<float>{4, 1, 10}));
}

}  // namespace
}  // namespace millrace
