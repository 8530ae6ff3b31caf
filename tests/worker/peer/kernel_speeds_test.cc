#include "worker/peer/kernel_speeds.h"

#include <gtest/gtest.h>

#include <vector>

/// Speeds by a clock that the test moves: what a sum takes is what the clock says it takes.
namespace millrace::peer::testing {
namespace {

TEST(KernelSpeeds, AreWhatTheClockSaysOfTheFastestRound) {
  // Pairs of calls: before and after a sum. Sparse rounds take 500, 400, 300, ... us, dense ones 5,000, 4,000, ...
  TimeNs now = 0;
  int calls = 0;
  const auto clock = [&] {
    if (calls % 2 == 1) {
      const int round = calls / 2;
      now += round < 5 ? (5 - round) * 100 * kNsPerUs : (10 - round) * kNsPerMs;
    } else {
      now += 7 * kNsPerS;  // between sums: counts nowhere
    }
    ++calls;
    return now;
  };
  const KernelSpeeds speeds = measure_kernel_speeds(clock);
  EXPECT_EQ(calls, 20);
  EXPECT_DOUBLE_EQ(speeds.add_entry_s, 100e-6 / (2 << 15));
  EXPECT_DOUBLE_EQ(speeds.add_value_s, 1e-3 / (2 << 19));
}

TEST(KernelSpeeds, AClockThatStandsStillSaysNothing) {
  int calls = 0;
  const KernelSpeeds speeds = measure_kernel_speeds([&] {
    ++calls;
    return TimeNs{42};
  });
  EXPECT_EQ(speeds.add_entry_s, 0);
  EXPECT_EQ(speeds.add_value_s, 0);
  EXPECT_EQ(calls, 2) << "one sum is enough to see it";
}

}  // namespace
}  // namespace millrace::peer::testing
