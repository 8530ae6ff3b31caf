// A LoggedSum against a WindowSum, which adds at once.
#include "switch_agg/slot/logged_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <vector>

#include "kernels/base/random.h"

namespace millrace::testing {
namespace {

using switch_agg::LoggedSum;
using switch_agg::WindowMemory;
using switch_agg::WindowSum;

constexpr uint32_t kLoggedSumIndices = 512;

struct Memory {
  std::vector<int32_t> sums = std::vector<int32_t>(kLoggedSumIndices);
  std::vector<uint64_t> bits = std::vector<uint64_t>(kLoggedSumIndices / 64 * 2);

  WindowMemory window() {
    return {sums, std::span(bits).first(kLoggedSumIndices / 64), std::span(bits).subspan(kLoggedSumIndices / 64)};
  }
  bool is_zero() const {
    return std::ranges::all_of(sums, [](int32_t at) { return at == 0; }) &&
           std::ranges::all_of(bits, [](uint64_t at) { return at == 0; });
  }
};

struct LoggedEntries {
  std::vector<uint16_t> indices;
  std::vector<int32_t> values;
};

LoggedEntries draw(RandomSequence& random, size_t count_max, int32_t value_max) {
  std::set<uint16_t> indices;
  const bool is_run = random.next_below(8) == 0;
  const uint64_t first = random.next_below(kLoggedSumIndices - count_max);
  const uint64_t count = random.next_below(count_max);
  for (uint64_t at = 0; at < count; ++at)
    indices.insert(static_cast<uint16_t>(is_run ? first + at : random.next_below(kLoggedSumIndices)));
  LoggedEntries entries;
  for (const uint16_t index : indices) {
    entries.indices.push_back(index);
    const auto value = static_cast<int64_t>(random.next_below(2 * static_cast<uint64_t>(value_max))) - value_max;
    entries.values.push_back(static_cast<int32_t>(value));
  }
  return entries;
}

class LoggedSumTest : public ::testing::Test {
 protected:
  static constexpr size_t kLog = 100;

  void add(const LoggedEntries& entries, int32_t headroom) {
    at_once_.add({entries.indices, entries.values}, headroom);
    logged_.add({entries.indices, entries.values}, headroom);
  }
  /// Both taken are equal, and nothing is left. Returns how many were omitted.
  uint32_t expect_same() {
    LoggedEntries expected = {std::vector<uint16_t>(kLoggedSumIndices), std::vector<int32_t>(kLoggedSumIndices)};
    LoggedEntries taken = expected;
    const WindowSum::Taken a = at_once_.take(expected.indices, expected.values);
    const WindowSum::Taken b = logged_.take(taken.indices, taken.values);
    EXPECT_EQ(b.count, a.count);
    EXPECT_EQ(b.omitted, a.omitted);
    EXPECT_EQ(b.magnitude_or, a.magnitude_or);
    for (LoggedEntries* entries : {&expected, &taken}) {
      entries->indices.resize(a.count);
      entries->values.resize(a.count);
    }
    EXPECT_EQ(taken.indices, expected.indices);
    EXPECT_EQ(taken.values, expected.values);
    EXPECT_TRUE(own_.is_zero());
    EXPECT_TRUE(std::ranges::all_of(shared_present_, [](uint64_t at) { return at == 0; }));
    return a.omitted;
  }

