#include "kernels/grid/grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <vector>

#include "kernels/base/random.h"

namespace millrace::testing {
namespace {

TEST(Grid, SumsOfAllWorkersAreIntegersThatAnF32Holds) {
  for (uint32_t workers = 1; workers <= 4096; ++workers) {
    const int32_t limit = exact_f32_limit(workers);
    ASSERT_LE(int64_t{limit} * workers, 1 << 24);
    ASSERT_GT(int64_t{limit} * workers * 2, 1 << 24);
    ASSERT_TRUE(std::has_single_bit(static_cast<uint32_t>(limit)));
  }
}

TEST(Grid, SumsOnItAreExactInEveryOrder) {
  RandomSequence random(RandomKey::from(9));
  for (const uint32_t workers : {2U, 3U, 8U, 64U, 1000U}) {
    const int32_t limit = exact_f32_limit(workers);
    for (int draw = 0; draw < 200; ++draw) {
      const int exponent = static_cast<int>(random.next_below(211)) + kGridExponentLowest;
      std::vector<float> values(workers);
      double sum = 0;
      for (float& value : values) {
        value = on_grid(static_cast<float>(std::ldexp(random.next_normal() * limit, exponent)), exponent, limit);
        sum += static_cast<double>(value);
      }
      float up = 0;
      float down = 0;
      for (size_t at = 0; at < values.size(); ++at) {
        up += values[at];
        down += values[values.size() - 1 - at];
      }
      ASSERT_EQ(static_cast<double>(up), sum) << workers << " at 2^" << exponent;
      ASSERT_EQ(up, down);
    }
  }
}

TEST(Grid, ValuesRoundToTheNearestIntegerTiesToEven) {
  EXPECT_EQ(to_grid(2.5F, 0, 100), 2);
  EXPECT_EQ(to_grid(3.5F, 0, 100), 4);
  EXPECT_EQ(to_grid(-2.5F, 0, 100), -2);
  EXPECT_EQ(to_grid(0.75F, -2, 100), 3);
  EXPECT_EQ(to_grid(12.0F, 3, 100), 2);
  EXPECT_EQ(to_grid(-0.0F, 0, 100), 0);
  EXPECT_EQ(to_grid(std::numeric_limits<float>::denorm_min(), kGridExponentLowest, 100), 0);
}

TEST(Grid, ValuesOverTheLimitSaturate) {
  EXPECT_EQ(to_grid(1e6F, 0, 32767), 32767);
  EXPECT_EQ(to_grid(-1e6F, 0, 32767), -32767);
  EXPECT_EQ(to_grid(-16777216.0F, 0, 32767), -16384);
  EXPECT_EQ(to_grid(1e30F, 0, 1 << 20), 1 << 20);
  EXPECT_EQ(to_grid(32767.4F, 0, 32767), 32767);
}

TEST(Grid, ManyValuesAreRoundedAsEachByItself) {
  RandomSequence random(RandomKey::from(11));
  for (const int32_t limit : {100, 32'767, 1 << 28}) {
    for (const int exponent : {-120, -20, 0, 3, 90}) {
      const auto most = static_cast<float>(std::ldexp(static_cast<double>(limit), exponent));
      std::vector<float> values{0.0F,     -0.0F,     most,   -most,
                                2 * most, -8 * most, 1e-45F, std::numeric_limits<float>::max()};
      for (int i = 0; i < 500; ++i) values.push_back(static_cast<float>(random.next_normal()) * most);
      for (int i = 0; i < 50; ++i) values.push_back(static_cast<float>(std::ldexp(i + 0.5, exponent)));
      for (float& value : values) value = std::isfinite(value) ? value : 0.0F;
      std::vector<int32_t> out(values.size());
      uint32_t over = 0;
      for (const float value : values) over += std::fabs(std::ldexp(static_cast<double>(value), -exponent)) > limit;
      EXPECT_EQ(to_grid(values, exponent, limit, out), over);
      for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(out[i], to_grid(values[i], exponent, limit)) << values[i];
    }
  }
}

TEST(Grid, SentAndRemainderAreTheValueExactly) {
  RandomSequence random(RandomKey::from(3));
  for (int i = 0; i < 100'000; ++i) {
    const int exponent = static_cast<int>(random.next_below(40)) - 30;
    const auto value =
        static_cast<float>(random.next_normal() * std::exp2(static_cast<double>(random.next_below(30)) - 20));
    for (const int32_t limit :
         {32767, 1 << 30, 1 << 25, exact_f32_limit(1 + static_cast<uint32_t>(random.next_below(64)))}) {
      const auto power = static_cast<double>(std::bit_floor(static_cast<uint32_t>(limit)));
      if (std::fabs(value) >= std::ldexp(power, exponent + 24)) continue;
      const int32_t sent = to_grid(value, exponent, limit);
      const float rest = grid_remainder(value, sent, exponent);
      ASSERT_EQ(std::ldexp(static_cast<double>(sent), exponent) + static_cast<double>(rest), static_cast<double>(value))
          << value << " exponent " << exponent;
    }
  }
}

TEST(ExponentTable, AWindowGoesByItsLargestSum) {
  ExponentTable table(0, 32767);
  const std::vector<int32_t> sums{5, -40000, 3};
  table.observe(4, 0, sums);
  EXPECT_EQ(table.of(4), 0);  // the step is not over
  table.end_step();
  EXPECT_EQ(table.of(4), 16 + 2 - 14);  // 40000 has 16 bits, two of headroom, the limit 15 bits less one
  EXPECT_EQ(table.of(9), table.of(4));  // the whole update's
}

TEST(ExponentTable, ExponentsRiseAtOnceAndFallByFour) {
  ExponentTable table(0, 32767);
  table.observe(0, 0, std::vector<int32_t>{INT32_MAX});
  table.end_step();
  EXPECT_EQ(table.of(0), 31 + 2 - 14);
  table.observe(0, table.of(0), std::vector<int32_t>{1});
  table.end_step();
  EXPECT_EQ(table.of(0), 31 + 2 - 14 - 4);
}

TEST(ExponentTable, SumsOfZeroTakeEightOff) {
  ExponentTable table(0, 32767);
  table.observe(0, 0, std::vector<int32_t>{0, 0});
  table.end_step();
  EXPECT_EQ(table.of(0), -8);
  EXPECT_EQ(table.of(1), -8);
  table.observe(0, -8, std::vector<int32_t>{});  // VOID says nothing
  table.end_step();
  EXPECT_EQ(table.of(0), -8);
}

TEST(ExponentTable, TheOrderOfResultsDoesNotMatter) {
  ExponentTable one(0, 32767);
  ExponentTable other(0, 32767);
  one.observe(1, 0, std::vector<int32_t>{100});
  one.observe(2, 0, std::vector<int32_t>{100000});
  other.observe(2, 0, std::vector<int32_t>{100000});
  other.observe(1, 0, std::vector<int32_t>{100});
  one.end_step();
  other.end_step();
  EXPECT_EQ(one.state(), other.state());
}

/// A block in a table of its own behaves as it does among others.
TEST(ExponentTable, ABlockWithResultsGoesByItsOwn) {
  RandomSequence random(RandomKey::from(31));
  ExponentTable all(0, 32767);
  std::map<uint32_t, ExponentTable> alone;
  for (int step = 0; step < 60; ++step) {
    std::vector<uint32_t> seen;
    for (int result = 0; result < 8; ++result) {
      const auto block = static_cast<uint32_t>(random.next_below(40));
      const int32_t sum = static_cast<int32_t>(random.next_below(3)) << random.next_below(20);
      all.observe(block, step % 5, {&sum, 1});
      alone.try_emplace(block, 0, 32767).first->second.observe(block, step % 5, {&sum, 1});
      seen.push_back(block);
    }
    all.end_step();
    std::ranges::sort(seen);
    seen.erase(std::ranges::unique(seen).begin(), seen.end());
    for (const uint32_t block : seen) alone.at(block).end_step();
    for (const auto& [block, own] : alone) EXPECT_EQ(all.of(block), own.of(block)) << step << " " << block;
    const auto state = all.state();
    EXPECT_TRUE(std::ranges::is_sorted(state.blocks));
    EXPECT_EQ(state.blocks.size(), alone.size());
  }
}

TEST(ExponentTable, StaysWithinItsBounds) {
  ExponentTable table(kGridExponentHighest, 32767);
  for (int i = 0; i < 3; ++i) {
    table.observe(0, table.of(0), std::vector<int32_t>{INT32_MIN});
    table.end_step();
  }
  EXPECT_EQ(table.of(0), kGridExponentHighest);
  for (int i = 0; i < 60; ++i) {
    table.observe(0, table.of(0), std::vector<int32_t>{0});
    table.end_step();
  }
  EXPECT_EQ(table.of(0), kGridExponentLowest);
}

TEST(ExponentTable, AJoinerContinuesFromTheHandover) {
  ExponentTable old(0, 32767);
  old.observe(1, 0, std::vector<int32_t>{100});
  old.end_step();
  ExponentTable joiner(-5, 32767);
  joiner.restore(old.state());
  EXPECT_EQ(joiner.of(1), old.of(1));
  EXPECT_EQ(joiner.of(7), old.of(7));
}

TEST(ExponentTable, BlocksWithoutAnyResultGoByTheirOwnGroup) {
  ExponentTable table(0, 32767, {0, 3});
  table.observe(1, 0, std::vector<int32_t>{1 << 20});
  table.end_step();
  EXPECT_EQ(table.of(0), 21 + 2 - 14);
  EXPECT_EQ(table.of(2), 21 + 2 - 14);
  EXPECT_EQ(table.of(3), 0);
}

TEST(ExponentTable, ValuesOnTheGridAreSeenAsTheirIntegers) {
  RandomSequence random(RandomKey::from(2));
  ExponentTable integers(-4, 1 << 20, {0, 2});
  ExponentTable values(-4, 1 << 20, {0, 2});
  for (int step = 0; step < 200; ++step) {
    for (uint32_t block = 0; block < 4; ++block) {
      const int exponent = integers.of(block);
      ASSERT_EQ(values.of(block), exponent) << step;
      std::vector<int32_t> sums;
      std::vector<float> as_values;
      for (uint64_t i = random.next_below(4); i > 0; --i) {
        sums.push_back((static_cast<int32_t>(random.next_u32()) >> 7) >> random.next_below(30));
        as_values.push_back(static_cast<float>(std::ldexp(static_cast<double>(sums.back()), exponent)));
      }
      integers.observe(block, exponent, sums);
      // In two pieces: a block may lie in two parts.
      values.observe_values(block, std::span(as_values).first(as_values.size() / 2));
      values.observe_values(block, std::span(as_values).subspan(as_values.size() / 2));
    }
    integers.end_step_of_nonzero();
    values.end_step_of_nonzero();
    ASSERT_EQ(values.state(), integers.state());
  }
}

TEST(ExponentTable, WhereZerosSayNothingTheyChangeNoBlockBesideOthers) {
  ExponentTable table(0, 32767);
  table.observe(0, 0, std::vector<int32_t>{40000});
  table.observe(1, 0, std::vector<int32_t>{0});
  table.end_step_of_nonzero();
  EXPECT_EQ(table.of(1), table.of(0));  // as one that had no result
  const int before = table.of(0);
  table.end_step_of_nonzero();
  EXPECT_EQ(table.of(0), before - 8);
  EXPECT_EQ(table.of(1), before - 8);
}

TEST(ExponentTable, ValuesThatAreNotOnTheGridDoNotBringItDown) {
  ExponentTable table(0, 32767);
  table.observe_values(0, std::vector<float>{0x1p-149F, 3e38F});
  table.observe_values(0, std::vector<float>{std::numeric_limits<float>::infinity()});
  table.end_step_of_nonzero();
  EXPECT_EQ(table.of(0), 31 + 2 - 14);
}

}  // namespace
}  // namespace millrace::testing
