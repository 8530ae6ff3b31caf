#include "server/access/rate_limit.h"

#include <gtest/gtest.h>

#include <limits>

#include "server/access/hello_limit.h"

namespace millrace::server {
namespace {

using protocol::PublicKey;

constexpr auto kPasses = RateLimit::Verdict::kPasses;
constexpr auto kOver = RateLimit::Verdict::kOver;
constexpr auto kFloods = RateLimit::Verdict::kFloods;
constexpr double kNoRate = std::numeric_limits<double>::infinity();

TEST(RateLimit, AKeyWithoutARatePasses) {
  RateLimit limit;
  const PublicKey key = protocol::draw_key_pair().public_key;
  EXPECT_EQ(limit.take(key, uint64_t{1} << 40, 0), kPasses);
  EXPECT_FALSE(limit.knows(key));
  limit.set(key, kNoRate, 0);
  EXPECT_TRUE(limit.knows(key));
  EXPECT_EQ(limit.take(key, uint64_t{1} << 40, 0), kPasses);
  EXPECT_EQ(limit.charge(key, uint64_t{1} << 40, 0), kPasses);
}

TEST(RateLimit, OverALongTimeAKeySendsItsRateAndASecondMore) {
  const PublicKey key = protocol::draw_key_pair().public_key;
  const PublicKey other = protocol::draw_key_pair().public_key;
  RateLimit limit;
  limit.set(key, 1'000, 0);
  uint64_t passed = 0;
  for (TimeNs now = 0; now < 100 * kNsPerS; now += kNsPerMs) passed += limit.take(key, 7, now) == kPasses ? 7 : 0;
  EXPECT_NEAR(static_cast<double>(passed), 101'000, 10);
  EXPECT_EQ(limit.take(other, 1'000'000, 0), kPasses) << "each key has its own";
}

TEST(RateLimit, AMessageLargerThanTheBucketPassesAndDelaysTheNext) {
  const PublicKey key = protocol::draw_key_pair().public_key;
  RateLimit limit;
  limit.set(key, 100, 0);
  EXPECT_EQ(limit.take(key, 1'000, 0), kPasses);
  EXPECT_EQ(limit.take(key, 1, 8 * kNsPerS), kOver);
  EXPECT_EQ(limit.take(key, 1, 10 * kNsPerS), kPasses);
}

TEST(RateLimit, AChargePassesAndDelaysItsKeyForAMinuteAtMost) {
  const PublicKey key = protocol::draw_key_pair().public_key;
  RateLimit limit;
  limit.set(key, 100, 0);
  EXPECT_EQ(limit.charge(key, 1'000'000, 0), kPasses);
  EXPECT_EQ(limit.take(key, 1, 59 * kNsPerS), kOver);
  EXPECT_EQ(limit.take(key, 1, 61 * kNsPerS), kPasses);
}

TEST(RateLimit, AKeyThatIgnoresItsRefusalsFloods) {
  const PublicKey key = protocol::draw_key_pair().public_key;
  RateLimit limit;
  limit.set(key, 1'000, 0);
  EXPECT_EQ(limit.take(key, 2'000, 0), kPasses);  // a debt of 1,000: it may repeat 64 times that and its rate
  const auto sent_until_flood = [&](TimeNs now) {
    int sent = 0;
    while (sent < 1'000 && limit.take(key, 1'000, now) == kOver) ++sent;
    return sent;
  };
  EXPECT_EQ(sent_until_flood(0), 128);
  EXPECT_EQ(limit.charge(key, 1'000, 0), kPasses) << "its heartbeats are no flood";
  EXPECT_EQ(limit.take(key, 2'000, 20 * kNsPerS), kPasses) << "out of debt";
  EXPECT_EQ(sent_until_flood(20 * kNsPerS), 128);
}

TEST(RateLimit, ChargedMessagesFloodByTheirOwnBytes) {
  const PublicKey key = protocol::draw_key_pair().public_key;
  RateLimit limit;
  limit.set(key, 1'000, 0);
  EXPECT_EQ(limit.charge(key, 2'000, 0), kPasses);
  const auto sent_until_flood = [&](TimeNs now) {
    int sent = 0;
    while (sent < 1'000 && limit.charge(key, 1'000, now) == kPasses) ++sent;
    return sent;
  };
  EXPECT_EQ(sent_until_flood(0), 128) << "64 times a debt of 1,000 and the rate";
  EXPECT_EQ(limit.take(key, 1, 0), kFloods) << "all bytes count for a contribution";
  EXPECT_EQ(limit.take(key, 2'000, 61 * kNsPerS), kPasses) << "out of debt";
  EXPECT_EQ(sent_until_flood(61 * kNsPerS), 128);
}

TEST(RateLimit, DueMessagesDelayAndBelongToNoFlood) {
  const PublicKey key = protocol::draw_key_pair().public_key;
  RateLimit limit;
  limit.set(key, 1'000, 0);
  for (int at = 0; at < 1'000; ++at) limit.charge_due(key, 1'000'000, 0);
  EXPECT_EQ(limit.charge(key, 100, 0), kPasses) << "a heartbeat";
  EXPECT_EQ(limit.take(key, 100, 0), kOver) << "a contribution waits";
  EXPECT_EQ(limit.take(key, 100, 59 * kNsPerS), kOver);
  EXPECT_EQ(limit.take(key, 100, 61 * kNsPerS), kPasses);
}

TEST(RateLimit, AnotherRateHoldsAtOnceAndFillsNothing) {
  const PublicKey key = protocol::draw_key_pair().public_key;
  RateLimit limit;
  limit.set(key, 1, 0);
  EXPECT_EQ(limit.take(key, 1'000'000, 0), kPasses);
  limit.set(key, 1, 0);
  EXPECT_EQ(limit.take(key, 1, kNsPerS), kOver) << "the same rate again";
  limit.set(key, kNoRate, kNsPerS);
  EXPECT_EQ(limit.take(key, 1, kNsPerS), kPasses);
  limit.set(key, 1'000, kNsPerS);
  EXPECT_EQ(limit.take(key, 1, kNsPerS), kOver) << "the debt is still there";
  EXPECT_EQ(limit.take(key, 1, 1'002 * kNsPerS), kPasses);
}

TEST(HelloLimit, HellosToTheTableAreBoundedForEachKeyAndRefusedOnesMore) {
  HelloLimit limit;
  const PublicKey key = protocol::draw_key_pair().public_key;
  const PublicKey other = protocol::draw_key_pair().public_key;
  const auto sent = [&](const PublicKey& by, TimeNs now, bool refused) {
    int count = 0;
    for (; count < 10'000 && limit.take(by, now); ++count) {
      if (refused) limit.count_refusal(by, now);
    }
    return count;
  };
  EXPECT_EQ(sent(key, kNsPerS, true), 182) << "2,000 / 11";
  EXPECT_EQ(sent(key, 2 * kNsPerS, false), 200) << "after a second";
  EXPECT_EQ(sent(other, kNsPerS, false), 2'000);
}

}  // namespace
}  // namespace millrace::server