  Memory plain_;
  Memory own_;
  std::vector<uint64_t> shared_present_ = std::vector<uint64_t>(kLoggedSumIndices / 64);
  std::vector<uint16_t> shared_ranks_ = std::vector<uint16_t>(kLoggedSumIndices / 64);
  std::vector<uint16_t> log_indices_ = std::vector<uint16_t>(kLog);
  std::vector<int32_t> log_values_ = std::vector<int32_t>(kLog);
  WindowSum at_once_{plain_.window()};
  LoggedSum logged_{{own_.window(), shared_present_, shared_ranks_, log_indices_, log_values_}};
};

TEST_F(LoggedSumTest, TurnsThatFitTheLogAndThatDoNotAreTheSame) {
  RandomSequence random(RandomKey::from(1));
  for (int turn = 0; turn < 500; ++turn) {
    for (uint64_t parts = random.next_below(6); parts > 0; --parts) add(draw(random, 60, 1000), 1 << 20);
    EXPECT_EQ(expect_same(), 0u) << turn;
  }
}

TEST_F(LoggedSumTest, SetsThatComeAgainAreAddedInPlaceAndTakeTheRoomOfOne) {
  for (int worker = 0; worker < 50; ++worker) {
    add({{1, 7, 300}, {5, -6, worker}}, 1000);
    add({{301, 310}, {5, -6}}, 1000);  // its second packet
  }
  EXPECT_TRUE(own_.is_zero());  // 250 entries would not have fitted the log
  EXPECT_EQ(expect_same(), 0u);
}

TEST_F(LoggedSumTest, MorePacketsAWorkerThanSetsAreLookedThroughAreSummedToo) {
  for (int32_t worker = 0; worker < 2; ++worker) {
    for (uint16_t packet = 0; packet < 12; ++packet) {
      const auto first = static_cast<uint16_t>(20 * packet);
      add({{first, static_cast<uint16_t>(first + 7)}, {packet, worker}}, 1000);
    }
  }
  EXPECT_EQ(expect_same(), 0u);
}

/// Of a few sets, some in the order of a worker's packets, with values around the limit.
TEST_F(LoggedSumTest, SetsThatComeAgainAreSummedAsAtOnce) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  RandomSequence random(RandomKey::from(3));
  uint32_t omitted = 0;
  for (int turn = 0; turn < 5000; ++turn) {
    std::vector<LoggedEntries> sets = {draw(random, 8, 1000), draw(random, 8, 1000), draw(random, 8, 1000), {{7}, {1}}};
    if (random.next_below(2) == 0) {
      for (uint16_t& index : sets[0].indices) index = static_cast<uint16_t>(index / 4);
      sets[0].indices.erase(std::ranges::unique(sets[0].indices).begin(), sets[0].indices.end());
      sets[0].values.resize(sets[0].indices.size());
      for (uint16_t& index : sets[1].indices) index = static_cast<uint16_t>(index / 2 + 256);
      sets[1].indices.erase(std::ranges::unique(sets[1].indices).begin(), sets[1].indices.end());
      sets[1].values.resize(sets[1].indices.size());
    }
    const std::array<int32_t, 4> headrooms = {kMost, kMost / 2, kMost / 4, 100};
    const int32_t headroom = headrooms[random.next_below(headrooms.size())];
    for (uint64_t parts = random.next_below(9); parts > 0; --parts) {
      LoggedEntries next = sets[random.next_below(sets.size())];
      for (int32_t& value : next.values) {
        const auto under = static_cast<int32_t>(random.next_below(3));
        value = random.next_below(2) == 0 ? headroom - under : under - headroom;
        if (random.next_below(2) == 0) value = under;
        if (random.next_below(40) == 0) value = headroom == kMost ? std::numeric_limits<int32_t>::min() : headroom + 1;
      }
      add(next, random.next_below(12) == 0 ? headrooms[random.next_below(headrooms.size())] : headroom);
    }
    if (random.next_below(8) == 0) {
      logged_.clear();
      at_once_.clear();
    }
    omitted += expect_same();
    ASSERT_FALSE(HasFailure()) << turn;
  }
  EXPECT_GT(omitted, 1000u);
}

TEST_F(LoggedSumTest, SumsInPlaceMayBeOverTheHeadroomAndValuesMayNot) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  for (const int32_t last : {100, 101, -101}) {
    add({{3, 9}, {100, 1}}, 100);
    add({{3, 9}, {100, 2}}, 100);
    add({{3, 9}, {last, 3}}, 100);
    EXPECT_EQ(expect_same(), last == 100 ? 0u : 1u) << last;
    // The other way round, with a run, which ends the log.
    add({{3, 9}, {last, 3}}, 100);
    add({{3, 9}, {100, 1}}, 100);
    add({{4, 5, 6}, {1, 2, 3}}, 100);
    EXPECT_EQ(expect_same(), last == 100 ? 0u : 1u) << last;
    // Forgotten sets do not affect later ones.
    add({{3, 9}, {100, 1}}, 100);
    add({{3, 9}, {100, 2}}, 100);
    logged_.clear();
    at_once_.clear();
    add({{3, 9}, {last, 1}}, 100);
    EXPECT_EQ(expect_same(), last == 100 ? 0u : 1u) << last;
  }
  // The bound meets the range, and nothing is omitted; over it, the entries in between count.
  add({{3, 9}, {kMost - 1, 1}}, kMost);
  add({{3, 9}, {1, 1}}, kMost);
  EXPECT_EQ(expect_same(), 0u);
  add({{3, 9}, {kMost, 1}}, kMost);
  add({{3, 9}, {1, 1}}, kMost);
  add({{3, 9}, {-5, 1}}, kMost);
  EXPECT_EQ(expect_same(), 1u);
}

