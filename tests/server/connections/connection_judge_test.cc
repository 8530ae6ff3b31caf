#include "server/connections/connection_judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using enum ConnectionJudge::Inbox;

constexpr ConnectionJudge::Limits kJudgeLimits{.unread_each_max = 1'000,
                                               .unread_first_max = 1'000,
                                               .unread_total_max = 2'500,
                                               .silent_max = 10 * kNsPerS,
                                               .without_session_max = 4};

/// A connection without a session.
ConnectionSample sample(int descriptor, TimeNs accepted_at, uint64_t unread, uint32_t messages) {
  return {.descriptor = descriptor, .accepted_at = accepted_at, .unread_bytes = unread, .messages = messages};
}

ConnectionSample with_session(ConnectionSample one) {
  one.has_session = true;
  return one;
}

std::vector<std::string> verdicts(ConnectionJudge& judge, const std::vector<ConnectionSample>& samples, TimeNs now,
                                  ConnectionJudge::Inbox inbox = kDrained) {
  std::vector<std::string> texts;
  for (const auto& verdict : judge.look(samples, inbox, now))
    texts.push_back(std::to_string(verdict.descriptor) + " " + std::string(verdict.why));
  return texts;
}

TEST(ConnectionJudge, AConnectionWithoutASessionIsEndedInTime) {
  ConnectionJudge judge(kJudgeLimits);
  const std::vector<ConnectionSample> samples = {sample(7, 1, 0, 0), sample(8, 1, 0, 9),
                                                 with_session(sample(9, 1, 0, 1))};
  EXPECT_THAT(verdicts(judge, samples, 10 * kNsPerS), IsEmpty());
  EXPECT_THAT(verdicts(judge, samples, 10 * kNsPerS + 1), IsEmpty()) << "its Hello may be on the way";
  EXPECT_THAT(verdicts(judge, samples, 10 * kNsPerS + 1), ElementsAre("7 never_spoke", "8 no_session"));
}

TEST(ConnectionJudge, AHelloGivesAConnectionAnotherTime) {
  ConnectionJudge judge(kJudgeLimits);
  ConnectionSample one = sample(7, 1, 0, 1);
  one.hello_at = 8 * kNsPerS;
  for (int look = 0; look < 3; ++look) EXPECT_THAT(verdicts(judge, {one}, 17 * kNsPerS), IsEmpty());
  verdicts(judge, {one}, 18 * kNsPerS);
  EXPECT_THAT(verdicts(judge, {one}, 18 * kNsPerS), ElementsAre("7 no_session"));
}

TEST(ConnectionJudge, WhileMessagesWaitAGrowingConnectionIsNotSilent) {
  ConnectionJudge judge(kJudgeLimits);
  for (uint64_t look = 0; look < 5; ++look)
    EXPECT_THAT(verdicts(judge, {sample(7, 1, look, 0)}, 20 * kNsPerS, kNotDrained), IsEmpty());
  EXPECT_THAT(verdicts(judge, {sample(7, 1, 4, 0)}, 20 * kNsPerS, kNotDrained), IsEmpty()) << "the first quiet look";
  EXPECT_THAT(verdicts(judge, {sample(7, 1, 4, 0)}, 20 * kNsPerS, kNotDrained), ElementsAre("7 never_spoke"))
      << "a flood of others protects no idle connection";
}

TEST(ConnectionJudge, AnAddressKeepsAFewConnectionsWithoutASession) {
  ConnectionJudge judge(kJudgeLimits);
  std::vector<ConnectionSample> samples;
  for (int at = 0; at < 7; ++at) samples.push_back(sample(10 + at, 1 + at, 0, 0));
  for (ConnectionSample& one : samples) one.address = "192.0.2.1";
  samples[0].hello_at = kNsPerS;
  samples[6] = with_session(samples[6]);
  samples.push_back(sample(20, 1, 0, 0));
  samples.back().address = "192.0.2.2";
  EXPECT_THAT(verdicts(judge, samples, kNsPerS), IsEmpty()) << "they are new";
  for (ConnectionSample& one : samples) ++one.unread_bytes;
  EXPECT_THAT(verdicts(judge, samples, 3 * kNsPerS, kNotDrained), IsEmpty()) << "their Hellos may wait";
  EXPECT_THAT(verdicts(judge, samples, 3 * kNsPerS), ElementsAre("11 too_many_of_address", "12 too_many_of_address"));
}

