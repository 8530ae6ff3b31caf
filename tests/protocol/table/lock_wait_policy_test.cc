#include "protocol/table/lock_wait_policy.h"

#include <gtest/gtest.h>

namespace millrace::protocol {
namespace {

constexpr uint32_t kLockPatienceWaitMs = 20;

TEST(LockWaitPolicy, EveryCallWaitsIfHoldersReleaseTheLock) {
  LockWaitPolicy patience(kLockPatienceWaitMs);
  TimeNs now = 0;
  for (int turn = 0; turn < 100; ++turn) {
    for (uint32_t in_vain = 1; in_vain < LockWaitPolicy::kInVainMax; ++in_vain) {
      ASSERT_EQ(patience.wait_ms(now), kLockPatienceWaitMs) << turn;
      now += kLockPatienceWaitMs * kNsPerMs;
      patience.waited_in_vain(now);
    }
    ASSERT_EQ(patience.wait_ms(now), kLockPatienceWaitMs) << turn;
    patience.had_it();
  }
}

TEST(LockWaitPolicy, AStoppedHolderCostsThreeWaitsAndThenAnEleventhOfTheTime) {
  LockWaitPolicy patience(kLockPatienceWaitMs);
  constexpr TimeNs kCall = 50 * kNsPerUs;  // one that does not wait
  TimeNs now = 0;
  TimeNs waited = 0;
  for (int call = 0; call < 100'000; ++call) {
    const TimeNs wait = patience.wait_ms(now) * kNsPerMs;
    now += kCall + wait;
    waited += wait;
    if (wait != 0) patience.waited_in_vain(now);
    ASSERT_LE(waited, (3 * kLockPatienceWaitMs) * kNsPerMs + now / 11) << call;
  }
  EXPECT_GE(waited, now / 12) << "it may recover";
}

TEST(LockWaitPolicy, CallsWaitAgainAfterOneGotTheLock) {
  LockWaitPolicy patience(kLockPatienceWaitMs);
  for (int in_vain = 0; in_vain < 5; ++in_vain) patience.waited_in_vain(0);
  EXPECT_EQ(patience.wait_ms(1), 0u);
  patience.had_it();
  EXPECT_EQ(patience.wait_ms(1), kLockPatienceWaitMs);
}

}  // namespace
}  // namespace millrace::protocol
