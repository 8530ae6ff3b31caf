#include "switch_agg/slot/window_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "kernels/base/random.h"

namespace millrace::testing {
namespace {

using switch_agg::WindowSum;

constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();

class WindowSumTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kIndices = 512;

  void add(const std::map<uint16_t, int32_t>& entries, int32_t headroom = kMost) {
    std::vector<uint16_t> indices;
    std::vector<int32_t> values;
    for (const auto& [index, value] : entries) {
      indices.push_back(index);
      values.push_back(value);
    }
    sum_.add({indices, values}, headroom);
  }
  std::map<uint16_t, int32_t> take() {
    taken_ = sum_.take(indices_, values_);
    std::map<uint16_t, int32_t> all;
    for (uint32_t at = 0; at < taken_.count; ++at) all[indices_[at]] = values_[at];
    EXPECT_EQ(all.size(), taken_.count);
    EXPECT_TRUE(is_zero());
    return all;
  }
  bool is_zero() const {
    return std::ranges::all_of(sums_, [](int32_t at) { return at == 0; }) &&
           std::ranges::all_of(present_, [](uint64_t at) { return at == 0; }) &&
           std::ranges::all_of(omitted_, [](uint64_t at) { return at == 0; });
  }

  std::vector<int32_t> sums_ = std::vector<int32_t>(kIndices);
  std::vector<uint64_t> present_ = std::vector<uint64_t>(kIndices / 64);
  std::vector<uint64_t> omitted_ = std::vector<uint64_t>(kIndices / 64);
  std::vector<uint16_t> indices_ = std::vector<uint16_t>(kIndices);
  std::vector<int32_t> values_ = std::vector<int32_t>(kIndices);
  WindowSum sum_{{.sums = sums_, .present = present_, .omitted = omitted_}};
  WindowSum::Taken taken_;
};

TEST_F(WindowSumTest, NothingAddedIsNothingTaken) {
  add({});
  EXPECT_TRUE(take().empty());
}

TEST_F(WindowSumTest, SumsOfZeroStay) {
  add({{3, 5}, {9, 0}});
  add({{3, -5}});
  EXPECT_EQ(take(), (std::map<uint16_t, int32_t>{{3, 0}, {9, 0}}));
}

TEST_F(WindowSumTest, ManyTurnsAgreeWithAMap) {
  RandomSequence random(RandomKey::from(5));
  for (int turn = 0; turn < 300; ++turn) {
    std::map<uint16_t, int64_t> expected;
    const uint64_t parts = random.next_below(5);
    for (uint64_t part = 0; part < parts; ++part) {
      std::map<uint16_t, int32_t> entries;
      const bool is_run = random.next_below(2) == 0;
      const auto first = static_cast<uint16_t>(random.next_below(kIndices));
      const uint64_t count = random.next_below(is_run ? kIndices - first : 80);
      for (uint64_t at = 0; at < count; ++at) {
        const auto index = static_cast<uint16_t>(is_run ? first + at : random.next_below(kIndices));
        entries[index] = static_cast<int32_t>(random.next_u32()) / 8;
      }
      for (const auto& [index, value] : entries) expected[index] += value;
      add(entries, kMost / 4);
    }
    std::map<uint16_t, int32_t> in_range;
    uint32_t magnitude_or = 0;
    for (const auto& [index, value] : expected) {
      in_range[index] = static_cast<int32_t>(value);
      magnitude_or |= static_cast<uint32_t>(std::abs(value));
    }
    ASSERT_EQ(take(), in_range) << "turn " << turn;
    EXPECT_EQ(taken_.magnitude_or, magnitude_or);
    EXPECT_EQ(taken_.omitted, 0);
  }
}

TEST_F(WindowSumTest, ASumThatLeavesTheRangeIsOmittedAndStaysOmitted) {
  add({{7, kMost}, {100, 4}});
  add({{7, 1}});
  add({{7, -100}});  // back in range by its bits: omitted all the same
  EXPECT_EQ(take(), (std::map<uint16_t, int32_t>{{100, 4}}));
  EXPECT_EQ(taken_.omitted, 1);
  add({{7, 2}});
  EXPECT_EQ(take(), (std::map<uint16_t, int32_t>{{7, 2}}));
}

TEST_F(WindowSumTest, OverflowInARunOmitsThatIndexOnly) {
  std::map<uint16_t, int32_t> run;
  for (uint16_t index = 60; index < 200; ++index) run[index] = 1000;
  add(run);
  run[130] = kMost - 500;
  run[131] = kMost - 1000;
  add(run);
  std::map<uint16_t, int32_t> expected;
  for (uint16_t index = 60; index < 200; ++index) expected[index] = 2000;
  expected[131] = kMost;
  expected.erase(130);
  EXPECT_EQ(take(), expected);
  EXPECT_EQ(taken_.omitted, 1);
}

TEST_F(WindowSumTest, NegativeOverflowIsOmitted) {
  add({{7, -kMost}, {9, 1}});
  add({{7, -2}});
  EXPECT_EQ(take(), (std::map<uint16_t, int32_t>{{9, 1}}));
}

TEST_F(WindowSumTest, TheLowestNumberIsOmitted) {
  add({{7, -kMost}, {9, 1}});
  add({{7, -1}});
  EXPECT_EQ(take(), (std::map<uint16_t, int32_t>{{9, 1}}));
  EXPECT_EQ(taken_.omitted, 1);
}

TEST_F(WindowSumTest, AValueOverTheHeadroomOmitsItsIndexInAnyOrder) {
  const std::vector<std::map<uint16_t, int32_t>> parts = {
      {{5, 101}, {6, 100}}, {{5, -50}, {6, 1}}, {{5, 3}, {40, kLeast}}};
  std::array<size_t, 3> order = {0, 1, 2};
  do {
    for (const size_t part : order) add(parts[part], 100);
    EXPECT_EQ(take(), (std::map<uint16_t, int32_t>{{6, 101}}));
    EXPECT_EQ(taken_.omitted, 2);
  } while (std::ranges::next_permutation(order).found);
}

TEST_F(WindowSumTest, ClearThrowsAwayOmittedIndicesToo) {
  add({{7, kMost}, {100, 4}});
  add({{7, 1}, {300, 1}});
  sum_.clear();
  EXPECT_TRUE(is_zero());
  add({{7, 3}});
  EXPECT_EQ(take(), (std::map<uint16_t, int32_t>{{7, 3}}));
}

}  // namespace
}  // namespace millrace::testing