TEST(ConnectionJudge, LargeMessagesOfMembersAreNoAttack) {
  ConnectionJudge judge(kJudgeLimits);
  std::vector<ConnectionSample> samples;
  for (int at = 0; at < 10; ++at) samples.push_back(with_session(sample(10 + at, 1, 900, 1)));
  for (int look = 0; look < 3; ++look) EXPECT_THAT(verdicts(judge, samples, kNsPerS), IsEmpty());
}

TEST(ConnectionJudge, BeforeItsFirstSessionAConnectionSendsHellosAlone) {
  ConnectionJudge::Limits limits = kJudgeLimits;
  limits.unread_first_max = 100;
  ConnectionJudge judge(limits);
  ConnectionSample evicted = sample(8, 1, 101, 1);
  evicted.was_admitted = true;
  const std::vector<ConnectionSample> samples = {sample(7, 1, 101, 1), evicted, with_session(sample(9, 1, 101, 1)),
                                                 sample(10, 1, 100, 1)};
  EXPECT_THAT(verdicts(judge, samples, kNsPerS), IsEmpty());
  EXPECT_THAT(verdicts(judge, samples, kNsPerS), ElementsAre("7 unfinished_message"));
}

TEST(ConnectionJudge, OneLookOverTheLimitIsNoProof) {
  ConnectionJudge judge(kJudgeLimits);
  EXPECT_THAT(verdicts(judge, {sample(7, 1, 5'000, 1)}, kNsPerS), IsEmpty());
  EXPECT_THAT(verdicts(judge, {sample(7, 1, 5'000, 2)}, kNsPerS), IsEmpty()) << "its message was taken since";
  EXPECT_THAT(verdicts(judge, {sample(7, 1, 5'000, 2)}, kNsPerS), ElementsAre("7 unfinished_message"));
  EXPECT_THAT(verdicts(judge, {sample(7, 1, 9'000, 2)}, kNsPerS), IsEmpty()) << "judged once";
}

TEST(ConnectionJudge, ALargeMessageUnderWayMayTakeItsTime) {
  ConnectionJudge judge(kJudgeLimits);
  for (uint64_t bytes = 10; bytes <= 1'000; bytes += 10)
    EXPECT_THAT(verdicts(judge, {sample(7, 1, bytes, 1)}, kNsPerS), IsEmpty());
  EXPECT_THAT(verdicts(judge, {sample(7, 1, 1'001, 1)}, kNsPerS), IsEmpty());
  EXPECT_THAT(verdicts(judge, {sample(7, 1, 1'001, 1)}, kNsPerS), ElementsAre("7 unfinished_message"));
}

TEST(ConnectionJudge, TheLargestOfManyAreEndedUntilTheRestFits) {
  ConnectionJudge judge(kJudgeLimits);
  const std::vector<ConnectionSample> samples = {sample(5, 1, 700, 1), sample(6, 1, 900, 1), sample(7, 1, 800, 1),
                                                 sample(8, 1, 600, 1)};
  EXPECT_THAT(verdicts(judge, samples, kNsPerS), IsEmpty());
  EXPECT_THAT(verdicts(judge, samples, kNsPerS), ElementsAre("6 unfinished_messages"));
  EXPECT_THAT(verdicts(judge, {sample(5, 1, 700, 1), sample(7, 1, 800, 1), sample(8, 1, 600, 1)}, kNsPerS), IsEmpty());
}

TEST(ConnectionJudge, ANumberThatIsUsedAgainIsAnotherConnection) {
  ConnectionJudge judge(kJudgeLimits);
  EXPECT_THAT(verdicts(judge, {sample(7, 1, 5'000, 0)}, kNsPerS), IsEmpty());
  EXPECT_THAT(verdicts(judge, {sample(7, 2, 5'000, 0)}, kNsPerS), IsEmpty());
  EXPECT_THAT(verdicts(judge, {sample(7, 2, 5'000, 0)}, kNsPerS), ElementsAre("7 unfinished_message"));
}

}  // namespace
}  // namespace millrace::server
