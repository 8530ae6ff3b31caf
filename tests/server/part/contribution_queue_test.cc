#include "server/part/contribution_queue.h"

#include <gtest/gtest.h>

#include "kernels/stream/stream.h"

/// Mode asynchronous: which contribution's turn it is.
namespace millrace::server {
namespace {

using protocol::Member;
using protocol::SummaryEntry;

OpenContribution open(uint64_t incarnation, uint64_t sequence) {
  OpenContribution open;
  open.incarnation = incarnation;
  open.sequence = sequence;
  open.hash = 100 * incarnation + sequence;
  return open;
}

SummaryEntry counted(uint64_t incarnation, uint64_t sequence) {
  SummaryEntry entry;
  entry.incarnation = incarnation;
  entry.counted_mask = 1;
  entry.sequence = sequence;
  return entry;
}

struct ArrivalsTest : ::testing::Test {
  Admission judge(uint32_t worker, uint64_t incarnation, uint64_t sequence, const SummaryEntry* entry = nullptr) {
    return arrivals.judge(worker, incarnation, sequence, 100 * incarnation + sequence, entry);
  }
  void arrive(uint32_t worker, uint64_t incarnation, uint64_t sequence, const SummaryEntry* entry = nullptr) {
    ASSERT_EQ(judge(worker, incarnation, sequence, entry), Admission::kAdmit);
    arrivals.admit(worker, open(incarnation, sequence), ++now, entry);
  }
  bool decode(uint32_t worker, uint64_t incarnation, uint64_t sequence) {
    return arrivals.decoded(worker, incarnation, sequence, 100 * incarnation + sequence,
                            SharedStream::from(Stream::empty(8)), {});
  }
  void come(uint32_t worker, uint64_t incarnation, uint64_t sequence) {
    arrive(worker, incarnation, sequence);
    ASSERT_TRUE(decode(worker, incarnation, sequence));
  }
  /// Returns "worker/number" of the contribution whose turn it is; empty: none.
  std::string take() {
    const auto arrival = arrivals.take();
    return arrival ? std::to_string(arrival->worker) + "/" + std::to_string(arrival->open.sequence) : "";
  }
  Arrivals arrivals{1};
  TimeNs now = 0;
};

TEST_F(ArrivalsTest, TurnsAreInTheOrderOfArrival) {
  come(2, 1, 0);
  come(0, 1, 0);
  come(2, 1, 1);
  come(1, 1, 0);
  EXPECT_EQ(take(), "2/0");
  EXPECT_EQ(take(), "0/0");
  EXPECT_EQ(take(), "2/1");
  EXPECT_EQ(take(), "1/0");
  EXPECT_EQ(take(), "");
}

TEST_F(ArrivalsTest, WhatOvertookWaitsForTheOneBeforeIt) {
  come(0, 1, 1);
  EXPECT_FALSE(arrivals.any_in_order());
  EXPECT_EQ(take(), "");
  come(1, 1, 0);
  EXPECT_EQ(take(), "1/0") << "no other contribution waits";
  come(0, 1, 0);
  EXPECT_EQ(take(), "0/0");
  EXPECT_EQ(take(), "0/1");
}

TEST_F(ArrivalsTest, ACountedOrQueuedContributionIsNotTakenAgain) {
  come(0, 1, 0);
  EXPECT_EQ(judge(0, 1, 0), Admission::kDuplicate);
  EXPECT_EQ(arrivals.judge(0, 1, 0, 7, nullptr), Admission::kConflict) << "other bytes";
  EXPECT_EQ(take(), "0/0");
  EXPECT_EQ(judge(0, 1, 0), Admission::kDuplicate) << "it is being counted, and in no summary yet";
  const SummaryEntry entry = counted(4, 3);
  EXPECT_EQ(judge(1, 4, 2, &entry), Admission::kDuplicate);
  EXPECT_EQ(judge(1, 4, 3, &entry), Admission::kAdmit);
  EXPECT_EQ(judge(1, 5, 2, &entry), Admission::kAdmit) << "of an incarnation without counted contributions";
}

TEST_F(ArrivalsTest, ASuccessorContinuesAtTheSummarysSequenceNumber) {
  const SummaryEntry entry = counted(4, 3);
  arrive(1, 4, 4, &entry);
  EXPECT_FALSE(arrivals.any_in_order());
  arrive(1, 4, 3, &entry);
  EXPECT_TRUE(decode(1, 4, 3));
  EXPECT_EQ(take(), "1/3");
}

TEST_F(ArrivalsTest, NoWorkerIsFurtherAheadThanStalenessAllows) {
  EXPECT_EQ(judge(0, 1, 2), Admission::kAdmit) << "an empty one may go before two pushes";
  EXPECT_EQ(judge(0, 1, 3), Admission::kAhead);
  come(0, 1, 0);
  EXPECT_EQ(judge(0, 1, 3), Admission::kAhead) << "its turn has not come";
  EXPECT_EQ(take(), "0/0");
  EXPECT_EQ(judge(0, 1, 3), Admission::kAdmit);
  EXPECT_EQ(judge(0, 1, UINT64_MAX), Admission::kAhead);
}

TEST_F(ArrivalsTest, AnUndecodedContributionBlocksThoseBehindIt) {
  arrive(0, 1, 0);
  come(1, 1, 0);
  EXPECT_TRUE(arrivals.any_in_order());
  EXPECT_EQ(take(), "");
  EXPECT_TRUE(decode(0, 1, 0));
  EXPECT_FALSE(decode(0, 1, 0)) << "once";
  EXPECT_EQ(take(), "0/0");
  EXPECT_EQ(take(), "1/0");
}

TEST_F(ArrivalsTest, WhatDoesNotDecodeLeavesItsPlaceEmptyAndHoldsUpOnlyItsOwnLife) {
  arrive(0, 1, 0);
  come(0, 1, 1);
  come(1, 1, 0);
  EXPECT_FALSE(arrivals.reject(0, 1, 0, /*hash=*/7)) << "that one is not here";
  EXPECT_TRUE(arrivals.reject(0, 1, 0, 100));
  EXPECT_EQ(take(), "1/0");
  EXPECT_EQ(take(), "");
  come(0, 1, 0);
  EXPECT_EQ(take(), "0/0");
  EXPECT_EQ(take(), "0/1");
}

TEST_F(ArrivalsTest, ContributionsOfAnEndedIncarnationAreDropped) {
  come(0, 1, 0);
  come(0, 1, 1);
  come(1, 1, 0);
  const std::vector<Member> members = {{.worker = 0, .incarnation = 2}, {.worker = 1, .incarnation = 1}};
  EXPECT_EQ(arrivals.keep(members), 2u);
  EXPECT_EQ(judge(0, 2, 0), Admission::kAdmit);
  come(0, 2, 0);
  EXPECT_EQ(take(), "1/0");
  EXPECT_EQ(take(), "0/0");
  EXPECT_EQ(arrivals.keep({}), 0u);
  EXPECT_FALSE(arrivals.any_in_order());
}

}  // namespace
}  // namespace millrace::server
