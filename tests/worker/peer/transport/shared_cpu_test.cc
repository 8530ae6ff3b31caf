#include "worker/peer/transport/shared_cpu.h"

#include <gtest/gtest.h>

namespace millrace::peer {
namespace {

constexpr TimeNs kUs = kNsPerUs;

TEST(CoreShare, AThreadThatWakesOnTimeNeedNotSleep) {
  CoreShare share;
  share.woke(10 * kUs, 500 * kUs);
  share.works(10 * kUs, 0);
  EXPECT_EQ(share.rests(710 * kUs, 700 * kUs), 0);
}

TEST(CoreShare, AThreadThatWakesLateSleepsAsLongAsItWorked) {
  CoreShare share;
  share.woke(5'000 * kUs, 3'000 * kUs);
  share.works(5'000 * kUs, 40 * kUs);
  EXPECT_EQ(share.rests(5'700 * kUs, 740 * kUs), 700 * kUs);
  // What others had of the core meanwhile is paid back.
  EXPECT_EQ(share.rests(6'000 * kUs, 740 * kUs), 400 * kUs);
  EXPECT_EQ(share.rests(9'000 * kUs, 740 * kUs), 0);
  // A thread that has worked for long does not sleep for long.
  EXPECT_EQ(share.rests(95'000 * kUs, 90'040 * kUs), 2'000 * kUs);
}

TEST(CoreShare, ForASecondOnly) {
  CoreShare share;
  share.woke(0, 3'000 * kUs);
  share.works(999'000 * kUs, 0);
  EXPECT_EQ(share.rests(999'500 * kUs, 500 * kUs), 500 * kUs);
  share.works(1'000'000 * kUs, 0);
  EXPECT_EQ(share.rests(1'000'500 * kUs, 500 * kUs), 0);
}

}  // namespace
}  // namespace millrace::peer
