#include "worker/switch/congestion_control.h"

#include <gtest/gtest.h>

namespace millrace::worker {
namespace {

TEST(RoundTrip, BeginsWithTheInitialTimeoutAndDoublesToTheCap) {
  const RoundTrip trip({.initial_ns = 10, .min_ns = 1, .max_ns = 70});
  EXPECT_EQ(trip.timeout(0), 10);
  EXPECT_EQ(trip.timeout(1), 20);
  EXPECT_EQ(trip.timeout(2), 40);
  EXPECT_EQ(trip.timeout(3), 70);
  EXPECT_EQ(trip.timeout(1000), 70);
}

TEST(RoundTrip, TheTimeoutFollowsMeasuredRoundTrips) {
  RoundTrip trip({.initial_ns = 10 * kNsPerMs, .min_ns = kNsPerUs, .max_ns = kNsPerS});
  trip.sample(kNsPerMs);
  EXPECT_EQ(trip.timeout(0), 3 * kNsPerMs);
  for (int i = 0; i < 100; ++i) trip.sample(2 * kNsPerMs);
  EXPECT_NEAR(static_cast<double>(trip.smoothed()), 2.0 * kNsPerMs, 1000);
  EXPECT_LT(trip.timeout(0), 3 * kNsPerMs);
  EXPECT_GE(trip.timeout(0), trip.smoothed());
}

TEST(RoundTrip, NeverGoesUnderTheMinimum) {
  RoundTrip trip({.initial_ns = 10, .min_ns = 5, .max_ns = 100});
  for (int i = 0; i < 100; ++i) trip.sample(1);
  EXPECT_EQ(trip.timeout(0), 5);
}

TEST(RoundTrip, ExpectsLessWhereFewAreOut) {
  RoundTrip trip({.initial_ns = 77, .min_ns = 1, .max_ns = kNsPerS});
  EXPECT_EQ(trip.expected(1, 64), 77) << "nothing is known";
  trip.sample(kNsPerMs);
  for (int i = 0; i < 200; ++i) trip.sample(9 * kNsPerMs);
  const TimeNs smoothed = trip.smoothed();
  EXPECT_EQ(trip.expected(64, 64), smoothed);
  EXPECT_EQ(trip.expected(0, 64), kNsPerMs);
  EXPECT_EQ(trip.expected(32, 64), kNsPerMs + (smoothed - kNsPerMs) / 2);
  for (int i = 0; i < 2 * 1024; ++i) trip.sample(5 * kNsPerMs);
  EXPECT_EQ(trip.expected(0, 64), 5 * kNsPerMs) << "the least of long ago is forgotten";
}

TEST(CongestionWindow, BeginsWithAllSlotsHalvesAndCreepsUp) {
  CongestionWindow window(8);
  EXPECT_EQ(window.active(), 8u);
  window.backed_off(100, 10);
  EXPECT_EQ(window.active(), 4u);
  for (int i = 0; i < 3; ++i) window.clean_result();
  EXPECT_EQ(window.active(), 4u);
  window.clean_result();
  EXPECT_EQ(window.active(), 5u);
  for (int i = 0; i < 100; ++i) window.clean_result();
  EXPECT_EQ(window.active(), 8u);
}

TEST(CongestionWindow, HalvesOnceInARoundTripAndNotBelowOne) {
  CongestionWindow window(8);
  window.backed_off(100, 10);
  window.backed_off(105, 10);
  EXPECT_EQ(window.active(), 4u);
  for (TimeNs now = 200; now < 300; now += 10) window.backed_off(now, 10);
  EXPECT_EQ(window.active(), 1u);
}

TEST(CongestionWindow, AMarkIsABackOffAndTheNextResultIsNotClean) {
  CongestionWindow window(8);
  window.marked(100, 10);
  window.marked(105, 10);
  EXPECT_EQ(window.active(), 4u);
  for (int i = 0; i < 4; ++i) window.clean_result();
  EXPECT_EQ(window.active(), 4u);
  window.clean_result();
  EXPECT_EQ(window.active(), 5u);
}

TEST(CongestionWindow, ClosesWhereAQuarterOfTheTurnsLosePacketsAndNotWhereFewDo) {
  CongestionWindow few(64);
  for (int turn = 0; turn < 64 * 5; ++turn) {
    few.clean_result();
    if (turn % 6 == 0) few.lost(turn, 1);
  }
  EXPECT_EQ(few.active(), 64u);
  CongestionWindow many(64);
  for (int turn = 0; turn < 64; ++turn) {
    many.clean_result();
    if (turn % 3 == 0) many.lost(turn, 1000);
  }
  EXPECT_EQ(many.active(), 32u);
}

}  // namespace
}  // namespace millrace::worker