TEST_F(LoggedSumTest, OmitsTheSameIndices) {
  RandomSequence random(RandomKey::from(2));
  uint32_t omitted = 0;
  for (int turn = 0; turn < 300; ++turn) {
    for (uint64_t parts = random.next_below(6); parts > 0; --parts) add(draw(random, 60, 1000), 990);
    omitted += expect_same();
    for (uint64_t parts = random.next_below(6); parts > 0; --parts)
      add(draw(random, 60, std::numeric_limits<int32_t>::max()), std::numeric_limits<int32_t>::max());
    omitted += expect_same();
  }
  EXPECT_GT(omitted, 100u);
}

TEST_F(LoggedSumTest, SeveralPartsThatLookLikeOneRunAreNone) {
  add({{10, 20, 30}, {1, 2, 3}}, 100);
  add({{11, 15}, {4, 5}}, 100);
  add({{5, 16}, {6, 7}}, 100);  // 7 entries from 10 to 16: as many as a run would have

  EXPECT_EQ(expect_same(), 0u);
}

TEST_F(LoggedSumTest, ALogIsFilledToItsLastEntry) {
  LoggedEntries half;
  LoggedEntries other;
  for (uint16_t at = 0; at < kLog / 2; ++at) {
    half.indices.push_back(static_cast<uint16_t>(3 * at));
    half.values.push_back(at);
    other.indices.push_back(static_cast<uint16_t>(3 * at + at % 2));
    other.values.push_back(at);
  }
  add(half, 1000);
  add(other, 1000);
  EXPECT_TRUE(own_.is_zero());
  EXPECT_EQ(expect_same(), 0u);
  add(half, 1000);
  add(other, 1000);
  add({{500, 511}, {1, 2}}, 1000);
  EXPECT_FALSE(own_.is_zero());
  EXPECT_EQ(expect_same(), 0u);
}

TEST_F(LoggedSumTest, ALogWhoseSumsMayLeaveTheirRangeIsAddedAsAtOnce) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  // One worker's index in two packets: the sum leaves i32, returns into it, or is the lowest number. Others stay.
  for (const int32_t second : {1, -1, kMost}) {
    add({{3, 9}, {kMost, 1}}, kMost);
    add({{3, 200}, {second, 1}}, kMost);
    EXPECT_EQ(expect_same(), second > 0 ? 1u : 0u) << second;
  }
  add({{3, 9}, {-kMost, 1}}, kMost);
  add({{3, 200}, {-1, 1}}, kMost);
  EXPECT_EQ(expect_same(), 1u);
  // The bound is met, and nothing is omitted; one over the headroom is.
  add({{3, 9}, {kMost / 2, 1}}, kMost / 2);
  add({{3, 200}, {kMost / 2, 1}}, kMost / 2);
  EXPECT_EQ(expect_same(), 0u);
  add({{3, 9}, {kMost / 2 + 1, 1}}, kMost / 2);
  EXPECT_EQ(expect_same(), 1u);
}

TEST_F(LoggedSumTest, ClearDropsLoggedAndAddedEntries) {
  add({{1, 9}, {5, 6}}, 100);
  logged_.clear();
  at_once_.clear();
  EXPECT_EQ(expect_same(), 0u);
  add({{7, 8, 9}, {5, 6, 7}}, 100);
  add({{1, 9}, {5, 1000}}, 100);
  logged_.clear();
  at_once_.clear();
  EXPECT_TRUE(own_.is_zero());
  add({{2, 9}, {5, 6}}, 100);
  EXPECT_EQ(expect_same(), 0u);
}

}  // namespace
}  // namespace millrace::testing
