#include "kernels/grid/fate_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/base/random.h"

/// What became of offered entries, against loops that take one at a time.
namespace millrace::testing {
namespace {

struct Offered {
  std::vector<uint32_t> indices;
  std::vector<float> values;
  std::vector<double> applied;
  std::vector<float> returned;
};

/// Of a grid of 2^-12: some were taken whole, some in part, some not at all, some were 0.
Offered draw(RandomSequence& random, size_t count) {
  Offered out;
  uint32_t index = 0;
  for (size_t i = 0; i < count; ++i) {
    index += 1 + static_cast<uint32_t>(random.next_below(1000));
    const auto value = static_cast<float>(random.next_normal());
    const uint64_t fate = random.next_below(4);
    const double on_grid = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(value), 12)), -12);
    out.indices.push_back(index);
    out.values.push_back(fate == 3 ? 0.0F : value);
    out.applied.push_back(fate == 0 ? static_cast<double>(value) : fate == 1 ? on_grid : 0.0);
    out.returned.push_back(static_cast<float>(static_cast<double>(out.values.back()) - out.applied.back()));
  }
  return out;
}

struct Split {
  FateCounts counts;
  std::vector<uint32_t> taken_indices;
  std::vector<float> taken_values;
  std::vector<uint32_t> back_indices;
  std::vector<float> back_values;
};

Split split(const Offered& offered) {
  const size_t room = offered.indices.size() + kFateSlack;
  Split out{
      {}, std::vector<uint32_t>(room), std::vector<float>(room), std::vector<uint32_t>(room), std::vector<float>(room)};
  out.counts = split_fates(offered.indices, offered.values, offered.applied, offered.returned,
                           {out.taken_indices, out.taken_values, out.back_indices, out.back_values});
  out.taken_indices.resize(out.counts.taken);
  out.taken_values.resize(out.counts.taken);
  out.back_indices.resize(out.counts.back);
  out.back_values.resize(out.counts.back);
  return out;
}

TEST(SplitFates, IsWhatOneAtATimeMakesOfThem) {
  RandomSequence random(RandomKey::from(4));
  for (size_t count = 0; count < 70; ++count) {
    const Offered offered = draw(random, count);
    const Split got = split(offered);
    Split expected;
    double sum = 0;
    double magnitude = 0;
    for (size_t i = 0; i < count; ++i) {
      sum += offered.applied[i];
      magnitude += std::abs(offered.applied[i]);
      if (offered.applied[i] != 0) {
        expected.taken_indices.push_back(offered.indices[i]);
        expected.taken_values.push_back(static_cast<float>(offered.applied[i]));
      }
      if (offered.returned[i] == 0) continue;
      expected.back_indices.push_back(offered.indices[i]);
      expected.back_values.push_back(offered.returned[i]);
      expected.counts.whole += offered.applied[i] == 0 ? 1 : 0;
    }
    EXPECT_EQ(got.taken_indices, expected.taken_indices);
    EXPECT_EQ(got.taken_values, expected.taken_values);
    EXPECT_EQ(got.back_indices, expected.back_indices);
    EXPECT_EQ(got.back_values, expected.back_values);
    EXPECT_EQ(got.counts.whole, expected.counts.whole);
    EXPECT_NEAR(got.counts.applied.sum, sum, 1e-12 * magnitude);
    EXPECT_NEAR(got.counts.applied.magnitude, magnitude, 1e-12 * magnitude);
    EXPECT_TRUE(got.counts.adds_up);
  }
}

TEST(SplitFates, SaysWhereWhateverEntryDoesNotAddUp) {
  RandomSequence random(RandomKey::from(5));
  for (size_t count = 1; count < 40; ++count) {
    for (size_t wrong = 0; wrong < count; ++wrong) {
      Offered offered = draw(random, count);
      offered.returned[wrong] += 0.25F;
      EXPECT_FALSE(split(offered).counts.adds_up) << wrong << " of " << count;
    }
  }
}

TEST(SplitFates, AnAmountTooSmallForF32WasAppliedAllTheSame) {
  Offered offered{std::vector<uint32_t>(32, 7), std::vector<float>(32, 1.0F), std::vector<double>(32, 1e-60),
                  std::vector<float>(32, 1.0F)};
  const Split got = split(offered);
  EXPECT_EQ(got.counts.taken, 32U);
  EXPECT_EQ(got.counts.whole, 0U);
}

TEST(TakeWhereSet, TakesThoseWhoseIndexIsSet) {
  RandomSequence random(RandomKey::from(6));
  std::vector<uint32_t> bits(65536 / 32);
  for (uint32_t& word : bits) word = random.next_u32() & random.next_u32();
  for (size_t count = 0; count < 70; ++count) {
    std::vector<uint16_t> indices;
    std::vector<int32_t> integers;
    for (size_t i = 0; i < count; ++i) {
      indices.push_back(static_cast<uint16_t>(random.next_u32()));
      integers.push_back(static_cast<int32_t>(random.next_u32()));
    }
    std::vector<int32_t> taken(count);
    take_where_set(indices, integers, bits, taken);
    for (size_t i = 0; i < count; ++i) {
      const bool is_set = (bits[indices[i] / 32] >> (indices[i] % 32) & 1) != 0;
      EXPECT_EQ(taken[i], is_set ? integers[i] : 0) << i << " of " << count;
    }
    take_where_set(indices, integers, bits, integers);
    EXPECT_EQ(integers, taken) << "in place";
  }
}

}  // namespace
}  // namespace millrace::testing
