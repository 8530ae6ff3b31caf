#include "worker/peer/collectives/index_intersection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "kernels/base/random.h"

namespace millrace::peer::testing {
namespace {

std::vector<uint32_t> slow_positions(const IndexBuffer& one, const IndexBuffer& other) {
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < one.size(); ++i) {
    if (std::ranges::find(other, one[i]) != other.end()) positions.push_back(i);
  }
  return positions;
}

IndexBuffer index_intersection_drawn(RandomSequence& draws, uint64_t bound, size_t count) {
  std::set<uint32_t> all;
  while (all.size() < count) all.insert(static_cast<uint32_t>(draws.next_below(bound)));
  return {all.begin(), all.end()};
}

TEST(PositionsInBoth, AreThoseOfASearchForEach) {
  RandomSequence draws(RandomKey::from(5));
  for (const size_t left : {0u, 1u, 2u, 3u, 4u, 5u, 7u, 40u, 97u}) {
    for (const size_t right : {0u, 1u, 3u, 8u, 50u, 99u}) {
      for (const uint64_t bound : {100u, 300u, 100'000u}) {
        const IndexBuffer one = index_intersection_drawn(draws, bound, left),
                          other = index_intersection_drawn(draws, bound, right);
        const IndexBuffer positions = positions_in_both(one, other);
        EXPECT_EQ(std::vector(positions.begin(), positions.end()), slow_positions(one, other)) << left << " " << right;
      }
    }
  }
}

TEST(PositionsInBoth, OfRangesThatLieApartOrAreTheSame) {
  const IndexBuffer low{0, 1, 2, 3, 4}, high{5, 6, 7, 0xffffffff};
  EXPECT_TRUE(positions_in_both(low, high).empty());
  EXPECT_TRUE(positions_in_both(high, low).empty());
  EXPECT_EQ(positions_in_both(high, high), (IndexBuffer{0, 1, 2, 3}));
  EXPECT_EQ(positions_in_both(low, IndexBuffer{4}), IndexBuffer{4});
}

}  // namespace
}  // namespace millrace::peer::testing
