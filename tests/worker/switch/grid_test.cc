#include "worker/switch/grid.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/base/random.h"

namespace millrace::worker {
namespace {

using protocol::WindowValueCodec;

TEST(Grid, LimitLeavesRoomForAllWorkersSumsInAnI32) {
  for (uint32_t workers = 1; workers <= 64; ++workers) {
    EXPECT_LE(int64_t{grid_limit(WindowValueCodec::kFixed32, workers)} * workers, INT32_MAX);
    EXPECT_EQ(grid_limit(WindowValueCodec::kFixed16, workers), INT16_MAX);
  }
  EXPECT_EQ(grid_limit(WindowValueCodec::kFixed32, 1), 1 << 30);
}

TEST(Grid, ValuesRoundToTheNearestIntegerTiesToEven) {
  EXPECT_EQ(to_grid(2.5F, 0, 100), 2);
  EXPECT_EQ(to_grid(3.5F, 0, 100), 4);
  EXPECT_EQ(to_grid(-2.5F, 0, 100), -2);
  EXPECT_EQ(to_grid(0.75F, -2, 100), 3);
  EXPECT_EQ(to_grid(12.0F, 3, 100), 2);
  EXPECT_EQ(to_grid(-0.0F, 0, 100), 0);
  EXPECT_EQ(to_grid(std::numeric_limits<float>::denorm_min(), kExponentMin, 100), 0);
}

TEST(Grid, WhatIsOverTheLimitSaturates) {
  EXPECT_EQ(to_grid(1e6F, 0, 32767), 32767);
  EXPECT_EQ(to_grid(-1e6F, 0, 32767), -32767);
  EXPECT_EQ(to_grid(-16777216.0F, 0, 32767), -16384);
  EXPECT_EQ(to_grid(1e30F, 0, 1 << 20), 1 << 20);
  EXPECT_EQ(to_grid(32767.4F, 0, 32767), 32767);
}

TEST(Grid, SentAndRemainderAreTheValueExactly) {
  RandomSequence random(RandomKey::from(3));
  for (int i = 0; i < 100'000; ++i) {
    const int exponent = static_cast<int>(random.next_below(40)) - 30;
    const auto value =
        static_cast<float>(random.next_normal() * std::exp2(static_cast<double>(random.next_below(30)) - 20));
    for (const WindowValueCodec codec : {WindowValueCodec::kFixed16, WindowValueCodec::kFixed32}) {
      const int32_t limit = grid_limit(codec, 1 + static_cast<uint32_t>(random.next_below(64)));
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

TEST(ExponentTable, StaysWithinItsBounds) {
  ExponentTable table(kExponentMax, 32767);
  for (int i = 0; i < 3; ++i) {
    table.observe(0, table.of(0), std::vector<int32_t>{INT32_MIN});
    table.end_step();
  }
  EXPECT_EQ(table.of(0), kExponentMax);
  for (int i = 0; i < 60; ++i) {
    table.observe(0, table.of(0), std::vector<int32_t>{0});
    table.end_step();
  }
  EXPECT_EQ(table.of(0), kExponentMin);
}

TEST(ExponentTable, AJoinerGoesOnFromTheHandedOverState) {
  ExponentTable old(0, 32767);
  old.observe(1, 0, std::vector<int32_t>{100});
  old.end_step();
  ExponentTable joiner(-5, 32767);
  joiner.restore(old.state());
  EXPECT_EQ(joiner.of(1), old.of(1));
  EXPECT_EQ(joiner.of(7), old.of(7));
}

}  // namespace
}  // namespace millrace::worker
