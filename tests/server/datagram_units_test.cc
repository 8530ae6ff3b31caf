#include "server/datagram_units.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <set>
#include <utility>
#include <vector>

#include "kernels/base/random.h"

namespace millrace::testing {
namespace {

using server::DatagramUnits;
using Verdict = DatagramUnits::Verdict;

constexpr uint64_t kA = 1;
constexpr uint64_t kB = 2;
constexpr uint64_t kC = 4;

DatagramUnits begun(uint64_t live = kA | kB | kC) {
  DatagramUnits units;
  units.begin(live);
  return units;
}

TEST(DatagramUnitsTest, APartialOfAllCompletesTheTurn) {
  DatagramUnits units = begun();
  EXPECT_EQ(units.accept({.fragment = 0, .have = 7, .last = 7}), Verdict::kAccepted);
  EXPECT_TRUE(units.is_complete());
}

TEST(DatagramUnitsTest, AnOverlapIsRefusedWhole) {
  DatagramUnits units = begun();
  EXPECT_EQ(units.accept({.fragment = 0, .have = kA, .last = kA}), Verdict::kAccepted);
  EXPECT_EQ(units.accept({.fragment = 0, .have = 7, .last = 7}), Verdict::kOverlap);
  EXPECT_EQ(units.whole(), kA);
  EXPECT_EQ(units.accept({.fragment = 0, .have = kB, .last = kB}), Verdict::kAccepted);
  EXPECT_EQ(units.accept({.fragment = 0, .have = kC, .last = kC}), Verdict::kAccepted);
  EXPECT_TRUE(units.is_complete());
}

TEST(DatagramUnitsTest, TheSameAgainOverlaps) {
  DatagramUnits units = begun();
  EXPECT_EQ(units.accept({.fragment = 0, .have = kA | kB, .last = kA | kB}), Verdict::kAccepted);
  EXPECT_EQ(units.accept({.fragment = 0, .have = kA | kB, .last = kA | kB}), Verdict::kOverlap);
}

TEST(DatagramUnitsTest, FirstFragmentsAloneCompleteNothing) {
  DatagramUnits units = begun();
  EXPECT_EQ(units.accept({.fragment = 0, .have = 7, .last = kB}), Verdict::kAccepted);
  EXPECT_EQ(units.whole(), kB);
  EXPECT_EQ(units.accept({.fragment = 2, .have = kA | kC, .last = kA}), Verdict::kAccepted);
  EXPECT_EQ(units.whole(), kB);
  EXPECT_EQ(units.accept({.fragment = 1, .have = kA | kC, .last = 0}), Verdict::kAccepted);
  EXPECT_EQ(units.whole(), kA | kB);
  EXPECT_EQ(units.accept({.fragment = 3, .have = kC, .last = kC}), Verdict::kAccepted);
  EXPECT_TRUE(units.is_complete());
}

TEST(DatagramUnitsTest, WorkersThatAreNotLiveAreForeign) {
  DatagramUnits units = begun(kA | kC);
  EXPECT_EQ(units.accept({.fragment = 0, .have = kA | kB, .last = 0}), Verdict::kForeign);
  EXPECT_EQ(units.accept_selected(kB | kC, 5), Verdict::kForeign);
  EXPECT_EQ(units.accept({.fragment = 0, .have = 0, .last = 0}), Verdict::kEmpty);
  EXPECT_EQ(units.accept_selected(0, 5), Verdict::kEmpty);
}

TEST(DatagramUnitsTest, ContradictionsOfLastAreRefused) {
  DatagramUnits units = begun();
  EXPECT_EQ(units.accept({.fragment = 0, .have = kA, .last = kA | kB}), Verdict::kContradicts);
  EXPECT_EQ(units.accept({.fragment = 2, .have = kA, .last = kA}), Verdict::kAccepted);
  EXPECT_EQ(units.accept({.fragment = 1, .have = kA, .last = kA}), Verdict::kContradicts);
  EXPECT_EQ(units.accept({.fragment = 3, .have = kA, .last = 0}), Verdict::kContradicts);
  EXPECT_EQ(units.accept({.fragment = 1, .have = kB, .last = 0}), Verdict::kAccepted);
  EXPECT_EQ(units.accept({.fragment = 0, .have = kB, .last = kB}), Verdict::kContradicts);
}

TEST(DatagramUnitsTest, TheFirstSelectedSumWins) {
  DatagramUnits units = begun();
  EXPECT_EQ(units.accept_selected(kA | kB, 55), Verdict::kAccepted);
  EXPECT_EQ(units.accept_selected(kA | kB, 56), Verdict::kOverlap);
  EXPECT_EQ(units.accept_selected(kA | kB, 55), Verdict::kOverlap);
  EXPECT_EQ(units.accept({.fragment = 0, .have = kA, .last = kA}), Verdict::kOverlap);
  EXPECT_EQ(units.selected_hash(0), 55);
  EXPECT_EQ(units.selected_hash(1), 55);
  EXPECT_EQ(units.selected_hash(2), 0);
  EXPECT_EQ(units.accept({.fragment = 0, .have = kC, .last = kC}), Verdict::kAccepted);
  EXPECT_TRUE(units.is_complete());
}

TEST(DatagramUnitsTest, NoSelectedSumReplacesARawUnit) {
  DatagramUnits units = begun();
  EXPECT_EQ(units.accept({.fragment = 1, .have = kB, .last = 0}), Verdict::kAccepted);
  EXPECT_EQ(units.accept_selected(kA | kB, 55), Verdict::kOverlap);
  EXPECT_EQ(units.selected_hash(1), 0);
}

TEST(DatagramUnitsTest, ANewTurnForgetsAll) {
  DatagramUnits units = begun();
  EXPECT_EQ(units.accept_selected(7, 55), Verdict::kAccepted);
  units.begin(kA | kB);
  EXPECT_FALSE(units.is_complete());
  EXPECT_EQ(units.selected_hash(0), 0);
  EXPECT_EQ(units.accept({.fragment = 0, .have = kA | kB, .last = kA | kB}), Verdict::kAccepted);
  EXPECT_TRUE(units.is_complete());
}

/// Partial sums of any honest units, in any order and number, against a set of units.
TEST(DatagramUnitsTest, EveryUnitIsInOnceWhateverCombinesThem) {
  RandomSequence random(RandomKey::from(3));
  for (int round = 0; round < 2'000; ++round) {
    constexpr uint32_t kWorkers = 4;
    std::array<uint8_t, kWorkers> fragments{};
    for (uint8_t& count : fragments) count = static_cast<uint8_t>(1 + random.next_below(3));
    DatagramUnits units = begun((1 << kWorkers) - 1);
    std::set<std::pair<uint32_t, uint32_t>> in;
    uint32_t total = 0;
    for (const uint8_t count : fragments) total += count;
    for (int packet = 0; in.size() < total; ++packet) {
      ASSERT_LT(packet, 10'000);
      const auto fragment = static_cast<uint8_t>(random.next_below(3));
      uint64_t have = random.next_below(1 << kWorkers);
      // Singles among them: resends go past the switch.
      if (random.next_below(3) == 0) have = uint64_t{1} << random.next_below(kWorkers);
      uint64_t last = 0;
      bool overlaps = false;
      for (uint32_t worker = 0; worker < kWorkers; ++worker) {
        if (fragment >= fragments[worker]) have &= ~(uint64_t{1} << worker);
        if ((have >> worker & 1) == 0) continue;
        if (fragment + 1 == fragments[worker]) last |= uint64_t{1} << worker;
        overlaps = overlaps || in.contains({worker, fragment});
      }
      const Verdict expected = have == 0 ? Verdict::kEmpty : overlaps ? Verdict::kOverlap : Verdict::kAccepted;
      ASSERT_EQ(units.accept({.fragment = fragment, .have = have, .last = last}), expected);
      if (expected != Verdict::kAccepted) continue;
      for (uint64_t left = have; left != 0; left &= left - 1) {
        in.emplace(static_cast<uint32_t>(std::countr_zero(left)), fragment);
      }
      ASSERT_EQ(units.is_complete(), in.size() == total);
    }
  }
}

}  // namespace
}  // namespace millrace::testing
