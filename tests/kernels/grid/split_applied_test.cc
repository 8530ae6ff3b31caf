#include "kernels/grid/split_applied.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/base/random.h"

/// The outcome of offered entries, against loops that take one at a time.
namespace millrace::testing {
namespace {

struct Offered {
  std::vector<uint32_t> indices;
  std::vector<float> values;
  std::vector<int32_t> integers;
  double step = 0x1p-12;

  double applied(size_t i) const { return integers[i] * step; }
  float returned(size_t i) const { return static_cast<float>(static_cast<double>(values[i]) - applied(i)); }
};

/// Of a grid of 2^-12: some were taken whole, some in part, some not at all, some were 0.
Offered draw(RandomSequence& random, size_t count) {
  Offered out;
  uint32_t index = 0;
  for (size_t i = 0; i < count; ++i) {
    index += 1 + static_cast<uint32_t>(random.next_below(1000));
    auto value = static_cast<float>(random.next_normal());
    const uint64_t fate = random.next_below(4);
    const auto integer = static_cast<int32_t>(std::nearbyint(std::ldexp(static_cast<double>(value), 12)));
    if (fate == 0) value = static_cast<float>(integer * out.step);
    out.indices.push_back(index);
    out.values.push_back(fate == 3 ? 0.0F : value);
    out.integers.push_back(fate < 2 ? integer : 0);
  }
  return out;
}

struct Split {
  SplitCounts counts;
  std::vector<uint32_t> taken_indices;
  std::vector<float> taken_values;
  std::vector<uint32_t> back_indices;
  std::vector<float> back_values;
};

Split split(const Offered& offered) {
  const size_t room = offered.indices.size() + kSplitSlack;
  Split out{
      {}, std::vector<uint32_t>(room), std::vector<float>(room), std::vector<uint32_t>(room), std::vector<float>(room)};
  out.counts = split_applied(offered.indices, offered.values, offered.integers, offered.step,
                             {out.taken_indices, out.taken_values, out.back_indices, out.back_values});
  out.taken_indices.resize(out.counts.taken);
  out.taken_values.resize(out.counts.taken);
  out.back_indices.resize(out.counts.back);
  out.back_values.resize(out.counts.back);
  return out;
}

TEST(SplitOutcomes, TheSplitEqualsThatOfOneEntryAtATime) {
  RandomSequence random(RandomKey::from(4));
  for (size_t count = 0; count < 70; ++count) {
    const Offered offered = draw(random, count);
    const Split got = split(offered);
    Split expected;
    double sum = 0;
    double magnitude = 0;
    for (size_t i = 0; i < count; ++i) {
      sum += offered.applied(i);
      magnitude += std::abs(offered.applied(i));
      if (offered.applied(i) != 0) {
        expected.taken_indices.push_back(offered.indices[i]);
        expected.taken_values.push_back(static_cast<float>(offered.applied(i)));
      }
      if (offered.returned(i) == 0) continue;
      expected.back_indices.push_back(offered.indices[i]);
      expected.back_values.push_back(offered.returned(i));
      expected.counts.whole += offered.applied(i) == 0 ? 1 : 0;
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

TEST(SplitOutcomes, TakenEntriesAreCountedWithoutRoomForThem) {
  RandomSequence random(RandomKey::from(8));
  for (size_t count = 0; count < 70; ++count) {
    const Offered offered = draw(random, count);
    const Split whole = split(offered);
    std::vector<uint32_t> back_indices(count + kSplitSlack);
    std::vector<float> back_values(count + kSplitSlack);
    const SplitCounts counts = split_applied(offered.indices, offered.values, offered.integers, offered.step,
                                             {{}, {}, back_indices, back_values});
    EXPECT_EQ(counts.taken, whole.counts.taken);
    EXPECT_EQ(counts.whole, whole.counts.whole);
    EXPECT_EQ(counts.applied.sum, whole.counts.applied.sum);
    back_indices.resize(counts.back);
    back_values.resize(counts.back);
    EXPECT_EQ(back_indices, whole.back_indices);
    EXPECT_EQ(back_values, whole.back_values);
  }
}

TEST(SplitOutcomes, AnEntryThatDoesNotAddUpIsFoundAtAnyPosition) {
  RandomSequence random(RandomKey::from(5));
  for (size_t count = 1; count < 40; ++count) {
    for (size_t wrong = 0; wrong < count; ++wrong) {
      Offered offered = draw(random, count);
      // 2^20 grid steps of 2^-12 and a value's last bits are farther apart than an f32 holds.
      offered.values[wrong] = 0x1.000002p-12F;
      offered.integers[wrong] = 1 << 20;
      EXPECT_FALSE(split(offered).counts.adds_up) << wrong << " of " << count;
    }
  }
}

TEST(SplitOutcomes, AnAmountTooSmallForF32WasAppliedAllTheSame) {
  Offered offered{std::vector<uint32_t>(32, 7), std::vector<float>(32, 1.0F), std::vector<int32_t>(32, 1), 0x1p-200};
  const Split got = split(offered);
  EXPECT_EQ(got.counts.taken, 32U);
  EXPECT_EQ(got.counts.whole, 0U);
}

TEST(TakeWhereSet, TakesThoseWhoseIndexIsSet) {
  RandomSequence random(RandomKey::from(6));
  std::vector<uint32_t> bits(65536 / 32);
  for (uint32_t& word : bits) word = random.next_u32() & random.next_u32();
  for (size_t count = 0; count < 70; ++count) {
    const uint32_t begin = count % 2 == 0 ? 1'000'000 : 0U - 30'000;
    std::vector<uint32_t> indices;
    std::vector<int32_t> integers;
    for (size_t i = 0; i < count; ++i) {
      indices.push_back(begin + static_cast<uint16_t>(random.next_u32()));
      integers.push_back(static_cast<int32_t>(random.next_u32()));
    }
    std::vector<int32_t> taken(count);
    take_where_set(indices, begin, integers, bits, taken);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t index = indices[i] - begin;
      const bool is_set = (bits[index / 32] >> (index % 32) & 1) != 0;
      EXPECT_EQ(taken[i], is_set ? integers[i] : 0) << i << " of " << count;
    }
    take_where_set(indices, begin, integers, bits, integers);
    EXPECT_EQ(integers, taken) << "in place";
  }
}

}  // namespace
}  // namespace millrace::testing
